// Package activation declares the activation functions: their names in files and dumps,
// their formulas and where they may stand. The configuration of a model, the constant of
// kernels, the compiler, the CPU's functions and the shaders' follow from [Functions].
package activation

import (
	"math"
	"slices"
)

// The functions, by their index in [Functions]. The numbers are part of the .roll format:
// append only.
const (
	SiLU uint32 = iota
	GELUTanh
	GELU
	ClampedSwiGLU
)

// A Function is one activation.
type Function struct {
	Name    string   // in dumps
	Configs []string // the names in config.json, the usual one first
	Formula string

	// Of computes the function of an element, and is the reference of all others. A
	// function of two has none.
	Of func(x float64) float64
	// OfPair computes a function of the elements of the gate and up projections within a
	// limit.
	OfPair func(gate, up, limit float64) float64

	// Shader is the Metal function of shaders/silu.h or shaders/act.metal.
	Shader string
	// InProducts reports whether the products gemv and gemm compute the function of their
	// input. InExperts reports it for the products of experts.
	InProducts, InExperts bool
}

// alpha is the factor within ClampedSwiGLU's sigmoid.
const alpha = 1.702

// Functions are the declarations.
var Functions = []Function{
	SiLU: {
		Name: "silu", Configs: []string{"silu", "swish"}, Formula: "x / (1 + exp(-x))", Shader: "silu",
		Of:         func(x float64) float64 { return x / (1 + math.Exp(-x)) },
		InProducts: true, InExperts: true,
	},
	GELUTanh: {
		Name: "gelu_tanh", Configs: []string{"gelu_pytorch_tanh", "gelu_new", "gelu_fast"},
		Formula: "x / (1 + exp(-2 sqrt(2/pi) (x + 0.044715 x^3)))", Shader: "gelu",
		Of: func(x float64) float64 {
			return x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x))) / 2
		},
		InProducts: true, InExperts: true,
	},
	GELU: {
		Name: "gelu", Configs: []string{"gelu", "gelu_python"}, Formula: "x Phi(x), with Phi of the normal distribution", Shader: "gelu_erf",
		Of: func(x float64) float64 { return x * math.Erfc(-x/math.Sqrt2) / 2 },
	},
	ClampedSwiGLU: {
		Name: "clamped_swiglu", Configs: []string{"clamped_swiglu"}, Shader: "swiglu",
		Formula: "g sigmoid(1.702 g) (u + 1), with g = min(gate, limit) and u = up within -limit and limit",
		OfPair: func(gate, up, limit float64) float64 {
			g, u := min(gate, limit), min(max(up, -limit), limit)
			return g / (1 + math.Exp(-alpha*g)) * (u + 1)
		},
		InExperts: true,
	},
}

// Names returns the names of all functions in order.
func Names() []string {
	names := make([]string, len(Functions))
	for i, f := range Functions {
		names[i] = f.Name
	}
	return names
}

// ByConfig returns the function that config.json calls name.
func ByConfig(name string) (id uint32, ok bool) {
	i := slices.IndexFunc(Functions, func(f Function) bool { return slices.Contains(f.Configs, name) })
	return uint32(max(i, 0)), i >= 0
}
