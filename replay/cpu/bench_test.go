package cpu

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
)

// BenchmarkRows multiplies a matrix of 64 MiB, larger than any cache, with one row of activations
// on one core. Compare its bytes per second with the memory bandwidth.
func BenchmarkRows(b *testing.B) {
	const columns, bytes = 1024, 64 << 20
	r := rand.New(rand.NewPCG(30, 1))
	for _, p := range products {
		size, _ := p.weight.Bytes(columns)
		rows := bytes / int(size)
		act := [...]string{decl.ActF32: "f32", decl.ActQ8: "q8"}[p.act]
		b.Run(fmt.Sprintf("%v/%s", p.weight, act), func(b *testing.B) {
			w := randomBytes(b, r, p.weight, 64*columns, 1)
			matrix, err := allocate(uint64(rows) * size)
			if err != nil {
				b.Fatal(err)
			}
			for at := 0; at < len(matrix); {
				at += copy(matrix[at:], w)
			}
			x, y := newInput(random(r, columns, 1)), make([]float32, rows)
			o := fastest()
			b.SetBytes(int64(len(matrix)))
			for b.Loop() {
				p.run(o, y, matrix, x)
			}
		})
	}
}

// BenchmarkAttention computes attention of one row over a context of 160 positions in pages, as a
// batch does, for heads of a small and of a larger model. The cache is larger than the first-level
// cache and fits in the second.
func BenchmarkAttention(b *testing.B) {
	for _, tt := range []struct{ headDim, perKV int }{{64, 2}, {128, 2}, {64, 4}, {128, 4}} {
		b.Run(fmt.Sprintf("%dx%d", tt.perKV, tt.headDim), func(b *testing.B) {
			const pages, positions = 12, 160
			r := rand.New(rand.NewPCG(31, 1))
			o := fastest()
			k := &attn{
				ops: o, float: o.float[dtype.F16], heads: tt.perKV, headDim: tt.headDim, perKV: tt.perKV, splits: 1, scale: 0.125,
				q: random(r, tt.perKV*tt.headDim, 1), out: make([]float32, tt.perKV*tt.headDim),
			}
			entries := []uint32{5, 1, 9, 3, 11, 0, 7, 2, 10, 4, 8, 6}
			cache := kvCache{cap: pages * pagePositions, headDim: tt.headDim, size: 2 * tt.headDim, heads: 1, pages: tables{entries: entries, each: pages, last: pages - 1}}
			k.kCache, k.vCache = cache, cache
			k.kCache.values = randomBytes(b, r, dtype.F16, cache.cap*tt.headDim, 1)
			k.vCache.values = randomBytes(b, r, dtype.F16, cache.cap*tt.headDim, 1)
			w := &worker{scratch: make([]byte, 4*attnRows*(2*tt.headDim+attnBlock)), kvLen: positions}
			b.SetBytes(2 * positions * int64(cache.size))
			for b.Loop() {
				k.group(w, 0, 1, 0, 0, tt.perKV)
			}
		})
	}
}
