package cpu

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
)

// narrower returns the sets of loops that fastest does not select because wider ones exist.
func narrower() map[string]*ops {
	if !hasAVX2() {
		return nil
	}
	return map[string]*ops{"avx2": avx2()}
}

// TestTurnHead compares turnHead with the operations that it combines, also in place.
func TestTurnHead(t *testing.T) {
	o, reference := fastest(), portable()
	if o.turnHead == nil {
		t.Skip("the processor has no AVX-512")
	}
	r := rand.New(rand.NewPCG(47, 1))
	for _, d := range []int{32, 64, 96, 128, 256} {
		for i := range 20 {
			x, w, angles := guardedFloats(t, random(r, d, 1)), guardedFloats(t, random(r, d, 1)), guardedFloats(t, random(r, d, 1))
			if i == 0 {
				clear(x)
			}
			want := make([]float32, d)
			reference.rmsNorm(want, x, w, 1e-6)
			reference.rotate(want, angles, decl.LayoutHalf)
			got := guardedFloats(t, make([]float32, d))
			o.turnHead(got, x, w, angles, 1e-6)
			same(t, fmt.Sprintf("%d elements", d), got, want)
			o.turnHead(x, x, w, angles, 1e-6)
			same(t, fmt.Sprintf("%d elements in place", d), x, want)
		}
	}
}
