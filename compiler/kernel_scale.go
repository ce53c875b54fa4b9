package compiler

import (
	"math"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// scaleArgs holds the arguments of scale_rows, which multiplies the rows of out[0] by factors.
type scaleArgs struct {
	factors *weight
	span    int // positions with the same factor
	offset  int // added to positions
}

func (scaleArgs) kernel() decl.ID      { return kernels.ScaleRows }
func (a scaleArgs) weights() []*weight { return []*weight{a.factors} }

func (a scaleArgs) lower(l *lowering) {
	l.bind(kernels.ScaleRowsBindX, l.n.out[0])
	l.bindWeight(kernels.ScaleRowsBindFactors, a.factors)
	kernels.ScaleRowsParams{
		N: uint32(l.n.out[0].width), Stride: stride(l.n.out[0]), Count: uint32(a.factors.cols), Span: uint32(a.span), Offset: uint32(a.offset),
	}.Put(&l.cmd)
	l.set(kernels.ScaleRowsSpecSequences, l.sequences())
	l.place(table.PatchPosition, decl.SecondIndex)
}

// temper emits the multiplication of Q by factors that grow with the position.
func (s *state) temper(p *program, l *layerPlan, q *value) {
	t := &s.cfg.Temper
	factors := make([]float32, (int(s.t.Header.Context)-1+t.Offset)/t.Span+1)
	for i := range factors {
		factors[i] = float32(1 + float64(t.Scale)*math.Log1p(float64(i)))
	}
	p.emit(spot{role: roleTemper, layer: l}, scaleArgs{factors: s.constant("attn.temper", factors), span: t.Span, offset: t.Offset}, nil, q.all())
}
