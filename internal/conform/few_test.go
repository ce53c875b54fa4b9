package conform

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// fewChain runs the commands of a chain of products of gemm_few on a device, and each of them on the CPU device
// with the same input.
type fewChain struct {
	t    *testing.T
	on   fewDevice
	r    *rand.Rand
	rows int
	name string
}

// fewDevice runs the command of a table.
type fewDevice func(c *command, tab *table.Table, slots [decl.MaxBindings]uint32, contents [decl.MaxBindings][]byte) *outcome

// run runs a command and returns the memory of its bindings after it. limits are those of the results beside the
// CPU device; other results are not compared.
func (f *fewChain) run(c command, limits map[string]tolerance) *outcome {
	f.t.Helper()
	c.second = pianolaSecond{rows: uint32(f.rows)}
	if c.threads == 0 {
		c.threads = 96
	}
	tab, slots := c.tableOf(f.t)
	contents := c.contents(f.t, tab, slots, f.r)
	got := f.on(&c, tab, slots, contents)
	if limits != nil {
		k, _ := decl.Lookup(c.kernel)
		if err := compare(k, got, c.onCPU(f.t, tab, slots, contents), limits); err != nil {
			f.t.Fatalf("%s: beside the CPU device: %v", f.name, err)
		}
	}
	return got
}

// product returns the command of a product of gemm_few. input has its operands except for the weights and the bias.
func (f *fewChain) product(m *matrix, p kernels.GEMMFewParams, input, output, activation uint32, bias []byte, operands map[string][]byte) command {
	p.Early = pick(f.r, uint32(fewPlaces(f.rows)), 8)
	if input == decl.InputPlain && output == decl.OutputStore && f.r.IntN(2) == 0 {
		p.Early = 0
	}
	if p.Early != 0 && f.r.IntN(2) == 0 {
		p.Threadgroups = 1 + uint32(f.r.IntN((m.out+31)/32))
	}
	layout := dtype.Rows
	if m.t.Quantized() {
		layout = dtype.Tiled16
	}
	threads, shape := uint32(256), uint32(decl.ShapeUsual)
	if p.Early != 0 && fitsWhole(m, f.rows) && f.r.IntN(2) == 0 {
		threads, shape, p.Early = 512, decl.ShapeWhole, uint32(fewPlaces(f.rows))
	}
	c := command{
		kernel: kernels.GEMMFew, threads: threads, params: p, input: operands,
		specs: []uint32{uint32(m.t), one(bias != nil), decl.ActF16, uint32(layout), shape, input, output, activation},
	}
	operands["w"] = m.bytes(layout)
	if bias != nil {
		operands["b"] = bias
	}
	return c
}

// fitsWhole reports whether gemm_few can multiply m by rows in the shape whole, in which they are in threadgroup memory.
func fitsWhole(m *matrix, rows int) bool {
	f, k := dtype.FormOf(m.t), &decl.Kernels[kernels.GEMMFew]
	size, err := k.ThreadgroupBytes(decl.Values{"shape": decl.ShapeWhole, "early": uint64(fewPlaces(rows)), "in": uint64(m.in)}, 512)
	return err == nil && f.Frequent && (f.Elems == 32 || m.in%2048 == 0) && rows <= 8 && size <= 232448
}

// TestFewForms compares two products between which gemm_few computes a norm or an activation itself with the
// commands that they replace, bit by bit, and each of them with the CPU device.
func TestFewForms(t *testing.T) {
	types := []dtype.Type{dtype.F16, dtype.BF16}
	for _, f := range dtype.Forms() {
		if f.HalfRange() && compiled(f.Type) {
			types = append(types, f.Type)
		}
	}
	for seed := range exhaustive.Pick(4*len(types), len(types)) {
		typ := types[seed%len(types)]
		e := typed(t, typ, false)
		checkFewForms(t, typ, uint64(seed), func(c *command, tab *table.Table, _ [decl.MaxBindings]uint32, contents [decl.MaxBindings][]byte) *outcome {
			t.Helper()
			return c.emulated(t, e, tab, contents, launch{threads: int(c.threads), order: emu.Random, seed: uint64(seed)})
		})
	}
}

// checkFewForms compares the forms of products of random sizes.
func checkFewForms(t *testing.T, typ dtype.Type, seed uint64, on fewDevice) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 27))
	f := &fewChain{t: t, on: on, r: r, rows: 1 + r.IntN(8)}
	in, middle, out := pick(r, 256, 512, 1024, 2048), pick(r, 256, 512, 768, 2048, 4608), pick(r, 48, 96)
	f.name = fmt.Sprintf("seed %d, %v, %d rows, %d columns, %d, %d", seed, typ, f.rows, in, middle, out)
	var bias []byte
	if r.IntN(2) == 0 {
		bias = f32(normal(r, 2*middle, 1))
	}
	x := fewOf(halvesOf(normal(r, f.rows*in, pick(r, float64(1), 1e-6, 1e4)), in, decl.ActF16), in)
	f.norm(x, newMatrix(r, typ, middle, in), newMatrix(r, typ, out, middle), bias)
	f.gate(x, newMatrix(r, typ, 2*middle, in), newMatrix(r, typ, out, middle), bias)
}

// norm compares a norm between two products.
func (f *fewChain) norm(x []byte, first, second *matrix, bias []byte) {
	f.t.Helper()
	n := first.out
	if bias != nil {
		bias = bias[:4*n]
	}
	stream, next := f32(normal(f.r, f.rows*n, 3)), f32(normal(f.r, n, 1))
	p := kernels.GEMMFewParams{In: uint32(first.in), Out: uint32(n), YStride: uint32(n)}
	eps, scale, delta := float32(1e-5), pick(f.r, float32(0), 0.5), pick(f.r, float32(0), 0.25)
	product := f.run(f.product(first, p, decl.InputPlain, decl.OutputStore, 0, bias, map[string][]byte{"x": x}), nil)
	norm := f.run(command{
		kernel: kernels.AddRMSNormHalves, params: kernels.AddRMSNormHalvesParams{N: uint32(n), Eps: eps, Scale: scale, DeltaScale: delta, Few: 1},
		input: map[string][]byte{"x": stream, "delta": product.bindings[kernels.GEMMFewBindY], "w": next},
	}, nil)
	q := kernels.GEMMFewParams{In: uint32(n), Out: uint32(second.out), YStride: uint32(second.out)}
	want := f.run(f.product(second, q, decl.InputPlain, decl.OutputStore, 0, nil, map[string][]byte{"x": norm.bindings[kernels.AddRMSNormHalvesBindOut]}), nil)

	p.DeltaScale = delta
	limits := map[string]tolerance{"y": {n, 1e-2, false}, "scaled": {fewPlaces(f.rows) * n, 1e-2, false}, "parts": {n / 32, 2e-2, false}}
	made := f.run(f.product(first, p, decl.InputPlain, decl.OutputAddScaled, 0, bias, map[string][]byte{"x": x, "y": stream, "next": next, "scaled": make([]byte, 4*fewPlaces(f.rows)*n)}), limits)
	if !bytes.Equal(made.bindings[kernels.GEMMFewBindY], norm.bindings[kernels.AddRMSNormHalvesBindX]) {
		f.t.Fatalf("%s: another residual stream", f.name)
	}
	q.Squares, q.Eps, q.Scale = 1, eps, scale
	f.scaled(made, q, second, want)
}

// gate compares an activation between two products.
func (f *fewChain) gate(x []byte, first, second *matrix, bias []byte) {
	f.t.Helper()
	n, activation := first.out/2, pick(f.r, uint32(decl.ActivationSiLU), uint32(decl.ActivationGELUTanh))
	p := kernels.GEMMFewParams{In: uint32(first.in), Out: uint32(2 * n), YStride: uint32(2 * n)}
	product := f.run(f.product(first, p, decl.InputPlain, decl.OutputStore, 0, bias, map[string][]byte{"x": x}), nil)
	y := product.bindings[kernels.GEMMFewBindY]
	halves := f.run(command{
		kernel: kernels.Halves, specs: []uint32{decl.InputSiLUMul, activation, decl.ActF16},
		params: kernels.HalvesParams{In: uint32(n), XStride: uint32(2 * n), Few: 1}, input: map[string][]byte{"x": y[:len(y)-4*n], "x2": y[4*n:]},
	}, nil)
	q := kernels.GEMMFewParams{In: uint32(n), Out: uint32(second.out), YStride: uint32(second.out)}
	want := f.run(f.product(second, q, decl.InputPlain, decl.OutputStore, 0, nil, map[string][]byte{"x": halves.bindings[kernels.HalvesBindOut]}), nil)

	limits := map[string]tolerance{"scaled": {fewPlaces(f.rows) * n, 1e-2, false}, "parts": {n / 16, 1e-2, false}}
	made := f.run(f.product(first, p, decl.InputPlain, decl.OutputGated, activation, bias, map[string][]byte{"x": x, "scaled": make([]byte, 4*fewPlaces(f.rows)*n)}), limits)
	f.scaled(made, q, second, want)
}

// scaled runs a product whose input the product before has scaled, and compares it with want.
func (f *fewChain) scaled(made *outcome, p kernels.GEMMFewParams, m *matrix, want *outcome) {
	f.t.Helper()
	got := f.run(f.product(m, p, decl.InputScaled, decl.OutputStore, 0, nil, map[string][]byte{
		"x": made.bindings[kernels.GEMMFewBindScaled], "x_parts": made.bindings[kernels.GEMMFewBindParts],
	}), map[string]tolerance{"y": {m.out, 1e-2, false}})
	if !bytes.Equal(got.bindings[kernels.GEMMFewBindY], want.bindings[kernels.GEMMFewBindY]) {
		f.t.Fatalf("%s: other products", f.name)
	}
}
