package decl

// latentKV declares the step before multi-head latent attention.
var latentKV = Kernel{
	Name: "latent_kv",
	Doc: "Prepares multi-head latent attention. A row of kv is a latent of rank elements, where rank is head_dim - 2*half, and 2*half elements of K for all heads. " +
		"It is written to the cache row of position kv_len - 1 + r: first rope(kv[r, rank:]), then rmsnorm(kv[r, :rank]) * w. " +
		"The last 2*half elements of each head of q are rotated, too: they become the first 2*half elements of a head of q_out, whose other elements stay. " + pagedDoc,
	Grid: [3]string{"2", "rows", "1"},
	Require: []string{
		"heads >= 1", "kv_heads == 1", "half >= 1", "2*half < head_dim", "heads*(nope + 2*half) <= q_stride", "head_dim <= kv_stride", "head_dim <= 2048",
		"cap >= 1", "kv_len >= 1", "sequences != own || first+rows <= cap", kvBlocks, pooledCache,
	},
	Bindings: []Binding{
		{Name: "q", Role: Read, Shape: "[rows, heads, nope + 2*half]", Elem: F32, Extent: "4*((rows-1)*q_stride + heads*(nope + 2*half))", Doc: "rows q_stride apart"},
		{Name: "kv", Role: Read, Shape: "[rows, head_dim]", Elem: F32, Extent: "4*((rows-1)*kv_stride + head_dim)", Doc: "rows kv_stride apart"},
		{Name: "angles", Role: Read, Shape: "[rows, half, 2]", Elem: F32, Extent: "8*rows*half"},
		{Name: "w", Role: Read, Shape: "[head_dim - 2*half]", Elem: F32, Extent: "4*(head_dim - min(head_dim - 1, 2*half))", Doc: "weights of the latent's norm"},
		{Name: "q_out", Role: Write, Shape: "[rows, heads, 2*half]", Elem: F32, Extent: "4*((rows*heads-1)*head_dim + 2*half)", Doc: "heads head_dim apart"},
		{Name: "k_cache", Role: Write, Shape: kvShape, Elem: KVType, Extent: kvExtent, Doc: kvDoc},
	},
	Params: []Field{
		{"heads", U32, "Q heads"},
		{"kv_heads", U32, "heads of the cache, 1"},
		{"q_stride", U32, "elements from one row of q to the next"},
		{"kv_stride", U32, "elements from one row of kv to the next"},
		{"nope", U32, "elements of a head of q before those that are rotated"},
		{"half", U32, "rotated pairs of a head"},
		{"cap", U32, "rows of the cache"},
		{"eps", F32, "added to the mean square"},
		{"first", U32, "positions at the start whose rows stay"},
		fieldTables, fieldTable, fieldPool,
	},
	Second:   []Second{secondKVLen, secondRows},
	Specs:    []Constant{constHeadDim, constLayout, constKV, constSequences},
	Optional: []string{"kv", "first", "sequences", "tables", "table", "pool"},
	Worker:   "4*head_dim + " + kvScales, // the row as float32, and the scales as in kv_write
	TGMem:    "4*head_dim + " + reduceTGMem,
}
