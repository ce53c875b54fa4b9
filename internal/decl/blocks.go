package decl

// softCap declares the bound of logits.
var softCap = Kernel{
	Name:    "soft_cap",
	Doc:     "x[r] = cap * tanh(x[r] / cap).",
	Grid:    [3]string{"div(n,part)", "rows", "1"},
	Require: []string{"1 <= n", "1 <= part", "4*div(part,4) <= part"},
	Bindings: []Binding{
		{Name: "x", Role: ReadWrite, Extent: "rows*n*4", Doc: "[rows, n] float32"},
	},
	Params: []Field{
		{"n", U32, "width"},
		{"part", U32, "elements of a row that a threadgroup does"},
		{"cap", F32, "the bound"},
	},
	Second: []Second{secondRows},
}

// normAdd declares a norm behind a block, and the norm that follows.
var normAdd = Kernel{
	Name:    "norm_add",
	Doc:     "x[r] += rmsnorm(delta[r]) * post; norm: out[r] = rmsnorm(x[r]) * w.",
	Grid:    [3]string{"rows", "1", "1"},
	Require: []string{"1 <= n"},
	Bindings: []Binding{
		{Name: "x", Role: ReadWrite, Extent: "rows*n*4", Doc: "[rows, n] float32, the residual stream"},
		{Name: "delta", Role: Read, Extent: "rows*n*4", Doc: "[rows, n] float32"},
		{Name: "post", Role: Read, Extent: "n*4", Doc: "[n] float32"},
		{Name: "w", Role: Read, Extent: "n*4", If: "norm", Doc: "[n] float32"},
		{Name: "out", Role: Write, Extent: "rows*n*4", If: "norm", Doc: "[rows, n] float32"},
	},
	Params: []Field{
		{"n", U32, "width"},
		{"eps", F32, "added to the mean square"},
	},
	Second: []Second{secondRows},
	Specs:  []Constant{constNorm},
	Worker: "n*4", // the normalised delta
	TGMem:  "div(threads,32)*4",
}

// layerNorm declares the norm that subtracts a mean.
var layerNorm = Kernel{
	Name:    "layernorm",
	Doc:     "out[r] = (x[row + r] - mean) / sqrt(variance + eps) * w[0] + w[1]; rows are clamped to x_rows.",
	Grid:    [3]string{"rows", "1", "1"},
	Require: []string{"1 <= n", "1 <= x_rows"},
	Bindings: []Binding{
		{Name: "x", Role: Read, Extent: "x_rows*n*4", Doc: "[x_rows, n] float32"},
		{Name: "w", Role: Read, Extent: "2*n*4", Doc: "[2, n] float32: weights, biases"},
		{Name: "out", Role: Write, Extent: "rows*n*4", Doc: "[rows, n] float32"},
	},
	Params: []Field{
		{"n", U32, "width"},
		{"x_rows", U32, "rows of x"},
		{"eps", F32, "added to the variance"},
	},
	Second: []Second{secondRow, secondRows},
	TGMem:  "div(threads,32)*4",
}

// activate declares the activation of a block without a gate.
var activate = Kernel{
	Name:    "activate",
	Doc:     "x[r] = activation(x[r]), of a feed-forward block without a gate.",
	Grid:    [3]string{"div(n,group)", "rows", "1"},
	Require: []string{"1 <= n", "1 <= group", "activation <= 2"},
	Bindings: []Binding{
		{Name: "x", Role: ReadWrite, Extent: "rows*n*4", Doc: "[rows, n] float32"},
	},
	Params: []Field{
		{"n", U32, "width"},
		{"group", U32, "elements of a row that a threadgroup computes"},
	},
	Second: []Second{secondRows},
	Specs:  []Constant{constActivation},
}
