package conform

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/sampler"
)

// words returns the words of a buffer.
func words(b []byte) []uint32 {
	w := make([]uint32, len(b)/4)
	for i := range w {
		w[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return w
}

// samplerOf returns random settings of a sampler.
func samplerOf(r *rand.Rand, n int) sampler.Settings {
	s := sampler.Settings{
		Seed: r.Uint64(), InvTemperature: pick(r, float32(0), 1, 1, 1, 1.25, 0.3, 1<<20), TopK: pick(r, uint32(0), 0, 1, 40, 3000, uint32(n), uint32(n)+1),
		TopP: pick(r, uint32(0), 0, 1, 1<<31, 4080218931, math.MaxUint32), TopPScale: pick(r, float32(math.Log2E), 2, 0.2),
		MinPDrop: pick(r, sampler.Far, sampler.Far, 0, 3, 20), Repetition: pick(r, float32(1), 1.1, 0.7), Presence: pick(r, float32(0), 0.5, -3),
		Frequency: pick(r, float32(0), 0.25), Window: pick(r, uint32(0), 1, 64, math.MaxUint32), Biases: pick(r, uint32(0), 3, math.MaxUint32),
	}
	return s
}

// headOf returns the settings in the kernels' encoding.
func headOf(s sampler.Settings) []byte {
	var b [sampler.Words * 4]byte
	s.Put(&b)
	return b[:]
}

// choiceLogits returns logits for a sampler: specialLogits, or logits with many tokens in one
// bin of the filters.
func choiceLogits(r *rand.Rand, n int) []float32 {
	x := specialLogits(r, n)
	switch r.IntN(5) {
	case 0:
		for i := range x {
			x[i] = 5 + float32(r.NormFloat64())*1e-3
		}
	case 1:
		for i := range x {
			if r.IntN(20) > 0 {
				x[i] = -300 - float32(r.IntN(3))
			}
		}
	case 2:
		for i := range x {
			x[i] *= 5
		}
	}
	return x
}

func keysOf(logits []float32, part int) (keys, largest []uint32) {
	for i, v := range logits {
		if i%part == 0 {
			largest = append(largest, 0)
		}
		key := sampler.OrderKey(v)
		keys, largest[len(largest)-1] = append(keys, key), max(largest[len(largest)-1], key)
	}
	return keys, largest
}

// sampleSubjects are the sampler's commands. Their results must have the CPU device's bits.
var sampleSubjects = []subject{
	{kernels.SampleAdjust, func(r *rand.Rand) (command, map[string]tolerance) {
		n, ring := pick(r, 1, 5, 31, 1000, 4099, 20_000), 1+r.IntN(200)
		tokens := make([]uint32, ring)
		for i := range tokens {
			tokens[i] = pick(r, uint32(r.IntN(n)), uint32(r.IntN(min(n, 20))), uint32(n), math.MaxUint32)
		}
		const most = 16
		settings := headOf(samplerOf(r, n))
		for i := range most {
			bias := pick(r, float32(r.NormFloat64()), 0, float32(math.Inf(-1)), 1e6)
			settings = append(append(settings, u32(uint32(i*n/most)|uint32(one(n < most))*uint32(i)<<20)...), f32([]float32{bias})...)
		}
		return command{
			params: kernels.SampleAdjustParams{N: uint32(n), Part: pick(r, uint32(4), 64, 1000, 2048), Ring: uint32(ring), MaxBias: most},
			second: pianolaSecond{index: uint32(r.IntN(ring + 2)), rows: 1},
			input:  map[string][]byte{"logits": f32(specialLogits(r, n)), "tokens": u32(tokens...), "settings": settings},
		}, nil
	}},
	{kernels.SampleFilter, func(r *rand.Rand) (command, map[string]tolerance) {
		n, part := pick(r, 1, 5, 31, 1000, 4099, 20_000), pick(r, 4, 64, 1000, 2048)
		keys, largest := keysOf(choiceLogits(r, n), part)
		order := []uint32{decl.StageTemperature, decl.StageTopK, decl.StageTopP, decl.StageMinP}
		r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		return command{
			specs:  append(order[:r.IntN(5)], make([]uint32, 4)...)[:4],
			params: kernels.SampleFilterParams{N: uint32(n), Part: uint32(part)},
			second: pianolaSecond{rows: 1},
			input:  map[string][]byte{"keys": u32(keys...), "largest": u32(largest...), "settings": headOf(samplerOf(r, n))},
		}, nil
	}},
	{kernels.SampleDraw, func(r *rand.Rand) (command, map[string]tolerance) {
		n, part := pick(r, 1, 5, 31, 1000, 4099, 20_000), pick(r, 4, 64, 1000, 2048)
		keys, largest := keysOf(choiceLogits(r, n), part)
		limit := pick(r, 1, keys[r.IntN(n)], slices.Max(largest))
		return command{
			params: kernels.SampleDrawParams{N: uint32(n), Part: uint32(part)},
			second: pianolaSecond{index: r.Uint32N(contextRows), rows: 1},
			input: map[string][]byte{
				"keys": u32(keys...), "limit": u32(limit, pick(r, uint32(r.IntN(n)), math.MaxUint32), slices.Max(largest), 0), "settings": headOf(samplerOf(r, n)),
			},
		}, nil
	}},
	{kernels.RankPart, func(r *rand.Rand) (command, map[string]tolerance) {
		n, part := pick(r, 1, 5, 31, 1000, 4099, 20_000), pick(r, 4, 64, 1000, 2048)
		n = min(n, 300*part+3) // each part is a threadgroup with many barriers
		return command{
			params: kernels.RankPartParams{N: uint32(n), Part: uint32(part)}, second: pianolaSecond{rows: 1},
			input: map[string][]byte{"logits": f32(choiceLogits(r, n)), "settings": headOf(rankedOf(r))},
		}, nil
	}},
	{kernels.Rank, func(r *rand.Rand) (command, map[string]tolerance) {
		n, part, pairs := pick(r, 1, 5, 31, 1000, 4099, 20_000), pick(r, 4, 64, 1000, 2048), pick(r, 1, 7, 300)
		logits := choiceLogits(r, n)
		var drawn []uint32
		for range pairs {
			drawn = append(drawn, math.Float32bits(pick(r, float32(r.NormFloat64()), 1, float32(math.NaN()))), r.Uint32N(uint32(n)))
		}
		return command{
			params: kernels.RankParams{N: uint32(n), Part: uint32(part), Pairs: uint32(pairs), Entries: 5},
			second: pianolaSecond{index: r.Uint32N(contextRows), rows: 1},
			input: map[string][]byte{
				"logits": f32(logits), "parts": u32(rankedParts(r, logits, part)...), "drawn": u32(drawn...), "settings": headOf(rankedOf(r)),
			},
		}, nil
	}},
}

// rankedOf returns settings that ask for log-probabilities.
func rankedOf(r *rand.Rand) sampler.Settings {
	return sampler.Settings{Ranked: pick(r, uint32(0), 1, 2, 5, sampler.MaxRanked, math.MaxUint32)}
}

// rankedParts returns a possible result of rank_part, with random sums.
func rankedParts(r *rand.Rand, logits []float32, part int) []uint32 {
	var out []uint32
	for first := 0; first < len(logits); first += part {
		entries := make([]uint64, 0, part)
		for i, v := range logits[first:min(first+part, len(logits))] {
			if key := sampler.OrderKey(v); key != 0 {
				entries = append(entries, uint64(^key)<<32|uint64(first+i))
			}
		}
		slices.Sort(entries)
		e := make([]uint32, sampler.RankWords)
		for i, v := range entries[:min(len(entries), sampler.MaxRanked)] {
			e[2+2*i], e[3+2*i] = ^uint32(v>>32), uint32(v)
		}
		if len(entries) > 0 {
			sum := 1<<39 + r.Uint64N(uint64(len(entries))<<39-1<<39+1)
			e[0], e[1] = uint32(sum), uint32(sum>>32)
		}
		out = append(out, e...)
	}
	return out
}

// TestSampler compares the sampler's commands with the CPU's.
func TestSampler(t *testing.T) {
	p := inBoth(t)
	for _, s := range sampleSubjects {
		k, _ := decl.Lookup(s.kernel)
		t.Run(k.Name, func(t *testing.T) { testSubject(t, p, s, rounds) })
	}
}

// choices runs the sampler's commands with the emulated kernels.
type choices struct {
	adjust, filter, draw command
	n                    int
}

func newChoices(logits []float32, set sampler.Settings, order ...uint32) *choices {
	const part = 1024
	n := len(logits)
	return &choices{
		n: n,
		adjust: command{
			kernel: kernels.SampleAdjust, params: kernels.SampleAdjustParams{N: uint32(n), Part: part, Ring: 1, MaxBias: 0},
			second: pianolaSecond{rows: 1}, input: map[string][]byte{"logits": f32(logits), "settings": headOf(set)},
		},
		filter: command{
			kernel: kernels.SampleFilter, specs: append(order, make([]uint32, 4)...)[:4], params: kernels.SampleFilterParams{N: uint32(n), Part: part},
			second: pianolaSecond{rows: 1}, input: map[string][]byte{"settings": headOf(set)},
		},
		draw: command{
			kernel: kernels.SampleDraw, params: kernels.SampleDrawParams{N: uint32(n), Part: part},
			second: pianolaSecond{rows: 1}, input: map[string][]byte{"settings": headOf(set)},
		},
	}
}

// limit runs all commands except the draw.
func (c *choices) limit(t *testing.T, p *emu.Program) []byte {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 1))
	run := func(c *command, threads int) *outcome {
		tab, slots := c.tableOf(t)
		contents := c.contents(t, tab, slots, r)
		got := c.emulated(t, p, tab, contents, launch{threads: threads, order: emu.Random})
		if err := compare(mustLookup(c.kernel), got, c.onCPU(t, tab, slots, contents), nil); err != nil {
			t.Fatal(err)
		}
		return got
	}
	a := run(&c.adjust, 256)
	c.filter.input["keys"], c.filter.input["largest"] = a.bindings[3], a.bindings[4]
	f := run(&c.filter, 1024)
	c.draw.input["keys"], c.draw.input["limit"] = a.bindings[3], f.bindings[3]
	return f.bindings[3]
}

func mustLookup(id decl.ID) *decl.Kernel {
	k, _ := decl.Lookup(id)
	return k
}

// testLargeSampler compares a sampler of a large vocabulary with the CPU's.
func testLargeSampler(t *testing.T, p *emu.Program) {
	const n = 151_936
	for i, c := range []struct {
		scale float64
		k     uint32
		p     float64
	}{{3, 40, 0.95}, {3, 0, 0.95}, {1e-4, 0, 0.5}, {0, 70_000, 0.5}, {1, 5000, 0.9}} {
		set := sampler.Settings{Seed: uint64(i), InvTemperature: 1, TopPScale: math.Log2E, MinPDrop: sampler.Far, Repetition: 1, TopK: c.k, TopP: uint32(c.p * (1 << 32))}
		s := newChoices(normal(rand.New(rand.NewPCG(uint64(i), 7)), n, c.scale), set, decl.StageTopK, decl.StageTopP)
		limit := words(s.limit(t, p))
		tab, slots := s.draw.tableOf(t)
		contents := s.draw.contents(t, tab, slots, rand.New(rand.NewPCG(1, 1)))
		got := s.draw.emulated(t, p, tab, contents, launch{threads: 256, order: emu.Random})
		if err := compare(mustLookup(kernels.SampleDraw), got, s.draw.onCPU(t, tab, slots, contents), nil); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		t.Logf("%+v: the last that is kept is %d", c, limit[1])
	}
}

var emulatedDraws = flag.Int("draws", exhaustive.Pick(5_000, 2_000), "how many draws of the emulated kernel TestDraws makes for each setting")

// TestDraws compares draws of the emulated kernel with the distribution by chi-square. Each
// draw uses one part and another position.
func TestDraws(t *testing.T) {
	p := builds.Get(t, fast)
	for i, c := range []struct {
		temperature float64
		k           uint32
		p           float64
	}{{1, 0, 0}, {0.7, 20, 0}, {1.5, 0, 0.9}} {
		const n = 60
		draws := *emulatedDraws
		r := rand.New(rand.NewPCG(uint64(i), 9))
		logits := normal(r, n, 2)
		set := sampler.Settings{
			Seed: uint64(i) + 77, InvTemperature: float32(1 / c.temperature), TopPScale: math.Log2E, MinPDrop: sampler.Far, Repetition: 1,
			TopK: c.k, TopP: uint32(c.p * (1 << 32)),
		}
		s := newChoices(logits, set, decl.StageTopK, decl.StageTopP, decl.StageMinP, decl.StageTemperature)
		limit := words(s.limit(t, p))
		counts := make([]float64, n)
		tab, slots := s.draw.tableOf(t)
		contents := s.draw.contents(t, tab, slots, r)
		for j := range uint32(draws) {
			s.draw.second.index = j
			binary.LittleEndian.PutUint32(tab.Cmds[0].Second[decl.SecondIndex:], j)
			got := s.draw.emulated(t, p, tab, contents, launch{threads: 32})
			counts[words(got.bindings[3])[1]]++
		}
		want, sum := make([]float64, n), 0.0
		for id, v := range logits {
			if key := sampler.OrderKey(v); key > limit[0] || key == limit[0] && uint32(id) <= limit[1] {
				want[id] = math.Exp(float64(v) / c.temperature)
				sum += want[id]
			}
		}
		if err := chiSquare(counts, want, float64(draws)/sum); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// chiSquare compares counts with expected counts. Tokens with an expected count below 10 are
// combined.
func chiSquare(counts, want []float64, factor float64) error {
	var chi, rest, restWant float64
	freedom := -1.0
	for i, w := range want {
		w *= factor
		switch {
		case w == 0 && counts[i] > 0:
			return fmt.Errorf("%v draws of token %d, which is not kept", counts[i], i)
		case w < 10:
			rest, restWant = rest+counts[i], restWant+w
		default:
			chi += (counts[i] - w) * (counts[i] - w) / w
			freedom++
		}
	}
	if restWant > 0 {
		chi += (rest - restWant) * (rest - restWant) / restWant
		freedom++
	}
	// Wilson and Hilferty: the cube root is nearly normal.
	if z := (math.Cbrt(chi/freedom) - (1 - 2/(9*freedom))) / math.Sqrt(2/(9*freedom)); !(z < 3.5) {
		return fmt.Errorf("chi-square %.1f with %v degrees of freedom", chi, freedom)
	}
	return nil
}
