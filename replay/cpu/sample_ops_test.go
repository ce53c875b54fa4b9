package cpu

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/sampler"
)

// TestSampleLoops compares the loops over keys with the portable ones, for various logits and
// tails.
func TestSampleLoops(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 1))
	reference := portable()
	for name, o := range implementations() {
		for i := range 600 {
			n := r.IntN(150)
			logits := float32s(guarded(t, uint64(4*n)))
			copy(logits, filterLogits(r, n, i%8))
			if i%5 == 0 {
				for j := range logits {
					logits[j] = math.Float32frombits(r.Uint32())
				}
			}
			keys, want := uint32s(guarded(t, uint64(4*n))), make([]uint32, n)
			most, wantMost := o.orderKeys(keys, logits), reference.orderKeys(want, logits)
			if most != wantMost || !slices.Equal(keys, want) {
				t.Fatalf("%s: keys of %v: %x, largest %x; want %x, %x", name, logits, keys, most, want, wantMost)
			}
			if most == 0 {
				continue
			}
			floor := []uint32{0, 1, most, keys[r.IntN(n)], math.MaxUint32}[r.IntN(5)]
			if got, want := o.atLeast(keys, floor), reference.atLeast(keys, floor); got != want {
				t.Fatalf("%s: at least %x of %x: %#x, want %#x", name, floor, keys, got, want)
			}
			value, scale := sampler.KeyValue(most), []float32{math.Log2E, 0.2, 1e-3, 1e6, 0}[r.IntN(5)]
			least := max(floor, 1)
			weights, wantWeights := uint32s(guarded(t, uint64(4*n))), make([]uint32, n)
			clear(weights)
			for j, key := range keys {
				if key >= least {
					weights[j] = 99 // old content
				}
			}
			if got, want := o.weigh(weights, keys, least, value, scale), reference.weigh(wantWeights, keys, least, value, scale); got != want || !slices.Equal(weights, wantWeights) {
				t.Fatalf("%s: %x with scale %v weigh %d, %d; want %d, %d", name, keys, scale, weights, got, wantWeights, want)
			}
			for _, weights := range [][]uint32{nil, weights} {
				got, sum := o.tally(keys, weights, floor)
				if n, want := reference.tally(keys, weights, floor); got != n || sum != want {
					t.Fatalf("%s: %d of %x reach %x, of weights %d; want %d, %d", name, got, keys, floor, sum, n, want)
				}
			}
			d := draws{seed: r.Uint64(), token: r.Uint32(), limit: least, limitID: []uint32{math.MaxUint32, uint32(r.IntN(200))}[r.IntN(2)]}
			a := race{largest: value, factor: []float32{1, 1, 0.01, 3, 1e6}[r.IntN(5)]}
			first := r.IntN(1 << 20)
			if a, b := o.draw(a, keys, first, d), reference.draw(a, keys, first, d); a != b {
				t.Fatalf("%s: the draw of %x is %+v, want %+v", name, keys, a, b)
			}
		}
	}
}

// TestContestBound compares the bounded race with the portable loop's scores of all tokens.
func TestContestBound(t *testing.T) {
	r := rand.New(rand.NewPCG(12, 1))
	for range 300 {
		n := 1 + r.IntN(700)
		keys := make([]uint32, n)
		for i, v := range random(r, n, 2) {
			keys[i] = sampler.OrderKey(v)
		}
		d := draws{seed: r.Uint64(), token: r.Uint32(), limit: 1, limitID: math.MaxUint32}
		for name, o := range implementations() {
			c := race{largest: sampler.KeyValue(slices.Max(keys)), factor: 0.5 + r.Float32()}
			c = o.draw(c, keys, 5, d)
			best, id := minusInf, uint32(0)
			for i, key := range keys {
				if s := fma32(-(c.largest - sampler.KeyValue(key)), c.factor, gumbel(philox(d.seed, uint32(5+i), d.token))); s > best {
					best, id = s, uint32(5+i)
				}
			}
			if c.best != best || c.id != id {
				t.Fatalf("%s: token %d with %v, want %d with %v", name, c.id, c.best, id, best)
			}
		}
	}
}
