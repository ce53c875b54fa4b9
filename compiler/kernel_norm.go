package compiler

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// normArgs holds the arguments of rmsnorm and layernorm: out[0] becomes the norm of in[0].
type normArgs struct {
	mean    bool    // layernorm, which subtracts the mean; w holds the weights, then the biases
	w       *weight // weights of the norm
	eps     float32
	scale   float32 // for rmsnorm: factor of the result; 0 means 1
	fromRow bool    // in[0] is a chunk, read from the step record's Row on
}

func (a normArgs) kernel() decl.ID {
	if a.mean {
		return kernels.LayerNorm
	}
	return kernels.RMSNorm
}

func (a normArgs) weights() []*weight { return []*weight{a.w} }

func (a normArgs) lower(l *lowering) {
	x, out := l.n.in[0], l.n.out[0]
	if a.mean {
		l.bind(kernels.LayerNormBindX, x)
		l.bindWeight(kernels.LayerNormBindW, a.w)
		l.bind(kernels.LayerNormBindOut, out)
		kernels.LayerNormParams{N: uint32(out.width), XRows: uint32(x.v.rows), Eps: a.eps}.Put(&l.cmd)
	} else {
		l.bind(kernels.RMSNormBindX, x)
		l.bindWeight(kernels.RMSNormBindW, a.w)
		l.bind(kernels.RMSNormBindOut, out)
		kernels.RMSNormParams{N: uint32(a.w.cols), XRows: uint32(x.v.rows), Eps: a.eps, Scale: a.scale}.Put(&l.cmd)
	}
	if a.fromRow {
		l.patch(table.PatchRow, decl.SecondIndex)
	}
}

// headNormArgs holds the arguments of head_norm, which normalises each head of out[0], or all heads
// together.
type headNormArgs struct {
	w     *weight // weights of one head, or of all heads together
	heads int     // number of heads; 1 if they are normalised together
	eps   float32
}

func (headNormArgs) kernel() decl.ID      { return kernels.HeadNorm }
func (a headNormArgs) weights() []*weight { return []*weight{a.w} }

func (a headNormArgs) lower(l *lowering) {
	l.bind(kernels.HeadNormBindX, l.n.out[0])
	l.bindWeight(kernels.HeadNormBindW, a.w)
	l.set(kernels.HeadNormSpecHeadDim, uint32(a.w.cols))
	kernels.HeadNormParams{Heads: uint32(a.heads), Stride: stride(l.n.out[0]), Eps: a.eps}.Put(&l.cmd)
}

// headLayerNormArgs holds the arguments of head_layernorm, which normalises each head of out[0].
type headLayerNormArgs struct {
	w     *weight // weights of all heads
	heads int
	eps   float32
}

func (headLayerNormArgs) kernel() decl.ID      { return kernels.HeadLayerNorm }
func (a headLayerNormArgs) weights() []*weight { return []*weight{a.w} }

func (a headLayerNormArgs) lower(l *lowering) {
	l.bind(kernels.HeadLayerNormBindX, l.n.out[0])
	l.bindWeight(kernels.HeadLayerNormBindW, a.w)
	l.set(kernels.HeadLayerNormSpecHeadDim, l.headDim())
	kernels.HeadLayerNormParams{Heads: uint32(a.heads), Stride: stride(l.n.out[0]), Eps: a.eps}.Put(&l.cmd)
}

// addArgs holds the arguments of add: out[0] += in[0].
type addArgs struct {
	unweighted
	delta float32 // factor of in[0]; 0 means 1
}

func (addArgs) kernel() decl.ID { return kernels.Add }

func (a addArgs) lower(l *lowering) {
	l.bind(kernels.AddBindX, l.n.out[0])
	l.bind(kernels.AddBindDelta, l.n.in[0])
	kernels.AddParams{N: uint32(l.n.out[0].width), DeltaScale: a.delta}.Put(&l.cmd)
}

// addNormArgs holds the arguments of add_rmsnorm: out[0] += in[0], and out[1] becomes the
// norm of out[0].
type addNormArgs struct {
	w     *weight
	eps   float32
	scale float32 // factor of the norm; 0 means 1
	delta float32 // factor of in[0]; 0 means 1
}

func (addNormArgs) kernel() decl.ID      { return kernels.AddRMSNorm }
func (a addNormArgs) weights() []*weight { return []*weight{a.w} }

func (a addNormArgs) lower(l *lowering) {
	l.bind(kernels.AddRMSNormBindX, l.n.out[0])
	l.bind(kernels.AddRMSNormBindDelta, l.n.in[0])
	l.bindWeight(kernels.AddRMSNormBindW, a.w)
	l.bind(kernels.AddRMSNormBindOut, l.n.out[1])
	kernels.AddRMSNormParams{N: uint32(a.w.cols), Eps: a.eps, Scale: a.scale, DeltaScale: a.delta}.Put(&l.cmd)
}

// normAddArgs holds the arguments of norm_add: out[0] += the norm of in[0], and out[1]
// becomes the norm of out[0] if w is not nil.
type normAddArgs struct {
	post *weight // weights of the norm of in[0]
	w    *weight // weights of the norm of out[0]
	eps  float32
}

func (normAddArgs) kernel() decl.ID      { return kernels.NormAdd }
func (a normAddArgs) weights() []*weight { return []*weight{a.post, a.w} }

func (a normAddArgs) lower(l *lowering) {
	l.bind(kernels.NormAddBindX, l.n.out[0])
	l.bind(kernels.NormAddBindDelta, l.n.in[0])
	l.bindWeight(kernels.NormAddBindPost, a.post)
	l.bindWeight(kernels.NormAddBindW, a.w)
	if a.w != nil {
		l.bind(kernels.NormAddBindOut, l.n.out[1])
	}
	l.flag(kernels.NormAddSpecNorm, a.w != nil)
	kernels.NormAddParams{N: uint32(a.post.cols), Eps: a.eps}.Put(&l.cmd)
}
