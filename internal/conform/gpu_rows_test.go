package conform

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/cuda/kernels"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	declared "github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/cuda"
	"github.com/pianola-engine/pianola/table"
)

// gpuProduct is a product with float16 activations that a GPU computes again and again.
type gpuProduct struct {
	d       *cuda.Device
	id      replay.SessionID
	x, y    uint32 // slots
	out, in int
	rows    int
	form    productForm
}

// productForm is the kernel of a gpuProduct: gemm_halves in the order of gemm_few, by itself, in clusters or
// with the sums of segments apart, or one of the shapes of gemm_few.
type productForm int

const (
	gemmHalves productForm = iota
	gemmFew
	gemmFewWide
	gemmFewWhole
	gemmHalves2
	gemmHalves4
	gemmHalvesApart2
	gemmHalvesApart4
	gemmHalvesApart8
)

func (f productForm) String() string {
	return []string{"gemm_halves", "gemm_few", "gemm_few (wide)", "gemm_few (whole)", "gemm_halves in clusters of 2", "gemm_halves in clusters of 4",
		"gemm_halves in 2 parts", "gemm_halves in 4 parts", "gemm_halves in 8 parts"}[f]
}

// cluster returns the number of threadgroups of a cluster, or 0.
func (f productForm) cluster() uint32 {
	return [gemmHalvesApart8 + 1]uint32{gemmHalves2: 2, gemmHalves4: 4}[f]
}

// splits returns the number of threadgroups that write the sums of segments, or 0.
func (f productForm) splits() uint32 {
	return [...]uint32{gemmHalvesApart2: 2, gemmHalvesApart4: 4, gemmHalvesApart8: 8}[f]
}

// division returns the value of the constant.
func (f productForm) division() uint32 {
	switch {
	case f.splits() > 0:
		return decl.DivisionApart
	case f.cluster() > 0:
		return decl.DivisionClusters
	}
	return decl.Undivided
}

// width returns the number of float32 of a row of y for out rows of W.
func (f productForm) width(out int) int {
	if f.splits() == 0 {
		return out
	}
	return decl.Segments * out
}

// few reports whether the kernel is gemm_few.
func (f productForm) few() bool { return f >= gemmFew && f <= gemmFewWhole }

// needHopper skips a test of kernels that use Hopper's instructions if there is no such GPU.
func needHopper(t *testing.T) {
	t.Helper()
	g, err := cuda.FindGPU("", 0)
	if err != nil {
		t.Skipf("no GPU to run on: %v", err)
	}
	if g.Major != 9 || g.Minor != 0 {
		t.Skipf("%s is no Hopper GPU", g.Name)
	}
}

// once runs the command of a table with one row once.
func once(d *cuda.Device, id replay.SessionID) error {
	ticket, err := d.Submit(&replay.Submission{Session: id, Runs: []replay.Run{{Count: 1, Step: table.Step{KVLen: 1, Rows: 1}}}})
	if err == nil {
		_, err = d.Wait(ticket)
	}
	return err
}

// onGPU loads a table of one command on a GPU and opens a session. cache is a directory for assembled kernels.
func onGPU(t *testing.T, tab *table.Table, cache string) (*cuda.Device, replay.SessionID) {
	t.Helper()
	tab.Header.Device = "cuda"
	mods, err := kernels.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	d, err := cuda.New(cuda.Options{Mode: "record", Modules: mods, Cache: cache})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	err = errors.Join(tab.PlaceBarriers(), d.Load(t.Context(), tab, nil, replay.LoadOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	id, err := d.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	return d, id
}

// newGPUProduct loads the product of a matrix with rows of x. The threadgroups of gemm_halves compute up to
// rowGroup rows. cache is a directory for assembled kernels.
func newGPUProduct(t *testing.T, m *matrix, rows, rowGroup int, form productForm, cache string) *gpuProduct {
	t.Helper()
	layout := dtype.Rows
	if m.t.Quantized() {
		layout = dtype.Tiled16
	}
	c := command{
		kernel: declared.GEMMHalves, threads: 384, specs: []uint32{uint32(m.t), 0, decl.ActF16, uint32(layout), 1, form.division()}, absent: []string{"b"},
		params: declared.GEMMHalvesParams{In: uint32(m.in), Out: uint32(m.out), YStride: uint32(form.width(m.out)), Group: 128, RowGroup: uint32(rowGroup), Cluster: form.cluster(), Splits: form.splits()},
		second: pianolaSecond{rows: uint32(rows)},
	}
	if form.few() {
		p := declared.GEMMFewParams{In: uint32(m.in), Out: uint32(m.out), YStride: uint32(m.out)}
		c.kernel, c.threads, c.specs = declared.GEMMFew, 256, append(c.specs[:4], uint32(form-gemmFew))
		if form == gemmFewWhole {
			c.threads, p.Early = 512, uint32(fewPlaces(rows))
		}
		c.params = p
	}
	tab, slots := c.tableOf(t)
	d, id := onGPU(t, tab, cache)
	err := d.Write(id, slots[declared.GEMMHalvesBindW], 0, m.bytes(layout))
	if err != nil {
		t.Fatal(err)
	}
	return &gpuProduct{d: d, id: id, x: slots[declared.GEMMHalvesBindX], y: slots[declared.GEMMHalvesBindY], out: m.out, in: m.in, rows: rows, form: form}
}

// product returns the products with the first rows of halves, which are in the order of gemm_halves.
func (g *gpuProduct) product(t *testing.T, halves []byte) []byte {
	t.Helper()
	halves = halves[:g.rows*halvesSize(g.in, decl.ActF16)]
	if g.form.few() {
		halves = fewOf(halves, g.in)
	}
	y := make([]byte, 4*g.rows*g.form.width(g.out))
	err := g.d.Write(g.id, g.x, 0, halves)
	if err == nil {
		err = once(g.d, g.id)
	}
	if err = errors.Join(err, g.d.Read(g.id, g.y, 0, y)); err != nil {
		t.Fatal(err)
	}
	if g.form.splits() > 0 {
		return segmentSums(y, g.out)
	}
	return y
}

// segmentSums adds the sums of segments of rows of out elements as add_rmsnorm_halves does.
func segmentSums(y []byte, out int) []byte {
	sums := make([]byte, len(y)/decl.Segments)
	for i := range len(sums) / 4 {
		var sum float32
		for s := range decl.Segments {
			sum += math.Float32frombits(binary.LittleEndian.Uint32(y[4*((i/out*decl.Segments+s)*out+i%out):]))
		}
		binary.LittleEndian.PutUint32(sums[4*i:], math.Float32bits(sum))
	}
	return sums
}

// differences returns the number of float32 that differ in a and b, and describes the first one. Only the
// first elements of the longer one are compared.
func differences(a, b []byte) (count int, first string) {
	for i := 0; i+4 <= min(len(a), len(b)); i += 4 {
		x, y := binary.LittleEndian.Uint32(a[i:]), binary.LittleEndian.Uint32(b[i:])
		if x == y {
			continue
		}
		if count == 0 {
			first = fmt.Sprintf("element %d: %#08x (%g) and %#08x (%g)", i/4, x, math.Float32frombits(x), y, math.Float32frombits(y))
		}
		count++
	}
	return count, first
}

// oneHot returns 32 rows of halves that are 0 but for column from+r of row r, which is 1. A product with
// them is the columns of the matrix.
func oneHot(in, from int) []byte {
	x := make([]float32, 32*in)
	for r := range 32 {
		x[r*in+from+r] = 1
	}
	return halvesOf(x, in, decl.ActF16)
}

// expanded returns the weights that a product of at least 32 rows multiplies, [in, out].
func (g *gpuProduct) expanded(t *testing.T) []byte {
	t.Helper()
	var all []byte
	for from := 0; from < g.in; from += 32 {
		all = append(all, g.product(t, oneHot(g.in, from))[:4*32*g.out]...)
	}
	return all
}

// matrixUnit adds the products of 16 pairs of float16 to a float32 as the matrix units of Hopper are
// described to do (https://arxiv.org/abs/2511.10909): every product and the sum are cut at 25 bits below
// the largest exponent of a product's factors or of the sum, and the result is cut to float32.
func matrixUnit(a, b []float64, c float64) float64 {
	exponent := func(v float64) int {
		if v == 0 {
			return -200
		}
		return math.Ilogb(v)
	}
	most := exponent(c)
	for i := range a {
		if a[i] != 0 && b[i] != 0 {
			// The exponents of subnormal float16 are those of the smallest normal one.
			most = max(most, max(exponent(a[i]), -14)+max(exponent(b[i]), -14))
		}
	}
	if most == -200 {
		return 0
	}
	unit := math.Ldexp(1, most-25)
	sum := math.Trunc(c / unit)
	for i := range a {
		sum += math.Trunc(a[i] * b[i] / unit)
	}
	sum *= unit
	f := float32(sum)
	if math.Abs(float64(f)) > math.Abs(sum) {
		f = math.Nextafter32(f, 0)
	}
	return float64(f)
}

// modelled returns the product of expanded weights, [in, out], with rows of halves by matrixUnit, in the
// order of gemm_few.
func modelled(w []byte, halves []byte, in, out, rows int) []byte {
	y := make([]byte, 4*rows*out)
	size, n := halvesSize(in, decl.ActF16), halvesWidth(in)
	segment := (n/64 + 7) / 8 * 64
	for r := range rows {
		row := halves[r*size:][:size]
		unit := math.Float32frombits(binary.LittleEndian.Uint32(row[2*n:]))
		x := make([]float64, n)
		for i := range in {
			x[i] = float64(dtype.F16ToF32(binary.LittleEndian.Uint16(row[2*i:])))
		}
		column := make([]float64, n)
		for o := range out {
			for i := range in {
				column[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(w[4*(i*out+o):])))
			}
			var all float32
			for from := 0; from < n; from += segment {
				sum := 0.0
				for k := from; k < min(from+segment, n); k += 16 {
					sum = matrixUnit(column[k:k+16], x[k:k+16], sum)
				}
				all += float32(sum)
			}
			binary.LittleEndian.PutUint32(y[4*(r*out+o):], math.Float32bits(all*unit))
		}
	}
	return y
}

// checkGPUOrder compares gemm_few with gemm_halves in the same order for a matrix: the weights that they
// multiply, products of several numbers of rows, and the results of repeated runs. It also says how both
// compare with a model of the matrix units.
func checkGPUOrder(t *testing.T, m *matrix, seed uint64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 40))
	cache := t.TempDir()
	halves := halvesOf(normal(r, 200*m.in, 1), m.in, decl.ActF16)
	type result struct {
		name       string
		y, weights []byte
	}
	run := func(rows, rowGroup int, form productForm, weights bool) (res result) {
		t.Helper()
		g := newGPUProduct(t, m, rows, rowGroup, form, cache)
		res.name = fmt.Sprintf("%s of %d rows", form, rows)
		if weights {
			res.weights = g.expanded(t)
		}
		res.y = g.product(t, halves)
		for i := range 20 {
			if n, first := differences(g.product(t, halves), res.y); n > 0 {
				t.Errorf("%s: repetition %d has %d other elements than the first: %s", res.name, i, n, first)
				break
			}
		}
		return res
	}
	want := run(32, 64, gemmHalves, true)
	model := modelled(want.weights, halves, m.in, m.out, 2)
	n, first := differences(want.y, model)
	t.Logf("%s: %d of %d elements are not those of the model: %s", want.name, n, 2*m.out, first)
	compare := func(rows int, form productForm) {
		t.Helper()
		rowGroup := 128
		switch {
		case form == gemmHalves2:
			rowGroup = 64
		case form == gemmHalvesApart4:
			rowGroup = 256
		}
		got := run(rows, rowGroup, form, rows == 32)
		if n, first := differences(got.y, want.y); n > 0 {
			t.Errorf("%s and %s: %d elements differ: %s", got.name, want.name, n, first)
		}
		if rows == 32 {
			if n, first := differences(got.weights, want.weights); n > 0 {
				t.Errorf("%d of %d weights differ in %s and %s: %s", n, m.in*m.out, got.name, want.name, first)
			}
			n, first := differences(got.y, model)
			t.Logf("%s: %d of %d elements are not those of the model: %s", got.name, n, 2*m.out, first)
		}
	}
	compare(200, gemmHalves)
	for _, rows := range []int{200, 128, 65, 64, 33, 1} {
		if compare(rows, gemmHalves4); !m.t.Quantized() {
			compare(rows, gemmHalves2)
		}
		compare(rows, gemmHalvesApart2)
		compare(rows, gemmHalvesApart4)
		compare(rows, gemmHalvesApart8)
	}
	for _, rows := range []int{64, 41, 32, 17, 9, 8, 1} {
		if compare(rows, gemmFew); m.t.Quantized() {
			compare(rows, gemmFewWide)
		}
		if fitsWhole(m, rows) {
			compare(rows, gemmFewWhole)
		}
	}
}

// TestGPUOrder runs gemm_few and gemm_halves on a GPU, for every type of weights that they multiply. Their
// bits must be the same, because programs of different numbers of rows use them in one table for batching.
func TestGPUOrder(t *testing.T) {
	needHopper(t)
	for i, typ := range halfTypes() {
		t.Run(typ.String(), func(t *testing.T) {
			t.Parallel()
			for k, in := range []int{2048, 2304, 768} {
				r := rand.New(rand.NewPCG(uint64(i), uint64(k)))
				checkGPUOrder(t, newMatrix(r, typ, 336, in), uint64(3*i+k))
			}
		})
	}
}

// TestGPUFewForms is TestFewForms on a GPU.
func TestGPUFewForms(t *testing.T) {
	needHopper(t)
	for i, typ := range halfTypes() {
		t.Run(typ.String(), func(t *testing.T) {
			t.Parallel()
			cache := t.TempDir()
			for seed := range 4 {
				checkFewForms(t, typ, uint64(4*i+seed), func(_ *command, tab *table.Table, slots [decl.MaxBindings]uint32, contents [decl.MaxBindings][]byte) *outcome {
					t.Helper()
					return gpuOutcome(t, tab, slots, contents, cache)
				})
			}
		})
	}
}

// gpuOutcome runs the command of a table on a GPU. cache is a directory for assembled kernels.
func gpuOutcome(t *testing.T, tab *table.Table, slots [decl.MaxBindings]uint32, contents [decl.MaxBindings][]byte, cache string) *outcome {
	t.Helper()
	d, id := onGPU(t, tab, cache)
	for i, slot := range slots {
		if slot == table.NoSlot {
			continue
		}
		if err := d.Write(id, slot, 0, contents[i]); err != nil {
			t.Fatal(err)
		}
	}
	err := once(d, id)
	out := &outcome{}
	for i, slot := range slots {
		if err == nil && slot != table.NoSlot {
			out.bindings[i] = make([]byte, len(contents[i]))
			err = d.Read(id, slot, 0, out.bindings[i])
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// halfTypes returns the types of weights that gemm_few and gemm_halves multiply on NVIDIA GPUs.
func halfTypes() []dtype.Type {
	list := []dtype.Type{dtype.F16, dtype.BF16}
	for _, f := range dtype.Forms() {
		if f.HalfRange() && dtype.Tiled16.Has(f.Type, 336, 2304) {
			list = append(list, f.Type)
		}
	}
	return list
}
