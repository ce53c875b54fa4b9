package cpu

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/sampler"
)

// TestPhilox compares philox4x32 with the known answers of the authors' library Random123.
func TestPhilox(t *testing.T) {
	for _, c := range []struct {
		ctr  [4]uint32
		key  [2]uint32
		want [4]uint32
	}{
		{want: [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{1<<32 - 1, 1<<32 - 1, 1<<32 - 1, 1<<32 - 1}, [2]uint32{1<<32 - 1, 1<<32 - 1}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0}, [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		var got [4]uint32
		got[0], got[1], got[2], got[3] = philox4x32(c.ctr[0], c.ctr[1], c.ctr[2], c.ctr[3], c.key[0], c.key[1])
		if got != c.want {
			t.Errorf("counter %x, key %x: %x, want %x", c.ctr, c.key, got, c.want)
		}
	}
	if a, b := philoxPair(1<<63+9, 5, 6, 7); a != philox(1<<63+9, 5, 7) || b != philox(1<<63+9, 6, 7) {
		t.Errorf("a pair: %x, %x", a, b)
	}
	if got := philox(0, 0, 0); got != 0x6627e8d5e169c58d {
		t.Errorf("%x", got)
	}
}

// TestGumbel compares gumbel with float64, at the ends of the range and at random.
func TestGumbel(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	values := []uint64{0, 1, 2, 3, 1 << 20, 1<<63 - 1, 1 << 63, math.MaxUint64, math.MaxUint64 - 1, nearHalf << 32, nearHalf<<32 - 1}
	for range 200_000 {
		values = append(values, r.Uint64()>>r.IntN(64), ^(r.Uint64() >> r.IntN(64)))
	}
	worst := 0.0
	for _, x := range values {
		v, q := math.Max(float64(x), 0.5)*0x1p-64, math.Max(float64(^x), 0.5)*0x1p-64
		e := -math.Log(q)
		if v < 0.5 {
			e = -math.Log1p(-v)
		}
		got, want := float64(gumbel(x)), -math.Log(e)
		if worst = max(worst, math.Abs(got-want)/max(1, math.Abs(want))); !(worst < 3e-7) {
			t.Fatalf("%#x: %v, want %v", x, got, want)
		}
		if got > float64(gumbelBound(x)) {
			t.Fatalf("%#x: %v is above the bound %v", x, got, gumbelBound(x))
		}
	}
	t.Logf("largest error %.3g", worst)
}

// TestWeight compares weight with float64.
func TestWeight(t *testing.T) {
	for i := range 100_000 {
		d := float32(i) * 2.3e-4
		want := math.Exp(-float64(d)) * (1 << 31)
		if got := float64(weight(d, float32(math.Log2E))); math.Abs(got-want) > 1+want*4e-6 {
			t.Fatalf("%v: %v, want %v", d, got, want)
		}
	}
	for _, far := range []float32{40, 1e10, 2 * sampler.Limit} {
		if weight(far, 1e6) != 0 {
			t.Errorf("%v has a weight above 0", far)
		}
	}
	if got := weight(0, 1e6); got>>7 != 1<<24 && got>>7 != 1<<24-1 {
		t.Errorf("the largest weight is %v", got)
	}
}

// sampling runs the sampler's commands in order.
type sampling struct {
	ops                  *ops
	adjust, filter, draw *solo
	n                    int
}

func newSampling(tb testing.TB, n, part, ring, place int, stages ...uint32) *sampling {
	at := second(place, 0, 1)
	return &sampling{
		ops:    fastest(),
		adjust: newSolo(tb, kernels.SampleAdjust, nil, kernels.SampleAdjustParams{N: uint32(n), Part: uint32(part), Ring: uint32(ring), MaxBias: 16}, at),
		filter: newSolo(tb, kernels.SampleFilter, stages, kernels.SampleFilterParams{N: uint32(n), Part: uint32(part)}, at),
		draw:   newSolo(tb, kernels.SampleDraw, nil, kernels.SampleDrawParams{N: uint32(n), Part: uint32(8 * part)}, at),
		n:      n,
	}
}

// run returns the chosen id; a team of parts workers computes it.
func (s *sampling) run(set sampler.Settings, parts int) int {
	var head [sampler.Words * 4]byte
	set.Put(&head)
	for _, k := range []*solo{s.adjust, s.filter, s.draw} {
		copy(k.bytes("settings"), head[:])
	}
	s.adjust.run(s.ops, parts)
	s.filterAndDraw(set, parts)
	return int(largestPart(uint32s(s.draw.bytes("out"))))
}

func (s *sampling) filterAndDraw(set sampler.Settings, parts int) {
	copy(s.filter.bytes("keys"), s.adjust.bytes("keys"))
	copy(s.filter.bytes("largest"), s.adjust.bytes("largest"))
	s.filter.run(s.ops, parts)
	copy(s.draw.bytes("keys"), s.adjust.bytes("keys"))
	copy(s.draw.bytes("limit"), s.filter.bytes("limit"))
	s.draw.run(s.ops, parts)
}

// off returns sampler settings that change nothing.
func off() sampler.Settings {
	return sampler.Settings{InvTemperature: 1, TopPScale: math.Log2E, MinPDrop: sampler.Far, Repetition: 1}
}

// TestPenalties compares bias and penalties with float64, over windows shorter and longer than
// the ring, with several workers.
func TestPenalties(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	for _, c := range []struct{ n, part, window, place int }{{7, 8, 3, 5}, {1000, 64, 40, 30}, {1000, 256, 10, 99}, {150_001, 1024, 1000, 99}, {5, 4, 0, 4}} {
		const ring = 100
		s := newSampling(t, c.n, c.part, ring, c.place)
		logits := random(r, c.n, 4)
		s.adjust.fill("logits", logits)
		tokens := make([]uint32, ring)
		for i := range tokens {
			tokens[i] = uint32(r.IntN(min(c.n, 30)))
		}
		tokens[c.place] = 1 << 31 // as a hostile host could write it
		putU32s(s.adjust.bytes("tokens"), tokens...)
		set := off()
		set.Repetition, set.Presence, set.Frequency, set.Window, set.Biases = 1.3, 0.25, 0.125, uint32(c.window), 3
		ban := c.n - 1
		bias := []uint32{2, math.Float32bits(3.5), uint32(ban), math.Float32bits(minusInf), math.MaxUint32, 7}
		putU32s(s.adjust.bytes("settings")[4*sampler.Words:], bias...)
		s.run(set, 3)
		first := max(0, c.place+1-c.window)
		count := map[uint32]float64{}
		for _, id := range tokens[first : c.place+1] {
			count[id]++
		}
		var want []float64
		for i, l := range logits {
			v := float64(l)
			if i == 2 {
				v += 3.5
			}
			if n := count[uint32(i)]; n > 0 {
				if v > 0 {
					v /= 1.3
				} else {
					v *= 1.3
				}
				v -= 0.125*n + 0.25
			}
			want = append(want, v)
		}
		for i, key := range uint32s(s.adjust.bytes("keys")) {
			if i == ban {
				if key != 0 {
					t.Errorf("%+v: a banned token has key %x", c, key)
				}
				continue
			}
			if got := float64(sampler.KeyValue(key)); math.Abs(got-want[i]) > 2e-6*max(1, math.Abs(want[i])) {
				t.Fatalf("%+v: token %d: %v, want %v", c, i, got, want[i])
			}
		}
	}
}

// reference is a plain sampler in float64: the candidates in order, and the stages that filter
// them.
type reference struct {
	ids   []int
	logit []float64
}

func newReference(keys []uint32) *reference {
	r := &reference{logit: make([]float64, len(keys))}
	for i, key := range keys {
		if key == 0 {
			r.logit[i] = math.Inf(-1)
			continue
		}
		r.logit[i] = float64(sampler.KeyValue(key))
		r.ids = append(r.ids, i)
	}
	slices.SortStableFunc(r.ids, func(a, b int) int { return cmp.Compare(r.logit[b], r.logit[a]) })
	return r
}

// probabilities returns the probabilities of the candidates.
func (r *reference) probabilities(temperature float64) []float64 {
	p, sum := make([]float64, len(r.ids)), 0.0
	for i, id := range r.ids {
		p[i] = math.Exp((r.logit[id] - r.logit[r.ids[0]]) / temperature)
		sum += p[i]
	}
	for i := range p {
		p[i] /= sum
	}
	return p
}

// stage applies a stage. It returns how far the number of candidates may differ in a sampler with
// other rounding.
func (r *reference) stage(s uint32, set sampler.Settings, temperature float64) (least, most int) {
	n := len(r.ids)
	least, most = n, n
	switch s {
	case decl.StageTopK:
		if set.TopK > 0 {
			least = min(n, int(set.TopK))
			most = least
		}
	case decl.StageTopP:
		if set.TopP == 0 {
			break
		}
		const slack = 5e-5
		sum, p := 0.0, float64(set.TopP)*0x1p-32
		least, most = 0, 0
		for i, q := range r.probabilities(temperature) {
			if sum += q; least == 0 && sum >= p-slack {
				least = i + 1
			}
			if most == 0 && sum >= p+slack {
				most = i + 1
			}
		}
		if most == 0 {
			most = n
		}
	case decl.StageMinP:
		drop := float64(set.MinPDrop)
		slack := 1e-6 * (1 + math.Abs(r.logit[r.ids[0]]))
		least = sortedCount(r, drop-slack)
		most = sortedCount(r, drop+slack)
	}
	return least, most
}

// sortedCount returns the number of candidates at most d below the first.
func sortedCount(r *reference, d float64) int {
	n := 0
	for _, id := range r.ids {
		if r.logit[r.ids[0]]-r.logit[id] <= d {
			n++
		}
	}
	return max(n, 1)
}

// filterLogits returns logits of various kinds: random, with ties, with banned tokens, at
// extremes, all equal.
func filterLogits(r *rand.Rand, n, kind int) []float32 {
	x := random(r, n, 3)
	switch kind {
	case 1: // ties
		for i := range x {
			x[i] = float32(r.IntN(4))
		}
	case 2: // banned
		for i := range x {
			if r.IntN(3) > 0 {
				x[i] = minusInf
			}
		}
	case 3: // extremes
		for i := range x {
			x[i] = []float32{1e38, -1e38, 0, 1, math.MaxFloat32, -math.MaxFloat32, float32(math.Inf(1)), 1e-40}[r.IntN(8)]
		}
	case 4: // all the same
		for i := range x {
			x[i] = -2.5
		}
	case 5: // flat
		for i := range x {
			x[i] *= 1e-3
		}
	case 6: // not numbers
		for i := range x {
			if r.IntN(2) == 0 {
				x[i] = float32(math.NaN())
			}
		}
	case 7: // most are far below the largest
		for i := range x {
			if r.IntN(50) > 0 {
				x[i] -= 200
			}
		}
	}
	return x
}

// orders are orders of stages, including those of the presets.
var orders = [][]uint32{
	{decl.StageTopK, decl.StageTopP, decl.StageMinP, decl.StageTemperature},
	{decl.StageTopP, decl.StageMinP, decl.StageTopK, decl.StageTemperature},
	{decl.StageTemperature, decl.StageTopK, decl.StageTopP},
	{decl.StageMinP, decl.StageTopP},
}

// TestFilters compares the filters with float64: the kept tokens must be a prefix of the order
// whose length rounding allows.
func TestFilters(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 1))
	tried := 0
	for kind := range 8 {
		for _, n := range []int{1, 5, 1000, 4096, 150_001} {
			if !exhaustive.On && n > 10_000 && kind > 0 {
				continue
			}
			logits := filterLogits(r, n, kind)
			for _, order := range orders {
				s := newSampling(t, n, []int{64, 1024}[r.IntN(2)], 4, 0, order...)
				s.adjust.fill("logits", logits)
				for _, k := range []uint32{0, 1, 40, 3000, uint32(n), uint32(n) + 1} {
					set := off()
					set.TopK = k
					p := []float64{0, 1e-9, 0.5, 0.95, 1 - 1e-7}[r.IntN(5)]
					minP := []float64{0, 0.05, 1e-6, 1}[r.IntN(4)]
					temperature := []float64{1, 0.3, 5}[r.IntN(3)]
					set.TopP = uint32(p * (1 << 32))
					if minP > 0 {
						set.MinPDrop = float32(-math.Log(minP))
					}
					set.InvTemperature = float32(1 / temperature)
					if order[0] == decl.StageTemperature {
						set.TopPScale = float32(math.Log2E / temperature)
					} else {
						temperature = 1
					}
					if err := checkFilters(s, set, order, temperature); err != nil {
						t.Fatalf("kind %d, n %d, order %v, k %d, p %v, min-p %v: %v", kind, n, order, k, p, minP, err)
					}
					tried++
				}
			}
		}
	}
	t.Logf("%d settings", tried)
}

func checkFilters(s *sampling, set sampler.Settings, order []uint32, temperature float64) error {
	id := s.run(set, 2)
	keys, limit := uint32s(s.adjust.bytes("keys")), slices.Clone(uint32s(s.filter.bytes("limit")))
	if s.n >= surveyLeast {
		clear(s.filter.bytes("limit"))
		s.filter.together(s.ops, 3)
		if got := uint32s(s.filter.bytes("limit")); !slices.Equal(got, limit) {
			return fmt.Errorf("the limit is %v, and %v if the team surveys the keys", limit, got)
		}
	}
	ref := newReference(keys)
	if len(ref.ids) == 0 {
		if id != 0 {
			return fmt.Errorf("all tokens are banned, but %d is chosen", id)
		}
		return nil
	}
	// Each stage adds to the uncertainty of the number of tokens, because its input differs by
	// the rounding errors of the stages before it.
	least, most := len(ref.ids), len(ref.ids)
	for _, stage := range order {
		all := ref.ids
		ref.ids = all[:least]
		lo, _ := ref.stage(stage, set, temperature)
		ref.ids = all[:most]
		lo2, hi := ref.stage(stage, set, temperature)
		least, most = min(lo, lo2), max(hi, lo)
		ref.ids = all
	}
	kept := 0
	for i, at := range ref.ids {
		if keys[at] > limit[0] || keys[at] == limit[0] && uint32(at) <= limit[1] {
			if kept++; kept != i+1 {
				return fmt.Errorf("the kept tokens are not a prefix: %d is kept, but one before it is not", at)
			}
		}
	}
	if kept < least || kept > most {
		return fmt.Errorf("%d tokens are kept, want %d to %d", kept, least, most)
	}
	if at := slices.Index(ref.ids, id); at < 0 || at >= kept {
		return fmt.Errorf("%d is chosen, but it is not among the %d kept tokens", id, kept)
	}
	return nil
}

// TestGreedySampler checks that temperature 0 chooses the first of the largest logits.
func TestGreedySampler(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	for kind := range 8 {
		const n = 3000
		s := newSampling(t, n, 256, 4, 0, orders[0]...)
		logits := filterLogits(r, n, kind)
		s.adjust.fill("logits", logits)
		set := off()
		set.InvTemperature, set.TopK = 0, 1
		got := s.run(set, 3)
		want := largest(logits)
		if kind == 3 { // clamped
			want = slices.IndexFunc(logits, func(v float32) bool { return v >= sampler.Limit })
		}
		if got != want {
			t.Errorf("kind %d: %d, want %d", kind, got, want)
		}
	}
}

// TestDraws compares draws with the distribution by chi-square.
func TestDraws(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 1))
	draws := exhaustive.Pick(100_000, 4_000)
	for i, c := range []struct {
		n           int
		temperature float64
		k           uint32
		p, minP     float64
	}{{50, 1, 0, 0, 0}, {50, 0.6, 20, 0, 0}, {200, 1.5, 0, 0.9, 0}, {50, 0.8, 40, 0.95, 0.05}, {8, 3, 0, 0, 0.02}, {2000, 0.7, 100, 0, 0}} {
		const ring = 4
		s := newSampling(t, c.n, 64, ring, 1, orders[0]...)
		s.adjust.fill("logits", random(r, c.n, 2))
		set := off()
		set.TopK, set.TopP, set.InvTemperature = c.k, uint32(c.p*(1<<32)), float32(1/c.temperature)
		if c.minP > 0 {
			set.MinPDrop = float32(-math.Log(c.minP))
		}
		s.run(set, 1)
		keys, limit := uint32s(s.adjust.bytes("keys")), uint32s(s.filter.bytes("limit"))
		ref := newReference(keys)
		ref.ids = slices.DeleteFunc(ref.ids, func(id int) bool { return keys[id] < limit[0] })
		counts := make([]float64, c.n)
		for j := range draws {
			set.Seed = uint64(i)<<40 + uint64(j)
			binary.LittleEndian.PutUint64(s.draw.bytes("settings"), set.Seed)
			s.draw.run(implementations()["portable"], 1)
			counts[largestPart(uint32s(s.draw.bytes("out")))]++
		}
		chi, freedom, rest, restWant, all := 0.0, -1, 0.0, 0.0, 0.0
		for j, p := range ref.probabilities(c.temperature) {
			got, want := counts[ref.ids[j]], p*float64(draws)
			all += got
			if want < 10 {
				rest, restWant = rest+got, restWant+want
				continue
			}
			chi += (got - want) * (got - want) / want
			freedom++
		}
		if restWant > 0 {
			chi += (rest - restWant) * (rest - restWant) / restWant
			freedom++
		}
		// Wilson and Hilferty: the cube root is nearly normal.
		f := float64(freedom)
		z := (math.Cbrt(chi/f) - (1 - 2/(9*f))) / math.Sqrt(2/(9*f))
		t.Logf("%+v: chi-square %.1f with %d degrees of freedom, z %.2f", c, chi, freedom, z)
		if int(all) != draws {
			t.Errorf("%+v: %v draws of tokens that are kept, of %d", c, all, draws)
		}
		if z > 3.5 {
			t.Errorf("%+v: chi-square %.1f with %d degrees of freedom", c, chi, freedom)
		}
	}
}

// BenchmarkSampler measures the sampler on one worker.
func BenchmarkSampler(b *testing.B) {
	for _, n := range []int{4096, 151_936} {
		for _, c := range []struct {
			name string
			set  func(*sampler.Settings)
		}{
			{"default", func(s *sampler.Settings) { s.TopK, s.TopP, s.MinPDrop = 40, 4080218931, 3 }},
			{"top-p", func(s *sampler.Settings) { s.TopP = 4080218931 }},
			{"free", func(*sampler.Settings) {}},
			{"greedy", func(s *sampler.Settings) { s.InvTemperature = 0 }},
		} {
			b.Run(fmt.Sprintf("%d/%s", n, c.name), func(b *testing.B) {
				s := newSampling(b, n, 64, 4, 0, orders[0]...)
				s.adjust.fill("logits", random(rand.New(rand.NewPCG(7, 1)), n, 3))
				set := off()
				c.set(&set)
				for b.Loop() {
					s.run(set, 1)
				}
			})
		}
	}
}
