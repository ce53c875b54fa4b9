package cpu

import (
	"github.com/pianola-engine/pianola/internal/kernels"
)

// activate applies an activation function in place.
type activate struct {
	mul      func(dst, gate, up []float32)
	n, group int

	x    []float32 // [rows, n]
	ones []float32 // [group], ones that the activated values are multiplied by
}

func newActivate(b *binder) (kernel, error) {
	p := kernels.ActivateParamsOf(b.cmd)
	b.need(p.Group > 0, "the group is 0")
	k := &activate{mul: b.gated(kernels.ActivateSpecActivation), n: int(p.N), group: int(min(p.Group, p.N)), x: b.f32(kernels.ActivateBindX)}
	if b.err == nil {
		k.ones = make([]float32, k.group)
		for i := range k.ones {
			k.ones[i] = 1
		}
	}
	return k, b.err
}

func (k *activate) pieces() int { return (k.n + k.group - 1) / k.group }

func (k *activate) units(w *worker) int { return w.rows * k.pieces() }

func (k *activate) run(_ *worker, lo, hi int) {
	for u := lo; u < hi; u++ {
		at := u % k.pieces() * k.group
		x := k.x[u/k.pieces()*k.n:][at:min(at+k.group, k.n)]
		k.mul(x, x, k.ones[:len(x)])
	}
}
