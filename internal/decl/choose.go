package decl

// pairTGMem is the threadgroup memory of a search over a threadgroup: a value and
// its index for each SIMD group.
const pairTGMem = "8*ceildiv(threads,32)"

// argmax declares the greedy choice of a token.
var argmax = Kernel{
	Name:    "argmax",
	Doc:     "tokens[token] = index of the largest logit, the first of equals, NaN never; counts it in the step block and sets its stop flag if it is one of the stop ids. The ring index is clamped.",
	Grid:    [3]string{"1", "1", "1"},
	Require: []string{"n >= 1", "ring >= 1"},
	Bindings: []Binding{
		{Name: "logits", Role: Read, Shape: "[n]", Elem: F32, Extent: "4*n*(parts ? 2 : 1)", Doc: "parts: [n, 2], a float32 and its index, a uint32, indexes in order"},
		{Name: "stops", Role: Read, Shape: "[1+max_stops]", Elem: U32, Extent: "4*(1+max_stops)", Doc: "a count, then the ids"},
		{Name: "tokens", Role: ReadWrite, Shape: "[ring]", Elem: U32, Extent: "4*ring"},
	},
	Params: []Field{
		{"n", U32, "vocabulary, or parts of it"},
		{"ring", U32, "entries of the token ring"},
		{"max_stops", U32, "stop ids that fit"},
	},
	Second: []Second{secondToken},
	Specs:  []Constant{constParts},
	Step:   true,
	TGMem:  pairTGMem,
}

// argmaxPart declares the search for the largest logit of each part.
var argmaxPart = Kernel{
	Name:    "argmax_part",
	Doc:     "out[r, i] = the largest of logits i*part to (i+1)*part - 1 of a row and its index, the first of equals; NaN only if all are.",
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
	Doc: "Compares a draft, tokens[token + 1] and on, with what its rows chose: row r's token, the one with its largest logit, becomes tokens[token + 1 + r] as long as the rows before it have chosen what was drafted and no stop id. " +
		"Counts them in the step block, and moves it to the last of them; its row is the row that chose it, its trust speculate.Trust's Judge of them. At the step block's until it stops. The ring index is clamped.",
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
	Doc: "Drafts what may follow the last token of the ring, that at the step block's token index: what followed the last place before it where the ring has the same most tokens as at its end, or the most that are the same, at least least of them, or 2 more where the step block's trust has failed; " +
		"with tokens of the draft where that comes to the end. As many as trust has earned, draft at most, and none past the step block's until. The step block's rows become 1 more; 1 if there is no such place. speculate.Draft is the same.",
	Grid:    [3]string{"1", "1", "1"},
	Require: []string{"ring >= 1", "ring <= 268435457", "draft < rows", "least >= 1", "least <= most", "most <= 15"},
	Bindings: []Binding{
		{Name: "tokens", Role: ReadWrite, Shape: "[ring]", Elem: U32, Extent: "4*ring"},
	},
	Params: []Field{
		{"ring", U32, "entries of the token ring"},
		{"draft", U32, "largest number of tokens of a draft"},
		{"most", U32, "tokens that are compared"},
		{"least", U32, "tokens that must be the same"},
	},
	Second: []Second{secondRows},
	Step:   true, Advances: true,
	TGMem: reduceTGMem,
}
