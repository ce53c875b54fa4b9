package conform

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// halvesWidth returns the number of columns of a split row.
func halvesWidth(in int) int { return (in + 63) / 64 * 64 }

// halvesOf converts x, [rows, in], to split rows as declared.
func halvesOf(x []float32, in int) []byte {
	var b []byte
	n := halvesWidth(in)
	for ; len(x) > 0; x = x[in:] {
		row := make([]byte, 4*n+16)
		_, e := math.Frexp(float64(largest(x[:in])))
		unit := math.Ldexp(1, max(e-1, -95)-10)
		binary.LittleEndian.PutUint32(row[4*n:], math.Float32bits(float32(unit)))
		for i, v := range x[:in] {
			v = float32(float64(v) / unit)
			most := dtype.F32ToF16(v)
			binary.LittleEndian.PutUint16(row[2*i:], most)
			binary.LittleEndian.PutUint16(row[2*(n+i):], dtype.F32ToF16(v-dtype.F16ToF32(most)))
		}
		b = append(b, row...)
	}
	return b
}

func largest(x []float32) float32 {
	var most float32
	for _, v := range x {
		most = max(most, max(v, -v))
	}
	return most
}

// halvesUsed returns split rows without the bytes that are never written.
func halvesUsed(b []byte, in int) []byte {
	var used []byte
	size := 4*halvesWidth(in) + 16
	for ; len(b) > 0; b = b[size:] {
		used = append(used, b[:size-12]...)
	}
	return used
}

// TestHalves compares split rows with those of the CPU device and with float64. The bits must
// be equal unless the input is the result of an activation function.
func TestHalves(t *testing.T) {
	e := builds.Get(t, emu.Options{Sanitize: true})
	for seed := range exhaustive.Pick(uint64(16), 4) {
		r := rand.New(rand.NewPCG(seed, 17))
		rows, in := pick(r, 1, 3, 7), 8*pick(r, 1, 7, 8, 9, 32, 130, 140)
		stride := in + pick(r, 0, 0, 4, 3)
		silu := r.IntN(2)
		activation := uint32(silu * r.IntN(2))
		scale := pick(r, 1, 1, 1e-30, 1e-9, 1e9, 1e30)
		if silu == 1 {
			scale = pick(r, 1, 1e-9, 1e9)
		}
		x, x2 := normal(r, (rows-1)*stride+in, scale), normal(r, (rows-1)*stride+in, 1)
		if r.IntN(8) == 0 {
			clear(x)
		}
		c := command{
			kernel: kernels.Halves, specs: []uint32{uint32(silu), activation}, params: kernels.HalvesParams{In: uint32(in), XStride: uint32(stride)},
			second: pianolaSecond{rows: uint32(rows)}, input: map[string][]byte{"x": f32(x), "x2": f32(x2)},
		}
		if silu == 0 {
			c.absent = append(c.absent, "x2")
			delete(c.input, "x2")
		}
		tab, slots := c.tableOf(t)
		contents := c.contents(t, tab, slots, r)
		cpu := halvesUsed(c.onCPU(t, tab, slots, contents).bindings[kernels.HalvesBindOut], in)
		for _, o := range []emu.Order{emu.Forward, emu.Random} {
			got := c.emulated(t, e, tab, contents, launch{threads: pick(r, 32, 96, 256), extra: 2, order: o, seed: seed})
			out := halvesUsed(got.bindings[kernels.HalvesBindOut], in)
			if silu == 0 && string(out) != string(cpu) {
				t.Fatalf("seed %d, %d columns: not the CPU device's bits", seed, in)
			}
			for row := range rows {
				n := halvesWidth(in)
				b := out[row*(4*n+4):][:4*n+4]
				unit := float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*n:])))
				want := make([]float64, n)
				var most float64
				for i := range in {
					want[i] = float64(x[row*stride+i])
					if silu == 1 {
						want[i] = gatedOf(activation, want[i]) * float64(x2[row*stride+i])
					}
					most = max(most, math.Abs(want[i]))
				}
				for i, w := range want {
					got := unit * float64(dtype.F16ToF32(binary.LittleEndian.Uint16(b[2*i:]))+dtype.F16ToF32(binary.LittleEndian.Uint16(b[2*(n+i):])))
					if limit := most*(0x1p-22+float64(silu)*4e-6) + 0x1p-125; !(math.Abs(got-w) <= limit) {
						t.Fatalf("seed %d: row %d, column %d of %d: %g, want %g", seed, row, i, in, got, w)
					}
				}
			}
		}
	}
}

// TestGEMMHalves compares products of split rows with the CPU device and with float64. It also
// checks that a row does not depend on the other rows.
func TestGEMMHalves(t *testing.T) {
	e := builds.Get(t, emu.Options{Sanitize: true})
	k, _ := decl.Lookup(kernels.GEMMHalves)
	for seed, p := range []struct {
		t               dtype.Type
		rows, in, out   int
		group, rowGroup int
	}{
		{dtype.F16, 1, 8, 1, 1, 64},
		{dtype.BF16, 9, 64, 40, 20, 64},
		{dtype.F16, 66, 72, 130, 128, 64},
		{dtype.F16, 3, 456, 20, 128, 64}, // more chunks than stages
		{dtype.BF16, 130, 56, 128, 128, 128},
		{dtype.F16, 20, 328, 100, 100, 128}, // more chunks than stages
		{dtype.BF16, 129, 72, 260, 120, 128},
	} {
		seed := uint64(seed)
		r := rand.New(rand.NewPCG(seed, 18))
		typ, rows, in, out, group, rowGroup := p.t, p.rows, p.in, p.out, p.group, p.rowGroup
		stride := out + pick(r, 0, 3)
		bias := r.IntN(2) == 1
		scale := pick(r, 1, 1, 1e-9, 1e9)
		m := newMatrix(r, typ, out, in)
		x, b := normal(r, rows*in, scale), normal(r, out, scale)
		c := command{
			kernel: kernels.GEMMHalves, threads: 256, specs: []uint32{uint32(typ), one(bias)},
			params: kernels.GEMMHalvesParams{In: uint32(in), Out: uint32(out), YStride: uint32(stride), Group: uint32(group), RowGroup: uint32(rowGroup)},
			second: pianolaSecond{rows: uint32(rows)}, input: map[string][]byte{"x": halvesOf(x, in), "w": m.rows, "b": f32(b), "y": f32(normal(r, (rows-1)*stride+out, scale))},
		}
		if !bias {
			c.absent = append(c.absent, "b")
			delete(c.input, "b")
		}
		tab, slots := c.tableOf(t)
		contents := c.contents(t, tab, slots, r)
		cpu := c.onCPU(t, tab, slots, contents)
		want := floats(contents[kernels.GEMMHalvesBindY])
		for row := range rows {
			for o := range out {
				var sum float64
				for i := range in {
					sum += float64(m.elements[o*in+i]) * float64(x[row*in+i])
				}
				if bias {
					sum += float64(b[o])
				}
				want[row*stride+o] = sum
			}
		}
		var first *outcome
		for _, o := range []emu.Order{emu.Forward, emu.Random} {
			got := c.emulated(t, e, tab, contents, launch{threads: 256, extra: 1, order: o, seed: seed})
			if first != nil {
				if err := compare(k, got, first, nil); err != nil {
					t.Fatalf("seed %d, %s: order %d gives another result: %v", seed, typ, o, err)
				}
				continue
			}
			first = got
			if err := compare(k, got, cpu, map[string]tolerance{"y": {out, 1e-5, false}}); err != nil {
				t.Fatalf("seed %d, %s %+v, %d rows: beside the CPU device: %v", seed, typ, c.params, rows, err)
			}
			if err := near(floats(got.bindings[kernels.GEMMHalvesBindY]), want, len(want), 1e-5); err != nil {
				t.Fatalf("seed %d, %s %+v, %d rows: beside float64: %v", seed, typ, c.params, rows, err)
			}
		}
		// The last row alone.
		alone := c
		alone.second.rows = 1
		size := 4*halvesWidth(in) + 16
		alone.input = map[string][]byte{"x": c.input["x"][(rows-1)*size:], "w": m.rows, "b": f32(b)}
		if !bias {
			delete(alone.input, "b")
		}
		tab, slots = alone.tableOf(t)
		got := alone.emulated(t, e, tab, alone.contents(t, tab, slots, r), launch{threads: 256, order: emu.Forward, seed: seed})
		if string(got.bindings[kernels.GEMMHalvesBindY]) != string(first.bindings[kernels.GEMMHalvesBindY][4*(rows-1)*stride:]) {
			t.Fatalf("seed %d, %s: a row depends on the others", seed, typ)
		}
	}
}
