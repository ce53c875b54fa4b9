package decl

// reduceTGMem is the threadgroup memory of a sum over a threadgroup, in bytes: one float32 per SIMD
// group.
const reduceTGMem = "4*ceildiv(threads,32)"

// squaresTGMem is the threadgroup memory of a sum of squares of n columns, in bytes: a float32 for each 32
// columns, rounded up to 16 bytes.
const squaresTGMem = "16*ceildiv(n,128)"

// rmsNorm declares the norm of rows.
var rmsNorm = Kernel{
	Name:    "rmsnorm",
	Doc:     "out[r] = x[row + r] / sqrt(mean(x[row + r]^2) + eps) * w; rows are clamped to x_rows.",
	Grid:    [3]string{"rows", "1", "1"},
	Require: []string{"n >= 1", "x_rows >= 1"},
	Bindings: []Binding{
		{Name: "x", Role: Read, Shape: "[x_rows, n]", Elem: F32, Extent: "4*x_rows*n"},
		{Name: "w", Role: Read, Shape: "[n]", Elem: F32, Extent: "4*n"},
		{Name: "out", Role: Write, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n"},
	},
	Params: []Field{
		{"n", U32, "width"},
		{"x_rows", U32, "rows of x"},
		{"eps", F32, "added to the mean square"},
		{"scale", F32, "factor of the normalised values; 0: 1"},
	},
	Second:   []Second{secondRow, secondRows},
	Optional: []string{"scale"},
	TGMem:    squaresTGMem,
}

// addRMSNorm declares the residual addition and the norm that follows it.
var addRMSNorm = Kernel{
	Name:    "add_rmsnorm",
	Doc:     "x[r] += delta_scale * delta[r]; out[r] = rmsnorm(x[r]) * w.",
	Grid:    [3]string{"rows", "1", "1"},
	Require: []string{"n >= 1"},
	Bindings: []Binding{
		{Name: "x", Role: ReadWrite, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n", Doc: "the residual stream"},
		{Name: "delta", Role: Read, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n"},
		{Name: "w", Role: Read, Shape: "[n]", Elem: F32, Extent: "4*n"},
		{Name: "out", Role: Write, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n"},
	},
	Params: []Field{
		{"n", U32, "width"},
		{"eps", F32, "added to the mean square"},
		{"scale", F32, "factor of the normalised values; 0: 1"},
		{"delta_scale", F32, "factor of delta; 0: 1"},
	},
	Second:   []Second{secondRows},
	Optional: []string{"scale", "delta_scale"},
	TGMem:    squaresTGMem,
}

// add declares the residual addition.
var add = Kernel{
	Name:    "add",
	Doc:     "x[r] += delta_scale * delta[r].",
	Grid:    [3]string{"rows", "1", "1"},
	Require: []string{"n >= 1"},
	Bindings: []Binding{
		{Name: "x", Role: ReadWrite, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n"},
		{Name: "delta", Role: Read, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n"},
	},
	Params: []Field{
		{"n", U32, "width"},
		{"delta_scale", F32, "factor of delta; 0: 1"},
	},
	Second:   []Second{secondRows},
	Optional: []string{"delta_scale"},
}

// scaleRows declares the multiplication of rows by factors that depend on their positions.
var scaleRows = Kernel{
	Name:    "scale_rows",
	Doc:     "x[r, i] *= factors[min((p + offset)/span, count - 1)], where p = pos + r, or with sequences == many the position of row record r.",
	Grid:    [3]string{"rows", "1", "1"},
	Require: []string{"n >= 1", "n <= stride", "count >= 1", "span >= 1"},
	Bindings: []Binding{
		{Name: "x", Role: ReadWrite, Shape: "[rows, n]", Elem: F32, Extent: "4*((rows-1)*stride + n)", Doc: "rows stride apart"},
		{Name: "factors", Role: Read, Shape: "[count]", Elem: F32, Extent: "4*count"},
	},
	Params: []Field{
		{"n", U32, "elements of a row"},
		{"stride", U32, "elements from one row of x to the next"},
		{"count", U32, "factors"},
		{"span", U32, "positions with the same factor"},
		{"offset", U32, "added to the position"},
	},
	Second:   []Second{secondPos, secondRows},
	Specs:    []Constant{constSequences},
	Optional: []string{"sequences"},
}

// headNorm declares the norm of each head of Q or K.
var headNorm = Kernel{
	Name:    "head_norm",
	Doc:     "x[r, h] = rmsnorm(x[r, h]) * w for each head h of each row r.",
	Grid:    [3]string{"heads", "rows", "1"},
	Require: []string{"heads >= 1", "head_dim >= 1", "heads*head_dim <= stride"},
	Bindings: []Binding{
		{Name: "x", Role: ReadWrite, Shape: "[rows, heads, head_dim]", Elem: F32, Extent: "4*((rows-1)*stride + heads*head_dim)", Doc: "rows stride apart"},
		{Name: "w", Role: Read, Shape: "[head_dim]", Elem: F32, Extent: "4*head_dim"},
	},
	Params: []Field{
		{"heads", U32, "heads"},
		{"stride", U32, "elements from one row of x to the next"},
		{"eps", F32, "added to the mean square"},
	},
	Second: []Second{secondRows},
	Specs:  []Constant{constHeadDim},
	TGMem:  reduceTGMem,
}

// headLayerNorm declares the norm of each head of Q or K that subtracts the mean.
var headLayerNorm = Kernel{
	Name:    "head_layernorm",
	Doc:     "x[r, h] = (x[r, h] - mean) / sqrt(variance + eps) * w[h] for each head h of each row r.",
	Grid:    [3]string{"heads", "rows", "1"},
	Require: []string{"heads >= 1", "head_dim >= 1", "heads*head_dim <= stride"},
	Bindings: []Binding{
		{Name: "x", Role: ReadWrite, Shape: "[rows, heads, head_dim]", Elem: F32, Extent: "4*((rows-1)*stride + heads*head_dim)", Doc: "rows stride apart"},
		{Name: "w", Role: Read, Shape: "[heads, head_dim]", Elem: F32, Extent: "4*heads*head_dim"},
	},
	Params: []Field{
		{"heads", U32, "heads"},
		{"stride", U32, "elements from one row of x to the next"},
		{"eps", F32, "added to the variance"},
	},
	Second: []Second{secondRows},
	Specs:  []Constant{constHeadDim},
	TGMem:  reduceTGMem,
}

// normAdd declares a norm after a block, the residual addition and the norm that follows.
var normAdd = Kernel{
	Name:    "norm_add",
	Doc:     "x[r] += rmsnorm(delta[r]) * post. With norm, out[r] = rmsnorm(x[r]) * w afterwards.",
	Grid:    [3]string{"rows", "1", "1"},
	Require: []string{"n >= 1"},
	Bindings: []Binding{
		{Name: "x", Role: ReadWrite, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n", Doc: "the residual stream"},
		{Name: "delta", Role: Read, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n"},
		{Name: "post", Role: Read, Shape: "[n]", Elem: F32, Extent: "4*n"},
		{Name: "w", Role: Read, Shape: "[n]", Elem: F32, Extent: "4*n", If: "norm"},
		{Name: "out", Role: Write, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n", If: "norm"},
	},
	Params: []Field{
		{"n", U32, "width"},
		{"eps", F32, "added to the mean square"},
	},
	Second: []Second{secondRows},
	Specs:  []Constant{constNorm},
	Worker: "4*n", // the normalised delta
	TGMem:  squaresTGMem,
}

// layerNorm declares the norm that subtracts the mean.
var layerNorm = Kernel{
	Name:    "layernorm",
	Doc:     "out[r] = (x[row + r] - mean) / sqrt(variance + eps) * w[0] + w[1]; rows are clamped to x_rows.",
	Grid:    [3]string{"rows", "1", "1"},
	Require: []string{"n >= 1", "x_rows >= 1"},
	Bindings: []Binding{
		{Name: "x", Role: Read, Shape: "[x_rows, n]", Elem: F32, Extent: "4*x_rows*n"},
		{Name: "w", Role: Read, Shape: "[2, n]", Elem: F32, Extent: "4*2*n", Doc: "weights, then biases"},
		{Name: "out", Role: Write, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n"},
	},
	Params: []Field{
		{"n", U32, "width"},
		{"x_rows", U32, "rows of x"},
		{"eps", F32, "added to the variance"},
	},
	Second: []Second{secondRow, secondRows},
	TGMem:  reduceTGMem,
}
