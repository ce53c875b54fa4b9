package decl

import "slices"

// ssmScan declares the selective state space of Mamba-2.
var ssmScan = Kernel{
	Name: "ssm_scan",
	Doc: "The selective state space of Mamba-2. A row of x consists of X of heads heads with head_dim elements, and of B and C of groups groups with state_dim elements. Head h uses B and C of group h / (heads/groups). " +
		"Each head has a state S [head_dim, state_dim]. For each row, the step size d is log(1 + exp(steps[r, h] + w[1, h])), bounded to step_min..step_max, and S decays: S *= exp(-rate * d), where rate = exp(w[0, h]) if decay == log, and -w[0, h] if decay == negative. " +
		"Then S += (d * X) B^T, and out[r, h] = S C + w[2, h] * X. " + stateDoc,
	Grid: [3]string{"ceildiv(head_dim,group)", "heads", "sequences == many ? rows : 1"},
	Require: []string{
		"heads >= 1", "groups >= 1", "heads % groups == 0", "head_dim >= 1", "head_dim <= 256", "state_dim >= 1", "state_dim <= 256", "group >= 1",
		"heads*head_dim + 2*groups*state_dim <= x_stride", "heads <= step_stride", stateRing, pooledStates, pooled,
	},
	Bindings: []Binding{
		{Name: "x", Role: Read, Shape: "[rows, heads*head_dim + 2*groups*state_dim]", Elem: F32, Extent: "4*((rows-1)*x_stride + heads*head_dim + 2*groups*state_dim)", Doc: "rows x_stride apart"},
		{Name: "steps", Role: Read, Shape: "[rows, heads]", Elem: F32, Extent: "4*((rows-1)*step_stride + heads)", Doc: "rows step_stride apart"},
		{Name: "w", Role: Read, Shape: "[3, heads]", Elem: F32, Extent: "12*heads", Doc: "weights of the decay, what is added to steps, and factors of X in the result"},
		{Name: "out", Role: Write, Shape: "[rows, heads, head_dim]", Elem: F32, Extent: "4*rows*heads*head_dim"},
		{Name: StateBinding, Role: ReadWrite, Shape: "[live + saved, heads, head_dim, state_dim]", Elem: F32, Extent: "4*(live+saved)*heads*head_dim*state_dim", Reads: "4*heads*head_dim*state_dim"},
	},
	Params: slices.Concat([]Field{
		{"heads", U32, "heads of X"},
		{"groups", U32, "groups of B and C, a divisor of heads"},
		{"head_dim", U32, "elements of a head of X"},
		{"state_dim", U32, "elements of a group of B and C"},
		{"x_stride", U32, "elements from one row of x to the next"},
		{"step_stride", U32, "elements from one row of steps to the next"},
		{"step_min", F32, "smallest step size"},
		{"step_max", F32, "largest step size"},
		{"group", U32, "elements of a head of X that a threadgroup computes"},
	}, stateFields),
	Second:   []Second{secondPos, secondRows},
	Specs:    []Constant{constDecay, constSequences},
	Optional: []string{"each", "sequences", "live", "tables", "table", "pool"},
	Worker:   "4*head_dim*state_dim", // a head's state
}

// gatedNorm declares the gate and the norm of Mamba-2's result.
var gatedNorm = Kernel{
	Name: "gated_norm",
	Doc: "The gate of a row and the RMS norm of its groups, with silu(g) = g * sigmoid(g). If gate == alone, x[r] *= silu(gate[r]). If gate == before, x[r] = w * norm(x[r] * silu(gate[r])). " +
		"If gate == after, x[r] = w * norm(x[r]) * silu(gate[r]). Each group of n elements has a norm of its own.",
	Grid:    [3]string{"groups", "rows", "1"},
	Require: []string{"n >= 1", "groups >= 1", "groups*n <= gate_stride"},
	Bindings: []Binding{
		{Name: "x", Role: ReadWrite, Shape: "[rows, groups, n]", Elem: F32, Extent: "4*rows*groups*n"},
		{Name: "gate", Role: Read, Shape: "[rows, groups, n]", Elem: F32, Extent: "4*((rows-1)*gate_stride + groups*n)", Doc: "rows gate_stride apart"},
		{Name: "w", Role: Read, Shape: "[groups, n]", Elem: F32, Extent: "4*groups*n", If: "gate != alone"},
	},
	Params: []Field{
		{"n", U32, "elements of a group"},
		{"groups", U32, "groups of a row"},
		{"gate_stride", U32, "elements from one row of gate to the next"},
		{"eps", F32, "added to the mean square"},
	},
	Second: []Second{secondRows},
	Specs:  []Constant{constGate},
	TGMem:  reduceTGMem,
}

// scaleColumns declares the multiplication of columns by factors.
var scaleColumns = Kernel{
	Name:    "scale_columns",
	Doc:     "x[r] *= w.",
	Grid:    [3]string{"rows", "1", "1"},
	Require: []string{"n >= 1", "n <= stride"},
	Bindings: []Binding{
		{Name: "x", Role: ReadWrite, Shape: "[rows, n]", Elem: F32, Extent: "4*((rows-1)*stride + n)", Doc: "rows stride apart"},
		{Name: "w", Role: Read, Shape: "[n]", Elem: F32, Extent: "4*n"},
	},
	Params: []Field{
		{"n", U32, "columns"},
		{"stride", U32, "elements from one row of x to the next"},
	},
	Second: []Second{secondRows},
}
