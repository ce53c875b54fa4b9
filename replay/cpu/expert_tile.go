package cpu

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// expertRows implements expert_rows: it sorts the products of a chunk by expert.
type expertRows struct {
	experts, used int
	ids           []uint32 // [rows, used]
	list          []uint32 // [experts + 1 + rows*used]
}

func newExpertRows(b *binder) (kernel, error) {
	p := kernels.ExpertRowsParamsOf(b.cmd)
	b.need(p.Used > 0 && p.Experts > 0, "there are no experts, or none is used")
	return &expertRows{experts: int(p.Experts), used: int(p.Used), ids: b.u32(kernels.ExpertRowsBindIDs), list: b.u32(kernels.ExpertRowsBindList)}, b.err
}

func (k *expertRows) units(*worker) int { return 1 }

func (k *expertRows) run(w *worker, _, _ int) {
	ids := k.ids[:w.rows*k.used]
	first, items := k.list[:k.experts+1], k.list[k.experts+1:]
	clear(first)
	for _, id := range ids {
		first[min(int(id), k.experts-1)+1]++
	}
	for e := range k.experts {
		first[e+1] += first[e]
	}
	// Each entry is the place of the expert's next product, and at last that of the next expert's first.
	for i, id := range ids {
		e := min(int(id), k.experts-1)
		items[first[e]] = uint32(i)
		first[e]++
	}
	copy(first[1:], first[:k.experts])
	first[0] = 0
}

// newExpertHalves implements expert_halves.
func newExpertHalves(b *binder) (kernel, error) {
	p := kernels.ExpertHalvesParamsOf(b.cmd)
	b.need(p.Used > 0, "a row has no inputs")
	k := &expertHalves{halves: halves{
		layout: halvesLayout{int(p.In), halvesTerms(b.spec(kernels.ExpertHalvesSpecAct)), false},
		in:     int(p.In), xStride: int(p.XStride), x: b.f32(kernels.ExpertHalvesBindX), out: b.words(kernels.ExpertHalvesBindOut),
	}, used: int(p.Used)}
	if b.spec(kernels.ExpertHalvesSpecInput) == decl.InputSiLUMul {
		k.x2, k.gated = b.f32(kernels.ExpertHalvesBindX2), b.gatedWithin(kernels.ExpertHalvesSpecActivation, p.Limit)
	}
	return k, b.err
}

// expertHalves is halves with several inputs a row.
type expertHalves struct {
	halves
	used int
}

func (k *expertHalves) units(w *worker) int { return w.rows * k.used }

// expertGEMM implements expert_gemm: products of rows of float16 activations, which it converts back to
// float32, with the matrices of their experts.
type expertGEMM struct {
	ops                  *ops
	t                    dtype.Type
	tiled                bool // the weights are in tiles
	layout               halvesLayout
	in, out, group       int
	experts, used, share int
	yStride, rowBytes    int
	halves               []byte    // rows of float16
	w                    []byte    // [experts, out, in]
	b                    []float32 // [experts, out], or nil
	list                 []uint32  // of expert_rows
	y                    []float32 // [rows, used, out]; rows are yStride apart
}

func newExpertGEMM(b *binder) (kernel, error) {
	p := kernels.ExpertGEMMParamsOf(b.cmd)
	t := dtype.Type(b.spec(kernels.ExpertGEMMSpecWType))
	tiled := dtype.Layout(b.spec(kernels.ExpertGEMMSpecWeights)) == dtype.Tiled16
	if t == dtype.F32 || tiled && t != dtype.MXFP4 && !dtype.FormOf(t).HalfRange() {
		return nil, &WeightTypeError{Kernel: declOf(b.env).Name, Type: t}
	}
	b.need(p.Used > 0 && p.Share > 0 && p.Experts > 0 && p.Group > 0, "there are no experts, or none is used")
	size, _ := t.Bytes(uint64(p.In))
	k := &expertGEMM{
		ops: b.ops, t: t, tiled: tiled, layout: halvesLayout{int(p.In), halvesTerms(b.spec(kernels.ExpertGEMMSpecAct)), false},
		in: int(p.In), out: int(p.Out), group: int(p.Group), experts: int(p.Experts), used: int(p.Used), share: int(p.Share),
		yStride: int(p.YStride), rowBytes: int(size), halves: b.words(kernels.ExpertGEMMBindX), w: b.bytes(kernels.ExpertGEMMBindW),
		list: b.u32(kernels.ExpertGEMMBindList), y: b.f32(kernels.ExpertGEMMBindY),
	}
	if b.spec(kernels.ExpertGEMMSpecBias) != 0 {
		k.b = b.f32(kernels.ExpertGEMMBindB)
	}
	return k, b.err
}

func (k *expertGEMM) units(*worker) int { return (k.out + k.group - 1) / k.group }

func (k *expertGEMM) run(w *worker, lo, hi int) {
	size, inputs, products := roundUp(4*k.in), w.rows*k.used/k.share, w.rows*k.used
	for r := range inputs {
		k.layout.row(k.halves, inputs, r).get(float32s(w.scratch[r*size:][:4*k.in]))
	}
	block := w.scratch[inputs*size:][:k.rowBytes]
	row := float32s(w.scratch[(inputs+1)*size:][:4*k.in])
	for e := range k.experts {
		from, to := min(int(k.list[e]), products), min(int(k.list[e+1]), products)
		if from >= to {
			continue
		}
		items := k.list[k.experts+1:][from:to]
		for o := lo * k.group; o < min(hi*k.group, k.out); o++ {
			from := block
			// Neither returns an error for whole blocks and a row of the matrices.
			if !k.tiled {
				from = k.w[(e*k.out+o)*k.rowBytes:][:k.rowBytes]
			} else if dtype.UntileRow(k.t, block, k.w, e*k.out+o, k.in) != nil {
				return
			}
			if !roundedToHalf(k.t, row, from) {
				return
			}
			for _, item := range items {
				i := min(int(item), products-1)
				sum := k.ops.dot(row, float32s(w.scratch[i/k.share*size:][:4*k.in]))
				if k.b != nil {
					sum += k.b[e*k.out+o]
				}
				k.y[i*k.yStride+o] = sum
			}
		}
	}
}
