package decl

// Limits and parts of the kernels of alternating updates.
const (
	// MaxCopies is the largest number of copies of the residual stream.
	MaxCopies = 4

	copiesRange = "copies >= 2 && copies <= 4"
	// altUpTGMem is the threadgroup memory of the sums of a router, in bytes: a float32 per SIMD group
	// for the squares and for each copy.
	altUpTGMem = "20*ceildiv(threads,32)"

	altUpDoc = "Row r of the residual stream has copies copies of n elements: the first is x[r], the others are rest[r]. " +
		"The router's result is m = tanh(router[1:] (rmsnorm(v) * router[0]) / n), a number for each copy. "
)

var (
	fieldAltUpN  = Field{"n", U32, "width"}
	fieldCopies  = Field{"copies", U32, "copies of the residual stream"}
	bindAltUpX   = Binding{Name: "x", Role: ReadWrite, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n", Doc: "the first copy"}
	bindRest     = Binding{Name: "rest", Role: ReadWrite, Shape: "[rows, copies-1, n]", Elem: F32, Extent: "4*rows*max(copies-1,1)*n", Doc: "the other copies"}
	bindRouter   = Binding{Name: "router", Role: Read, Shape: "[1 + copies, n]", Elem: F32, Extent: "4*(1+copies)*n", Doc: "weights of the norm, then the router's matrix"}
	fieldAltEps  = Field{"eps", F32, "added to the mean square"}
	secondAltUps = []Second{secondRows}
)

// altUpPredict declares the prediction before a layer.
var altUpPredict = Kernel{
	Name: "altup_predict",
	Doc: altUpDoc + "The prediction of copy i is p_i = x_i + the sum of c[i, j] * x_j over all copies j, where c = coefs m for v = x[r]. " +
		"active[r] becomes p_0, x[r] becomes x_scale * p_0, and rest[r] the other predictions.",
	Grid:    [3]string{"rows", "1", "1"},
	Require: []string{"n >= 1", copiesRange},
	Bindings: []Binding{
		bindAltUpX, bindRest, bindRouter,
		{Name: "coefs", Role: Read, Shape: "[copies, copies, copies]", Elem: F32, Extent: "4*copies*copies*copies"},
		{Name: "active", Role: Write, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n"},
	},
	Params: []Field{fieldAltUpN, fieldCopies, fieldAltEps, {"x_scale", F32, "factor of the prediction in x"}},
	Second: secondAltUps,
	Worker: "4*n", // the normalised row
	TGMem:  altUpTGMem,
}

// altUpCorrect declares the correction after a layer.
var altUpCorrect = Kernel{
	Name: "altup_correct",
	Doc: altUpDoc + "x[r] is the layer's result, and d its difference to the prediction active[r]. With c = coefs m + 1 for v = x[r], x[r] becomes active[r] + c[0] * d, and " +
		"c[i] * d is added to copy i of rest[r]. out[r] = x[r] * scale afterwards.",
	Grid:    [3]string{"rows", "1", "1"},
	Require: []string{"n >= 1", copiesRange},
	Bindings: []Binding{
		bindAltUpX, bindRest,
		{Name: "active", Role: Read, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n"},
		bindRouter,
		{Name: "coefs", Role: Read, Shape: "[copies, copies]", Elem: F32, Extent: "4*copies*copies"},
		{Name: "scale", Role: Read, Shape: "[n]", Elem: F32, Extent: "4*n"},
		{Name: "out", Role: Write, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n"},
	},
	Params: []Field{fieldAltUpN, fieldCopies, fieldAltEps},
	Second: secondAltUps,
	Worker: "4*n", // the normalised row, then the difference
	TGMem:  altUpTGMem,
}

// altUpAdd declares the addition of a norm to all copies but the first.
var altUpAdd = Kernel{
	Name:    "altup_add",
	Doc:     "rmsnorm(delta[r]) * w is added to each of the copies - 1 parts of rest[r].",
	Grid:    [3]string{"rows", "1", "1"},
	Require: []string{"n >= 1", copiesRange},
	Bindings: []Binding{
		bindRest,
		{Name: "delta", Role: Read, Shape: "[rows, n]", Elem: F32, Extent: "4*rows*n"},
		{Name: "w", Role: Read, Shape: "[n]", Elem: F32, Extent: "4*n"},
	},
	Params: []Field{fieldAltUpN, fieldCopies, fieldAltEps},
	Second: secondAltUps,
	Worker: "4*n", // the normalised delta
	TGMem:  squaresTGMem,
}

// altUpMatch declares the matching of the copies' magnitudes.
var altUpMatch = Kernel{
	Name: "altup_match",
	Doc: "Each of the copies - 1 parts of rest[r] is multiplied by sqrt(mean(x[r]^2)) / sqrt(max(mean(part^2), least)). " +
		"If merge is 1, rest stays, and x[r] becomes the mean of itself and of the multiplied parts.",
	Grid:    [3]string{"rows", "1", "1"},
	Require: []string{"n >= 1", copiesRange, "merge <= 1"},
	Bindings: []Binding{
		bindAltUpX, bindRest,
	},
	Params:   []Field{fieldAltUpN, fieldCopies, {"merge", U32, "1: the copies are merged"}, {"least", F32, "lower bound of the mean square of a part"}},
	Second:   secondAltUps,
	Optional: []string{"merge"},
	TGMem:    altUpTGMem,
}

// topGates declares the cutoff of the gates of a feed-forward block.
var topGates = Kernel{
	Name: "top_gates",
	Doc: "x[r, i] = max(x[r, i] - c, 0), where c is the mean of x[r] plus cutoff times the standard deviation sqrt(mean((x[r] - mean)^2)). " +
		"Of a normal distribution, the elements above c remain.",
	Grid:    [3]string{"rows", "1", "1"},
	Require: []string{"n >= 1", "n <= stride"},
	Bindings: []Binding{
		{Name: "x", Role: ReadWrite, Shape: "[rows, n]", Elem: F32, Extent: "4*((rows-1)*stride + n)", Doc: "rows stride apart"},
	},
	Params: []Field{
		{"n", U32, "elements of a row"},
		{"stride", U32, "elements from one row of x to the next"},
		{"cutoff", F32, "standard deviations from the mean to the cutoff"},
	},
	Second: []Second{secondRows},
	TGMem:  reduceTGMem,
}
