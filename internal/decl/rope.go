package decl

// kvExtent is the size of a cache of K or of V in bytes. The int8 elements of all rows precede all
// scales, so that a row of elements is aligned to 32 bytes and vector loads can read it.
const (
	kvExtent = "kv_heads*cap*(kv == q8_0 ? head_dim + 2*ceildiv(head_dim,32) : 2*head_dim)"
	kvShape  = "[kv_heads, cap, head_dim]"
	kvDoc    = "float16 if kv == f16; if kv == q8_0, int8, then [kv_heads, cap, head_dim/32] float16 scales of 32 elements each"
	kvBlocks = "kv == f16 || head_dim % 32 == 0" // a head is a whole number of blocks

	pagedDoc = "In a pooled table, the cache has pages of 64 positions: [cap/64, kv_heads, 64, head_dim]. Position p of a sequence is in row p mod 64 of the page that entry p/64 of the sequence's page table names; page numbers are clamped."
)

// kvScales is the memory of a CPU worker for the scales of a row as float32, in bytes.
const kvScales = "(kv == q8_0 ? 4*ceildiv(head_dim,32) : 0)"

// ropeAngles declares the cosines and sines of RoPE.
var ropeAngles = Kernel{
	Name:    "rope_angles",
	Doc:     "out[r, i] = (cos, sin)(p * inv_freq[i] / factors[i]) * attn_factor, where p = pos + r. The angle is computed in float32; its cosine and sine are precise to float32. If still is not 0, p = min(0, still - 1 - pos - r), which rotates Q back for attention sinks. With sequences == many, pos + r is the position of row record r.",
	Grid:    [3]string{"rows", "1", "1"},
	Require: []string{"half >= 1"},
	Bindings: []Binding{
		{Name: "inv_freq", Role: Read, Shape: "[half]", Elem: F32, Extent: "4*half"},
		{Name: "factors", Role: Read, Shape: "[half]", Elem: F32, Extent: "4*half", If: "factors"},
		{Name: "out", Role: Write, Shape: "[rows, half, 2]", Elem: F32, Extent: "8*rows*half", Doc: "cosine and sine"},
	},
	Params: []Field{
		{"half", U32, "rotated pairs of a head"},
		{"attn_factor", F32, "YaRN's factor of cosine and sine"},
		{"still", U32, "number of first positions with angle 0, for attention sinks; 0 means p = pos + r"},
	},
	Optional: []string{"still", "sequences"},
	Second:   []Second{secondPos, secondRows},
	Specs:    []Constant{constFactors, constSequences},
}

// rope declares the rotation of Q or K.
var rope = Kernel{
	Name:    "rope",
	Doc:     "Rotates the first 2*half elements of each head by the row's angles.",
	Grid:    [3]string{"heads", "rows", "1"},
	Require: []string{"heads >= 1", "2*half <= head_dim", "heads*head_dim <= stride"},
	Bindings: []Binding{
		{Name: "x", Role: ReadWrite, Shape: "[rows, heads, head_dim]", Elem: F32, Extent: "4*((rows-1)*stride + heads*head_dim)", Doc: "rows stride apart"},
		{Name: "angles", Role: Read, Shape: "[rows, half, 2]", Elem: F32, Extent: "8*rows*half"},
	},
	Params: []Field{
		{"heads", U32, "heads"},
		{"stride", U32, "elements from one row of x to the next"},
		{"half", U32, "rotated pairs of a head, at most head_dim/2"},
	},
	Second: []Second{secondRows},
	Specs:  []Constant{constHeadDim, constLayout},
}

// kvWrite declares the write to the KV cache.
var kvWrite = Kernel{
	Name:    "kv_write",
	Doc:     "Writes K and V of row r, rounded to the type of the cache, to the cache row of position p = kv_len - 1 + r. This is row p if p < first, and otherwise row first + (p - first) mod (cap - first). With kv == q8_0, 32 elements x become q = x/d rounded to nearest, where d = max|x| / 127, and the scale is d rounded to float16. " + pagedDoc,
	Grid:    [3]string{"kv_heads", "rows", "1"},
	Require: []string{"kv_heads >= 1", "cap >= 1", "kv_len >= 1", "sequences != own || first+rows <= cap", kvBlocks, pooledCache},
	Bindings: []Binding{
		{Name: "k", Role: Read, Shape: "[rows, kv_heads, head_dim]", Elem: F32, Extent: "4*((rows-1)*k_stride + kv_heads*head_dim)", Doc: "rows k_stride apart"},
		{Name: "v", Role: Read, Shape: "[rows, kv_heads, head_dim]", Elem: F32, Extent: "4*((rows-1)*v_stride + kv_heads*head_dim)", Doc: "rows v_stride apart"},
		{Name: "k_cache", Role: Write, Shape: kvShape, Elem: KVType, Extent: kvExtent, Doc: kvDoc},
		{Name: "v_cache", Role: Write, Shape: kvShape, Elem: KVType, Extent: kvExtent, Doc: kvDoc},
	},
	Params: []Field{
		{"kv_heads", U32, "K and V heads"},
		{"k_stride", U32, "elements from one row of k to the next"},
		{"v_stride", U32, "elements from one row of v to the next"},
		{"cap", U32, "rows of the cache"},
		{"first", U32, "positions at the start whose rows stay"},
		fieldTables, fieldTable, fieldPool,
	},
	Second:   []Second{secondKVLen, secondRows},
	Specs:    []Constant{constHeadDim, constKV, constSequences},
	Optional: []string{"kv", "first", "sequences", "tables", "table", "pool"},
	Worker:   kvScales,
}

// qkRopeKV declares QK norm, RoPE and KV write as one command.
var qkRopeKV = Kernel{
	Name:    "qk_rope_kv",
	Doc:     "Fuses QK norm, RoPE and KV write: q_out[r] = rope(norm(q[r])), and K = rope(norm(k[r])) and V = v[r] are written to the same cache row as by kv_write.",
	Grid:    [3]string{"ceildiv(heads+kv_heads, head_group)", "rows", "1"},
	Require: []string{"kv_heads >= 1", "heads >= 1", "head_group >= 1", "half >= 1", "2*half <= head_dim", "cap >= 1", "kv_len >= 1", "sequences != own || first+rows <= cap", kvBlocks, pooledCache, joinedRows},
	Bindings: []Binding{
		{Name: "q", Role: Read, Shape: "[rows, heads, head_dim]", Elem: F32, Extent: "4*((rows-1)*q_stride + heads*head_dim)", Doc: "rows q_stride apart"},
		{Name: "k", Role: Read, Shape: "[rows, kv_heads, head_dim]", Elem: F32, Extent: "4*((rows-1)*k_stride + kv_heads*head_dim)", Doc: "rows k_stride apart"},
		{Name: "v", Role: Read, Shape: "[rows, kv_heads, head_dim]", Elem: F32, Extent: "4*((rows-1)*v_stride + kv_heads*head_dim)", Doc: "rows v_stride apart"},
		{Name: "angles", Role: Read, Shape: "[rows, half, 2]", Elem: F32, Extent: "8*rows*half"},
		{Name: "norm", Role: Read, Shape: "[2, head_dim]", Elem: F32, Extent: "4*2*head_dim", If: "qk_norm", Doc: "weights for Q, then for K"},
		{Name: "q_out", Role: Write, Shape: "[rows, heads, head_dim]", Elem: F32, Extent: "4*rows*heads*head_dim"},
		{Name: "k_cache", Role: Write, Shape: kvShape, Elem: KVType, Extent: kvExtent, Doc: kvDoc},
		{Name: "v_cache", Role: Write, Shape: kvShape, Elem: KVType, Extent: kvExtent, Doc: kvDoc},
	},
	Params: []Field{
		{"heads", U32, "Q heads"},
		{"kv_heads", U32, "K and V heads"},
		{"q_stride", U32, "elements from one row of q to the next"},
		{"k_stride", U32, "elements from one row of k to the next"},
		{"v_stride", U32, "elements from one row of v to the next"},
		{"half", U32, "rotated pairs of a head, at most head_dim/2"},
		{"cap", U32, "rows of the cache"},
		{"eps", F32, "added to the mean square"},
		{"first", U32, "positions at the start whose rows stay"},
		{"head_group", U32, "heads that a threadgroup computes, of Q and then of K"},
		fieldTables, fieldTable, fieldPool, fieldJoined,
	},
	Second:   []Second{secondKVLen, secondRows},
	Specs:    []Constant{constHeadDim, constLayout, constQKNorm, constKV, constSequences},
	Optional: []string{"kv", "first", "sequences", "tables", "table", "pool", "joined"},
	Worker:   "4*head_dim + " + kvScales,                         // a head, and the scales as in kv_write
	TGMem:    "kv == q8_0 ? 4*ceildiv(threads,32)*head_dim : 16", // Metal has no kernel argument of 0 bytes
}
