package compiler

import (
	"github.com/pianola-engine/pianola/internal/activation"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// inProducts reports whether products can compute an activation for their input.
func inProducts(id uint32) bool { return activation.Functions[id].InProducts }

// limit returns the bound that an activation applies to gate and up, or 0 if it has none.
func (l *lowering) limit(id uint32) float32 {
	if activation.Functions[id].OfPair == nil {
		return 0
	}
	return l.s.cfg.ActLimit
}

// siluMulArgs holds the arguments of silu_mul: out[0] becomes the activation of in[0], times
// in[1].
type siluMulArgs struct {
	unweighted
	activation uint32 // a decl.Activation
}

func (siluMulArgs) kernel() decl.ID    { return kernels.SiLUMul }
func (a siluMulArgs) describe() string { return describeActivation(a.activation) }

func (a siluMulArgs) lower(l *lowering) {
	l.bind(kernels.SiLUMulBindGate, l.n.in[0])
	l.bind(kernels.SiLUMulBindUp, l.n.in[1])
	l.bind(kernels.SiLUMulBindOut, l.n.out[0])
	l.set(kernels.SiLUMulSpecActivation, a.activation)
	kernels.SiLUMulParams{N: uint32(l.n.out[0].width), Stride: stride(l.n.in[0]), Limit: l.limit(a.activation)}.Put(&l.cmd)
}

// activateArgs holds the arguments of activate: out[0] becomes the activation of itself.
type activateArgs struct {
	unweighted
	activation uint32 // a decl.Activation
}

// activateGroup is the number of elements of a row that a threadgroup of activate computes.
const activateGroup = 512

func (activateArgs) kernel() decl.ID    { return kernels.Activate }
func (a activateArgs) describe() string { return describeActivation(a.activation) }

func (a activateArgs) lower(l *lowering) {
	l.bind(kernels.ActivateBindX, l.n.out[0])
	l.set(kernels.ActivateSpecActivation, a.activation)
	kernels.ActivateParams{N: uint32(l.n.out[0].width), Group: activateGroup}.Put(&l.cmd)
}

// softCapArgs holds the arguments of soft_cap, which bounds the elements of out[0].
type softCapArgs struct {
	unweighted
	cap float32
}

func (softCapArgs) kernel() decl.ID { return kernels.SoftCap }

func (a softCapArgs) lower(l *lowering) {
	l.bind(kernels.SoftCapBindX, l.n.out[0])
	kernels.SoftCapParams{N: uint32(l.n.out[0].width), Part: uint32(l.s.drawPart()), Cap: a.cap}.Put(&l.cmd)
}
