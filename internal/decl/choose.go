package decl

// pairTGMem is the threadgroup memory of a search by a threadgroup, in bytes: a value and its index
// per SIMD group.
const pairTGMem = "8*ceildiv(threads,32)"

// argmax declares the greedy choice of a token.
var argmax = Kernel{
	Name:    "argmax",
	Doc:     "tokens[token] = the index of the largest logit, the lowest index among equal logits; NaN is never chosen. The kernel increments the count in the step block, and sets its stop flag if the chosen token is one of stops. The index in the ring is clamped. In a pooled table, tokens and stops are those of the sequence that the step record names.",
	Grid:    [3]string{"1", "1", "1"},
	Require: []string{"n >= 1", "ring >= 1", "sequences != many", pooled},
	Bindings: []Binding{
		{Name: "logits", Role: Read, Shape: "[n]", Elem: F32, Extent: "4*n*(parts ? 2 : 1)", Doc: "with parts, [n, 2]: a float32 and its uint32 index, sorted by index"},
		{Name: "stops", Role: Read, Shape: "[max(pool, 1), 1+max_stops]", Elem: U32, Extent: "4*(1+max_stops)*max(pool,1)", Doc: "a count, then the ids"},
		{Name: "tokens", Role: ReadWrite, Shape: "[max(pool, 1), ring]", Elem: U32, Extent: "4*ring*max(pool,1)"},
	},
	Params: []Field{
		{"n", U32, "size of the vocabulary, or its number of parts"},
		{"ring", U32, "entries of the token ring"},
		{"max_stops", U32, "stop ids that fit"},
		fieldPool,
	},
	Second:   []Second{secondToken},
	Specs:    []Constant{constParts, constSequences},
	Optional: []string{"sequences", "pool"},
	Step:     true,
	TGMem:    pairTGMem,
}

// chooseRows declares the choice of a token for each row of a batch.
var chooseRows = Kernel{
	Name: "choose_rows",
	Doc: "For each row r that has not stopped: tokens[s, t + 1] = the best of parts, as argmax chooses it, where row record r names the sequence s and the token index t. " +
		"The kernel advances the row record by one position and counts the token there and in the step block. It sets the record's stop flag if the token is one of the sequence's stops, or if the token index has reached until. It sets the step block's stop flag if all rows have stopped. Indices are clamped.",
	Grid:    [3]string{"1", "1", "1"},
	Require: []string{"parts >= 1", "ring >= 1", "sequences == many", "pool >= 1", "rows >= 1"},
	Bindings: []Binding{
		{Name: "best", Role: Read, Shape: "[rows, parts]", Elem: Scored, Extent: "8*rows*parts", Doc: "written by argmax_part or sample_draw"},
		{Name: "stops", Role: Read, Shape: "[pool, 1+max_stops]", Elem: U32, Extent: "4*(1+max_stops)*pool", Doc: "a count, then the ids"},
		{Name: "tokens", Role: ReadWrite, Shape: "[pool, ring]", Elem: U32, Extent: "4*ring*pool"},
	},
	Params: []Field{
		{"parts", U32, "parts of the vocabulary"},
		{"ring", U32, "entries of the token ring"},
		{"max_stops", U32, "stop ids that fit"},
		fieldPool,
	},
	Second: []Second{secondRows},
	Specs:  []Constant{constSequences},
	Step:   true,
	TGMem:  pairTGMem,
}

// argmaxPart declares the search for the largest logit of each part.
var argmaxPart = Kernel{
	Name:    "argmax_part",
	Doc:     "out[r, i] = the largest of the logits i*part to (i+1)*part - 1 of row r, and its index, the lowest among equal logits. It is NaN only if all of them are NaN.",
	Grid:    [3]string{"ceildiv(n,part)", "rows", "1"},
	Require: []string{"n >= 1", "part >= 1", "part % 4 == 0"},
	Bindings: []Binding{
		{Name: "logits", Role: Read, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n"},
		{Name: "out", Role: Write, Shape: "[rows, parts]", Elem: Scored, Extent: "8*rows*ceildiv(n,part)"},
	},
	Params: []Field{
		{"n", U32, "vocabulary"},
		{"part", U32, "logits of a part"},
	},
	Second: []Second{secondRows},
	TGMem:  pairTGMem,
}

// accept declares the comparison of a draft with the model's choices.
var accept = Kernel{
	Name: "accept",
	Doc: "Compares a draft, the tokens from tokens[token + 1] on, with the tokens that its rows choose. Row r chooses the token with its largest logit, which becomes tokens[token + 1 + r] if all rows before it have chosen the drafted token and no stop id. " +
		"The kernel advances the step block by the chosen tokens: it updates count, drafted and accepted, sets row to the row that chose the last token, and trust to the result of speculate.Trust.Judge. It sets the stop flag at a stop id or when the token index reaches until. The index in the ring is clamped.",
	Grid:    [3]string{"1", "1", "1"},
	Require: []string{"parts >= 1", "ring >= 1", "rows >= 1", "rows <= max_rows", "max_rows <= 1024"},
	Bindings: []Binding{
		{Name: "best", Role: Read, Shape: "[rows, parts]", Elem: Scored, Extent: "8*rows*parts", Doc: "written by argmax_part"},
		{Name: "stops", Role: Read, Shape: "[1+max_stops]", Elem: U32, Extent: "4*(1+max_stops)", Doc: "a count, then the ids"},
		{Name: "tokens", Role: ReadWrite, Shape: "[ring]", Elem: U32, Extent: "4*ring"},
	},
	Params: []Field{
		{"parts", U32, "parts of the vocabulary"},
		{"ring", U32, "entries of the token ring"},
		{"max_stops", U32, "stop ids that fit"},
		{"max_rows", U32, "largest number of rows"},
	},
	Second: []Second{secondToken, secondRows},
	Step:   true, Advances: true,
	TGMem: "8*max_rows",
}

// draft declares the search for a draft in the context.
var draft = Kernel{
	Name: "draft",
	Doc: "Drafts the tokens after the step block's token index, like speculate.Draft. It finds the earlier place in the ring that matches the longest sequence of last tokens, at most most of them and the newest place among equals, and copies the tokens that follow it. If these reach the end of the ring's tokens, the copy continues with the drafted ones. " +
		"There is no draft if fewer than least tokens match, or fewer than least + 2 after a failed draft. Its length is limited by draft, by the step block's trust and by its until. The step block's rows become the number of drafted tokens plus 1.",
	Grid:    [3]string{"1", "1", "1"},
	Require: []string{"ring >= 1", "ring <= 268435457", "draft < rows", "least >= 1", "least <= most", "most <= 15"},
	Bindings: []Binding{
		{Name: "tokens", Role: ReadWrite, Shape: "[ring]", Elem: U32, Extent: "4*ring"},
	},
	Params: []Field{
		{"ring", U32, "entries of the token ring"},
		{"draft", U32, "largest number of tokens in a draft"},
		{"most", U32, "largest number of tokens to compare"},
		{"least", U32, "smallest number of matching tokens"},
	},
	Second: []Second{secondRows},
	Step:   true, Advances: true,
	TGMem: reduceTGMem,
}
