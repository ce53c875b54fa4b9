package decl

// siluMul declares the gated activation.
var siluMul = Kernel{
	Name:    "silu_mul",
	Doc:     "out[r] = f(gate[r]) * up[r], where the constant activation selects f. For clamped_swiglu, out[r] = sigmoid(1.702*g) * g * (u + 1), where g = min(gate[r], limit) and u is up[r] clamped to -limit..limit.",
	Grid:    [3]string{"rows", "1", "1"},
	Require: []string{"n >= 1"},
	Bindings: []Binding{
		{Name: "gate", Role: Read, Shape: "[rows, n]", Elem: F32, Extent: "4*((rows-1)*stride + n)", Doc: "rows stride apart"},
		{Name: "up", Role: Read, Shape: "[rows, n]", Elem: F32, Extent: "4*((rows-1)*stride + n)", Doc: "rows stride apart"},
		{Name: "out", Role: Write, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n"},
	},
	Params: []Field{
		{"n", U32, "width"},
		{"stride", U32, "elements from one row to the next, in gate and in up"},
		{"limit", F32, "bound of gate and up if the activation is clamped_swiglu"},
	},
	Second:   []Second{secondRows},
	Specs:    []Constant{constActivation},
	Optional: []string{"activation", "limit"},
}

// activate declares the activation of a block without a gate.
var activate = Kernel{
	Name:    "activate",
	Doc:     "x[r] = f(x[r]), where the constant activation selects f. It serves feed-forward blocks without a gate.",
	Grid:    [3]string{"ceildiv(n,group)", "rows", "1"},
	Require: []string{"n >= 1", "group >= 1", "activation != clamped_swiglu"},
	Bindings: []Binding{
		{Name: "x", Role: ReadWrite, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n"},
	},
	Params: []Field{
		{"n", U32, "width"},
		{"group", U32, "elements of a row that a threadgroup computes"},
	},
	Second: []Second{secondRows},
	Specs:  []Constant{constActivation},
}

// softCap declares the bound of logits.
var softCap = Kernel{
	Name:    "soft_cap",
	Doc:     "x[r] = cap * tanh(x[r] / cap).",
	Grid:    [3]string{"ceildiv(n,part)", "rows", "1"},
	Require: []string{"n >= 1", "part >= 1", "part % 4 == 0"},
	Bindings: []Binding{
		{Name: "x", Role: ReadWrite, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n"},
	},
	Params: []Field{
		{"n", U32, "width"},
		{"part", U32, "elements of a row that a threadgroup computes"},
		{"cap", F32, "the bound"},
	},
	Second: []Second{secondRows},
}
