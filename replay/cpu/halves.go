package cpu

import (
	"encoding/binary"
	"math"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// halvesChunk is the number of columns in a chunk. Split rows consist of whole chunks.
const halvesChunk = 64

// halvesRow is a split row. Each float32 is stored as two float16, such that its value is
// unit * (high + low). The unit is a power of two, one per row. n is the number of columns rounded
// up to whole chunks. The row holds n high halves, n low halves, the unit and 12 unused bytes.
type halvesRow struct {
	b []byte
	n int
}

// halvesOf returns row r of split rows of an input with in columns.
func halvesOf(b []byte, in, r int) halvesRow {
	n := (in + halvesChunk - 1) / halvesChunk * halvesChunk
	size := 4*n + 16
	return halvesRow{b[r*size:][:size], n}
}

func (h halvesRow) high() []byte { return h.b[:2*h.n] }
func (h halvesRow) low() []byte  { return h.b[2*h.n : 4*h.n] }

func (h halvesRow) unit() float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(h.b[4*h.n:]))
}

func (h halvesRow) setUnit(u float32) {
	binary.LittleEndian.PutUint32(h.b[4*h.n:], math.Float32bits(u))
}

// put stores x in the row and pads it with 0.
func (h halvesRow) put(x []float32) {
	var most float32
	for _, v := range x {
		most = max(most, float32(math.Abs(float64(v))))
	}
	// Choose the power of two that makes the largest element 1024 to 2048. Tiny rows all use the
	// same one.
	unit := max(math.Float32bits(most)&0x7f800000, 0x10000000) - 10<<23
	h.setUnit(math.Float32frombits(unit))
	inverse := math.Float32frombits(254<<23 - unit)
	clear(h.b[:4*h.n])
	for i, v := range x {
		v *= inverse
		m := dtype.F32ToF16(v)
		binary.LittleEndian.PutUint16(h.high()[2*i:], m)
		binary.LittleEndian.PutUint16(h.low()[2*i:], dtype.F32ToF16(v-dtype.F16ToF32(m)))
	}
}

// get sets x to the row.
func (h halvesRow) get(x []float32) {
	unit := h.unit()
	for i := range x {
		m, r := binary.LittleEndian.Uint16(h.high()[2*i:]), binary.LittleEndian.Uint16(h.low()[2*i:])
		x[i] = (dtype.F16ToF32(m) + dtype.F16ToF32(r)) * unit
	}
}

// halves implements halves: it converts activations to split rows.
type halves struct {
	gated       func(dst, gate, up []float32)
	in, xStride int
	x, x2       []float32 // [rows, in]; x2 is nil if the input is x
	out         []byte    // split rows
}

func newHalves(b *binder) (kernel, error) {
	p := kernels.HalvesParamsOf(b.cmd)
	k := &halves{in: int(p.In), xStride: int(p.XStride), x: b.f32(kernels.HalvesBindX), out: b.words(kernels.HalvesBindOut)}
	if b.spec(kernels.HalvesSpecInput) == decl.InputSiLUMul {
		k.x2, k.gated = b.f32(kernels.HalvesBindX2), b.gated(kernels.HalvesSpecActivation)
	}
	return k, b.err
}

func (k *halves) units(w *worker) int { return w.rows }

func (k *halves) run(w *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		x := k.x[r*k.xStride:][:k.in]
		if k.x2 != nil {
			y := float32s(w.scratch[:4*k.in])
			k.gated(y, x, k.x2[r*k.xStride:][:k.in])
			x = y
		}
		halvesOf(k.out, k.in, r).put(x)
	}
}

// gemmHalves multiplies split rows, which it converts back to float32.
type gemmHalves struct {
	matmul
	halves []byte // split rows
}

func newGEMMHalves(b *binder) (kernel, error) {
	p := kernels.GEMMHalvesParamsOf(b.cmd)
	t := dtype.Type(b.spec(kernels.GEMMHalvesSpecWType))
	float, ok := b.ops.float[t]
	if !ok || t != dtype.F16 && t != dtype.BF16 {
		return nil, &WeightTypeError{Kernel: declOf(b.env).Name, Type: t}
	}
	size, _ := t.Bytes(uint64(p.In))
	k := &gemmHalves{
		matmul: matmul{
			ops: b.ops, float: float, in: int(p.In), out: int(p.Out), group: int(p.Group), yStride: int(p.YStride),
			rowBytes: int(size), w: b.bytes(kernels.GEMMHalvesBindW), y: b.f32(kernels.GEMMHalvesBindY),
		},
		halves: b.words(kernels.GEMMHalvesBindX),
	}
	b.need(p.Group > 0, "the group is 0")
	if b.spec(kernels.GEMMHalvesSpecBias) != 0 {
		k.b = b.f32(kernels.GEMMHalvesBindB)
	}
	return k, b.err
}

func (k *gemmHalves) pieces(w *worker) int {
	if w.rows*k.in < sharedInput {
		return 0
	}
	return w.rows
}

func (k *gemmHalves) prepare(w *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		halvesOf(k.halves, k.in, r).get(float32s(w.prepared()[r*roundUp(4*k.in):][:4*k.in]))
	}
}

func (k *gemmHalves) run(w *worker, lo, hi int) {
	if w.shared == nil {
		k.prepare(w, 0, w.rows)
	}
	k.more(w, lo, hi)
}
