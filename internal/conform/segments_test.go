package conform

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// TestProductSegments computes products whose threadgroups write the sums of segments, and compares the sums of those
// with the products of one threadgroup for all columns. Some matrices have fewer chunks of columns than segments. It
// also lets add_rmsnorm_halves add the segments, and compares the result with that for their sum.
func TestProductSegments(t *testing.T) {
	e := builds.Get(t, fast)
	for i, typ := range []dtype.Type{dtype.F16, dtype.BF16, dtype.Q4_0, dtype.Q6_K} {
		t.Run(typ.String(), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(uint64(i), 51))
			elems, _ := typ.Block()
			layout := dtype.Rows
			if typ.Quantized() {
				layout = dtype.Tiled16
			}
			for _, chunks := range []int{1, 5, 9, 17, 24} {
				in := (64*chunks + elems - 1) / elems * elems
				m := newMatrix(r, typ, 32, in)
				rows := pick(r, 1, 33, 65, 150)
				x := halvesOf(normal(r, rows*in, 1), in, decl.ActF16)
				product := func(rowGroup, splits int) []byte {
					c := command{
						kernel: kernels.GEMMHalves, threads: 384, specs: []uint32{uint32(typ), 0, decl.ActF16, uint32(layout), 1, decl.DivisionApart * one(splits > 0)},
						params: kernels.GEMMHalvesParams{In: uint32(in), Out: 32, YStride: 32, Group: 128, RowGroup: uint32(rowGroup), Splits: uint32(splits)},
						second: pianolaSecond{rows: uint32(rows)}, absent: []string{"b"},
						input: map[string][]byte{"x": x, "w": m.bytes(layout)},
					}
					if splits > 0 {
						p := c.params.(kernels.GEMMHalvesParams)
						p.YStride *= decl.Segments
						c.params = p
					}
					tab, slots := c.tableOf(t)
					return c.emulated(t, e, tab, c.contents(t, tab, slots, r), launch{threads: 384}).bindings[kernels.GEMMHalvesBindY]
				}
				want := product(128, 0)
				for _, splits := range []int{2, 4, 8} {
					rowGroup := pick(r, 128, 256)
					y := product(rowGroup, splits)
					sums := segmentSums(y, 32)
					if n, first := differences(sums, want); n > 0 || len(sums) != len(want) {
						t.Errorf("%d columns, %d rows in groups of %d, %d splits: %d elements differ: %s", in, rows, rowGroup, splits, n, first)
					}
					if a, b := addedNorm(t, y, 32, rows, decl.Segments), addedNorm(t, sums, 32, rows, 0); !bytes.Equal(a, b) {
						t.Errorf("add_rmsnorm_halves of %d rows of segments differs from that of their sums", rows)
					}
				}
			}
		})
	}
}

// TestNormSegments lets add_rmsnorm_halves add the segments of rows that a threadgroup loads at once, and of longer ones.
func TestNormSegments(t *testing.T) {
	for _, n := range []int{8, 504, 512, 520, 1024} { // 32 threads load 512 elements at once
		r := rand.New(rand.NewPCG(uint64(n), 53))
		y := f32(normal(r, 3*decl.Segments*n, 1))
		if a, b := addedNorm(t, y, n, 3, decl.Segments), addedNorm(t, segmentSums(y, n), n, 3, 0); !bytes.Equal(a, b) {
			t.Errorf("%d elements: the result for segments differs from that for their sums", n)
		}
	}
}

// addedNorm returns what add_rmsnorm_halves writes for rows of n elements, of which delta has the sums or segments.
func addedNorm(t *testing.T, delta []byte, n, rows, segments int) []byte {
	t.Helper()
	e := builds.Get(t, fast)
	r := rand.New(rand.NewPCG(uint64(rows), 52))
	c := command{
		kernel: kernels.AddRMSNormHalves, threads: 32, second: pianolaSecond{rows: uint32(rows)},
		params: kernels.AddRMSNormHalvesParams{N: uint32(n), Eps: 1e-5, Segments: uint32(segments)},
		input:  map[string][]byte{"x": f32(normal(r, rows*n, 1)), "delta": delta, "w": f32(normal(r, n, 1))},
	}
	tab, slots := c.tableOf(t)
	return c.emulated(t, e, tab, c.contents(t, tab, slots, r), launch{threads: 32}).bindings[kernels.AddRMSNormHalvesBindOut]
}
