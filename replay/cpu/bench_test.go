package cpu

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
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
