package conform

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/batchtest"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/replay"
)

// amongRows are the numbers of rows among which the tests of this file compute a row.
var amongRows = batchtest.Counts[1:]

// someRows returns the numbers of rows with which case i is tested. Many rows take long.
func someRows(i int) (list []int) {
	for k, n := range amongRows {
		if k%exhaustive.Pick(3, 5) == i%exhaustive.Pick(3, 5) {
			list = append(list, n)
		}
	}
	return list
}

// sameRow runs a command of many rows and, for some of its rows, the command of the row alone, and
// compares the results. out is the binding of the results, stride the bytes from one row to the next
// and size those of a row.
func sameRow(t *testing.T, e *emu.Program, rows int, all command, alone func(row int) command, out, stride, size int) {
	t.Helper()
	r := rand.New(rand.NewPCG(uint64(rows), 31))
	results := func(c command) []byte {
		tab, slots := c.tableOf(t)
		return c.emulated(t, e, tab, c.contents(t, tab, slots, r), launch{threads: int(c.threads)}).bindings[out]
	}
	among := results(all)
	for _, row := range slices.Compact([]int{0, r.IntN(rows), rows - 1}) {
		c := alone(row)
		if got := results(c); !bytes.Equal(got[:size], among[row*stride:][:size]) {
			t.Errorf("%+v: row %d among %d rows differs from the row alone, which is computed by %+v", all.params, row, rows, c.params)
		}
	}
}

// TestProductRows computes rows of products with the parameters of tables for batching alone, and
// among other rows.
func TestProductRows(t *testing.T) {
	e := builds.Get(t, fast)
	list := []dtype.Type{dtype.F32, dtype.F16, dtype.BF16, dtype.Q4_0, dtype.Q6_K}
	if exhaustive.On {
		list = types()
	}
	for i, typ := range list {
		t.Run(typ.String(), func(t *testing.T) {
			t.Parallel()
			elems, _ := typ.Block()
			in, out := elems*max(2, (pick(rand.New(rand.NewPCG(uint64(i), 33)), 160, 700, 1100)+elems-1)/elems), 16
			layout := dtype.Rows
			if dtype.Tiled16.Has(typ, dtype.TileRows, uint64(elems)) {
				layout = dtype.Tiled16
			}
			for _, rows := range someRows(i) {
				r := rand.New(rand.NewPCG(uint64(rows), uint64(typ)))
				if typ == dtype.F16 || typ == dtype.BF16 || layout == dtype.Tiled16 && dtype.FormOf(typ).HalfRange() {
					halvesRows(t, e, newMatrix(r, typ, out, in), layout, rows, r)
				}
				gemmRows(t, e, newMatrix(r, typ, out, in), layout, rows, r)
			}
		})
	}
}

// halvesRows tests gemm_halves with the groups of rows of x that the compiler selects for one row and for
// many: with one float16 term up to 32 rows, or 64 of quantised weights, are computed by gemm_few, whose
// shapes have the same bits.
func halvesRows(t *testing.T, e *emu.Program, m *matrix, layout dtype.Layout, rows int, r *rand.Rand) {
	t.Helper()
	x := normal(r, rows*m.in, 1)
	act := uint32(decl.ActF16)
	if layout == dtype.Rows && r.IntN(3) == 0 {
		act = decl.ActF16x2
	}
	of := func(x []float32, rowGroup int) command {
		n := len(x) / m.in
		cluster := 0
		if act == decl.ActF16 {
			switch cluster = pick(r, 0, 2, 4); {
			case m.t.Quantized() && cluster != 0:
				cluster, rowGroup = 4, 128
			case cluster == 2:
				rowGroup = 64
			}
		}
		c := command{
			kernel: kernels.GEMMHalves, threads: 384, specs: []uint32{uint32(m.t), 0, act, uint32(layout), one(act == decl.ActF16), decl.DivisionClusters * one(cluster > 0)},
			params: kernels.GEMMHalvesParams{In: uint32(m.in), Out: uint32(m.out), YStride: uint32(m.out), Group: 128, RowGroup: uint32(rowGroup), Cluster: uint32(cluster)},
			second: pianolaSecond{rows: uint32(n)}, absent: []string{"b"},
			input: map[string][]byte{"x": halvesOf(x, m.in, act), "w": m.bytes(layout)},
		}
		if act == decl.ActF16 && (n <= 32 || n <= 64 && m.t.Quantized()) {
			p := kernels.GEMMFewParams{In: uint32(m.in), Out: uint32(m.out), YStride: uint32(m.out)}
			shape := uint32(decl.ShapeUsual)
			c.kernel, c.threads = kernels.GEMMFew, 256
			switch k := r.IntN(3); {
			case k == 0 && m.t.Quantized():
				shape = decl.ShapeWide
			case k == 1 && fitsWhole(m, n):
				shape, c.threads, p.Early = decl.ShapeWhole, 512, uint32(fewPlaces(n))
			}
			c.specs, c.params = append(c.specs[:4:4], shape), p
			c.input["x"] = fewOf(c.input["x"], m.in)
		}
		return c
	}
	sameRow(t, e, rows, of(x, pick(r, 64, 128)), func(row int) command { return of(x[row*m.in:][:m.in], 64) },
		kernels.GEMMHalvesBindY, 4*m.out, 4*m.out)
}

// gemmRows tests gemm, whose threadgroups have other numbers of rows of W and of threads for one row
// than for many, unless they compute at most 8 rows of W.
func gemmRows(t *testing.T, e *emu.Program, m *matrix, layout dtype.Layout, rows int, r *rand.Rand) {
	t.Helper()
	act := uint32(decl.ActF32)
	if layout == dtype.Tiled16 {
		act = decl.ActQ8
	}
	x := normal(r, rows*m.in, 1)
	of := func(x []float32, group, rowGroup int, threads uint32) command {
		n := len(x) / m.in
		return command{
			kernel: kernels.GEMM, threads: threads, specs: []uint32{uint32(m.t), act, decl.InputPlain, 0, uint32(layout), decl.OutputStore, 0},
			params: kernels.GEMMParams{In: uint32(m.in), Out: uint32(m.out), XStride: uint32(m.in), YStride: uint32(m.out), Group: uint32(group), RowGroup: uint32(rowGroup)},
			second: pianolaSecond{rows: uint32(n)}, absent: []string{"x2", "b"},
			input: map[string][]byte{"x": f32(x), "w": m.bytes(layout)},
		}
	}
	sameRow(t, e, rows, of(x, 128, 64, 128), func(row int) command { return of(x[row*m.in:][:m.in], 64, 64, 256) }, kernels.GEMMBindY, 4*m.out, 4*m.out)
	if m.t == dtype.F32 {
		sameRow(t, e, rows, of(x, 8, 8, 256), func(row int) command { return of(x[row*m.in:][:m.in], 8, 8, 256) }, kernels.GEMMBindY, 4*m.out, 4*m.out)
	}
}

// TestAttentionRows computes rows of attn_tile alone and among other rows: with windows, soft caps,
// learned sink logits, int8 caches and heads of several sizes.
func TestAttentionRows(t *testing.T) {
	shared, apple := builds.Get(t, fast), builds.Get(t, appleFast)
	for i, rows := range amongRows {
		t.Run(fmt.Sprint(rows), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(uint64(rows), 32))
			for n := range exhaustive.Pick(4, 2) {
				e := shared
				a := attention{
					headDim: []int{64, 128, 80, 32, 256}[i%5], kvHeads: 1, shared: pick(r, 1, 2, 4), rows: rows, kvLen: 1 + r.IntN(200), scale: 1,
					window: pick(r, 0, 40, 100), softCap: pick(r, 0, 20.0), learned: r.IntN(2) == 0, headGroup: 1,
					tile: tile{units: 1, slots: 2, threads: 256, act: pick(r, uint32(decl.ActF16), decl.ActF16x2)},
				}
				a.q8 = a.headDim%32 == 0 && r.IntN(3) == 0
				a.context = a.kvLen + a.rows
				if n%2 == 1 {
					e, a.tile = apple, a.matrices()
				}
				c := a.tiled(a.command(r))
				if rows > 64 && n%2 == 0 && r.IntN(2) == 0 { // the same number of ways
					p := c.params.(kernels.AttnTileParams)
					p.Slots = 3
					c.params = p
				}
				stride := 4 * a.kvHeads * a.shared * a.headDim
				sameRow(t, e, rows, c, func(row int) command {
					one := c
					one.second = pianolaSecond{kvLen: uint32(a.kvLen + row), rows: 1}
					one.input = map[string][]byte{"q": c.input["q"][row*stride:][:stride], "k_cache": c.input["k_cache"], "v_cache": c.input["v_cache"]}
					if a.learned {
						one.input["logits"] = c.input["logits"]
					}
					return one
				}, kernels.AttnTileBindOut, stride, stride)
			}
		})
	}
}

// batchedWholes are tables for batching.
func batchedWholes() []whole {
	var list []whole
	for i, name := range []string{"tiny/llama", "tiny/mistral", "variants/gpt_oss", "variants/qwen3_moe", "tiny/gemma2", "tiny/qwen3/model.gguf", "variants/qwen3_moe/model.gguf"} {
		w := whole{model: name, chip: []string{"h200", "m4-pro"}[i%2], order: emu.Order(i % 3), fast: true}
		w.options.Batching, w.options.AllLogits = true, true
		if i%3 == 2 {
			w.options.KV, w.options.NoFuse = "q8_0", true
		}
		list = append(list, w)
	}
	return list
}

// TestWholeBatching replays tables for batching, of one layer, with the emulated kernels: rows alone,
// among other rows, and in prompts that are cut at random. There are few positions, because the
// emulator is slow; TestProductRows and TestAttentionRows have more rows.
func TestWholeBatching(t *testing.T) {
	for _, w := range exhaustive.Pick(batchedWholes(), batchedWholes()[:2]) {
		p := builds.Get(t, w.emulator())
		t.Run(w.String(), func(t *testing.T) {
			t.Parallel()
			if err := w.batching(t, p); err != nil {
				t.Error(err)
			}
		})
	}
}

// batching checks the rows of a case on the emulator.
func (w *whole) batching(t *testing.T, p *emu.Program) error {
	t.Helper()
	w.change, w.changed = func(c *chip.Chip) {
		small(c)
		if c.Device == chip.CUDA {
			c.BatchFew = true
		}
	}, "small"
	w.layers = 1
	tab, src := w.compile(t)
	m := load(t, emu.NewDevice(p, emu.DeviceOptions{Order: w.order, Seed: 1}), tab, src)
	s, err := m.NewSession(replay.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	vocab := int(tab.Header.Vocab)
	return batchtest.Check(t.Context(), s, vocab, batchtest.Tokens(exhaustive.Pick(5, 3), vocab), exhaustive.Pick([]int{2, 4}, []int{2}), 2)
}

// TestBatchingFails checks that the test above finds a kernel that depends on the number of rows: in
// a table without the option, prefill rounds otherwise than decode.
func TestBatchingFails(t *testing.T) {
	w := batchedWholes()[0]
	w.options.Batching = false
	var d *batchtest.Difference
	if err := w.batching(t, builds.Get(t, fast)); !errors.As(err, &d) {
		t.Errorf("in a table that is not for batching, all rows are the same: %v", err)
	}
}
