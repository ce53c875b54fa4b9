package conform

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// simdProduct is a product of gemm_halves with SIMD-group matrices.
type simdProduct struct {
	t               dtype.Type
	act             uint32
	rows, in, out   int
	group, rowGroup int
	bias            bool
	scale           float64
}

// randomSIMD returns a random product with weights of a type.
func randomSIMD(r *rand.Rand, t dtype.Type) simdProduct {
	p := simdProduct{
		t: t, act: pick(r, uint32(decl.ActF16), decl.ActF16x2), rows: pick(r, 1, 5, 8, 9, 16, 20, 33, 70), out: 1 + r.IntN(150),
		group: pick(r, 32, 64, 128), rowGroup: pick(r, 8, 16, 32, 64), bias: r.IntN(2) == 1, scale: pick(r, 1, 1, 1e-9, 1e9),
	}
	p.rowGroup = min(p.rowGroup, p.group)
	elems, _ := t.Block()
	p.in = elems * pick(r, 1, 2, 3)
	if elems == 1 {
		p.in = 8 * pick(r, 1, 3, 4, 9, 21)
	}
	return p
}

// command returns the command for rows of halves and a matrix.
func (p *simdProduct) command(m *matrix, x []byte, stride int, b, y []float32) command {
	c := command{
		kernel: kernels.GEMMHalves, threads: uint32(2 * p.group), specs: []uint32{uint32(p.t), one(p.bias), p.act, uint32(dtype.Rows)},
		params: kernels.GEMMHalvesParams{In: uint32(p.in), Out: uint32(p.out), YStride: uint32(stride), Group: uint32(p.group), RowGroup: uint32(p.rowGroup)},
		second: pianolaSecond{rows: uint32(len(x) / halvesSize(p.in, p.act))},
		apple:  true,
		input:  map[string][]byte{"x": x, "w": m.rows, "y": f32(y)},
	}
	if p.bias {
		c.input["b"] = f32(b)
	} else {
		c.absent = append(c.absent, "b")
	}
	return c
}

// TestSIMDProducts compares the products of Apple's body of gemm_halves with those of the CPU device and
// with float64, for every weight type, and a row in one shape of threadgroups with the same row among
// other rows in another shape.
func TestSIMDProducts(t *testing.T) {
	for _, typ := range types() {
		if typ == dtype.F32 {
			continue
		}
		t.Run(typ.String(), func(t *testing.T) {
			e := typed(t, typ, true)
			for seed := range exhaustive.Pick(uint64(20), 10) {
				r := rand.New(rand.NewPCG(seed, uint64(typ)))
				p := randomSIMD(r, typ)
				p.check(t, e, r, seed)
			}
		})
	}
}

// check tests one product.
func (p *simdProduct) check(t *testing.T, e *emu.Program, r *rand.Rand, seed uint64) {
	t.Helper()
	stride := p.out + pick(r, 0, 3)
	m := newMatrix(r, p.t, p.out, p.in)
	x, b, y := halvesOf(normal(r, p.rows*p.in, p.scale), p.in, p.act), normal(r, p.out, p.scale), normal(r, (p.rows-1)*stride+p.out, p.scale)
	c := p.command(m, x, stride, b, y)
	k, _ := decl.Lookup(c.kernel)
	tab, slots := c.tableOf(t)
	contents := c.contents(t, tab, slots, r)
	cpu := c.onCPU(t, tab, slots, contents)
	want := floats(f32(y))
	size := halvesSize(p.in, p.act)
	for row := range p.rows {
		values := valuesOf(x[row*size:][:size], p.in, p.act)
		for o := range p.out {
			var sum float64
			for i, v := range values {
				sum += float64(dtype.F16ToF32(dtype.F32ToF16(m.elements[o*p.in+i]))) * v
			}
			if p.bias {
				sum += float64(b[o])
			}
			want[row*stride+o] = sum
		}
	}
	limit := halfLimit(p.t)
	var first *outcome
	for _, o := range []emu.Order{emu.Forward, emu.Reverse, emu.Random} {
		got := c.emulated(t, e, tab, contents, launch{threads: int(c.threads), extra: 1, order: o, seed: seed})
		if first != nil {
			if err := compare(k, got, first, nil); err != nil {
				t.Fatalf("seed %d, %+v: order %d gives something else: %v", seed, *p, o, err)
			}
			continue
		}
		first = got
		if err := compare(k, got, cpu, map[string]tolerance{"y": {p.out, limit, false}}); err != nil {
			t.Fatalf("seed %d, %+v: beside the CPU device: %v", seed, *p, err)
		}
		if err := near(floats(got.bindings[kernels.GEMMHalvesBindY]), want, len(want), limit); err != nil {
			t.Fatalf("seed %d, %+v: beside float64: %v", seed, *p, err)
		}
	}
	// One of the rows, in another shape.
	row, alone := r.IntN(p.rows), *p
	alone.group, alone.rowGroup = pick(r, 32, 64, 128), 8
	c = alone.command(m, x[row*size:][:size], stride, b, make([]float32, p.out))
	tab, slots = c.tableOf(t)
	got := c.emulated(t, e, tab, c.contents(t, tab, slots, r), launch{threads: int(c.threads), order: emu.Forward, seed: seed})
	among := first.bindings[kernels.GEMMHalvesBindY][4*row*stride:][:4*p.out]
	if string(got.bindings[kernels.GEMMHalvesBindY]) != string(among) {
		t.Fatalf("seed %d, %+v: row %d is another one alone", seed, *p, row)
	}
}

// TestBodies checks that a device refuses commands for the body of gemm_halves that it lacks.
func TestBodies(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	p := simdProduct{t: dtype.F16, act: decl.ActF16, rows: 1, in: 64, out: 64, group: 64, rowGroup: 64}
	for _, apple := range []bool{true, false} {
		c := p.command(newMatrix(r, p.t, p.out, p.in), make([]byte, halvesSize(p.in, p.act)), p.out, nil, make([]float32, p.out))
		if !apple {
			c.threads = 384
		}
		tab, _ := c.tableOf(t)
		check := func(apple bool) error { return device.CheckBody(tab, &tab.Programs[0], &tab.Cmds[0], apple) }
		var other *device.BodyError
		if err := check(apple); err != nil {
			t.Errorf("%d threads: %v", c.threads, err)
		}
		if err := check(!apple); !errors.As(err, &other) || other.Kernel != "gemm_halves" || other.Threads != int(c.threads) {
			t.Errorf("%d threads on another device: %v", c.threads, err)
		}
	}
}
