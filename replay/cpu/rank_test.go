package cpu

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/sampler"
)

// ranked runs both commands with a team of parts workers and returns the entry.
func ranked(tb testing.TB, logits []float32, part, parts int, chosen, ranked uint32) []uint32 {
	n := len(logits)
	set := off()
	set.Ranked = ranked
	var head [sampler.Words * 4]byte
	set.Put(&head)
	a := newSolo(tb, kernels.RankPart, nil, kernels.RankPartParams{N: uint32(n), Part: uint32(part)}, second(0, 0, 1))
	a.fill("logits", logits)
	copy(a.bytes("settings"), head[:])
	a.run(portable(), parts)
	const place, entries = 7, 3
	b := newSolo(tb, kernels.Rank, nil, kernels.RankParams{N: uint32(n), Part: uint32(part), Pairs: 2, Entries: entries}, second(place, 0, 1))
	b.fill("logits", logits)
	copy(b.bytes("settings"), head[:])
	copy(b.bytes("parts"), a.bytes("out"))
	drawn := uint32s(b.bytes("drawn"))
	drawn[0], drawn[2], drawn[3] = math.Float32bits(float32(math.NaN())), math.Float32bits(-3), chosen
	b.run(portable(), parts)
	return uint32s(b.bytes("ranks"))[(place+1)%entries*sampler.RankWords:][:sampler.RankWords]
}

// TestLogProbs compares log-probabilities with float64 over 151,936 logits of various
// distributions.
func TestLogProbs(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 1))
	worst := 0.0
	for kind := range 9 {
		for _, n := range []int{1, 19, 4100, 151_936} {
			logits := filterLogits(r, n, kind)
			if kind == 8 { // just within the range of shares
				for i := range logits {
					logits[i] = -float32(i % 64)
				}
			}
			keys := make([]uint32, n)
			for i, v := range logits {
				keys[i] = sampler.OrderKey(v)
			}
			ref := newReference(keys) // ids in order, without excluded ones
			most, sum := 0.0, 0.0
			for i, id := range ref.ids {
				v := float64(sampler.KeyValue(keys[id]))
				if i == 0 {
					most = v
				}
				sum += math.Exp(v - most)
			}
			want := func(id int) float64 {
				if keys[id] == 0 || len(ref.ids) == 0 {
					return math.Inf(-1)
				}
				return float64(sampler.KeyValue(keys[id])) - most - math.Log(sum)
			}
			check := func(what string, id int, bits uint32) {
				got, want := float64(math.Float32frombits(bits)), want(id)
				if got == want {
					return
				}
				e := math.Abs(got-want) / max(1, math.Abs(want)/16)
				if worst = max(worst, e); !(e < 1e-5) {
					t.Errorf("kind %d, %d logits: %s, token %d: %v, want %v", kind, n, what, id, got, want)
				}
			}
			chosen := r.IntN(n)
			entry := ranked(t, logits, 2048, 1, uint32(chosen), sampler.MaxRanked)
			if entry[0] != uint32(chosen) {
				t.Errorf("kind %d, %d logits: the chosen token is %d, want %d", kind, n, entry[0], chosen)
			}
			check("chosen", chosen, entry[1])
			for i := range sampler.MaxRanked {
				id, bits := entry[2+2*i], entry[3+2*i]
				switch {
				case i >= len(ref.ids):
					if id != 0 || !math.IsInf(float64(math.Float32frombits(bits)), -1) {
						t.Errorf("kind %d, %d logits: place %d is token %d, %v", kind, n, i, id, math.Float32frombits(bits))
					}
				case int(id) != ref.ids[i]:
					t.Errorf("kind %d, %d logits: place %d is token %d, want %d", kind, n, i, id, ref.ids[i])
				default:
					check("place", int(id), bits)
				}
			}
			for _, few := range []uint32{0, 1, 5} {
				some := ranked(t, logits, 2048, 3, uint32(chosen), few)
				if few = max(few, 1); !slices.Equal(some[:2+2*few], entry[:2+2*few]) || slices.Max(append(some[2+2*few:], 0)) != 0 {
					t.Errorf("kind %d, %d logits: the %d likeliest tokens differ from the first of %d", kind, n, few, sampler.MaxRanked)
				}
			}
		}
	}
	t.Logf("largest error %.2g", worst)
}
