package cpu

import (
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// embed looks up the embedding rows of tokens.
type embed struct {
	ops      *ops
	t        dtype.Type
	n        int
	vocab    int
	scale    float32
	rowBytes int
	tiled    bool

	sequences
	tokens []uint32  // [sequences, ring]
	w      []byte    // [vocab, n]
	out    []float32 // [rows, n]
}

func newEmbed(b *binder) (kernel, error) {
	p := kernels.EmbedParamsOf(b.cmd)
	t := dtype.Type(b.spec(kernels.EmbedSpecWType))
	if _, ok := b.ops.float[t]; !ok {
		return nil, &WeightTypeError{Kernel: declOf(b.env).Name, Type: t}
	}
	size, ok := t.Bytes(uint64(p.N))
	b.need(ok, "%d columns are not a whole number of blocks of %v", p.N, t)
	b.need(p.Vocab > 0 && p.Ring > 0, "the vocabulary or the ring is empty")
	return &embed{
		ops: b.ops, t: t, tiled: dtype.Layout(b.spec(kernels.EmbedSpecWeights)) == dtype.Tiled16, n: int(p.N), vocab: int(p.Vocab), scale: p.Scale, rowBytes: int(size),
		sequences: b.sequences(kernels.EmbedSpecSequences, p.Pool), tokens: b.u32(kernels.EmbedBindTokens), w: b.bytes(kernels.EmbedBindW), out: b.f32(kernels.EmbedBindOut),
	}, b.err
}

func (k *embed) units(w *worker) int { return w.rows }

func (k *embed) run(w *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		ring := part(&k.sequences, w, r, k.tokens)
		id := min(int(ring[min(k.token(w, r), len(ring)-1)]), k.vocab-1)
		out := k.out[r*k.n:][:k.n]
		var row []byte
		if k.tiled {
			// newEmbed and Validate have checked the row and its size.
			row = w.scratch[:k.rowBytes]
			_ = dtype.UntileRow(k.t, row, k.w, id, k.n)
		} else {
			row = k.w[id*k.rowBytes:][:k.rowBytes]
		}
		switch k.t {
		case dtype.F16:
			k.ops.f16ToF32(out, row)
		case dtype.BF16:
			decodeBF16(out, row)
		case dtype.F32:
			decodeF32(out, row)
		default:
			// newEmbed accepts only types and sizes that convert.
			_ = dtype.Dequantize(k.t, out, row)
		}
		if k.scale != 1 {
			for i := range out {
				out[i] = float32(out[i] * k.scale)
			}
		}
	}
}
