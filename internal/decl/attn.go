package decl

import "slices"

// attnRequire lists the requirements that attn and rope_attn share.
var attnRequire = []string{
	"head_dim >= 1", "kv_heads >= 1", "heads % kv_heads == 0", "heads >= 1",
	"splits >= 1", "splits <= (split ? 1024 : 1)", "!split || span >= 1", "span <= 65536",
	"!windowed || window >= 1", "cap >= 1", kvBlocks,
	"head_group >= 1", "head_group <= heads/kv_heads",
}

// rowTGMem is the threadgroup memory of attention for one row, in bytes: the sums of up to four heads
// per SIMD group.
const rowTGMem = "4*ceildiv(threads,32)*min(head_group,4)*(min(head_dim,256) + 4)"

// attnWorker is the memory of a CPU worker for attention, in bytes: 32 rows each of Q, sums and
// scores, and the scales of 64 positions.
const attnWorker = "32*(8*head_dim + 256) + (kv == q8_0 ? 8*head_dim : 0)"

// attnOrder are the numbers that determine the order of sums of attn and rope_attn.
var attnOrder = []string{"threads", "splits", "span"}

// attn declares attention over the cache.
var attn = Kernel{
	Name: "attn",
	Doc:  "Softmax attention of row r over the positions max(0, L - window) to L - 1, where L = kv_len + r, by online softmax. Position p is in cache row p mod cap. With split, threadgroup s processes the n positions from s*n on, where n = max(span, P/2^i rounded up to a multiple of 16), P is the number of visible positions, and 2^i is the largest power of two up to splits. It writes the weighted sum of V, the largest score and the sum of weights, or nothing if it has no positions. With learned, the first split includes the head's learned sink logit as a score without a value. With sinks, row r also attends to positions 0 to first - 1, with Q rotated by the angles in turn. These positions keep the cache rows 0 to first - 1, and the other positions share the rows after them. A threadgroup computes head_group heads that share K and V. " + pagedDoc + " With sequences == many, L is the KV length of row record r, and nothing is computed for a row that has stopped.",
	Grid: [3]string{"kv_heads*ceildiv(heads/kv_heads, head_group)", "splits", "rows"},
	Require: slices.Concat(attnRequire, []string{
		"sequences != own || windowed || context <= cap", "sequences != own || !windowed || min(context, first+window+rows-1) <= cap", pooledCache,
		"!sinks || windowed && first >= 1 && !split && 2*half <= head_dim",
		"first <= (sinks ? 65536 : 0)", "first < cap",
	}),
	Bindings: []Binding{
		{Name: "q", Role: Read, Shape: "[rows, heads, head_dim]", Elem: F32, Extent: "4*((rows-1)*q_stride + heads*head_dim)", Doc: "rows q_stride apart"},
		{Name: "k_cache", Role: Read, Shape: kvShape, Elem: KVType, Extent: kvExtent, Doc: kvDoc},
		{Name: "v_cache", Role: Read, Shape: kvShape, Elem: KVType, Extent: kvExtent, Doc: kvDoc},
		{Name: "out", Role: Write, Shape: "[rows, heads, head_dim]", Elem: F32, Extent: "4*rows*heads*splits*(split ? head_dim+2 : head_dim)", Doc: "with split, each row has [heads, splits, head_dim] sums, then [heads, splits, 2]: largest score and sum of weights"},
		{Name: "turn", Role: Read, Shape: "[rows, half, 2]", Elem: F32, Extent: "8*rows*half", If: "sinks", Doc: "cosine and sine"},
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
		{"first", U32, "number of attention sinks, the positions 0 to first - 1, if the constant sinks is 1"},
		{"half", U32, "rotated pairs of a head if the constant sinks is 1"},
		{"soft_cap", F32, "c, if a score s becomes c*tanh(s/c); 0 means no cap"},
		fieldTables, fieldTable, fieldPool,
	},
	Second:   []Second{secondKVLen, secondRows},
	Specs:    []Constant{constHeadDim, constWindow, constSplit, constKV, constSinks, constLayout, constLearned, constSequences},
	Optional: []string{"kv", "first", "half", "layout", "soft_cap", "learned", "sequences", "tables", "table", "pool"},
	Worker:   attnWorker + " + (sinks ? 128*head_dim : 0)", // with sinks, also 32 rows of rotated Q
	TGMem:    rowTGMem + " + (sinks ? 4*head_group*head_dim : 0)",
	Order:    attnOrder,
}

// matrixTGMem is the threadgroup memory of attn_tile with float32 weights, in bytes: a tile of K or V
// with 32 or 16 positions, their scores for each pair and, if heads are large, Q of each pair.
const matrixTGMem = "(head_dim <= 128 ? 64*(head_dim + 8) + 2304*units : 32*(head_dim + 8) + 64*units*(head_dim + 24))"

// attnHalves is the extent of the results of attention as rows of float16.
const attnHalves = "(few == 1 ? " + fewRows + " : rows)*(2*heads*head_dim + 128)"

// attnTile declares attention over the cache for the rows of a chunk.
var attnTile = Kernel{
	Name: "attn_tile",
	Doc:  "attn for many rows, by matrix products. If act is f16 or f16x2, Q and the weights are rounded to one float16 or to the sum of two; if it is f32, they stay float32. The values of a q8_0 cache are rounded to one float16. The pairs of a row and a Q head that share K and V are divided, heads first, into units of 64, or of 16 if act is f32. A threadgroup computes consecutive units, the last rows first; with sequences == many, those of one row or of rows that follow each other in a sequence, as those of a prompt do, and nothing for a row that has stopped. Threads of 128 compute a unit of 64; if there are more, they divide its positions. With segments, the sums of up to four segments of the positions of a row are joined in order if heads have up to 128 elements: a segment has a quarter of the positions, at least 512, and a whole number of steps of 128. With halves, the result is the input of gemm_halves or gemm_few: V is float16, and so is its mean but for rounding. Only NVIDIA GPUs have the kernel for f16 and f16x2, and only Apple GPUs that for f32.",
	Grid: [3]string{"kv_heads", "sequences == many ? (joined == 1 ? ceildiv(rows, max(1, 64*units/(heads/kv_heads))) : rows)*ceildiv(heads/kv_heads,(act == f32 ? 16 : 64)*units) : ceildiv(rows*(heads/kv_heads),(act == f32 ? 16 : 64)*units)", "1"},
	Require: []string{
		"head_dim >= 16", "head_dim <= 256", "head_dim % 16 == 0", "kv_heads >= 1", "heads % kv_heads == 0", "heads >= 1",
		"!windowed || window >= 1", "sequences != own || windowed || context <= cap", "sequences != own || !windowed || min(context, window+rows-1) <= cap", "cap >= 1", kvBlocks, pooledCache,
		"act == f16 || act == f16x2 || act == f32", "units >= 1",
		"act == f32 || units <= 2", "act == f32 || threads == 128 || threads == 256", "act == f32 || threads >= 128*units",
		"!halves || act == f16 && heads*head_dim % 64 == 0", "few == 0 || few == 1 && halves && rows <= 64",
		"act == f32 || slots >= 2", "slots <= (act == f32 ? 0 : 4)", "!segments || act == f16",
		"act != f32 || units == (head_dim <= 64 ? 4 : head_dim <= 128 ? 2 : 1)", "act != f32 || threads == (head_dim <= 128 ? 128 : 64)", joinedRows, "joined == 0 || act != f32",
	},
	Bindings: slices.Concat(attn.Bindings[:3], []Binding{
		{Name: "out", Role: Write, Shape: "[rows, heads, head_dim]", Elem: F32, Extent: "4*rows*heads*head_dim", If: "!halves"},
		attn.Bindings[5], // logits
		{Name: "halves", Role: Write, Shape: "[rows]", Elem: Record, Extent: attnHalves, If: "halves", Doc: "a row of heads*head_dim columns as the kernel halves writes it, with the unit 1; if few is 1, " + fewDoc},
	}),
	Params: slices.Concat(attn.Params[:5], []Field{ // heads to window
		{"scale", F32, "factor of Q·K"},
		{"soft_cap", F32, "c, if a score s becomes c*tanh(s/c); 0 means no cap"},
		{"units", U32, "units of 64 or 16 pairs that a threadgroup computes, up to 2 or 4"},
		{"slots", U32, "if act is not f32, steps of positions that threadgroup memory holds, 2 to 4; one is multiplied while the others are copied"},
		fieldTables, fieldTable, fieldPool,
		{"few", U32, "1: write rows of float16 in the order of gemm_few, else 0"},
		fieldJoined,
	}),
	Second:   []Second{secondKVLen, secondRows},
	Specs:    []Constant{constHeadDim, constWindow, constKV, constLearned, constAct, constSequences, constHalves, constSegments},
	Optional: []string{"sequences", "tables", "table", "pool", "halves", "few", "joined", "segments"},
	Worker:   attnWorker,
	TGMem:    "act == f32 ? " + matrixTGMem + " : 1024 + 8192*ceildiv(head_dim,64)*((act == f16 ? 1 : 2)*units + 2*slots*(threads/(128*units))) + (segments && head_dim <= 128 ? 16*threads*(8*ceildiv(head_dim,64)+1) : 0)",
	Chunk:    true,
	Order:    []string{"act == f32 ? 1 : threads/(128*units)"}, // SIMD groups that divide the positions of a row
}

// attnChunk declares attention within chunks of positions.
var attnChunk = Kernel{
	Name: "attn_chunk",
	Doc:  "attn over the positions c*window to L - 1, where c*window is the last multiple of window that is less than L: a row sees the positions of its own chunk.",
	Grid: [3]string{"kv_heads*ceildiv(heads/kv_heads, head_group)", "1", "rows"},
	Require: []string{
		"head_dim >= 1", "kv_heads >= 1", "heads % kv_heads == 0", "heads >= 1", "windowed", "window >= 1", "cap >= 1", kvBlocks, pooledCache,
		"head_group >= 1", "head_group <= heads/kv_heads", "sequences != own || min(context, window+rows-1) <= cap",
	},
	Bindings: slices.Concat(attn.Bindings[:3], []Binding{
		{Name: "out", Role: Write, Shape: "[rows, heads, head_dim]", Elem: F32, Extent: "4*rows*heads*head_dim"},
		attn.Bindings[5], // logits
	}),
	Params: slices.Concat(attn.Params[:5], []Field{ // heads to window
		{"scale", F32, "factor of Q·K"},
		{"head_group", U32, "Q heads that a threadgroup takes"},
		{"soft_cap", F32, "c, if a score s becomes c*tanh(s/c); 0 means no cap"},
		fieldTables, fieldTable, fieldPool,
	}),
	Second:   []Second{secondKVLen, secondRows},
	Specs:    []Constant{constHeadDim, constWindow, constKV, constLearned, constSequences},
	Optional: []string{"soft_cap", "learned", "sequences", "tables", "table", "pool"},
	Worker:   attnWorker,
	TGMem:    rowTGMem,
	Order:    []string{"threads"},
}

// attnMerge declares the merge of attention splits.
var attnMerge = Kernel{
	Name:    "attn_merge",
	Doc:     "Merges the splits that attn or rope_attn wrote for each row and head, in order: out = sum(values_s * exp(max_s - max)) / sum(weight_s * exp(max_s - max)), where s runs over the splits with at least one position and max is the largest max_s.",
	Grid:    [3]string{"heads", "rows", "1"},
	Require: []string{"heads >= 1", "head_dim >= 1", "splits >= 1", "splits <= 1024", "span >= 1", "span <= 65536"},
	Bindings: []Binding{
		{Name: "part", Role: Read, Shape: "[rows, heads, splits, head_dim+2]", Elem: F32, Extent: "4*rows*heads*splits*(head_dim+2)", Doc: "each row has [heads, splits, head_dim] values, then [heads, splits, 2]: max and weight"},
		{Name: "out", Role: Write, Shape: "[rows, heads, head_dim]", Elem: F32, Extent: "4*rows*heads*head_dim"},
	},
	Params: []Field{
		{"heads", U32, "Q heads"},
		{"splits", U32, "splits"},
		{"span", U32, "smallest number of positions of a split"},
		{"window", U32, "visible positions; 0 means all"},
	},
	Second: []Second{secondKVLen, secondRows},
	Specs:  []Constant{constHeadDim},
	TGMem:  "4*(splits + threads + 2*ceildiv(threads,32))",
}

// ropeAttn declares qk_rope_kv and attn as one command.
var ropeAttn = Kernel{
	Name: "rope_attn",
	Doc:  "Fuses qk_rope_kv and attn for one row. It writes K and V of the newest position, kv_len - 1, to cache row (kv_len - 1) mod cap, rounded to the type of the cache. Every threadgroup that reads them computes them itself, because other threadgroups may write the cache later.",
	Grid: [3]string{"kv_heads", "splits", "ceildiv(shared,head_group)"},
	Require: slices.Concat(attnRequire, []string{
		"windowed || context <= cap", "!windowed || min(context, window) <= cap", "half >= 1", "2*half <= head_dim", "kv_len >= 1", "kv_heads*shared == heads",
		"ahead % 16 == 0", "ahead <= 65536", settledFlag,
	}),
	Bindings: []Binding{
		{Name: "q", Role: Read, Shape: "[heads, head_dim]", Elem: F32, Extent: "4*heads*head_dim"},
		{Name: "k", Role: Read, Shape: "[kv_heads, head_dim]", Elem: F32, Extent: "4*kv_heads*head_dim"},
		{Name: "v", Role: Read, Shape: "[kv_heads, head_dim]", Elem: F32, Extent: "4*kv_heads*head_dim"},
		{Name: "angles", Role: Read, Shape: "[half, 2]", Elem: F32, Extent: "8*half"},
		{Name: "norm", Role: Read, Shape: "[n]", Elem: F32, Extent: "4*((qk_norm ? 2*head_dim : 0) + (learned ? heads : 0))", If: "qk_norm || learned", Doc: "with qk_norm, [2, head_dim] weights for Q and for K; with learned, then [heads] sink logits"},
		{Name: "k_cache", Role: ReadWrite, Shape: kvShape, Elem: KVType, Extent: kvExtent, Doc: kvDoc},
		{Name: "v_cache", Role: ReadWrite, Shape: kvShape, Elem: KVType, Extent: kvExtent, Doc: kvDoc},
		{Name: "out", Role: Write, Shape: "[heads, head_dim]", Elem: F32, Extent: "4*heads*splits*(split ? head_dim+2 : head_dim)", Doc: "with split, [heads, splits, head_dim] sums, then [heads, splits, 2]: largest score and sum of weights"},
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
		{"soft_cap", F32, "c, if a score s becomes c*tanh(s/c); 0 means no cap"},
		{"ahead", U32, "bytes of threadgroup memory per SIMD group for prefetched K and V, a multiple of 16; 0 means they are loaded to registers"},
		fieldSettled,
	},
	Settled:  []string{"k_cache", "v_cache"},
	Second:   []Second{secondKVLen, secondBehind},
	Specs:    []Constant{constHeadDim, constWindow, constSplit, constLayout, constQKNorm, constKV, constLearned},
	Optional: []string{"kv", "behind", "soft_cap", "learned", "ahead", "settled"},
	Order:    attnOrder,
	Worker:   attnWorker + " + 8*head_dim", // also a head as float32, and K and V in the type of the cache
	TGMem:    "max(" + rowTGMem + ", ceildiv(threads,32)*ahead) + 4*(head_group+2)*head_dim",
}

// ropeAttnTile declares qk_rope_kv and attn_tile as one command.
var ropeAttnTile = Kernel{
	Name: "rope_attn_tile",
	Doc:  "Fuses qk_rope_kv and attn_tile with act == f16 and halves, for one row or for rows of different sequences; nothing is computed for rows that are not the only ones of their sequence. A threadgroup, or a cluster of them, computes the heads of a row that share K and V, and also K and V of the row's own position, which no threadgroup reads from the cache. Heads of up to 128 elements divide the positions of a row into segments, and each segment into two parts, as attn_tile does with 256 threads; larger heads divide them only among each 128 threads. The threadgroups of a cluster compute different parts, and the 128 or 256 threads of a threadgroup one or two at once. A row has the bits of attn_tile.",
	Grid: [3]string{"kv_heads*cluster", "rows", "1"},
	Require: []string{
		"head_dim % 64 == 0", "head_dim >= 64", "head_dim <= 256", "kv_heads >= 1", "heads % kv_heads == 0", "heads >= 1", "heads/kv_heads <= 16",
		"half >= 1", "2*half <= head_dim", "kv_len >= 1", "sequences == many || rows == 1", "few == 0 || few == 1 && rows <= 64",
		"!windowed || window >= 1", "sequences != own || windowed || context <= cap", "sequences != own || !windowed || min(context, window) <= cap", "cap >= 1", kvBlocks, pooledCache,
		"threads == 128 || threads == 256", "slots >= 1", "slots <= 4", settledFlag,
		"cluster == 1 || head_dim <= 128 && (cluster == 2 || cluster == 4 || cluster == 8 && threads == 128)",
	},
	Bindings: []Binding{
		qkRopeKV.Bindings[0],
		{Name: "k", Role: Read, Shape: "[rows, kv_heads, head_dim]", Elem: F32, Extent: "4*((rows-1)*kv_stride + kv_heads*head_dim)", Doc: "rows kv_stride apart"},
		{Name: "v", Role: Read, Shape: "[rows, kv_heads, head_dim]", Elem: F32, Extent: "4*((rows-1)*kv_stride + kv_heads*head_dim)", Doc: "rows kv_stride apart"},
		qkRopeKV.Bindings[3], // angles
		ropeAttn.Bindings[4], // norm
		{Name: "k_cache", Role: ReadWrite, Shape: kvShape, Elem: KVType, Extent: kvExtent, Doc: kvDoc},
		{Name: "v_cache", Role: ReadWrite, Shape: kvShape, Elem: KVType, Extent: kvExtent, Doc: kvDoc},
		{Name: "halves", Role: Write, Shape: "[rows]", Elem: Record, Extent: attnHalves, Doc: "as attn_tile writes it"},
	},
	Params: slices.Concat(qkRopeKV.Params[:3], []Field{ // heads to q_stride
		{"kv_stride", U32, "elements from one row of k, and of v, to the next"},
		{"half", U32, "rotated pairs of a head, at most head_dim/2"},
		{"cap", U32, "rows of the cache"},
		{"window", U32, "positions seen, if the constant windowed is 1"},
		{"scale", F32, "factor of Q·K"},
		{"soft_cap", F32, "c, if a score s becomes c*tanh(s/c); 0 means no cap"},
		{"eps", F32, "added to the mean square"},
		{"slots", U32, "steps of positions that threadgroup memory holds, 1 to 4"},
		fieldTables, fieldTable, fieldPool,
		{"few", U32, "1: write rows of float16 in the order of gemm_few, else 0"},
		fieldSettled,
	}),
	Settled:  []string{"k_cache", "v_cache"},
	Second:   []Second{secondKVLen, secondRows},
	Specs:    []Constant{constHeadDim, constWindow, constLayout, constQKNorm, constKV, constLearned, constCluster, constSequences},
	Optional: []string{"sequences", "tables", "table", "pool", "few", "settled"},
	Worker:   attnWorker + " + 8*head_dim",
	TGMem:    "16384*slots*(threads/128)*(head_dim/64) + 4096*(threads/128) + (kv == q8_0 ? 44 : 36)*head_dim + 2048*max(2, cluster == 1 ? 0 : 8/cluster)*(head_dim/(heads/kv_heads > 8 ? 32 : 64) + 1)", // the last part is the states of spans
	Cluster:  "cluster",
	As:       &As{Kernel: "attn_tile", Constants: map[string]uint32{"halves": 1, "act": ActF16, "segments": 1}},
	Order:    []string{"head_dim <= 128 ? 2 : threads/128"},
}
