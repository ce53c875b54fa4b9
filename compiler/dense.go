package compiler

import (
	"fmt"
	"slices"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

// normKind returns the kernel of a norm of the residual stream and its weights,
// behind which the biases are if it has some.
func (s *state) normKind(label string, role arch.Role, layer int) (decl.ID, *weight, error) {
	n := s.cfg.Width
	if !s.cfg.LayerNorm {
		w, err := s.normWeight(label, role, layer, n)
		return kernels.RMSNorm, w, err
	}
	w, err := s.normWeight(label+".weight", role, layer, n)
	if err != nil {
		return 0, nil, err
	}
	t, err := s.tensor(s.cfg.BiasTensor(role, layer))
	if err != nil {
		return 0, nil, err
	}
	bias, err := s.vector(label+".bias", t, n)
	if err != nil {
		return 0, nil, err
	}
	return kernels.LayerNorm, s.concatVectors(label, []*weight{w, bias}), nil
}

// ungated emits the activation of up and returns it.
func (s *state) ungated(p *program, pre string, y *value, l *layerPlan) (*value, error) {
	up, err := s.linear(p, pre+"up", y, arch.Up, l.index)
	if err != nil {
		return nil, err
	}
	p.emit(&node{kernel: kernels.Activate, label: pre + "act", out: []operand{up.all()}, activation: activation(s.cfg.Activation)})
	return up, nil
}

// vectorOf returns count elements of a tensor of total, from first on, as kernels
// read them.
func (s *state) vectorOf(name string, t weights.Tensor, first, count, total uint64) (*weight, error) {
	if !slices.Equal(t.Shape, []uint64{total}) {
		return nil, &TensorError{t.Name, fmt.Sprintf("shape %v, want [%d]", t.Shape, total)}
	}
	if !floating(t.Type) {
		return nil, &TensorError{t.Name, fmt.Sprintf("type %s, want F32, F16 or BF16", t.Type)}
	}
	return s.share(&weight{name: name, rows: 1, cols: int(count), typ: dtype.F32, parts: []part{partOf(t, first, count, total)}}), nil
}

// partOf returns rows of a tensor as a part, or all of it.
func partOf(t weights.Tensor, first, count, total uint64) part {
	if count == total {
		return part{tensor: t}
	}
	return part{tensor: t, first: int(first), rows: int(count)}
}

// append adds a part behind w's. Rows that follow each other in a tensor are one
// part, so that a fused matrix that is a fused tensor is copied, or mapped, whole.
func (w *weight) append(p part) {
	if len(w.parts) > 0 && p.data == nil && p.rows > 0 {
		last := &w.parts[len(w.parts)-1]
		if last.data == nil && last.rows > 0 && last.tensor.Name == p.tensor.Name && last.first+last.rows == p.first {
			if last.rows += p.rows; last.first == 0 && uint64(last.rows) == last.tensor.Shape[0] {
				last.rows = 0
			}
			return
		}
	}
	w.parts = append(w.parts, p)
}

// activateGroup is how many elements of a row a threadgroup of activate computes.
const activateGroup = 512

// dense lowers the kernels of dense families.
func (l *lowering) dense() {
	switch n := l.n; n.kernel {
	case kernels.LayerNorm:
		l.bind(kernels.LayerNormBindX, n.in[0])
		l.bindWeight(kernels.LayerNormBindW, n.w)
		l.bind(kernels.LayerNormBindOut, n.out[0])
		kernels.LayerNormParams{N: uint32(n.out[0].width), XRows: uint32(n.in[0].v.rows), Eps: n.eps}.Put(&l.cmd)
		if n.rowPatch {
			l.patch(table.PatchRow, decl.SecondIndex)
		}
	case kernels.Activate:
		l.bind(kernels.ActivateBindX, n.out[0])
		l.spec.Values[kernels.ActivateSpecActivation] = n.activation
		kernels.ActivateParams{N: uint32(n.out[0].width), Group: activateGroup}.Put(&l.cmd)
	}
}
