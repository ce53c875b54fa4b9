package compiler

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

// TensorError reports a tensor that is missing or that the compiler does not support.
type TensorError struct{ Tensor, What string }

// Error implements error.
func (e *TensorError) Error() string {
	return fmt.Sprintf("compiler: tensor %s: %s", e.Tensor, e.What)
}

// tensor returns the tensor called name.
func (s *state) tensor(name string) (weights.Tensor, error) {
	t, ok := s.in.Tensors.Tensor(name)
	if !ok {
		return t, &TensorError{name, "missing"}
	}
	if !t.Type.Valid() {
		return t, &TensorError{name, fmt.Sprintf("type %s is not supported", t.TypeName)}
	}
	return t, nil
}

// share returns the existing weight with w's name, or w if there is none, so that all programs and a
// tied head use the same slot.
func (s *state) share(w *weight) *weight {
	if have, ok := s.byName[w.name]; ok {
		return have
	}
	s.byName[w.name] = w
	return w
}

// matrix returns the weight of a role, [rows, columns], with the type in the file.
func (s *state) matrix(name string, role arch.Role, layer int) (*weight, error) {
	t, err := s.tensor(s.cfg.Tensor(role, layer))
	if err != nil {
		return nil, err
	}
	want := s.cfg.WantShape(role, layer)
	first, count, total := s.cfg.Rows(role, layer)
	want[0] = total
	return s.matrixOf(name, t, want, first, count)
}

// matrixOf returns the weight with rows [first, first+count) of a tensor that must have the shape want.
func (s *state) matrixOf(name string, t weights.Tensor, want []uint64, first, count uint64) (*weight, error) {
	if !slices.Equal(t.Shape, want) {
		return nil, &TensorError{t.Name, fmt.Sprintf("shape %v, want %v", t.Shape, want)}
	}
	if !floating(t.Type) && !t.Type.Quantized() {
		return nil, &TensorError{t.Name, fmt.Sprintf("type %s cannot be a weight", t.Type)}
	}
	if _, ok := t.Type.Bytes(want[1]); !ok {
		return nil, &TensorError{t.Name, fmt.Sprintf("rows of %d elements are not whole blocks of %s", want[1], t.Type)}
	}
	return s.share(&weight{name: name, rows: int(count), cols: int(want[1]), typ: t.Type, parts: []part{partOf(t, first, count, want[0])}}), nil
}

// constant returns a weight of one row with the given elements.
func (s *state) constant(name string, elements []float32) *weight {
	data := make([]byte, 0, 4*len(elements))
	for _, f := range elements {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(f))
	}
	return s.share(&weight{name: name, rows: 1, cols: len(elements), typ: dtype.F32, parts: []part{{data: data}}})
}

// vector returns a weight of n elements that kernels read as float32.
func (s *state) vector(name string, t weights.Tensor, n int) (*weight, error) {
	return s.vectorOf(name, t, 0, uint64(n), uint64(n))
}

// normWeight returns the weight of a norm of n elements.
func (s *state) normWeight(name string, role arch.Role, layer, n int) (*weight, error) {
	t, err := s.tensor(s.cfg.Tensor(role, layer))
	if err != nil {
		return nil, err
	}
	w, err := s.vector(name, t, n)
	if err == nil {
		w.parts[0].plusOne = s.cfg.NormPlusOne
	}
	return w, err
}

// vectorOf returns a weight with elements [first, first+count) of a tensor of total elements, which
// kernels read as float32.
func (s *state) vectorOf(name string, t weights.Tensor, first, count, total uint64) (*weight, error) {
	if !slices.Equal(t.Shape, []uint64{total}) {
		return nil, &TensorError{t.Name, fmt.Sprintf("shape %v, want [%d]", t.Shape, total)}
	}
	if !floating(t.Type) {
		return nil, &TensorError{t.Name, fmt.Sprintf("type %s, want F32, F16 or BF16", t.Type)}
	}
	return s.share(&weight{name: name, rows: 1, cols: int(count), typ: dtype.F32, parts: []part{partOf(t, first, count, total)}}), nil
}

// partOf returns the part with rows [first, first+count) of a tensor of total rows.
func partOf(t weights.Tensor, first, count, total uint64) part {
	if count == total {
		return part{tensor: t}
	}
	return part{tensor: t, first: int(first), rows: int(count)}
}

// bytes returns the size of w in its layout. matrix has checked that its rows are whole blocks.
func (w *weight) bytes() int {
	size, _ := w.layout.Bytes(w.typ, uint64(w.rows), uint64(w.cols))
	return int(size)
}

// append adds a part after the parts of w. It merges consecutive rows of a tensor to one part, so
// that a fused matrix that is one tensor in the file is copied or mapped whole.
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

// floating reports whether elements of a type are floats.
func floating(t dtype.Type) bool { return t == dtype.F32 || t == dtype.F16 || t == dtype.BF16 }

// concat returns the weight that contains the rows of all weights in list, in order.
func (s *state) concat(name string, list ...*weight) *weight {
	w := &weight{name: name, cols: list[0].cols, typ: list[0].typ}
	for _, l := range list {
		w.rows += l.rows
		for _, p := range l.parts {
			w.append(p)
		}
	}
	return s.share(w)
}

// concatVectors returns the vector with the elements of all vectors in list, in order.
func (s *state) concatVectors(name string, list ...*weight) *weight {
	w := &weight{name: name, rows: 1, typ: list[0].typ}
	for _, l := range list {
		w.cols += l.cols
		w.parts = append(w.parts, l.parts...)
	}
	return s.share(w)
}

// tileWeights selects the tiled layout for the matrices of products that quantise their activations,
// if the matrix's type has a tiled layout and no strip of rows crosses a part.
func (s *state) tileWeights() error {
	for _, p := range s.programs {
		for _, n := range p.nodes {
			if w := s.tiled(n.args); w != nil && s.quantised(w) && tileable(w) {
				w.layout = dtype.Tiled16
			}
		}
	}
	return nil
}

// tiled returns the matrix of a product that may have the tiled layout, or nil. A strip of rows must
// belong to a single expert.
func (s *state) tiled(a args) *weight {
	switch a := a.(type) {
	case productArgs:
		return a.w
	case expertProductArgs:
		if a.w.rows/a.of.count%dtype.TileRows == 0 {
			return a.w
		}
	}
	return nil
}

// quantised reports whether products with w quantise the activations in at least one layout of w.
func (s *state) quantised(w *weight) bool {
	return s.in.Chip.ActQ8 && w.typ.Integers() && w.cols%32 == 0
}

// quantises reports whether products with w, in its final layout, quantise the
// activations.
func (s *state) quantises(w *weight) bool {
	return s.quantised(w) && (s.in.Chip.ActQ8Rows || w.layout == dtype.Tiled16)
}

func tileable(w *weight) bool {
	for _, p := range w.parts {
		if p.data != nil || !dtype.Tiled16.Has(w.typ, uint64(p.count()), uint64(w.cols)) {
			return false
		}
	}
	return true
}

// planWeights adds a slot for each weight that a node uses, and the uploads that fill it.
func (s *state) planWeights() error {
	for _, p := range s.programs {
		for _, n := range p.nodes {
			for _, w := range n.args.weights() {
				if w == nil || slices.Contains(s.weights, w) {
					continue
				}
				s.weights = append(s.weights, w)
				if err := s.upload(w); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// upload adds the slot of a weight and the uploads that fill it.
func (s *state) upload(w *weight) error {
	size, ok := w.layout.Bytes(w.typ, uint64(w.rows), uint64(w.cols))
	if !ok {
		return &TensorError{w.name, fmt.Sprintf("[%d, %d] of %s do not fit layout %s", w.rows, w.cols, w.typ, w.layout)}
	}
	w.slot = s.slot(w.name, table.SlotWeight, table.ScopeModel, size).slot
	dst := uint64(0)
	for i := range w.parts {
		u := s.uploadOf(w, &w.parts[i])
		u.DstOffset = dst
		s.t.Uploads = append(s.t.Uploads, u)
		n, ok := u.DstSize()
		if !ok {
			return &TensorError{u.Tensor, fmt.Sprintf("%d bytes are not whole elements of %s", u.SrcSize, u.Type)}
		}
		dst += n
	}
	return nil
}

// uploadOf returns the upload of a part of a weight, without its destination offset.
func (s *state) uploadOf(w *weight, p *part) table.Upload {
	u := table.Upload{Op: table.UploadCopy, Type: w.typ, Slot: w.slot, Tensor: p.tensor.Name}
	u.SrcOffset, u.SrcSize = p.source(w)
	switch {
	case p.data != nil:
		u.Op, u.SrcOffset, u.SrcSize = table.UploadConst, uint64(len(s.t.Const)), uint64(len(p.data))
		s.t.Const = append(s.t.Const, p.data...)
	case p.step > 0:
		u.SrcOffset, u.SrcSize = p.stepSource(w.cols)
		u.Op, u.Step, u.Phase, u.Type, u.Cols = table.UploadTranspose, uint8(p.step), uint8(p.first), p.tensor.Type, uint32(w.cols)
		switch {
		case p.transposed && p.step == 1 && p.rows < p.stack && p.apart == 0:
			// The rows of gate or of up, which come one after another.
			u.Op, u.Step, u.Phase = table.UploadHalf, 2, uint8(p.first/p.rows)
		case p.transposed:
		case w.cols == 1:
			u.Op, u.Cols = table.UploadToF32, 0
		case w.layout == dtype.Tiled16:
			u.Op = table.UploadTile
		default:
			u.Op = table.UploadJoin
		}
	case p.plusOne:
		u.Op, u.Type = table.UploadPlusOne, p.tensor.Type
	case p.tensor.Type != w.typ:
		u.Op, u.Type = table.UploadToF32, p.tensor.Type
	case w.layout == dtype.Tiled16:
		u.Op, u.Cols = table.UploadTile, uint32(w.cols)
	case p.tensor.Joined:
		u.Op, u.Cols = table.UploadJoin, uint32(w.cols)
	}
	return u
}
