package compiler

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/dtype"
)

// latentAttention emits a layer's multi-head latent attention, whose cache has one row per position for
// all heads: the rotated elements of K, then the latent. The up projections of K and V are absorbed. Q is
// multiplied with that of K, so that a score is its product with the cache row. Attention adds up cache
// rows, and the latents in the sums are multiplied with the up projection of V. y is the normalised
// residual stream x.
func (s *state) latentAttention(p *program, l *layerPlan, x, y, angles, turn *value) error {
	c := s.cfg
	r, heads := &c.Latent, choice{c.Heads, c.Heads}
	q, err := s.latentQ(p, l, y)
	if err != nil {
		return err
	}
	kv, err := s.linear(p, spot{role: roleKVDown, layer: l}, y, arch.KVDown)
	if err != nil {
		return err
	}
	up, err := s.headMatrix(l.name("attn.k_up"), arch.K, l.index)
	if err != nil {
		return err
	}
	ids := s.allHeads()
	latent := p.value(l.name(roleNames[roleQLatent]), c.Heads*c.HeadDim)
	p.emit(spot{role: roleQLatent, layer: l}, expertProductArgs{w: up, ids: ids, of: heads, share: 1},
		[]operand{q.all()}, operand{v: latent, off: r.Rope, width: latent.width - r.Rope})
	norm, err := s.normWeight(l.name("attn.kv_norm"), arch.KVDownNorm, l.index, r.KVRank)
	if err != nil {
		return err
	}
	p.emit(spot{role: roleLatentKV, layer: l}, latentKVArgs{w: norm, heads: c.Heads, nope: r.Nope, half: r.Rope / 2, eps: r.Eps},
		[]operand{q.all(), kv.all(), angles.all()}, latent.all(), l.k.all())

	in := []operand{latent.all(), l.k.all(), l.v.all()}
	if l.sinks > 0 {
		in = append(in, turn.all())
	}
	sums := s.attend(p, l, in, r.Rope/2, nil)
	if up, err = s.headMatrix(l.name("attn.v_up"), arch.V, l.index); err != nil {
		return err
	}
	a := p.value(l.name(roleNames[roleVUp]), c.Heads*r.Value)
	p.emit(spot{role: roleVUp, layer: l}, expertProductArgs{w: up, ids: ids, of: heads, share: 1},
		[]operand{{v: sums, off: r.Rope, width: sums.width - r.Rope}}, a.all())
	return s.attended(p, l, x, a)
}

// latentQ emits the projection of Q, by way of a low rank if the model has one.
func (s *state) latentQ(p *program, l *layerPlan, y *value) (*value, error) {
	if r := &s.cfg.Latent; r.QRank > 0 {
		down, err := s.linear(p, spot{role: roleQDown, layer: l}, y, arch.QDown)
		if err != nil {
			return nil, err
		}
		at := spot{role: roleQDownNorm, layer: l}
		w, err := s.normWeight(at.label(), arch.QDownNorm, l.index, r.QRank)
		if err != nil {
			return nil, err
		}
		y = p.value(at.label(), r.QRank)
		p.emit(at, normArgs{w: w, eps: r.Eps}, []operand{down.all()}, y.all())
	}
	return s.linear(p, spot{role: roleQ, layer: l}, y, arch.Q)
}

// allHeads returns the weight that lists all heads for each row of the program with the most rows, which
// makes products with a matrix of each head products of experts that every row has chosen.
func (s *state) allHeads() *weight {
	const name = "attn.heads"
	if have, ok := s.byName[name]; ok {
		return have
	}
	rows := max(int(s.t.Header.Chunk), s.draftRows(), s.chosenRows())
	var data []byte
	for range rows {
		for h := range s.cfg.Heads {
			data = binary.LittleEndian.AppendUint32(data, uint32(h))
		}
	}
	return s.share(&weight{name: name, rows: rows, cols: s.cfg.Heads, typ: dtype.F32, parts: []part{{data: data}}})
}

// headMatrix returns the weight with the up projection of each head, one after another: [value, rank]
// for V, and the transpose of [nope, rank] for K.
func (s *state) headMatrix(name string, role arch.Role, layer int) (*weight, error) {
	if have, ok := s.byName[name]; ok {
		return have, nil
	}
	c := s.cfg
	from := role
	if c.Latent.Joined {
		from = arch.KVUp
	}
	t, err := s.tensor(c.Tensor(from, layer))
	if err != nil {
		return nil, err
	}
	shape := c.WantShape(role, layer)
	heads, rows, cols := int(shape[0]), int(shape[1]), int(shape[2])
	w := &weight{name: name, rows: heads * rows, cols: cols, typ: t.Type}
	switch want := c.WantShape(from, layer); {
	case !slices.Equal(t.Shape, want):
		return nil, &TensorError{t.Name, fmt.Sprintf("shape %v, want %v", t.Shape, want)}
	case !floating(t.Type) && !t.Type.Quantized():
		return nil, &TensorError{t.Name, fmt.Sprintf("type %s cannot be a weight", t.Type)}
	case from == arch.KVUp && role == arch.K && !floating(t.Type):
		return nil, &TensorError{t.Name, fmt.Sprintf("the rows of K, of type %s, cannot be transposed; newer converters write attn_k_b and attn_v_b instead", t.Type)}
	}
	if _, ok := t.Type.Bytes(uint64(cols)); !ok {
		return nil, &TensorError{t.Name, fmt.Sprintf("rows of %d elements are not whole blocks of %s", cols, t.Type)}
	}
	if from == role {
		w.parts = []part{{tensor: t, rows: w.rows}}
		return s.share(w), nil
	}
	nope, each := c.Latent.Nope, c.Latent.Nope+c.Latent.Value
	for h := range heads {
		if role == arch.V {
			w.parts = append(w.parts, part{tensor: t, first: h*each + nope, rows: rows})
			continue
		}
		w.parts = append(w.parts, part{tensor: t, rows: rows, step: 1, stack: rows, block: h, apart: each * c.Latent.KVRank, transposed: true})
	}
	return s.share(w), nil
}
