package cpu

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestSoften compares soften with the portable loop, bit for bit: with rising and constant maxima
// and with scores that are infinite or NaN.
func TestSoften(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 1))
	reference := portable()
	odd := []float32{float32(math.Inf(1)), minusInf, float32(math.NaN()), 0, float32(math.Copysign(0, -1)), -1e30}
	same := func(a, b []float32) bool {
		return slices.EqualFunc(a, b, func(x, y float32) bool {
			return math.Float32bits(x) == math.Float32bits(y) || x != x && y != y
		})
	}
	for name, o := range implementations() {
		for i := range 400 {
			n, heads, d := 1+r.IntN(attnBlock), 1+r.IntN(attnRows+2), []int{16, 64, 80, 128, 40}[r.IntN(5)]
			scores := float32s(guarded(t, uint64(4*((heads-1)*attnBlock+n))))
			copy(scores, random(r, len(scores), 30))
			if i%4 == 0 {
				for range 4 {
					scores[r.IntN(len(scores))] = odd[r.IntN(len(odd))]
				}
			}
			top, sum := random(r, heads, 30), random(r, heads, 5)
			if i%3 == 0 {
				top[0], sum[0] = minusInf, 0
				top[heads-1] = odd[r.IntN(len(odd))]
			}
			acc := float32s(guarded(t, uint64(4*heads*d)))
			copy(acc, random(r, len(acc), 1))
			type state struct{ scores, top, sum, acc []float32 }
			clone := func() state {
				return state{slices.Clone(scores), slices.Clone(top), slices.Clone(sum), slices.Clone(acc)}
			}
			want := clone()
			reference.soften(want.scores, n, 0.3, want.top, want.sum, want.acc, d)
			o.soften(scores, n, 0.3, top, sum, acc, d)
			if got := (state{scores, top, sum, acc}); !same(got.scores, want.scores) || !same(got.top, want.top) || !same(got.sum, want.sum) || !same(got.acc, want.acc) {
				t.Fatalf("%s: %d scores of %d heads of %d: maxima %v, want %v", name, n, heads, d, got.top, want.top)
			}
		}
	}
}
