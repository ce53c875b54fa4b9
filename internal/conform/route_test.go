package conform

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// scored is a random route_scored command.
type scored struct {
	kernels.RouteScoredParams
	biased, overAll bool
	logits, bias    []float32
	factors         []float32 // of the experts, or nil
}

func randomScored(r *rand.Rand, rows int) scored {
	s := scored{biased: r.IntN(2) == 0, overAll: r.IntN(2) == 0}
	s.Groups, s.TopGroups, s.Best, s.Scale = 1, 1, 1, pick(r, float32(1), 2.5)
	s.Experts, s.Sigmoid = pick(r, uint32(1), 8, 31, 33, 128, 1024), r.Uint32N(2)
	if r.IntN(2) == 0 {
		s.Groups = pick(r, uint32(2), 8, 32)
		s.Experts, s.TopGroups, s.Best = s.Groups*pick(r, uint32(2), 5, 32), 1+r.Uint32N(s.Groups), 1+r.Uint32N(2)
	}
	s.Used = 1 + r.Uint32N(min(s.Experts/s.Groups*s.TopGroups, 12))
	s.logits, s.bias = normal(r, rows*int(s.Experts), pick(r, 1.0, 4)), normal(r, int(s.Experts), 0.3)
	if r.IntN(3) == 0 {
		s.factors = normal(r, int(s.Experts), 1)
	}
	if r.IntN(2) == 0 { // equal logits
		for i, v := range s.logits {
			s.logits[i] = float32(math.Round(float64(v)))
		}
		for i, v := range s.bias {
			s.bias[i] = float32(math.Round(4*float64(v)) / 4)
		}
	}
	return s
}

// choose returns the experts of a row and their weights, in float64, and the least difference between
// an expert or group that is chosen and one that is not.
func (s *scored) choose(logits []float32) (ids []uint32, weights []float64, apart float64) {
	scores, ranks := make([]float64, len(logits)), make([]float64, len(logits))
	top, sum := float64(slices.Max(logits)), 0.0
	for _, x := range logits {
		sum += math.Exp(float64(x) - top)
	}
	for e, x := range logits {
		scores[e] = math.Exp(float64(x)-top) / sum
		if s.Sigmoid != 0 {
			scores[e] = 1 / (1 + math.Exp(-float64(x)))
		}
		if ranks[e] = scores[e]; s.biased {
			ranks[e] += float64(s.bias[e])
		}
	}
	apart = math.Inf(1)
	best := func(values []float64, candidates []uint32, n uint32) []uint32 {
		slices.SortStableFunc(candidates, func(a, b uint32) int { return cmp.Compare(values[b], values[a]) })
		for i := 1; i < len(candidates) && i <= int(n); i++ {
			if d := values[candidates[i-1]] - values[candidates[i]]; d > 0 {
				apart = min(apart, d)
			}
		}
		return candidates[:n]
	}
	size := s.Experts / s.Groups
	var groups []uint32
	values := make([]float64, s.Groups)
	for g := range s.Groups {
		own := slices.Clone(ranks[g*size:][:size])
		slices.SortFunc(own, func(a, b float64) int { return cmp.Compare(b, a) })
		for _, v := range own[:min(size, s.Best)] {
			values[g] += v
		}
		groups = append(groups, g)
	}
	var candidates []uint32
	for _, g := range best(values, groups, s.TopGroups) {
		for e := range size {
			candidates = append(candidates, g*size+e)
		}
	}
	slices.Sort(candidates)
	ids, sum = best(ranks, candidates, s.Used), 0
	for _, e := range ids {
		sum += scores[e]
	}
	for _, e := range ids {
		w := scores[e] * float64(s.Scale)
		if !s.overAll {
			w /= sum
		}
		weights = append(weights, w)
	}
	return ids, weights, apart
}

// TestRouteScored compares the selected experts with a sort, and the weights with float64.
func TestRouteScored(t *testing.T) {
	p := inBoth(t)
	checked := 0
	for seed := range exhaustive.Pick(uint64(200), 40) {
		r := rand.New(rand.NewPCG(seed, 25))
		rows := 1 + r.IntN(4)
		s := randomScored(r, rows)
		c := command{
			kernel: kernels.RouteScored, specs: []uint32{one(s.biased), one(s.overAll), one(s.factors != nil)}, params: s.RouteScoredParams,
			second: pianolaSecond{rows: uint32(rows)}, input: map[string][]byte{"logits": f32(s.logits), "b": f32(s.bias)},
		}
		if !s.biased {
			c.absent = []string{"b"}
			delete(c.input, "b")
		}
		if s.factors == nil {
			c.absent = append(c.absent, "factors")
		} else {
			c.input["factors"] = f32(s.factors)
		}
		var ids []uint32
		var weights []float64
		apart := math.Inf(1)
		for row := range slices.Chunk(s.logits, int(s.Experts)) {
			chosen, w, d := s.choose(row)
			ids, weights, apart = append(ids, chosen...), append(weights, w...), min(apart, d)
		}
		if apart < 1e-5 {
			continue // float32 may order them differently
		}
		checked++
		cpu, got := both(t, p.at(seed), c, r, seed, pick(r, 32, 64, 96))
		for _, o := range []*outcome{cpu, got} {
			if !slices.Equal(o.bindings[kernels.RouteScoredBindIDs], u32(ids...)) {
				t.Fatalf("seed %d: %+v: %v, want %v", seed, s.RouteScoredParams, o.bindings[kernels.RouteScoredBindIDs], ids)
			}
			chosen := floats(o.bindings[kernels.RouteScoredBindWeights])
			for i, e := range ids {
				if s.factors != nil { // errors are relative to the weights without factors
					chosen[i] /= float64(s.factors[e])
				}
			}
			if err := near(chosen, weights, int(s.Used), 1e-5); err != nil {
				t.Fatalf("seed %d: %+v: weights: %v", seed, s.RouteScoredParams, err)
			}
		}
	}
	if checked < 10 {
		t.Errorf("%d commands checked", checked)
	}
}

// familyWholes are tables with shared experts, scored routers, parallel blocks, norms after RoPE,
// factors of Q, inputs of layers, alternating updates, and norms of heads that subtract the mean.
func familyWholes() (list []whole) {
	for i, w := range []whole{
		{model: "variants/glm4_moe_qknorm", chip: "m4-pro"},
		{model: "variants/qwen2_moe", chip: "h200", change: small, changed: "small"},
		{model: "variants/cohere2", chip: "m4-pro"},
		{model: "variants/hunyuan_dense", chip: "h200"},
		{model: "variants/ministral3", chip: "h200"},
		{model: "variants/gemma4_untied", chip: "m4-pro", change: small, changed: "small"},
		{model: "variants/gemma4_untied", chip: "h200"},
		{model: "variants/gemma4_e_untied", chip: "h200", change: small, changed: "small"},
		{model: "variants/gemma4_e_untied", chip: "m4-pro"},
		{model: "variants/gemma3n_deep", chip: "m4-pro"},
		{model: "variants/gemma3n_deep", chip: "h200"},
		{model: "variants/cohere_qknorm_deep", chip: "h200"},
		{model: "variants/gemma4_moe", chip: "m4-pro", change: small, changed: "small"},
		{model: "variants/gemma4_moe", chip: "h200"},
		{model: "variants/llama4", chip: "h200", change: small, changed: "small"},
		{model: "variants/llama4_interleaved", chip: "m4-pro"},
	} {
		w.golden, w.prompts, w.tokens, w.order, w.limit, w.reference, w.fast = w.model+"/golden.json", []int{1}, 4, emu.Order(i%3), 3e-3, 3e-3, true
		list = append(list, w)
	}
	return list
}

func init() {
	subjects = append(subjects, subject{kernels.ScaleRows, func(r *rand.Rand) (command, map[string]tolerance) {
		n, rows, count := width(r), 1+r.IntN(4), 1+r.IntN(9)
		stride := n + r.IntN(9)
		return command{
			specs:  []uint32{decl.SequencesOwn},
			params: kernels.ScaleRowsParams{N: uint32(n), Stride: uint32(stride), Count: uint32(count), Span: pick(r, uint32(1), 7, 8192), Offset: uint32(r.IntN(2))},
			second: pianolaSecond{index: pick(r, uint32(0), 5, 70_000), rows: uint32(rows)},
			input:  map[string][]byte{"x": f32(normal(r, (rows-1)*stride+n, scale(r))), "factors": f32(normal(r, count, 1))},
		}, nil
	}})
}
