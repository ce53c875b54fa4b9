//go:build amd64

package cpu

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// BenchmarkTiled multiplies a matrix of 64 MiB, larger than any cache, with one row of
// activations on one core, as decoding does, and a smaller matrix with 64 rows, as prefill does.
func BenchmarkTiled(b *testing.B) {
	needAVX2(b)
	const in = 2048
	r := rand.New(rand.NewPCG(43, 1))
	for _, tt := range tiledTypes {
		strip, _ := dtype.Tiled16.Bytes(tt.t, dtype.TileRows, in)
		for _, c := range []struct{ rows, bytes int }{{1, 64 << 20}, {64, 2 << 20}} {
			b.Run(fmt.Sprintf("%v/%d", tt.t, c.rows), func(b *testing.B) {
				strips := c.bytes / int(strip)
				w := hostileTiles(b, r, tt.t, strips, in)
				x := newTiledInput(b, tt.t, r, in, c.rows, 0, 1, activations[0].f)
				n := strips * dtype.TileRows
				y := make([]float32, c.rows*n)
				run := tiledAVX2()[tt.t]
				b.SetBytes(int64(len(w)))
				for b.Loop() {
					run(y, n, w, strips, x)
				}
				reportMACs(b, n*in*c.rows)
			})
		}
	}
}
