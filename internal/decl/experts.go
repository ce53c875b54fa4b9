package decl

// Values of the constant over.
const (
	OverChosen = 0 // the softmax is over the experts that are chosen
	OverAll    = 1 // it is over all, and the weights are what the chosen have of it
)

// route declares the choice of experts.
var route = Kernel{
	Name:    "route",
	Doc:     "Chooses the used experts with the largest logits of a row, the first of equals, and their weights, in that order: the softmax of their logits, or their part of that of all. NaN is never chosen before a number.",
	Grid:    [3]string{"rows", "1", "1"},
	Require: []string{"1 <= used", "used <= experts", "experts <= 1024"},
	Bindings: []Binding{
		{Name: "logits", Role: Read, Extent: "rows*experts*4", Doc: "[rows, experts] float32"},
		{Name: "ids", Role: Write, Extent: "rows*used*4", Doc: "[rows, used] uint32"},
		{Name: "weights", Role: Write, Extent: "rows*used*4", Doc: "[rows, used] float32"},
	},
	Params: []Field{
		{"experts", U32, "experts of the layer"},
		{"used", U32, "experts that a row chooses"},
	},
	Second: []Second{secondRows},
	Specs:  []Constant{constOver},
}

// expertGEMV declares the products with the matrices of the chosen experts.
var expertGEMV = Kernel{
	Name: "expert_gemv",
	Doc:  "y[r, i] = W[ids[r, i]] · input (+ b[ids[r, i]]), the input that of row (used*r + i)/share of x; ids are clamped to the experts.",
	Grid: [3]string{"div(out,group)", "used", "rows"},
	Require: []string{"1 <= in", "1 <= out", "1 <= group", "in <= x_stride", "out <= y_stride", "weights*8*div(group,8) <= group", "weights <= act", "input <= 1", "activation <= 3", "2*(min(activation,2)-min(activation,1)) <= 2*(min(activation,3)-min(activation,2))",

		"256*div(stage,256) <= stage", "16*div(ahead,16) <= ahead", "ahead <= 65536", "1 <= used", "used <= experts", "experts <= 1024", "1 <= share", "share*div(used,share) <= used", "4*div(x_stride,4) <= x_stride"},
	Bindings: []Binding{
		{Name: "x", Role: Read, Extent: "((rows*div(used,share)-1)*x_stride+in)*4", Doc: "[rows, used/share, in] float32, rows x_stride apart"},
		{Name: "x2", Role: Read, Extent: "((rows*div(used,share)-1)*x_stride+in)*4", If: "input", Doc: "likewise, the factor of silu(x), or what activation says in its place"},
		{Name: "w", Role: Read, Extent: "experts*mat(weights,wtype,out,in)", Reads: "mat(weights,wtype,out,in)*min(used*rows,experts)", Doc: "[experts, out, in] wtype, each in the layout weights"},
		{Name: "b", Role: Read, Extent: "experts*out*4", Reads: "out*4*min(used*rows,experts)", If: "bias", Doc: "[experts, out] float32"},
		{Name: "ids", Role: Read, Extent: "rows*used*4", Doc: "[rows, used] uint32"},
		{Name: "y", Role: Write, Extent: "((rows*used-1)*y_stride+out)*4", Doc: "[rows, used, out] float32, rows y_stride apart"},
	},
	Params: []Field{
		{"in", U32, "columns of W"},
		{"out", U32, "rows of W"},
		{"x_stride", U32, "elements from one row of x to the next"},
		{"y_stride", U32, "elements from one row of y to the next"},
		{"group", U32, "rows of W a threadgroup computes"},
		{"ahead", U32, "bytes of threadgroup memory a SIMD group has for weights on their way, a multiple of 16; 0: they are in registers"},
		{"stage", U32, "columns of the input that are in threadgroup memory at once, whole blocks of 256; 0: 2048"},
		{"experts", U32, "experts of the layer"},
		{"used", U32, "experts that a row has chosen"},
		{"share", U32, "products that share a row of x: used, or 1"},
		{"limit", F32, "of gate and up, if the activation is clamped_swiglu"},
	},
	Second:   []Second{secondRows},
	Specs:    []Constant{constWType, constAct, constInput, constBias, constMatrix, constActivation},
	Optional: []string{"ahead", "stage", "limit", "activation"},
	// Inputs that are shared, those of as many rows for one expert, and 256 elements
	// of their products. An input is float32, or int8 with a scale and two sums a
	// block, rounded up to 64 bytes.
	Worker: "(min(share-1,1)*rows*div(used,share)+rows)*(in*4*(1-act)+act*(in+div(in,4))+64)+rows*1024",
	TGMem:  "2*threads+16*div(group,4)+act*(in+div(in,8))+(1-act)*min(in,stage+2048*(1-min(stage,1)))*4+div(threads,32)*ahead+16*min(ahead,1)",
}

// expertSum declares the sum of what the chosen experts give.
var expertSum = Kernel{
	Name:    "expert_sum",
	Doc:     "out[r] = the sum of weights[r, i] * x[r, i], in the order of i, or out[r] += it.",
	Grid:    [3]string{"rows", "1", "1"},
	Require: []string{"1 <= n", "1 <= used"},
	Bindings: []Binding{
		{Name: "x", Role: Read, Extent: "rows*used*n*4", Doc: "[rows, used, n] float32"},
		{Name: "weights", Role: Read, Extent: "rows*used*4", Doc: "[rows, used] float32"},
		{Name: "out", Role: Write, Extent: "rows*n*4", ReadIf: "output", Doc: "[rows, n] float32; output add: read too"},
	},
	Params: []Field{
		{"n", U32, "width"},
		{"used", U32, "experts that a row has chosen"},
	},
	Second: []Second{secondRows},
	Specs:  []Constant{constOutput},
}
