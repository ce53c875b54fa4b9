package decl

import "slices"

// StateBinding is the name of the binding of a slot with the states of a layer.
const StateBinding = "state"

// stateFields are the last parameters of kernels with recurrent state, which package recurrent explains.
var stateFields = []Field{
	{"live", U32, "entries of states at positions that are no borders; 0 in a pooled table"},
	{"saved", U32, "entries of states at borders; in a pooled table, the pages"},
	{"each", U32, "1 if the state after each row is stored; 0: at borders and after the last row"},
	fieldTables, fieldTable, fieldPool,
}

const (
	stateRing = "saved >= 1 && (sequences == own ? live >= 2 && live <= 1024 && each <= 1 : live == 0 && each == 0)"
	// pooledStates is the requirement of kernels whose states are in pages.
	pooledStates = "sequences == own || table*64 >= context && tables % 4 == 0"
	stateDoc     = "The state at position p, which depends on the rows before p, is zeros if p == 0. Otherwise it is in entry live + (p/64) mod saved if p is a multiple of 64, and in entry p mod live if not. " +
		"The kernel reads the state at pos and stores the states at the multiples of 64 that the active rows reach, the state after the last active row, and with each == 1 the state after every active row. " +
		"In a pooled table, an entry is a page, and the state at position p is in the page that entry (p-1)/64 of the sequence's page table names; page numbers are clamped. With sequences == many, each row belongs to a sequence of its own, which has one active row at the position of the row record, and nothing is computed for a row that has stopped."
)

// causalConv declares the causal convolution over the positions of a sequence.
var causalConv = Kernel{
	Name: "causal_conv",
	Doc: "A causal convolution of each channel over positions: y[r, c] = bias[c] + sum over t of w[c, t] * u[r - taps + 1 + t, c], where the rows of u before row 0 are the state. " +
		"If conv == gated, a row of x consists of B, C and V with n elements each, u = B * V and out = C * y. If conv == silu, u = x and out = y * sigmoid(y). " + stateDoc,
	Grid:    [3]string{"ceildiv(n,group)", "rows", "1"},
	Require: []string{"n >= 1", "group >= 1", "taps >= 2", "taps <= 8", "(conv == gated ? 3*n : n) <= x_stride", stateRing, pooledStates, pooled},
	Bindings: []Binding{
		{Name: "x", Role: Read, Shape: "[rows, n] or [rows, 3, n]", Elem: F32, Extent: "4*((rows-1)*x_stride + (conv == gated ? 3*n : n))", Doc: "rows x_stride apart"},
		{Name: "w", Role: Read, Shape: "[n, taps]", Elem: F32, Extent: "4*n*taps"},
		{Name: "bias", Role: Read, Shape: "[n]", Elem: F32, Extent: "4*n", If: "bias"},
		{Name: "out", Role: Write, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n"},
		{Name: StateBinding, Role: ReadWrite, Shape: "[live + saved, taps - 1, n]", Elem: F32, Extent: "4*(live+saved)*(min(taps,8)-min(taps,2)+1)*n", Reads: "4*(min(taps,8)-min(taps,2)+1)*n", Doc: "rows of u, the oldest first"},
	},
	Params: slices.Concat([]Field{
		{"n", U32, "channels"},
		{"taps", U32, "positions that a convolution covers"},
		{"x_stride", U32, "elements from one row of x to the next"},
		{"group", U32, "channels that a threadgroup computes"},
	}, stateFields),
	Second:   []Second{secondPos, secondRows},
	Specs:    []Constant{constConv, constBias, constSequences},
	Optional: []string{"each", "bias", "sequences", "live", "tables", "table", "pool"},
	Worker:   "4*min(n,512)*min(taps,8)", // the state of as many channels as are computed together, and a row of u
}

// deltaRule declares the gated delta rule.
var deltaRule = Kernel{
	Name: "delta_rule",
	Doc: "The gated delta rule. A row of x consists of Q and K of key_heads heads with key_dim elements and V of heads heads with value_dim. Head h uses Q and K of head h % key_heads if tiled == 1, else of head h / (heads/key_heads). " +
		"Each head has a state S [value_dim, key_dim]. For each row, q = l2norm(Q) / sqrt(key_dim), k = l2norm(K), beta = sigmoid(gates[r, h]), and S decays: S *= exp(-rate * log(1 + exp(gates[r, heads + h] + w[1, h]))), where rate = exp(w[0, h]) if decay == log, and -w[0, h] if decay == negative. " +
		"Then S += beta * (V - S k) k^T, and out[r, h] = S q. " + stateDoc,
	Grid: [3]string{"ceildiv(value_dim,group)", "heads", "sequences == many ? rows : 1"},
	Require: []string{
		"heads >= 1", "key_heads >= 1", "heads % key_heads == 0", "key_dim >= 1", "key_dim <= 256", "value_dim >= 1", "value_dim <= 256", "group >= 1", "tiled <= 1",
		"2*key_heads*key_dim + heads*value_dim <= x_stride", "2*heads <= gate_stride", stateRing, pooledStates, pooled,
	},
	Bindings: []Binding{
		{Name: "x", Role: Read, Shape: "[rows, 2*key_heads*key_dim + heads*value_dim]", Elem: F32, Extent: "4*((rows-1)*x_stride + 2*key_heads*key_dim + heads*value_dim)", Doc: "rows x_stride apart"},
		{Name: "gates", Role: Read, Shape: "[rows, 2, heads]", Elem: F32, Extent: "4*((rows-1)*gate_stride + 2*heads)", Doc: "rows gate_stride apart"},
		{Name: "w", Role: Read, Shape: "[2, heads]", Elem: F32, Extent: "8*heads", Doc: "weights of the decay, and what is added to its gates"},
		{Name: "out", Role: Write, Shape: "[rows, heads, value_dim]", Elem: F32, Extent: "4*rows*heads*value_dim"},
		{Name: StateBinding, Role: ReadWrite, Shape: "[live + saved, heads, value_dim, key_dim]", Elem: F32, Extent: "4*(live+saved)*heads*value_dim*key_dim", Reads: "4*heads*value_dim*key_dim"},
	},
	Params: slices.Concat([]Field{
		{"heads", U32, "heads of V"},
		{"key_heads", U32, "heads of Q and K, a divisor of heads"},
		{"key_dim", U32, "elements of a head of Q and K"},
		{"value_dim", U32, "elements of a head of V"},
		{"x_stride", U32, "elements from one row of x to the next"},
		{"gate_stride", U32, "elements from one row of gates to the next"},
		{"eps", F32, "added to the sum of squares in l2norm"},
		{"tiled", U32, "1 if neighbouring heads have different Q and K"},
		{"group", U32, "elements of a head of V that a threadgroup computes"},
	}, stateFields),
	Second:   []Second{secondPos, secondRows},
	Specs:    []Constant{constDecay, constSequences},
	Optional: []string{"each", "tiled", "sequences", "live", "tables", "table", "pool"},
	Worker:   "4*(value_dim*key_dim + 32*key_dim + 32)", // a head's state, and k, q and the gates of 16 rows
}

// sigmoidMul declares the gate of attention's output.
var sigmoidMul = Kernel{
	Name:    "sigmoid_mul",
	Doc:     "x[r] *= sigmoid(gate[r]).",
	Grid:    [3]string{"rows", "1", "1"},
	Require: []string{"n >= 1", "n <= gate_stride"},
	Bindings: []Binding{
		{Name: "x", Role: ReadWrite, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n"},
		{Name: "gate", Role: Read, Shape: "[rows, n]", Elem: F32, Extent: "4*((rows-1)*gate_stride + n)", Doc: "rows gate_stride apart"},
	},
	Params: []Field{
		{"n", U32, "width"},
		{"gate_stride", U32, "elements from one row of gate to the next"},
	},
	Second: []Second{secondRows},
}
