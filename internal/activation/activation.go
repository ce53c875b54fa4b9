// Package activation declares the activation functions: their names in config.json and in
// dumps, their formulas and the operations that may compute them. The configuration reader,
// the kernel constants, the compiler, the CPU functions and the shaders are all derived from
// [Functions].
package activation

import (
	"math"
	"slices"
)

// Activation ids are indices into [Functions]. The .roll format stores these numbers, so new
// functions are only appended.
const (
	SiLU uint32 = iota
	GELUTanh
	GELU
	ClampedSwiGLU
	ReLUSquared
)

// A Function is one activation function.
type Function struct {
	Name    string   // the name in dumps
	Configs []string // the names in config.json, the usual one first
	Formula string

	// Of computes the function of one element. It is the reference for all other implementations,
	// and nil for a function of two elements.
	Of func(x float64) float64
	// OfPair computes a function of one element of the gate projection and one of the up
	// projection, both clamped to limit. It is nil for a function of one element.
	OfPair func(gate, up, limit float64) float64

	// Shader is the name of the Metal function in shaders/silu.h or shaders/act.metal.
	Shader string
	// InProducts reports whether gemv and gemm can apply the function to their input. InExperts
	// reports the same for the products of experts.
	InProducts, InExperts bool
}

// alpha is the factor inside the sigmoid of ClampedSwiGLU.
const alpha = 1.702

// Functions holds the declaration of every activation, indexed by its id.
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
		Name: "gelu", Configs: []string{"gelu", "gelu_python"}, Formula: "x Phi(x), where Phi is the normal distribution's CDF", Shader: "gelu_erf",
		Of: func(x float64) float64 { return x * math.Erfc(-x/math.Sqrt2) / 2 },
	},
	ClampedSwiGLU: {
		Name: "clamped_swiglu", Configs: []string{"clamped_swiglu"}, Shader: "swiglu",
		Formula: "g sigmoid(1.702 g) (u + 1), where g = min(gate, limit) and u = clamp(up, -limit, limit)",
		OfPair: func(gate, up, limit float64) float64 {
			g, u := min(gate, limit), min(max(up, -limit), limit)
			return g / (1 + math.Exp(-alpha*g)) * (u + 1)
		},
		InExperts: true,
	},
	ReLUSquared: {
		Name: "relu_squared", Configs: []string{"relu2"}, Formula: "max(x, 0)^2", Shader: "relu_squared",
		Of: func(x float64) float64 { return max(x, 0) * max(x, 0) },
	},
}

// Names returns the names of all functions in the order of their ids.
func Names() []string {
	names := make([]string, len(Functions))
	for i, f := range Functions {
		names[i] = f.Name
	}
	return names
}

// ByConfig returns the id of the function that config.json calls name.
func ByConfig(name string) (id uint32, ok bool) {
	i := slices.IndexFunc(Functions, func(f Function) bool { return slices.Contains(f.Configs, name) })
	return uint32(max(i, 0)), i >= 0
}
