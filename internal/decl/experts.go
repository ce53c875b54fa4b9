package decl

// route declares the choice of experts.
var route = Kernel{
	Name:    "route",
	Doc:     "Chooses the used experts with the largest logits of each row, sorted by logit, the lowest id first among equal logits. NaN counts as less than any number. The weights are the softmax over the chosen experts, or with over == all the softmax over all experts.",
	Grid:    [3]string{"rows", "1", "1"},
	Require: []string{"used >= 1", "used <= experts", "experts <= 1024"},
	Bindings: []Binding{
		{Name: "logits", Role: Read, Shape: "[rows, experts]", Elem: F32, Extent: "4*rows*experts"},
		{Name: "ids", Role: Write, Shape: "[rows, used]", Elem: U32, Extent: "4*rows*used"},
		{Name: "weights", Role: Write, Shape: "[rows, used]", Elem: F32, Extent: "4*rows*used"},
	},
	Params: []Field{
		{"experts", U32, "experts of the layer"},
		{"used", U32, "experts that a row chooses"},
	},
	Second: []Second{secondRows},
	Specs:  []Constant{constOver},
}

// routeScored declares the choice of experts by scores.
var routeScored = Kernel{
	Name: "route_scored",
	Doc: "Chooses the used experts with the best ranks of each row, sorted by rank, the lowest id first among equal ranks. NaN counts as less than any number. " +
		"The score of an expert is the sigmoid of its logit, or else the softmax over all experts; its rank is the score (+ bias). " +
		"With groups > 1, consecutive experts form groups, and only those of the top_groups groups with the best values are candidates. The value of a group is the best rank of its experts, or with best == 2 the sum of the best two. " +
		"The weights are scale * score, divided by the sum of the chosen experts' scores unless over == all, and with factors multiplied by those of the experts.",
	Grid: [3]string{"rows", "1", "1"},
	Require: []string{
		"used >= 1", "used <= experts", "experts <= 1024", "sigmoid <= 1", "best == 1 || best == 2",
		"groups >= 1", "groups <= 32", "experts % groups == 0", "top_groups >= 1", "top_groups <= groups", "used*groups <= top_groups*experts", "best*groups <= experts || groups == 1",
	},
	Bindings: []Binding{
		{Name: "logits", Role: Read, Shape: "[rows, experts]", Elem: F32, Extent: "4*rows*experts"},
		{Name: "b", Role: Read, Shape: "[experts]", Elem: F32, Extent: "4*experts", If: "bias"},
		{Name: "ids", Role: Write, Shape: "[rows, used]", Elem: U32, Extent: "4*rows*used"},
		{Name: "weights", Role: Write, Shape: "[rows, used]", Elem: F32, Extent: "4*rows*used"},
		{Name: "factors", Role: Read, Shape: "[experts]", Elem: F32, Extent: "4*experts", If: "factors"},
	},
	Params: []Field{
		{"experts", U32, "experts of the layer"},
		{"used", U32, "experts that a row chooses"},
		{"sigmoid", U32, "1 if scores are sigmoids, 0 if they are a softmax"},
		{"groups", U32, "groups of experts"},
		{"top_groups", U32, "groups that a row chooses"},
		{"best", U32, "number of a group's best ranks whose sum is the group's value, 1 or 2"},
		{"scale", F32, "factor of the weights"},
	},
	Second:   []Second{secondRows},
	Specs:    []Constant{constBias, constOver, constFactors},
	Optional: []string{"factors"},
	Worker:   "4*experts", // the scores of a row
}

// expertInput is the extent of the inputs of expert_gemv.
const expertInput = "4*((rows*(used/share) - 1)*x_stride + in)"

// expertGEMV declares the products with the matrices of the chosen experts.
var expertGEMV = Kernel{
	Name: "expert_gemv",
	Doc:  "y[r, i] = W[ids[r, i]] · input (+ b[ids[r, i]]), where input is row (used*r + i)/share of x. Ids are clamped to the number of experts.",
	Grid: [3]string{"ceildiv(out,group)", "used", "rows"},
	Require: []string{
		"in >= 1", "out >= 1", "group >= 1", "in <= x_stride", "out <= y_stride", "x_stride % 4 == 0",
		"weights == rows || group % 8 == 0", "weights == rows || act == q8",
		"input == plain || input == silu_mul", "activation != gelu",
		"stage % 256 == 0", "ahead % 16 == 0", "ahead <= 65536",
		"used >= 1", "used <= experts", "experts <= 1024", "share >= 1", "used % share == 0",
	},
	Bindings: []Binding{
		{Name: "x", Role: Read, Shape: "[rows, used/share, in]", Elem: F32, Extent: expertInput, Doc: "rows x_stride apart"},
		{Name: "x2", Role: Read, Shape: "[rows, used/share, in]", Elem: F32, Extent: expertInput, If: "input != plain", Doc: "factor of the activation of x, rows x_stride apart"},
		{Name: "w", Role: Read, Shape: "[experts, out, in]", Elem: WeightType, Extent: "experts*mat(weights,wtype,out,in)", Reads: "mat(weights,wtype,out,in)*min(used*rows, experts)", Doc: "each in the layout weights"},
		{Name: "b", Role: Read, Shape: "[experts, out]", Elem: F32, Extent: "4*experts*out", Reads: "4*out*min(used*rows, experts)", If: "bias"},
		{Name: "ids", Role: Read, Shape: "[rows, used]", Elem: U32, Extent: "4*rows*used"},
		{Name: "y", Role: Write, Shape: "[rows, used, out]", Elem: F32, Extent: "4*((rows*used - 1)*y_stride + out)", Doc: "rows y_stride apart"},
	},
	Params: []Field{
		{"in", U32, "columns of W"},
		{"out", U32, "rows of W"},
		{"x_stride", U32, "elements from one row of x to the next"},
		{"y_stride", U32, "elements from one row of y to the next"},
		{"group", U32, "rows of W that a threadgroup computes"},
		{"ahead", U32, "bytes of threadgroup memory per SIMD group for prefetched weights, a multiple of 16; 0 means weights are loaded to registers"},
		{"stage", U32, "columns of the input in threadgroup memory at a time, a multiple of 256; 0 means 2048"},
		{"experts", U32, "experts of the layer"},
		{"used", U32, "experts that a row has chosen"},
		{"share", U32, "number of products that share a row of x: used, or 1"},
		{"limit", F32, "bound of gate and up if the activation is clamped_swiglu"},
	},
	Second:   []Second{secondRows},
	Specs:    []Constant{constWType, constAct, constInput, constBias, constMatrix, constActivation},
	Optional: []string{"ahead", "stage", "limit", "activation"},
	// The worker holds the shared inputs, the inputs of up to rows products of one expert, and
	// 256 elements of each of these products. An input is float32, or int8 with one scale and
	// two sums per block, rounded up to 64 bytes.
	Worker: "(rows + (share > 1 ? rows*(used/share) : 0))*((act == q8 ? in + ceildiv(in,4) : 4*in) + 64) + 1024*rows",
	TGMem:  gemvTGMem,
	Order:  gemvOrder,
}

// expertSum declares the sum of the chosen experts' outputs.
var expertSum = Kernel{
	Name:    "expert_sum",
	Doc:     "out[r] = the sum of weights[r, i] * x[r, i], added in the order of i. With output == add, the sum is added to out[r].",
	Grid:    [3]string{"rows", "1", "1"},
	Require: []string{"n >= 1", "used >= 1", "output == store || output == add"},
	Bindings: []Binding{
		{Name: "x", Role: Read, Shape: "[rows, used, n]", Elem: F32, Extent: "4*rows*used*n"},
		{Name: "weights", Role: Read, Shape: "[rows, used]", Elem: F32, Extent: "4*rows*used"},
		{Name: "out", Role: Write, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n", ReadIf: "output == add", Doc: "also read if output == add"},
	},
	Params: []Field{
		{"n", U32, "width"},
		{"used", U32, "experts that a row has chosen"},
	},
	Second: []Second{secondRows},
	Specs:  []Constant{constOutput},
}

// expertList is the extent of the list of expert_rows.
const expertList = "4*(experts + 1 + rows*used)"

// expertRows declares the sorting of a chunk's products by expert.
var expertRows = Kernel{
	Name:    "expert_rows",
	Doc:     "Sorts the products of a chunk by expert. Product i of row r has the number used*r + i and belongs to expert ids[r, i], clamped to the number of experts. list[e], for e from 0 to experts, is the number of products of the experts before e. From list[experts + 1] on, list contains the numbers of all products, those of the first expert first, in ascending order for each expert.",
	Grid:    [3]string{"experts", "1", "1"},
	Require: []string{"used >= 1", "used <= experts", "experts <= 1024"},
	Bindings: []Binding{
		{Name: "ids", Role: Read, Shape: "[rows, used]", Elem: U32, Extent: "4*rows*used"},
		{Name: "list", Role: Write, Shape: "[experts + 1 + rows*used]", Elem: U32, Extent: expertList},
	},
	Params: []Field{
		{"experts", U32, "experts of the layer"},
		{"used", U32, "experts that a row has chosen"},
	},
	Second: []Second{secondRows},
}

// expertHalvesInput is the extent of the inputs of expert_halves.
const expertHalvesInput = "4*((rows*used - 1)*x_stride + in)"

// expertHalves declares the conversion of inputs for expert_gemm.
var expertHalves = Kernel{
	Name:    "expert_halves",
	Doc:     "halves for the inputs of experts: a row has several inputs, each of which has a unit of its own.",
	Grid:    [3]string{"used", "rows", "1"},
	Require: []string{"in >= 1", "in % 8 == 0", "in <= x_stride", "x_stride % 4 == 0", "used >= 1", "used <= 1024", "input == plain || input == silu_mul", "activation != gelu", "act == f16 || act == f16x2"},
	Bindings: []Binding{
		{Name: "x", Role: Read, Shape: "[rows, used, in]", Elem: F32, Extent: expertHalvesInput, Doc: "rows x_stride apart"},
		{Name: "x2", Role: Read, Shape: "[rows, used, in]", Elem: F32, Extent: expertHalvesInput, If: "input != plain", Doc: "factor of the activation of x, rows x_stride apart"},
		{Name: "out", Role: Write, Shape: "[rows, used]", Elem: Record, Extent: "rows*used*" + halvesRow, Doc: halvesDoc},
	},
	Params: []Field{
		{"in", U32, "columns"},
		{"x_stride", U32, "elements from one row of x to the next"},
		{"used", U32, "inputs of a row"},
		{"limit", F32, "bound of gate and up if the activation is clamped_swiglu"},
	},
	Second:   []Second{secondRows},
	Specs:    []Constant{constInput, constActivation, constAct},
	Optional: []string{"activation", "limit"},
	Worker:   "4*in", // a row of silu_mul
	TGMem:    reduceTGMem,
}

// expertGEMM declares the products of a chunk with the matrices of the chosen experts. It has two bodies, as
// gemm_halves.
var expertGEMM = Kernel{
	Name: "expert_gemm",
	Doc:  "expert_gemv for a chunk with float16 activations, in the order of a list of expert_rows: y[r, i] = W[e] · input (+ b[e]) for each product of each expert e, where input is row (used*r + i)/share of x. The weights become float16: with 384 threads, they are float16, bfloat16 or tiled16; with fewer, they are rows of any type but float32. A threadgroup computes group rows of W and up to row_group products of one expert.",
	Grid: [3]string{"ceildiv(out,group)", "ceildiv(rows*used,row_group) + min(experts, rows*used)", "1"},
	Require: []string{
		"in >= 1", "in % 8 == 0", "out >= 1", "out <= y_stride", "act == f16 || act == f16x2 && threads != 384",
		"group == 32 || group == 64 || group == 128", "threads == 2*group || threads == 384 && group == 128",
		"row_group == 8 && threads != 384 || row_group == 16 && threads != 384 || row_group == 32 && threads != 384 || row_group == 64", "row_group <= group",
		"weights == tiled16 || wtype == F16 || wtype == BF16 || threads != 384 && wtype != F32", "weights == rows || threads == 384 && out % 16 == 0",
		"used >= 1", "used <= experts", "experts <= 1024", "share >= 1", "used % share == 0",
	},
	Bindings: []Binding{
		{Name: "x", Role: Read, Shape: "[rows, used/share]", Elem: Record, Extent: "rows*(used/share)*" + halvesRow, Doc: halvesDoc},
		{Name: "w", Role: Read, Shape: "[experts, out, in]", Elem: WeightType, Extent: "experts*mat(weights,wtype,out,in)", Reads: "mat(weights,wtype,out,in)*min(used*rows, experts)", Doc: "each in the layout weights"},
		{Name: "b", Role: Read, Shape: "[experts, out]", Elem: F32, Extent: "4*experts*out", Reads: "4*out*min(used*rows, experts)", If: "bias"},
		{Name: "list", Role: Read, Shape: "[experts + 1 + rows*used]", Elem: U32, Extent: expertList, Doc: "as expert_rows writes it"},
		{Name: "y", Role: Write, Shape: "[rows, used, out]", Elem: F32, Extent: "4*((rows*used - 1)*y_stride + out)", Doc: "rows y_stride apart"},
	},
	Params: []Field{
		{"in", U32, "columns of W, a multiple of 8"},
		{"out", U32, "rows of W"},
		{"y_stride", U32, "elements from one row of y to the next"},
		{"group", U32, "rows of W that a threadgroup computes: 128 with 384 threads, else 32, 64 or 128"},
		{"row_group", U32, "products that a threadgroup computes: 64 with 384 threads, else 8, 16, 32 or 64, and at most group"},
		{"experts", U32, "experts of the layer"},
		{"used", U32, "experts that a row has chosen"},
		{"share", U32, "number of products that share a row of x: used, or 1"},
	},
	Second: []Second{secondRows},
	Specs:  []Constant{constWType, constBias, constAct, constMatrix},
	Worker: "(rows*(used/share)+2)*(4*in + 64)", // the input as float32, and a row of W as blocks and as float32
	TGMem:  "114688",                            // a multiprocessor of compute capability 9.0 has room for two threadgroups
	Chunk:  true,
	Apple:  &Body{If: "threads != 384", TGMem: tileTGMem},
}
