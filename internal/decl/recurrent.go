package decl

// StateBinding is the name of the binding of a slot with the states of a layer.
const StateBinding = "state"

// Parameters of kernels with recurrent state, which package recurrent explains.
var (
	fieldLive  = Field{"live", U32, "entries of states at positions that are no borders"}
	fieldSaved = Field{"saved", U32, "entries of states at borders"}
	fieldEach  = Field{"each", U32, "1 if the state after each row is stored; 0: at borders and after the last row"}
)

const (
	stateRing = "live >= 2 && live <= 1024 && saved >= 1 && each <= 1"
	stateDoc  = "The state at position p, which depends on the rows before p, is zeros if p == 0. Otherwise it is in entry live + (p/64) mod saved if p is a multiple of 64, and in entry p mod live if not. " +
		"The kernel reads the state at pos and stores the states at the multiples of 64 that the active rows reach, the state after the last active row, and with each == 1 the state after every active row."
)

// causalConv declares the causal convolution over the positions of a sequence.
var causalConv = Kernel{
	Name: "causal_conv",
	Doc: "A causal convolution of each channel over positions: y[r, c] = bias[c] + sum over t of w[c, t] * u[r - taps + 1 + t, c], where the rows of u before row 0 are the state. " +
		"If conv == gated, a row of x consists of B, C and V with n elements each, u = B * V and out = C * y. If conv == silu, u = x and out = y * sigmoid(y). " + stateDoc,
	Grid:    [3]string{"ceildiv(n,group)", "rows", "1"},
	Require: []string{"n >= 1", "group >= 1", "taps >= 2", "taps <= 8", "(conv == gated ? 3*n : n) <= x_stride", stateRing},
	Bindings: []Binding{
		{Name: "x", Role: Read, Shape: "[rows, n] or [rows, 3, n]", Elem: F32, Extent: "4*((rows-1)*x_stride + (conv == gated ? 3*n : n))", Doc: "rows x_stride apart"},
		{Name: "w", Role: Read, Shape: "[n, taps]", Elem: F32, Extent: "4*n*taps"},
		{Name: "bias", Role: Read, Shape: "[n]", Elem: F32, Extent: "4*n", If: "bias"},
		{Name: "out", Role: Write, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n"},
		{Name: StateBinding, Role: ReadWrite, Shape: "[live + saved, taps - 1, n]", Elem: F32, Extent: "4*(live+saved)*(min(taps,8)-min(taps,2)+1)*n", Reads: "4*(min(taps,8)-min(taps,2)+1)*n", Doc: "rows of u, the oldest first"},
	},
	Params: []Field{
		{"n", U32, "channels"},
		{"taps", U32, "positions that a convolution covers"},
		{"x_stride", U32, "elements from one row of x to the next"},
		{"group", U32, "channels that a threadgroup computes"},
		fieldLive, fieldSaved, fieldEach,
	},
	Second:   []Second{secondPos, secondRows},
	Specs:    []Constant{constConv, constBias},
	Optional: []string{"each", "bias"},
	Worker:   "4*min(n,512)*min(taps,8)", // the state of as many channels as are computed together, and a row of u
}
