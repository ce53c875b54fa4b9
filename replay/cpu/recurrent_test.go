package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/recurrent"
)

// recurrentCase is a command with recurrent state, and its input for several rows.
type recurrentCase struct {
	kernel  decl.ID
	specs   []uint32
	params  params
	missing []string
	rows    map[string]int       // elements of a row of the inputs that have rows
	input   map[string][]float32 // the inputs
	out     int                  // elements of a row of the output
}

// recurrentCases returns commands for n rows.
func recurrentCases(r *rand.Rand, n int, ring recurrent.Ring) map[string]recurrentCase {
	const channels, taps, heads, keyHeads, keyDim, valueDim = 70, 4, 6, 2, 36, 20
	const groups, headDim, stateDim = 2, 18, 24
	live, saved := uint32(ring.Live), uint32(ring.Saved)
	conv := kernels.CausalConvParams{N: channels, Taps: taps, XStride: 3 * channels, Group: 32, Live: live, Saved: saved}
	columns, scanned := 2*keyHeads*keyDim+heads*valueDim, heads*headDim+2*groups*stateDim
	const wideKeys, wideValues, wideStride = 48, 22, 2*keyHeads*48 + heads*22 + 3
	falling := random(r, 2*heads, 1)
	for i := range heads {
		falling[i] = -float32(math.Abs(float64(falling[i])))
	}
	return map[string]recurrentCase{
		"gated conv": {
			kernel: kernels.CausalConv, specs: []uint32{decl.ConvGated, 0}, params: conv, missing: []string{"bias"}, rows: map[string]int{"x": 3 * channels}, out: channels,
			input: map[string][]float32{"x": random(r, 3*n*channels, 1), "w": random(r, taps*channels, 1)},
		},
		"conv of three taps": {
			kernel: kernels.CausalConv, specs: []uint32{decl.ConvGated, 0}, missing: []string{"bias"}, rows: map[string]int{"x": 3 * channels}, out: channels,
			params: kernels.CausalConvParams{N: channels, Taps: 3, XStride: 3 * channels, Group: 32, Live: live, Saved: saved},
			input:  map[string][]float32{"x": random(r, 3*n*channels, 1), "w": random(r, 3*channels, 1)},
		},
		"wide conv of three taps": { // whole vectors, the last of which ends with w
			kernel: kernels.CausalConv, specs: []uint32{decl.ConvSiLU, 0}, missing: []string{"bias"}, rows: map[string]int{"x": 320}, out: 320,
			params: kernels.CausalConvParams{N: 320, Taps: 3, XStride: 320, Group: 32, Live: live, Saved: saved},
			input:  map[string][]float32{"x": random(r, 320*n, 1), "w": random(r, 3*320, 1)},
		},
		"silu conv": {
			kernel: kernels.CausalConv, specs: []uint32{decl.ConvSiLU, 1}, params: conv, rows: map[string]int{"x": 3 * channels}, out: channels,
			input: map[string][]float32{"x": random(r, 3*n*channels, 1), "w": random(r, taps*channels, 1), "bias": random(r, channels, 1)},
		},
		"delta": {
			kernel: kernels.DeltaRule, specs: []uint32{decl.DecayLog}, rows: map[string]int{"x": columns, "gates": 2 * heads}, out: heads * valueDim,
			params: kernels.DeltaRuleParams{
				Heads: heads, KeyHeads: keyHeads, KeyDim: keyDim, ValueDim: valueDim, XStride: uint32(columns), GateStride: 2 * heads, Eps: 1e-6, Group: 8,
				Live: live, Saved: saved,
			},
			input: map[string][]float32{"x": random(r, n*columns, 1), "gates": random(r, 2*n*heads, 1), "w": random(r, 2*heads, 1)},
		},
		"scan": {
			kernel: kernels.SSMScan, specs: []uint32{decl.DecayLog}, rows: map[string]int{"x": scanned, "steps": heads}, out: heads * headDim,
			params: kernels.SSMScanParams{
				Heads: heads, Groups: groups, HeadDim: headDim, StateDim: stateDim, XStride: uint32(scanned), StepStride: heads, StepMin: 0.1, StepMax: 1.5, Group: 8,
				Live: live, Saved: saved,
			},
			input: map[string][]float32{"x": random(r, n*scanned, 1), "steps": random(r, n*heads, 1), "w": random(r, 3*heads, 1)},
		},
		"delta of whole vectors": {
			kernel: kernels.DeltaRule, specs: []uint32{decl.DecayNegative}, rows: map[string]int{"x": wideStride, "gates": 2*heads + 1}, out: heads * wideValues,
			params: kernels.DeltaRuleParams{
				Heads: heads, KeyHeads: keyHeads, KeyDim: wideKeys, ValueDim: wideValues, XStride: wideStride, GateStride: 2*heads + 1, Eps: 1e-6, Tiled: 1, Group: 8,
				Live: live, Saved: saved,
			},
			input: map[string][]float32{"x": random(r, n*wideStride, 1), "gates": random(r, n*(2*heads+1), 1), "w": falling},
		},
	}
}

// in computes the rows in pieces that begin at the given position, on a slot of states that were
// there before, and returns the output and the slot.
func (c *recurrentCase) in(t *testing.T, o *ops, position int, pieces []int, workers int) (out []float32, states []byte) {
	t.Helper()
	done := 0
	for _, rows := range pieces {
		s := newSolo(t, c.kernel, c.specs, c.params, map[int]uint32{decl.SecondIndex: uint32(position + done), decl.SecondRows: uint32(rows)}, c.missing...)
		for name, x := range c.input {
			if n, ok := c.rows[name]; ok {
				copy(s.f32(name), x[done*n:][:rows*n])
			} else {
				s.fill(name, x)
			}
		}
		if states == nil {
			all := s.f32("state")
			copy(all, random(rand.New(rand.NewPCG(5, 5)), len(all), 1))
		} else {
			copy(s.bytes("state"), states)
		}
		s.run(o, workers)
		out = append(out, s.f32("out")[:rows*c.out]...)
		states = append(states[:0:0], s.bytes("state")...)
		done += rows
	}
	return out, states
}

// TestRecurrentDivision checks that the kernels with recurrent state give the same bits with every
// implementation, every number of workers and every division of the rows into commands, and leave the
// same states.
func TestRecurrentDivision(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 1))
	const n = 60
	ring := recurrent.Ring{Live: 2, Saved: 3}
	for name, c := range recurrentCases(r, n, ring) {
		for _, position := range []int{0, 1, 40, 64, 200} {
			want, states := c.in(t, portable(), position, []int{n}, 1)
			for implementation, o := range implementations() {
				for _, pieces := range [][]int{{n}, {1, 30, 29}, {23, 2, 1, 34}} {
					what := fmt.Sprintf("%s at %d, %s, %v", name, position, implementation, pieces)
					got, left := c.in(t, o, position, pieces, 3)
					same(t, what, got, want)
					end := ring.Entry(position + n)
					size := len(left) / ring.Entries()
					same(t, what+", the state", float32s(left[end*size:][:size]), float32s(states[end*size:][:size]))
				}
			}
		}
	}
}

// TestDeltaRuleExact compares every implementation with the gated delta rule in float64, for heads of 128
// elements, with the rows in one piece and in three.
func TestDeltaRuleExact(t *testing.T) {
	const heads, dim, n = 2, 128, 64
	const columns = 3 * heads * dim
	r := rand.New(rand.NewPCG(33, 1))
	c := recurrentCase{
		kernel: kernels.DeltaRule, specs: []uint32{decl.DecayLog}, rows: map[string]int{"x": columns, "gates": 2 * heads}, out: heads * dim,
		params: kernels.DeltaRuleParams{
			Heads: heads, KeyHeads: heads, KeyDim: dim, ValueDim: dim, XStride: columns, GateStride: 2 * heads, Eps: 1e-6, Group: 8, Live: 2, Saved: 1,
		},
		input: map[string][]float32{"x": random(r, n*columns, 1), "gates": random(r, 2*n*heads, 1), "w": random(r, 2*heads, 1)},
	}
	var want []float64
	var states [heads][dim][dim]float64
	for row := range n {
		x, gates, w := widen(c.input["x"][row*columns:][:columns]), widen(c.input["gates"][2*row*heads:][:2*heads]), widen(c.input["w"])
		for h := range heads {
			q, k, v := x[h*dim:][:dim], x[(heads+h)*dim:][:dim], x[(2*heads+h)*dim:][:dim]
			unit := func(x []float64, scale float64) {
				sum := 1e-6
				for _, e := range x {
					sum += e * e
				}
				for i := range x {
					x[i] *= scale / math.Sqrt(sum)
				}
			}
			unit(q, 1/math.Sqrt(dim))
			unit(k, 1)
			keep := math.Exp(-math.Exp(w[h]) * math.Log1p(math.Exp(gates[heads+h]+w[heads+h])))
			beta := 1 / (1 + math.Exp(-gates[h]))
			for i := range dim {
				state, seen, y := &states[h][i], 0.0, 0.0
				for j := range state {
					state[j] *= keep
					seen += state[j] * k[j]
				}
				for j := range state {
					state[j] += beta * (v[i] - seen) * k[j]
					y += state[j] * q[j]
				}
				want = append(want, y)
			}
		}
	}
	for name, o := range implementations() {
		for _, pieces := range [][]int{{n}, {1, 7, n - 8}} {
			t.Run(fmt.Sprint(name, pieces), func(t *testing.T) {
				got, _ := c.in(t, o, 0, pieces, 2)
				near(t, got, want, 2e-5)
			})
		}
	}
}

// BenchmarkDeltaRule computes one row of the gated delta rule with 32 heads of 128 elements, on one core.
// The bytes are those of the state, which is read and written.
func BenchmarkDeltaRule(b *testing.B) {
	const heads, dim = 32, 128
	columns := 2*16*dim + heads*dim
	p := kernels.DeltaRuleParams{
		Heads: heads, KeyHeads: 16, KeyDim: dim, ValueDim: dim, XStride: uint32(columns), GateStride: 2 * heads, Eps: 1e-6, Group: 8, Live: 2, Saved: 1,
	}
	s := newSolo(b, kernels.DeltaRule, []uint32{decl.DecayLog}, p, map[int]uint32{decl.SecondIndex: 1, decl.SecondRows: 1})
	r := rand.New(rand.NewPCG(32, 1))
	for _, name := range []string{"x", "gates", "w", "state"} {
		copy(s.f32(name), random(r, len(s.f32(name)), 1))
	}
	b.SetBytes(2 * 4 * heads * dim * dim)
	o := fastest()
	for b.Loop() {
		s.run(o, 1)
	}
}
