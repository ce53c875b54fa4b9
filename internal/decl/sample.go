package decl

// In a pooled table, each sequence has settings and entries of ranks of its own, and row r of a batch uses
// those of the sequence that row record r names. Other programs compute one row.

// Sizes of the sampler's structures.
const (
	settingsExtent = "64 + (pool == 0 ? 0 : (pool-1)*stride)" // sampler.Settings of each sequence
	settingsDoc    = "sampler.Settings"
	rankDoc        = "[20, 2], the most probable token first"
)

// sampleAdjust declares bias and penalties.
var sampleAdjust = Kernel{
	Name:    "sample_adjust",
	Doc:     "keys[i] = sampler.OrderKey of logit i after the sampler's bias and penalties. The penalties apply to the last tokens of the ring up to index token, including the prompt's. largest[p] = the largest key of part p. The logits do not change.",
	Grid:    [3]string{"ceildiv(n,part)", "rows", "1"},
	Require: []string{"n >= 1", "part >= 1", "part <= 2048", "part % 4 == 0", "ring >= 1", "rows <= 1 || sequences == many", pooled},
	Bindings: []Binding{
		{Name: "logits", Role: Read, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n"},
		{Name: "tokens", Role: Read, Shape: "[max(pool, 1), ring]", Elem: U32, Extent: "4*ring*max(pool,1)"},
		{Name: "settings", Role: Read, Shape: "[max(pool, 1)]", Elem: Record, Extent: "64 + 8*max_bias + (pool == 0 ? 0 : (pool-1)*stride)", Doc: settingsDoc + ", then [max_bias, 2]: a token id and its bias as float32; each id occurs once"},
		{Name: "keys", Role: Write, Shape: "[rows, n]", Elem: U32, Extent: "4*rows*n"},
		{Name: "largest", Role: Write, Shape: "[rows, parts]", Elem: U32, Extent: "4*rows*ceildiv(n,part)"},
	},
	Params: []Field{
		{"n", U32, "vocabulary"},
		{"part", U32, "logits of a part"},
		{"ring", U32, "entries of the token ring"},
		{"max_bias", U32, "capacity for biases"},
		fieldPool, fieldStride,
	},
	Second:   []Second{secondLast, secondRows},
	Specs:    []Constant{constSequences},
	Optional: []string{"sequences", "pool", "stride"},
	Worker:   "4*n", // counts
	TGMem:    "8*part + 4*ceildiv(threads,32)",
}

// sampleFilter declares top-k, top-p and min-p.
var sampleFilter = Kernel{
	Name:    "sample_filter",
	Doc:     "Applies the sampler's filters in the order of the constants. Each filter keeps the first tokens in the order by descending key, then ascending id. limit is the last token that all filters keep, and the largest key. Probabilities are rounded to multiples of 2^-31 of the largest one, so that their sums do not depend on the order of addition.",
	Grid:    [3]string{"1", "rows", "1"},
	Require: []string{"n >= 1", "part >= 1", "part % 4 == 0", "rows <= 1 || sequences == many", pooled},
	Bindings: []Binding{
		{Name: "keys", Role: Read, Shape: "[rows, n]", Elem: U32, Extent: "4*rows*n", Doc: "written by sample_adjust"},
		{Name: "largest", Role: Read, Shape: "[rows, parts]", Elem: U32, Extent: "4*rows*ceildiv(n,part)", Doc: "written by sample_adjust"},
		{Name: "settings", Role: Read, Shape: "[max(pool, 1)]", Elem: Record, Extent: settingsExtent, Doc: settingsDoc},
		{Name: "limit", Role: Write, Shape: "[rows, 4]", Elem: U32, Extent: "16*rows", Doc: "key and id of the last kept token, largest key, 0"},
	},
	Params: []Field{
		{"n", U32, "vocabulary"},
		{"part", U32, "keys of a part"},
		fieldPool, fieldStride,
	},
	Second:   []Second{secondRows},
	Specs:    []Constant{constStage1, constStage2, constStage3, constStage4, constSequences},
	Optional: []string{"sequences", "pool", "stride"},
	Worker:   "4*n + 4112*12 + 204*ceildiv(n,2048)", // a probability per key, a list of candidates, and surveys of the keys
	TGMem:    "25600",
}

// sampleDraw declares the draw of a token.
var sampleDraw = Kernel{
	Name:    "sample_draw",
	Doc:     "out[p] = the kept token of part p with the largest score, and its score; the score is NaN if part p has no kept token. score = -ln(E) - (largest - logit)/temperature, where E = -ln(1 - v) and v is made of 64 bits of Philox4x32-10 with the seed as key and (id, token + 1, 0, 0) as counter. With temperature 0, the score is the logit.",
	Grid:    [3]string{"ceildiv(n,part)", "rows", "1"},
	Require: []string{"n >= 1", "part >= 1", "part % 4 == 0", "rows <= 1 || sequences == many", pooled},
	Bindings: []Binding{
		{Name: "keys", Role: Read, Shape: "[rows, n]", Elem: U32, Extent: "4*rows*n", Doc: "written by sample_adjust"},
		{Name: "limit", Role: Read, Shape: "[rows, 4]", Elem: U32, Extent: "16*rows", Doc: "written by sample_filter"},
		{Name: "settings", Role: Read, Shape: "[max(pool, 1)]", Elem: Record, Extent: settingsExtent, Doc: settingsDoc},
		{Name: "out", Role: Write, Shape: "[rows, parts]", Elem: Scored, Extent: "8*rows*ceildiv(n,part)"},
	},
	Params: []Field{
		{"n", U32, "vocabulary"},
		{"part", U32, "keys of a part"},
		fieldPool, fieldStride,
	},
	Second:   []Second{secondLast, secondRows},
	Specs:    []Constant{constSequences},
	Optional: []string{"sequences", "pool", "stride"},
	TGMem:    pairTGMem,
}

// rankPart declares the search for the most probable tokens of each part.
var rankPart = Kernel{
	Name:    "rank_part",
	Doc:     "out[p] = the max(1, settings.ranked) most probable tokens of part p according to the model's logits, and the sum of 2^39 * e^(logit - the part's largest logit) over the part, each term rounded down to an integer. An entry with key 0 has no token.",
	Grid:    [3]string{"ceildiv(n,part)", "rows", "1"},
	Require: []string{"n >= 1", "part >= 1", "part <= 2048", "rows <= 1 || sequences == many", pooled},
	Bindings: []Binding{
		{Name: "logits", Role: Read, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n"},
		{Name: "settings", Role: Read, Shape: "[max(pool, 1)]", Elem: Record, Extent: settingsExtent, Doc: settingsDoc},
		{Name: "out", Role: Write, Shape: "[rows, parts]", Elem: Record, Extent: "168*rows*ceildiv(n,part)", Doc: "42 uint32: the sum, low and high; sampler.OrderKey and id " + rankDoc},
	},
	Params: []Field{
		{"n", U32, "vocabulary"},
		{"part", U32, "logits of a part"},
		fieldPool, fieldStride,
	},
	Second:   []Second{secondRows},
	Specs:    []Constant{constSequences},
	Optional: []string{"sequences", "pool", "stride"},
	TGMem:    pairTGMem,
}

// rank declares the log-probabilities of a chosen token and of the most probable tokens.
var rank = Kernel{
	Name:    "rank",
	Doc:     "ranks[(token + 1) mod entries] = the token that argmax will choose from drawn, and the most probable tokens, each with the natural logarithm of its softmax probability under the model's logits.",
	Grid:    [3]string{"1", "rows", "1"},
	Require: []string{"n >= 1", "part >= 1", "part <= 2048", "pairs >= 1", "entries >= 1", "rows <= 1 || sequences == many", pooled},
	Bindings: []Binding{
		{Name: "logits", Role: Read, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n"},
		{Name: "parts", Role: Read, Shape: "[rows, parts]", Elem: Record, Extent: "168*rows*ceildiv(n,part)", Doc: "42 uint32, written by rank_part"},
		{Name: "drawn", Role: Read, Shape: "[rows, pairs]", Elem: Scored, Extent: "8*rows*pairs"},
		{Name: "settings", Role: Read, Shape: "[max(pool, 1)]", Elem: Record, Extent: settingsExtent, Doc: settingsDoc},
		{Name: "ranks", Role: ReadWrite, Shape: "[max(pool, 1), entries]", Elem: Record, Extent: "168*entries*max(pool,1)", Doc: "42 words: id and float32 log-probability of the chosen token, then id and float32 log-probability " + rankDoc + "; 0 if there is no token"},
	},
	Params: []Field{
		{"n", U32, "vocabulary"},
		{"part", U32, "logits in each part of the binding parts"},
		{"pairs", U32, "elements of drawn"},
		{"entries", U32, "entries of ranks"},
		fieldPool, fieldStride,
	},
	Second:   []Second{secondLast, secondRows},
	Specs:    []Constant{constSequences},
	Optional: []string{"sequences", "pool", "stride"},
	TGMem:    pairTGMem,
}
