package conform

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// both runs a command on the CPU device and emulated in three orders, which must give the same
// bits.
func both(t *testing.T, e *emu.Program, c command, r *rand.Rand, seed uint64, threads int) (cpu, emulated *outcome) {
	t.Helper()
	k, _ := decl.Lookup(c.kernel)
	tab, slots := c.tableOf(t)
	contents := c.contents(t, tab, slots, r)
	cpu = c.onCPU(t, tab, slots, contents)
	for _, o := range []emu.Order{emu.Forward, emu.Reverse, emu.Random} {
		got := c.emulated(t, e, tab, contents, launch{threads: threads, extra: uint32(r.IntN(2)), order: o, seed: seed})
		if emulated == nil {
			emulated = got
		} else if err := compare(k, got, emulated, nil); err != nil {
			t.Fatalf("seed %d: order %d gives another result: %v", seed, o, err)
		}
	}
	return cpu, emulated
}

// TestExperts runs the kernels of experts with random shapes.
func TestExperts(t *testing.T) {
	e := builds.Get(t, checked)
	t.Run("route", func(t *testing.T) { testRoute(t, e) })
	t.Run("products", func(t *testing.T) { testExpertProducts(t) })
	t.Run("sum", func(t *testing.T) { testExpertSum(t, e) })
	t.Run("clamped", func(t *testing.T) { testClamped(t, e) })
}

// testRoute compares the selected experts with a sort, and the weights with float64.
func testRoute(t *testing.T, e *emu.Program) {
	for seed := range exhaustive.Pick(uint64(20), 8) {
		r := rand.New(rand.NewPCG(seed, 21))
		rows, experts := 1+r.IntN(4), pick(r, 1, 2, 8, 31, 32, 33, 64, 128, 1024)
		used := 1 + r.IntN(min(experts, 12))
		over := uint32(r.IntN(2))
		logits := normal(r, rows*experts, pick(r, 1.0, 10.0))
		if r.IntN(2) == 0 { // equal logits
			for i := range logits {
				logits[i] = float32(math.Round(float64(logits[i])))
			}
		}
		c := command{
			kernel: kernels.Route, specs: []uint32{over}, params: kernels.RouteParams{Experts: uint32(experts), Used: uint32(used)},
			second: pianolaSecond{rows: uint32(rows)}, input: map[string][]byte{"logits": f32(logits)},
		}
		var ids []uint32
		var weights []float64
		for row := range slices.Chunk(logits, experts) {
			order := make([]int, experts)
			for i := range order {
				order[i] = i
			}
			slices.SortStableFunc(order, func(a, b int) int {
				if row[a] > row[b] {
					return -1
				}
				if row[a] < row[b] {
					return 1
				}
				return 0
			})
			sum := 0.0
			for i, v := range order {
				if i < used || over == decl.OverAll {
					sum += math.Exp(float64(row[v]) - float64(row[order[0]]))
				}
			}
			for _, v := range order[:used] {
				ids = append(ids, uint32(v))
				weights = append(weights, math.Exp(float64(row[v])-float64(row[order[0]]))/sum)
			}
		}
		cpu, got := both(t, e, c, r, seed, pick(r, 32, 64, 96))
		for _, o := range []*outcome{cpu, got} {
			if !slices.Equal(o.bindings[kernels.RouteBindIDs], u32(ids...)) {
				t.Fatalf("seed %d: %d of %d experts: %v, want %v", seed, used, experts, o.bindings[kernels.RouteBindIDs], ids)
			}
			if err := near(floats(o.bindings[kernels.RouteBindWeights]), weights, used, 2e-6); err != nil {
				t.Fatalf("seed %d: %d of %d experts: weights: %v", seed, used, experts, err)
			}
		}
	}
}

// testExpertProducts compares products of all weight types with the CPU device and with
// float64.
func testExpertProducts(t *testing.T) {
	for _, typ := range dtype.All() {
		if !typ.Quantized() && typ > dtype.BF16 || !compiled(typ) {
			continue
		}
		e := typed(t, typ, false)
		elems, _ := typ.Block()
		for seed := range exhaustive.Pick(uint64(6), 1) {
			r := rand.New(rand.NewPCG(seed, 22+uint64(typ)))
			p := expertProduct{t: typ, out: 1 + r.IntN(50), in: elems * pick(r, 1, 2, 3, 1024/elems), rows: pick(r, 1, 1, 2, 5), experts: 2 + r.IntN(5), group: pick(r, 1, 4, 8, 16, 32)}
			if typ <= dtype.BF16 {
				p.in = pick(r, 8, 52, 96, 100, 2056)
			}
			device := 1e-5
			if dtype.Tiled16.Has(typ, dtype.TileRows, uint64(elems)) && seed%2 == 0 {
				p.layout, p.out, p.group = dtype.Tiled16, 16*(1+r.IntN(3)), pick(r, 8, 16, 24, 32)
				device = 2e-6
			}
			p.used = 1 + r.IntN(p.experts)
			p.shared, p.bias = r.IntN(2) == 0, r.IntN(2) == 0
			if r.IntN(2) == 0 {
				p.gated, p.clamped = true, r.IntN(2) == 0
				if p.layout == dtype.Tiled16 {
					device = 1e-2
				}
			}
			p.check(t, e, r, seed, device)
		}
	}
}

// expertProduct is an expert_gemv command.
type expertProduct struct {
	t              dtype.Type
	layout         dtype.Layout
	out, in        int
	rows, group    int
	experts, used  int
	shared         bool
	gated, clamped bool
	bias           bool
}

const expertLimit = 1.5

func (p *expertProduct) check(t *testing.T, e *emu.Program, r *rand.Rand, seed uint64, device float64) {
	t.Helper()
	share, inputs := 1, p.rows*p.used
	if p.shared {
		share, inputs = p.used, p.rows
	}
	xs, ys := (p.in+3)/4*4+pick(r, 0, 4), p.out+pick(r, 0, 5)
	n := (inputs-1)*xs + p.in
	x, x2, b := normal(r, n, 1), normal(r, n, 1), normal(r, p.experts*p.out, 1)
	var w []byte
	var all []*matrix
	for range p.experts {
		m := newMatrix(r, p.t, p.out, p.in)
		all, w = append(all, m), append(w, m.bytes(p.layout)...)
	}
	ids := make([]uint32, p.rows*p.used)
	for row := range p.rows {
		for i, id := range r.Perm(p.experts)[:p.used] {
			ids[row*p.used+i] = uint32(id)
		}
	}
	if r.IntN(3) == 0 {
		ids[0] = math.MaxUint32 - uint32(r.IntN(2)) // must be clamped
	}
	act := uint32(decl.ActF32)
	if p.layout == dtype.Tiled16 {
		act = decl.ActQ8
	}
	c := command{
		kernel: kernels.ExpertGEMV, specs: []uint32{uint32(p.t), act, one(p.gated), one(p.bias), uint32(p.layout), decl.ActivationClampedSwiGLU * one(p.clamped)},
		params: kernels.ExpertGEMVParams{
			In: uint32(p.in), Out: uint32(p.out), XStride: uint32(xs), YStride: uint32(ys), Group: uint32(p.group), Ahead: uint32(pick(r, 0, 10240)),
			Experts: uint32(p.experts), Used: uint32(p.used), Share: uint32(share), Limit: expertLimit,
		},
		second: pianolaSecond{rows: uint32(p.rows)},
		input:  map[string][]byte{"x": f32(x), "x2": f32(x2), "w": w, "b": f32(b), "ids": u32(ids...), "y": f32(make([]float32, (p.rows*p.used-1)*ys+p.out))},
	}
	if !p.gated {
		c.absent = append(c.absent, "x2")
		delete(c.input, "x2")
	}
	if !p.bias {
		c.absent = append(c.absent, "b")
		delete(c.input, "b")
	}
	want := make([]float64, (p.rows*p.used-1)*ys+p.out)
	for s, id := range ids {
		m := all[min(int(id), p.experts-1)]
		for o := range p.out {
			sum := 0.0
			for i := range p.in {
				at := s/share*xs + i
				v := float64(x[at])
				if p.gated {
					v = gatedExactly(v, float64(x2[at]), p.clamped)
				}
				sum += v * float64(m.elements[o*p.in+i])
			}
			if p.bias {
				sum += float64(b[min(int(id), p.experts-1)*p.out+o])
			}
			want[s*ys+o] = sum
		}
	}
	cpu, got := both(t, e, c, r, seed, pick(r, 32, 64, 96, 256))
	k, _ := decl.Lookup(c.kernel)
	if err := compare(k, got, cpu, map[string]tolerance{"y": {ys, device, false}}); err != nil {
		t.Fatalf("seed %d, %+v: beside the CPU device: %v", seed, *p, err)
	}
	exact := 1e-5
	if act == decl.ActQ8 {
		exact = 8e-2
	}
	for _, o := range []*outcome{cpu, got} {
		if err := near(floats(o.bindings[kernels.ExpertGEMVBindY]), want, ys, exact); err != nil {
			t.Fatalf("seed %d, %+v: beside float64: %v", seed, *p, err)
		}
	}
}

func gatedExactly(gate, up float64, clamped bool) float64 {
	if !clamped {
		return gate / (1 + math.Exp(-gate)) * up
	}
	gate = min(gate, expertLimit)
	return gate / (1 + math.Exp(-1.702*gate)) * (min(max(up, -expertLimit), expertLimit) + 1)
}

func testExpertSum(t *testing.T, e *emu.Program) {
	for seed := range exhaustive.Pick(uint64(16), 4) {
		r := rand.New(rand.NewPCG(seed, 23))
		n, used, rows, add := width(r), 1+r.IntN(9), 1+r.IntN(3), r.IntN(2) == 0
		x, weights, out := normal(r, rows*used*n, 1), normal(r, rows*used, 1), normal(r, rows*n, 1)
		c := command{
			kernel: kernels.ExpertSum, specs: []uint32{one(add)}, params: kernels.ExpertSumParams{N: uint32(n), Used: uint32(used)},
			second: pianolaSecond{rows: uint32(rows)}, input: map[string][]byte{"x": f32(x), "weights": f32(weights), "out": f32(out)},
		}
		want := make([]float64, rows*n)
		for i := range want {
			row := i / n
			if add {
				want[i] = float64(out[i])
			}
			for k := range used {
				want[i] += float64(weights[row*used+k]) * float64(x[(row*used+k)*n+i%n])
			}
		}
		cpu, got := both(t, e, c, r, seed, pick(r, 32, 64, 256))
		for _, o := range []*outcome{cpu, got} {
			if err := near(floats(o.bindings[kernels.ExpertSumBindOut]), want, n, 2e-6); err != nil {
				t.Fatalf("seed %d, %d of width %d: %v", seed, used, n, err)
			}
		}
	}
}

// testClamped tests silu_mul with the clamped activation.
func testClamped(t *testing.T, e *emu.Program) {
	for seed := range exhaustive.Pick(uint64(8), 4) {
		r := rand.New(rand.NewPCG(seed, 24))
		n, rows := width(r), 1+r.IntN(3)
		gate, up := normal(r, rows*n, 3), normal(r, rows*n, 3)
		c := command{
			kernel: kernels.SiLUMul, specs: []uint32{decl.ActivationClampedSwiGLU}, params: kernels.SiLUMulParams{N: uint32(n), Stride: uint32(n), Limit: expertLimit},
			second: pianolaSecond{rows: uint32(rows)}, input: map[string][]byte{"gate": f32(gate), "up": f32(up)},
		}
		want := make([]float64, rows*n)
		for i := range want {
			want[i] = gatedExactly(float64(gate[i]), float64(up[i]), true)
		}
		cpu, got := both(t, e, c, r, seed, 64)
		for _, o := range []*outcome{cpu, got} {
			if err := near(floats(o.bindings[kernels.SiLUMulBindOut]), want, n, 2e-6); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	}
}
