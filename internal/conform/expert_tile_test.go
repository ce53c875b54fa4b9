package conform

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// expertTiles are products of the rows of a chunk with the matrices of their experts.
type expertTiles struct {
	t               dtype.Type
	act             uint32
	rows, in, out   int
	experts, used   int
	share           int
	group, rowGroup int
	bias            bool
	nvidia          bool // the body for NVIDIA GPUs, otherwise that for Apple GPUs
	one             bool // all products are those of the second expert
}

// TestExpertTiles compares the kernels that group the rows of a chunk by expert with the CPU device, their
// products with float64, and a row with the same row alone.
func TestExpertTiles(t *testing.T) {
	for i, typ := range slices.DeleteFunc(types(), func(t dtype.Type) bool { return t == dtype.F32 }) {
		t.Run(typ.String(), func(t *testing.T) {
			e := typed(t, typ, true)
			for seed := range exhaustive.Pick(uint64(8), 2) {
				r := rand.New(rand.NewPCG(seed, 40+uint64(i)))
				elems, _ := typ.Block()
				p := expertTiles{
					t: typ, act: pick(r, uint32(decl.ActF16), decl.ActF16x2), rows: pick(r, 1, 3, 9, 40), in: elems * pick(r, 1, 2), out: 1 + r.IntN(70),
					experts: pick(r, 1, 2, 5, 31, 33, 70), group: pick(r, 32, 64, 128), rowGroup: pick(r, 8, 16, 32, 64), bias: r.IntN(2) == 1,
				}
				if elems == 1 {
					p.in = 8 * pick(r, 1, 5, 9)
				}
				p.rowGroup, p.used = min(p.rowGroup, p.group), 1+r.IntN(min(p.experts, 4))
				p.share = pick(r, 1, p.used)
				p.check(t, e, r, seed)
			}
		})
	}
}

// TestExpertChunks does the same for the body of expert_gemm for NVIDIA GPUs.
func TestExpertChunks(t *testing.T) {
	for i, typ := range append(halfTypes(), dtype.MXFP4) {
		if !compiled(typ) {
			continue
		}
		t.Run(typ.String(), func(t *testing.T) {
			e := typed(t, typ, false)
			for seed := range exhaustive.Pick(uint64(8), 3) {
				r := rand.New(rand.NewPCG(seed, 70+uint64(i)))
				p := expertTiles{
					t: typ, act: decl.ActF16, rows: pick(r, 1, 3, 40, 100), in: 8 * pick(r, 1, 5, 9, 25, 40, 70), out: 1 + r.IntN(150),
					experts: pick(r, 2, 5, 33, 130, 200), group: 128, rowGroup: 64, bias: r.IntN(2) == 1, nvidia: true, one: seed%3 == 1,
				}
				if elems, _ := typ.Block(); elems > 1 {
					p.in = elems * pick(r, 1, 2, 3)
					if elems <= 64 {
						p.in = elems * pick(r, 1, 2, 3, 5, 7, 8, 9, 17)
					}
					p.out = 16 * pick(r, 1, 5, 8, 9)
				}
				if p.experts > 33 {
					p.out = min(p.out, 16)
				}
				p.used = 1 + r.IntN(min(p.experts, 4))
				p.share = pick(r, 1, p.used)
				p.check(t, e, r, seed)
			}
		})
	}
}

// layout returns the layout of the weights.
func (p *expertTiles) layout() dtype.Layout {
	if p.nvidia && p.t.Quantized() {
		return dtype.Tiled16
	}
	return dtype.Rows
}

// list sorts the products of ids with expert_rows, on the emulator and on the CPU device.
func (p *expertTiles) list(t *testing.T, e *emu.Program, r *rand.Rand, seed uint64, ids []uint32) []byte {
	t.Helper()
	c := command{
		kernel: kernels.ExpertRows, params: kernels.ExpertRowsParams{Experts: uint32(p.experts), Used: uint32(p.used)},
		second: pianolaSecond{rows: uint32(len(ids) / p.used)}, input: map[string][]byte{"ids": u32(ids...)},
	}
	cpu, got := both(t, e, c, r, seed, pick(r, 32, 64))
	list := got.bindings[kernels.ExpertRowsBindList]
	if string(list) != string(cpu.bindings[kernels.ExpertRowsBindList]) {
		t.Fatalf("seed %d, %+v: the list of %v differs from the CPU device's", seed, *p, ids)
	}
	at := func(i int) int { return int(binary.LittleEndian.Uint32(list[4*i:])) }
	for ex := range p.experts {
		for i := at(ex); i < at(ex+1); i++ {
			if item := at(p.experts + 1 + i); min(int(ids[item]), p.experts-1) != ex || i > at(ex) && item <= at(p.experts+i) {
				t.Fatalf("seed %d, %+v: product %d is listed for expert %d of %v", seed, *p, item, ex, ids)
			}
		}
	}
	if at(0) != 0 || at(p.experts) != len(ids) {
		t.Fatalf("seed %d, %+v: the list has products %d to %d, want %d", seed, *p, at(0), at(p.experts), len(ids))
	}
	return list
}

// command returns the products of some rows.
func (p *expertTiles) command(m *matrix, x, list []byte, b []float32, rows int) command {
	c := command{
		kernel: kernels.ExpertGEMM, apple: !p.nvidia, threads: uint32(2 * p.group), specs: []uint32{uint32(p.t), one(p.bias), p.act, uint32(p.layout())},
		params: kernels.ExpertGEMMParams{
			In: uint32(p.in), Out: uint32(p.out), YStride: uint32(p.out), Group: uint32(p.group), RowGroup: uint32(p.rowGroup),
			Experts: uint32(p.experts), Used: uint32(p.used), Share: uint32(p.share),
		},
		second: pianolaSecond{rows: uint32(rows)}, input: map[string][]byte{"x": x, "w": m.bytes(p.layout()), "list": list},
	}
	if p.nvidia {
		c.threads = 384
	}
	if p.bias {
		c.input["b"] = f32(b)
	} else {
		c.absent = append(c.absent, "b")
	}
	return c
}

// check tests one chunk.
func (p *expertTiles) check(t *testing.T, e *emu.Program, r *rand.Rand, seed uint64) {
	t.Helper()
	m := newMatrix(r, p.t, p.experts*p.out, p.in)
	ids := p.ids(r)
	each := p.used / p.share // inputs of a row
	x, b := p.inputs(t, e, r, seed, each), normal(r, p.experts*p.out, 1)
	c := p.command(m, x, p.list(t, e, r, seed, ids), b, p.rows)
	cpu, got := both(t, e, c, r, seed, int(c.threads))
	want := make([]float64, len(ids)*p.out)
	size := halvesSize(p.in, p.act)
	for i, id := range ids {
		values, ex := valuesOf(x[i/p.share*size:][:size], p.in, p.act), min(int(id), p.experts-1)
		for o := range p.out {
			var sum float64
			for k, v := range values {
				sum += float64(dtype.F16ToF32(dtype.F32ToF16(m.elements[(ex*p.out+o)*p.in+k]))) * v
			}
			if p.bias {
				sum += float64(b[ex*p.out+o])
			}
			want[i*p.out+o] = sum
		}
	}
	for _, o := range []*outcome{cpu, got} {
		if err := near(floats(o.bindings[kernels.ExpertGEMMBindY]), want, len(want), p.limit()); err != nil {
			t.Fatalf("seed %d, %+v: %v", seed, *p, err)
		}
	}
	// One row alone, in another shape.
	row, alone := r.IntN(p.rows), *p
	if !p.nvidia {
		alone.group, alone.rowGroup = pick(r, 32, 64, 128), 8
	}
	c = alone.command(m, x[row*each*size:][:each*size], p.list(t, e, r, seed, ids[row*p.used:][:p.used]), b, 1)
	_, one := both(t, e, c, r, seed, int(c.threads))
	if n := 4 * p.used * p.out; string(one.bindings[kernels.ExpertGEMMBindY]) != string(got.bindings[kernels.ExpertGEMMBindY][row*n:][:n]) {
		t.Fatalf("seed %d, %+v: row %d is another one alone", seed, *p, row)
	}
}

// inputs returns each inputs a row in float16, which expert_halves makes of random activations, and checks
// them against the CPU device.
func (p *expertTiles) inputs(t *testing.T, e *emu.Program, r *rand.Rand, seed uint64, each int) []byte {
	t.Helper()
	silu, activation := uint32(r.IntN(2)), uint32(0)
	if silu == 1 {
		activation = pick(r, uint32(decl.ActivationSiLU), decl.ActivationGELUTanh, decl.ActivationClampedSwiGLU)
	}
	stride := (p.in+3)/4*4 + pick(r, 0, 8)
	n := (p.rows*each-1)*stride + p.in
	c := command{
		kernel: kernels.ExpertHalves, specs: []uint32{silu, activation, p.act}, second: pianolaSecond{rows: uint32(p.rows)},
		params: kernels.ExpertHalvesParams{In: uint32(p.in), XStride: uint32(stride), Used: uint32(each), Limit: 1.5},
		input:  map[string][]byte{"x": f32(normal(r, n, 1)), "x2": f32(normal(r, n, 1))},
	}
	if silu == 0 {
		c.absent = append(c.absent, "x2")
		delete(c.input, "x2")
	}
	cpu, got := both(t, e, c, r, seed, pick(r, 32, 96))
	size := halvesSize(p.in, p.act)
	for i := range p.rows * each {
		a, b := valuesOf(cpu.bindings[kernels.ExpertHalvesBindOut][i*size:][:size], p.in, p.act), valuesOf(got.bindings[kernels.ExpertHalvesBindOut][i*size:][:size], p.in, p.act)
		if err := near(b, a, p.in, 2e-3); err != nil {
			t.Fatalf("seed %d, %+v: input %d: %v", seed, *p, i, err)
		}
	}
	return got.bindings[kernels.ExpertHalvesBindOut]
}

// halfLimit is the tolerance of a product of weights that become float16. A weight that is a product plus a
// minimum may be rounded twice.
func halfLimit(t dtype.Type) float64 {
	if f := dtype.FormOf(t); f == nil && t.Quantized() || f != nil && f.Minimum {
		return 1e-3
	}
	return 1e-5
}
