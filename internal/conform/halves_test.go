package conform

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// halvesWidth returns the number of columns of a split row.
func halvesWidth(in int) int { return (in + 63) / 64 * 64 }

// halvesSize returns the size of a row of halves.
func halvesSize(in int, act uint32) int {
	if act == decl.ActF16 {
		return 2*halvesWidth(in) + 128
	}
	return 4*halvesWidth(in) + 128
}

// halvesOf converts x, [rows, in], to rows of halves in the declared layout.
func halvesOf(x []float32, in int, act uint32) []byte {
	var b []byte
	n := halvesWidth(in)
	for ; len(x) > 0; x = x[in:] {
		row := make([]byte, halvesSize(in, act))
		_, e := math.Frexp(float64(largest(x[:in])))
		unit := math.Ldexp(1, max(e-1, -95)-10)
		binary.LittleEndian.PutUint32(row[len(row)-128:], math.Float32bits(float32(unit)))
		for i, v := range x[:in] {
			v = float32(float64(v) / unit)
			most := dtype.F32ToF16(v)
			binary.LittleEndian.PutUint16(row[2*i:], most)
			if act == decl.ActF16x2 {
				binary.LittleEndian.PutUint16(row[2*(n+i):], dtype.F32ToF16(v-dtype.F16ToF32(most)))
			}
		}
		b = append(b, row...)
	}
	return b
}

// fewPlaces returns the number of places for rows in the order of gemm_few: the next power of two.
func fewPlaces(rows int) int { return 1 << bits.Len(uint(rows-1)) }

// fewPlace returns the offset of columns c to c+3 of row r in the declared order of gemm_few.
func fewPlace(c, r, places int) int {
	return (c/32*places+r)*64 + c%16/4*16 + c%32/16*8
}

// fewOf returns rows of halves of one term in the order of gemm_few. Places without a row are NaN.
func fewOf(rows []byte, in int) []byte {
	n, size := halvesWidth(in), halvesSize(in, decl.ActF16)
	count := len(rows) / size
	places := fewPlaces(count)
	b := bytes.Repeat([]byte{0xff}, places*size)
	for r := range count {
		row := rows[r*size:][:size]
		for c := 0; c < n; c += 4 {
			copy(b[fewPlace(c, r, places):][:8], row[2*c:])
		}
		copy(b[2*n*places+4*r:][:4], row[2*n:])
	}
	return b
}

// rowsOfFew is the inverse of fewOf.
func rowsOfFew(b []byte, in, count int) []byte {
	n, size := halvesWidth(in), halvesSize(in, decl.ActF16)
	places := fewPlaces(count)
	rows := make([]byte, count*size)
	for r := range count {
		row := rows[r*size:][:size]
		for c := 0; c < n; c += 4 {
			copy(row[2*c:][:8], b[fewPlace(c, r, places):])
		}
		copy(row[2*n:][:4], b[2*n*places+4*r:])
	}
	return rows
}

// extraRows returns n, or 0 for rows in the order of gemm_few: threadgroups without a row read the input too.
func extraRows(few bool, n uint32) uint32 {
	if few {
		return 0
	}
	return n
}

// checkFewer runs a command for fewer rows than it has threadgroups. It checks that the rows that it writes to
// binding out in the order of gemm_few, of in columns, are the first of want.
func checkFewer(t *testing.T, c *command, e *emu.Program, tab *table.Table, contents [decl.MaxBindings][]byte, on launch, out, in, rows int, want []byte) {
	t.Helper()
	cmd := &tab.Cmds[0]
	all := cmd.Second
	cmd.PutSecond(decl.SecondRows, uint32(rows))
	got := halvesUsed(rowsOfFew(c.emulated(t, e, tab, contents, on).bindings[out], in, rows), in, decl.ActF16)
	cmd.Second = all
	if !bytes.Equal(got, want[:len(got)]) {
		t.Fatalf("%d rows of %d columns: other bits than with one row more", rows, in)
	}
}

func largest(x []float32) float32 {
	var most float32
	for _, v := range x {
		most = max(most, max(v, -v))
	}
	return most
}

// halvesUsed returns rows of halves without the last 124 bytes of each, which nothing writes.
func halvesUsed(b []byte, in int, act uint32) []byte {
	var used []byte
	size := halvesSize(in, act)
	for ; len(b) > 0; b = b[size:] {
		used = append(used, b[:size-124]...)
	}
	return used
}

// TestHalves compares rows of halves with float64 and with those of the CPU device, which are the
// same bits unless the input is an activation function's result.
func TestHalves(t *testing.T) {
	e := builds.Get(t, checked)
	for seed := range exhaustive.Pick(uint64(10), 4) {
		r := rand.New(rand.NewPCG(seed, 17))
		rows, in := pick(r, 1, 3, 7), 8*pick(r, 1, 7, 8, 9, 32, 130, 140)
		stride := in + pick(r, 0, 0, 4, 3)
		silu := r.IntN(2)
		activation := uint32(silu * r.IntN(2))
		act := pick(r, uint32(decl.ActF16), decl.ActF16x2)
		few := act == decl.ActF16 && r.IntN(2) == 0
		if few {
			rows = pick(r, 1, 7, 11, 30, 50)
		}
		terms := int(act-decl.ActF16) + 1
		scale := pick(r, 1, 1, 1e-30, 1e-9, 1e9, 1e30)
		if silu == 1 {
			scale = pick(r, 1, 1e-9, 1e9)
		}
		x, x2 := normal(r, (rows-1)*stride+in, scale), normal(r, (rows-1)*stride+in, 1)
		if r.IntN(8) == 0 {
			clear(x)
		}
		c := command{
			kernel: kernels.Halves, specs: []uint32{uint32(silu), activation, act}, params: kernels.HalvesParams{In: uint32(in), XStride: uint32(stride), Few: one(few)},
			second: pianolaSecond{rows: uint32(rows)}, input: map[string][]byte{"x": f32(x), "x2": f32(x2)},
		}
		used := func(b []byte) []byte {
			if few {
				b = rowsOfFew(b, in, rows)
			}
			return halvesUsed(b, in, act)
		}
		if silu == 0 {
			c.absent = append(c.absent, "x2")
			delete(c.input, "x2")
		}
		tab, slots := c.tableOf(t)
		contents := c.contents(t, tab, slots, r)
		cpu := used(c.onCPU(t, tab, slots, contents).bindings[kernels.HalvesBindOut])
		for _, o := range []emu.Order{emu.Forward, emu.Random} {
			on := launch{threads: pick(r, 32, 96, 256), extra: extraRows(few, 2), order: o, seed: seed}
			got := c.emulated(t, e, tab, contents, on)
			out := used(got.bindings[kernels.HalvesBindOut])
			if few && rows > 1 {
				checkFewer(t, &c, e, tab, contents, on, kernels.HalvesBindOut, in, rows-1, out)
			}
			if silu == 0 && string(out) != string(cpu) {
				t.Fatalf("seed %d, %d columns: not the CPU device's bits", seed, in)
			}
			for row := range rows {
				n := halvesWidth(in)
				size := halvesSize(in, act) - 124
				b := out[row*size:][:size]
				unit := float64(math.Float32frombits(binary.LittleEndian.Uint32(b[size-4:])))
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
					var got float64
					for k := range terms {
						got += unit * float64(dtype.F16ToF32(binary.LittleEndian.Uint16(b[2*(k*n+i):])))
					}
					// A term has 11 bits.
					if limit := most*(math.Ldexp(1, -11*terms)+float64(silu)*4e-6) + 0x1p-125; !(math.Abs(got-w) <= limit) {
						t.Fatalf("seed %d: row %d, column %d of %d: %g, want %g", seed, row, i, in, got, w)
					}
				}
			}
		}
	}
}

// halvesCase is a product of TestGEMMHalves.
type halvesCase struct {
	t               dtype.Type
	act             uint32
	rows, in, out   int
	group, rowGroup int
	spread          int // at least the number of threadgroups in cases with 64 rows of W each
	wide            bool
}

// halvesCases returns products of each shape with float weights, and of some shapes with each
// quantised type.
func halvesCases() []halvesCase {
	list := []halvesCase{
		{dtype.F16, decl.ActF16x2, 1, 8, 1, 1, 64, 0, false},
		{dtype.BF16, decl.ActF16x2, 9, 64, 40, 20, 64, 0, false},
		{dtype.F16, decl.ActF16x2, 66, 72, 130, 128, 64, 0, false},
		{dtype.F16, decl.ActF16x2, 3, 456, 20, 128, 64, 0, false}, // more chunks than stages
		{dtype.BF16, decl.ActF16x2, 130, 56, 128, 128, 128, 0, false},
		{dtype.F16, decl.ActF16x2, 140, 328, 100, 100, 128, 0, false}, // likewise
		{dtype.F16, decl.ActF16, 1, 8, 1, 1, 64, 0, false},
		{dtype.BF16, decl.ActF16, 9, 72, 70, 128, 64, 0, false},
		{dtype.F16, decl.ActF16, 32, 2120, 40, 128, 256, 0, false}, // more tiles than a ring has slots
		{dtype.BF16, decl.ActF16, 33, 584, 130, 128, 128, 1, false},
		{dtype.F16, decl.ActF16, 257, 328, 130, 128, 256, 0, false},
		{dtype.BF16, decl.ActF16, 250, 72, 120, 60, 128, 4, false}, {dtype.F16, decl.ActF16, 100, 328, 100, 128, 128, 0, false},
	}
	shapes := []halvesCase{
		{rows: 1, in: 512, out: 48, group: 128, rowGroup: 64},
		{rows: 20, in: 2304, out: 80, group: 128, rowGroup: 128},
		{rows: 65, in: 768, out: 128, group: 64, rowGroup: 64, spread: 4},
		{rows: 40, in: 512, out: 144, group: 128, rowGroup: 64},
		{rows: 130, in: 512, out: 144, group: 128, rowGroup: 256},
	}
	forms := slices.DeleteFunc(dtype.Forms(), func(f *dtype.Form) bool { return !f.HalfRange() || !compiled(f.Type) })
	for i, f := range forms {
		for k, c := range shapes {
			if exhaustive.On || k == i%len(shapes) {
				c.t, c.act = f.Type, decl.ActF16
				if f.Elems == 32 {
					c.in += 32 // half a chunk more
				}
				list = append(list, c)
			}
		}
	}
	for _, c := range list {
		if c.wide = true; c.t.Quantized() && c.few() && (exhaustive.On || c.rows > 8) {
			list = append(list, c)
		}
	}
	return list
}

// few reports whether gemm_few computes the product.
func (c *halvesCase) few() bool {
	return c.act == decl.ActF16 && (c.rows <= 32 || c.rows <= 64 && c.t.Quantized())
}

// ordered returns rows of halves in the order of the kernel that computes the product.
func (c *halvesCase) ordered(rows []byte) []byte {
	if c.few() {
		return fewOf(rows, c.in)
	}
	return rows
}

// command returns the command of the product.
func (c *halvesCase) command(bias bool, layout dtype.Layout, stride int) command {
	cmd := command{
		kernel: kernels.GEMMHalves, threads: 384, specs: []uint32{uint32(c.t), one(bias), c.act, uint32(layout)},
		params: kernels.GEMMHalvesParams{In: uint32(c.in), Out: uint32(c.out), YStride: uint32(stride), Group: uint32(c.group), RowGroup: uint32(c.rowGroup), Spread: uint32(c.spread)},
		second: pianolaSecond{rows: uint32(c.rows)},
	}
	if c.few() {
		cmd.threads = 256
		cmd.specs = append(cmd.specs, one(c.wide))
		cmd.kernel, cmd.params = kernels.GEMMFew, kernels.GEMMFewParams{In: uint32(c.in), Out: uint32(c.out), YStride: uint32(stride)}
	}
	if !bias {
		cmd.absent = append(cmd.absent, "b")
	}
	return cmd
}

// TestGEMMHalves compares the products of gemm_halves and gemm_few with those of the CPU device and
// with float64, and a row with the same row among others of the same shape.
func TestGEMMHalves(t *testing.T) {
	for seed, p := range halvesCases() {
		e := typed(t, p.t, false)
		seed := uint64(seed)
		r := rand.New(rand.NewPCG(seed, 18))
		typ, rows, in, out := p.t, p.rows, p.in, p.out
		stride := out + pick(r, 0, 3)
		bias := r.IntN(2) == 1
		scale := pick(r, 1, 1, 1e-9, 1e9)
		m := newMatrix(r, typ, out, in)
		layout, limit := dtype.Rows, 1e-5
		if typ.Quantized() {
			layout = dtype.Tiled16
			if f := dtype.FormOf(typ); f.Parts() > 0 || f.Minimum {
				limit = 3e-3 // scales and minimums are rounded too
			}
		}
		x, b := normal(r, rows*in, scale), normal(r, out, scale)
		c := p.command(bias, layout, stride)
		k, _ := decl.Lookup(c.kernel)
		inputRows := halvesOf(x, in, p.act)
		c.input = map[string][]byte{"x": p.ordered(inputRows), "w": m.bytes(layout), "b": f32(b), "y": f32(normal(r, (rows-1)*stride+out, scale))}
		if !bias {
			delete(c.input, "b")
		}
		tab, slots := c.tableOf(t)
		contents := c.contents(t, tab, slots, r)
		cpu := c.onCPU(t, tab, slots, contents)
		want := floats(contents[kernels.GEMMHalvesBindY])
		size := halvesSize(in, p.act)
		elements := slices.Clone(m.elements)
		if typ.Quantized() {
			for i, w := range elements {
				elements[i] = dtype.F16ToF32(dtype.F32ToF16(w))
			}
		}
		for row := range rows {
			x := valuesOf(inputRows[row*size:][:size], in, p.act)
			for o := range out {
				var sum float64
				for i, w := range elements[o*in:][:in] {
					sum += float64(w) * x[i]
				}
				if bias {
					sum += float64(b[o])
				}
				want[row*stride+o] = sum
			}
		}
		var first *outcome
		for _, o := range []emu.Order{emu.Forward, emu.Random} {
			got := c.emulated(t, e, tab, contents, launch{threads: int(c.threads), extra: 1, order: o, seed: seed})
			if first != nil {
				if err := compare(k, got, first, nil); err != nil {
					t.Fatalf("seed %d, %+v: order %d gives something else: %v", seed, p, o, err)
				}
				continue
			}
			first = got
			if err := compare(k, got, cpu, map[string]tolerance{"y": {out, limit, false}}); err != nil {
				t.Fatalf("seed %d, %+v: beside the CPU device: %v", seed, p, err)
			}
			if err := near(floats(got.bindings[kernels.GEMMHalvesBindY]), want, len(want), limit); err != nil {
				t.Fatalf("seed %d, %+v: beside float64: %v", seed, p, err)
			}
		}
		// The last rows, as few as have the same shape.
		few := 1
		for _, n := range []int{9, 17, 33, 65, 129} {
			if rows >= n && (n >= 33 || p.few()) {
				few = n
			}
		}
		alone := c
		alone.second.rows = uint32(few)
		alone.input = map[string][]byte{"x": p.ordered(inputRows[(rows-few)*size:]), "w": c.input["w"], "b": f32(b), "y": f32(make([]float32, (few-1)*stride+out))}
		if !bias {
			delete(alone.input, "b")
		}
		tab, slots = alone.tableOf(t)
		got := floats(alone.emulated(t, e, tab, alone.contents(t, tab, slots, r), launch{threads: int(c.threads), order: emu.Forward, seed: seed}).bindings[kernels.GEMMHalvesBindY])
		among := floats(first.bindings[kernels.GEMMHalvesBindY])[(rows-few)*stride:]
		for row := range few {
			if !slices.Equal(got[row*stride:][:out], among[row*stride:][:out]) {
				t.Fatalf("seed %d, %+v: a row depends on the others", seed, p)
			}
		}
	}
}

// valuesOf returns the elements of a row of halves.
func valuesOf(row []byte, in int, act uint32) []float64 {
	unit := float64(math.Float32frombits(binary.LittleEndian.Uint32(row[len(row)-128:])))
	x := make([]float64, in)
	for k := range int(act-decl.ActF16) + 1 {
		for i := range x {
			x[i] += unit * float64(dtype.F16ToF32(binary.LittleEndian.Uint16(row[2*(k*halvesWidth(in)+i):])))
		}
	}
	return x
}

// TestAddRMSNormHalves compares add_rmsnorm_halves with add_rmsnorm followed by halves, bit by bit, and
// with the CPU device. Their threadgroups may have different sizes, as in the programs of a table for batching,
// one of which has a head of its own.
func TestAddRMSNormHalves(t *testing.T) {
	e := builds.Get(t, checked)
	for seed := range exhaustive.Pick(uint64(12), 4) {
		r := rand.New(rand.NewPCG(seed, 19))
		few := r.IntN(2) == 1
		rows, n := pick(r, 1, 3, 9, 17, 40), 8*pick(r, 1, 7, 8, 9, 40, 150)
		if seed%4 == 3 {
			n = 2000 // more columns than the threads load at once
		}
		x, delta, w := f32(normal(r, rows*n, 2)), f32(normal(r, rows*n, 1)), f32(normal(r, n, 1))
		eps, scale, deltaScale := float32(1e-5), pick(r, float32(0), 0.5), pick(r, float32(0), 0.25)
		used := func(b []byte) []byte {
			if few {
				b = rowsOfFew(b, n, rows)
			}
			return halvesUsed(b, n, decl.ActF16)
		}
		run := func(c command) *outcome {
			c.second = pianolaSecond{rows: uint32(rows)}
			tab, slots := c.tableOf(t)
			contents, on := c.contents(t, tab, slots, r), launch{threads: pick(r, 32, 96, 256, 512), extra: extraRows(few, 1), order: emu.Random, seed: seed}
			got := c.emulated(t, e, tab, contents, on)
			if c.kernel == kernels.AddRMSNormHalves && few && rows > 1 {
				checkFewer(t, &c, e, tab, contents, on, kernels.AddRMSNormHalvesBindOut, n, rows-1, used(got.bindings[kernels.AddRMSNormHalvesBindOut]))
			}
			return got
		}
		input := map[string][]byte{"x": x, "delta": delta, "w": w}
		norm := run(command{kernel: kernels.AddRMSNorm, params: kernels.AddRMSNormParams{N: uint32(n), Eps: eps, Scale: scale, DeltaScale: deltaScale}, input: input})
		want := run(command{
			kernel: kernels.Halves, specs: []uint32{decl.InputPlain, 0, decl.ActF16}, params: kernels.HalvesParams{In: uint32(n), XStride: uint32(n), Few: one(few)},
			input: map[string][]byte{"x": norm.bindings[kernels.AddRMSNormBindOut]}, absent: []string{"x2"},
		})
		both := command{kernel: kernels.AddRMSNormHalves, params: kernels.AddRMSNormHalvesParams{N: uint32(n), Eps: eps, Scale: scale, DeltaScale: deltaScale, Few: one(few)}, input: input}
		got := run(both)
		if !bytes.Equal(got.bindings[kernels.AddRMSNormHalvesBindX], norm.bindings[kernels.AddRMSNormBindX]) {
			t.Fatalf("seed %d: the residual stream differs", seed)
		}
		if !bytes.Equal(used(got.bindings[kernels.AddRMSNormHalvesBindOut]), used(want.bindings[kernels.HalvesBindOut])) {
			t.Fatalf("seed %d, %d rows of %d columns, few %t: not what halves writes", seed, rows, n, few)
		}
		both.second = pianolaSecond{rows: uint32(rows)}
		tab, slots := both.tableOf(t)
		cpu := used(both.onCPU(t, tab, slots, both.contents(t, tab, slots, r)).bindings[kernels.AddRMSNormHalvesBindOut])
		b, size := used(got.bindings[kernels.AddRMSNormHalvesBindOut]), halvesSize(n, decl.ActF16)-124
		for row := range rows {
			// The sums of squares differ in their last bits, so elements differ in the last of 11.
			g, c := valuesOf(append(b[row*size:][:size:size], make([]byte, 124)...), n, decl.ActF16), valuesOf(append(cpu[row*size:][:size:size], make([]byte, 124)...), n, decl.ActF16)
			if err := near(g, c, n, 0x1p-10); err != nil {
				t.Fatalf("seed %d, row %d: beside the CPU device: %v", seed, row, err)
			}
		}
	}
}
