package decl

import "slices"

// attnRequire lists the requirements that attn and rope_attn share.
var attnRequire = []string{
	"head_dim >= 1", "kv_heads >= 1", "heads % kv_heads == 0", "heads >= 1",
	"splits >= 1", "splits <= (split ? 1024 : 1)", "!split || span >= 1", "span <= 65536",
	"!windowed || window >= 1", "windowed || context <= cap", "cap >= 1", kvBlocks,
	"head_group >= 1", "head_group <= heads/kv_heads",
}

// rowTGMem is the threadgroup memory of attention of one row: sums of up to four
// heads for each SIMD group.
const rowTGMem = "4*ceildiv(threads,32)*min(head_group,4)*(min(head_dim,256) + 4)"

// attnWorker is the CPU worker's memory for attention: 16 rows of Q, of sums and of
// scores, and the scales of 64 positions.
const attnWorker = "16*(8*head_dim + 256) + (kv == q8_0 ? 8*head_dim : 0)"

// attn declares attention over the cache.
var attn = Kernel{
	Name: "attn",
	Doc:  "Softmax attention of row r over positions max(0, L - window) to L - 1, L = kv_len + r, by online softmax; position p is cache row p mod cap. With split, threadgroup s sees n of them from the s*n-th on, n = max(span, P/2^i rounded up to a multiple of 16), P all that the row sees, 2^i at most splits, and writes its sum, its maximum and its weight; one without positions writes nothing. With learned, the first split has a further score, the head's logit, that has no value. With sinks, row r sees positions 0 to first - 1 too, whose cache rows are theirs alone, with its Q turned by its angles of turn; the others are in the rows behind them. A threadgroup takes head_group heads that share K and V, and row_group rows.",
	Grid: [3]string{"kv_heads*ceildiv(heads/kv_heads, head_group)", "splits", "ceildiv(rows,row_group)"},
	Require: slices.Concat(attnRequire, []string{
		"!windowed || min(context, first+window+rows-1) <= cap",
		"!sinks || windowed && first >= 1 && !split && !tile && 2*half <= head_dim",
		"first <= (sinks ? 65536 : 0)", "first < cap",
		"row_group >= 1", "tile || row_group == 1", "!tile || !split && head_dim <= 128 && head_dim % 16 == 0",
	}),
	Bindings: []Binding{
		{Name: "q", Role: Read, Shape: "[rows, heads, head_dim]", Elem: F32, Extent: "4*((rows-1)*q_stride + heads*head_dim)", Doc: "rows q_stride apart"},
		{Name: "k_cache", Role: Read, Shape: kvShape, Elem: KVType, Extent: kvExtent, Doc: kvDoc},
		{Name: "v_cache", Role: Read, Shape: kvShape, Elem: KVType, Extent: kvExtent, Doc: kvDoc},
		{Name: "out", Role: Write, Shape: "[rows, heads, head_dim]", Elem: F32, Extent: "4*rows*heads*splits*(split ? head_dim+2 : head_dim)", Doc: "split: of each row [heads, splits, head_dim], then [heads, splits, 2], maximum and weight"},
		{Name: "turn", Role: Read, Shape: "[rows, half, 2]", Elem: F32, Extent: "8*rows*half", If: "sinks", Doc: "cosine, sine"},
		{Name: "logits", Role: Read, Shape: "[heads]", Elem: F32, Extent: "4*heads", If: "learned"},
	},
	Params: []Field{
		{"heads", U32, "Q heads"},
		{"kv_heads", U32, "K and V heads"},
		{"q_stride", U32, "elements from one row of q to the next"},
		{"cap", U32, "rows of the cache"},
		{"window", U32, "positions seen, if the constant windowed is 1"},
		{"span", U32, "smallest number of positions of a split"},
		{"splits", U32, "splits, 1 if not split"},
		{"scale", F32, "factor of Q·K"},
		{"head_group", U32, "Q heads that a threadgroup takes"},
		{"row_group", U32, "rows that a threadgroup takes, 1 without tile"},
		{"first", U32, "positions at the start that are seen too, if the constant sinks is 1"},
		{"half", U32, "rotated pairs of a head, if the constant sinks is 1"},
		{"soft_cap", F32, "c of c*tanh(s/c) in place of a score s; 0: none; none with tile"},
	},
	Second:   []Second{secondKVLen, secondRows},
	Specs:    []Constant{constHeadDim, constWindow, constSplit, constTile, constKV, constSinks, constLayout, constLearned},
	Optional: []string{"kv", "first", "half", "layout", "soft_cap", "learned"},
	Worker:   attnWorker + " + (sinks ? 64*head_dim : 0)", // and Q turned
	TGMem:    "(tile ? 2560 + 128*ceildiv(head_dim,64)*((kv == q8_0 ? 132 : 128) + threads) : " + rowTGMem + ") + (sinks ? 4*head_group*head_dim : 0)",
}

// attnMerge declares the merge of attention splits.
var attnMerge = Kernel{
	Name:    "attn_merge",
	Doc:     "Merges the splits of attn or rope_attn of each row and head in order, those that saw a position: out = sum(values * exp(max_s - max)) / sum(weight * exp(max_s - max)).",
	Grid:    [3]string{"heads", "rows", "1"},
	Require: []string{"heads >= 1", "head_dim >= 1", "splits >= 1", "splits <= 1024", "span >= 1", "span <= 65536"},
	Bindings: []Binding{
		{Name: "part", Role: Read, Shape: "[rows, heads, splits, head_dim+2]", Elem: F32, Extent: "4*rows*heads*splits*(head_dim+2)", Doc: "of each row [heads, splits, head_dim], then [heads, splits, 2], maximum and weight"},
		{Name: "out", Role: Write, Shape: "[rows, heads, head_dim]", Elem: F32, Extent: "4*rows*heads*head_dim"},
	},
	Params: []Field{
		{"heads", U32, "Q heads"},
		{"splits", U32, "splits"},
		{"span", U32, "smallest number of positions of a split"},
		{"window", U32, "positions seen; 0: all"},
	},
	Second: []Second{secondKVLen, secondRows},
	Specs:  []Constant{constHeadDim},
	TGMem:  "4*(splits + threads + 2*ceildiv(threads,32))",
}

// ropeAttn declares qk_rope_kv and attn as one command.
var ropeAttn = Kernel{
	Name: "rope_attn",
	Doc:  "qk_rope_kv and attn of one row in one. K and V of the newest position, kv_len - 1, go to cache row (kv_len - 1) mod cap, rounded as the cache stores them; each threadgroup that needs them computes them itself, because the cache does not hold them before the command has ended.",
	Grid: [3]string{"kv_heads", "splits", "ceildiv(shared,head_group)"},
	Require: slices.Concat(attnRequire, []string{
		"!windowed || min(context, window) <= cap", "half >= 1", "2*half <= head_dim", "kv_len >= 1", "kv_heads*shared == heads",
	}),
	Bindings: []Binding{
		{Name: "q", Role: Read, Shape: "[heads, head_dim]", Elem: F32, Extent: "4*heads*head_dim"},
		{Name: "k", Role: Read, Shape: "[kv_heads, head_dim]", Elem: F32, Extent: "4*kv_heads*head_dim"},
		{Name: "v", Role: Read, Shape: "[kv_heads, head_dim]", Elem: F32, Extent: "4*kv_heads*head_dim"},
		{Name: "angles", Role: Read, Shape: "[half, 2]", Elem: F32, Extent: "8*half"},
		{Name: "norm", Role: Read, Shape: "[n]", Elem: F32, Extent: "4*((qk_norm ? 2*head_dim : 0) + (learned ? heads : 0))", If: "qk_norm || learned", Doc: "qk_norm: [2, head_dim], for Q, then K; learned: then [heads], the logits"},
		{Name: "k_cache", Role: ReadWrite, Shape: kvShape, Elem: KVType, Extent: kvExtent, Doc: kvDoc},
		{Name: "v_cache", Role: ReadWrite, Shape: kvShape, Elem: KVType, Extent: kvExtent, Doc: kvDoc},
		{Name: "out", Role: Write, Shape: "[heads, head_dim]", Elem: F32, Extent: "4*heads*splits*(split ? head_dim+2 : head_dim)", Doc: "split: [heads, splits, head_dim], then [heads, splits, 2], maximum and weight"},
	},
	Params: []Field{
		{"heads", U32, "Q heads"},
		{"kv_heads", U32, "K and V heads"},
		{"half", U32, "rotated pairs of a head, at most head_dim/2"},
		{"cap", U32, "rows of the cache"},
		{"window", U32, "positions seen, if the constant windowed is 1"},
		{"span", U32, "smallest number of positions of a split"},
		{"splits", U32, "splits, 1 if not split"},
		{"scale", F32, "factor of Q·K"},
		{"head_group", U32, "Q heads that a threadgroup takes"},
		{"eps", F32, "added to the mean square"},
		{"shared", U32, "Q heads that share K and V: heads/kv_heads"},
		{"soft_cap", F32, "c of c*tanh(s/c) in place of a score s; 0: none"},
	},
	Second:   []Second{secondKVLen, secondBehind},
	Specs:    []Constant{constHeadDim, constWindow, constSplit, constLayout, constQKNorm, constKV, constLearned},
	Optional: []string{"kv", "behind", "soft_cap", "learned"},
	Worker:   attnWorker + " + 8*head_dim", // and a head as float32, with K and V as the cache stores them
	TGMem:    rowTGMem + " + 4*(head_group+2)*head_dim",
}
