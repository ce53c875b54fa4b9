package cpu

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// TestMLXRows compares the products of rows of every MLX type with portable Go. The rows end at an
// inaccessible page.
func TestMLXRows(t *testing.T) {
	r := rand.New(rand.NewPCG(70, 1))
	want, got := portable(), fastest()
	for _, typ := range dtype.All() {
		_, group, scale, ok := typ.MLX()
		if !ok {
			continue
		}
		_, size := typ.Block()
		for _, groups := range []int{1, 2, 3, 9} {
			const rows = 3
			w := guarded(t, uint64(rows*groups*size))
			for i := range w {
				w[i] = byte(r.Uint32())
			}
			for at := 0; at < len(w); at += size {
				a, b := float32(r.NormFloat64()*0.02), float32(r.NormFloat64())
				switch scale {
				case dtype.F16:
					binary.LittleEndian.PutUint16(w[at:], dtype.F32ToF16(a))
					binary.LittleEndian.PutUint16(w[at+2:], dtype.F32ToF16(b))
				case dtype.BF16:
					binary.LittleEndian.PutUint16(w[at:], dtype.F32ToBF16(a))
					binary.LittleEndian.PutUint16(w[at+2:], dtype.F32ToBF16(b))
				default:
					binary.LittleEndian.PutUint32(w[at:], math.Float32bits(a))
					binary.LittleEndian.PutUint32(w[at+4:], math.Float32bits(b))
				}
			}
			x := newInput(random(r, groups*group, 1))
			y, z := make([]float32, rows), make([]float32, rows)
			want.rows[typ](y, w, &x.input)
			got.rows[typ](z, w, &x.input)
			for i := range y {
				if math.Float32bits(y[i]) != math.Float32bits(z[i]) {
					t.Fatalf("%v, %d groups, row %d: %v, want %v", typ, groups, i, z[i], y[i])
				}
			}
		}
	}
}

// BenchmarkMLXRows multiplies rows of MLX types in the file's layout on one core.
func BenchmarkMLXRows(b *testing.B) {
	const n, in = 1024, 4096
	r := rand.New(rand.NewPCG(71, 1))
	for name, o := range map[string]*ops{"portable": portable(), "fastest": fastest()} {
		for _, bits := range []int{2, 3, 4, 6, 8} {
			typ, _ := dtype.MLXType(bits, 64, dtype.F32)
			b.Run(typ.String()+"/"+name, func(b *testing.B) {
				w, x, y := randomBytes(b, r, typ, n*in, 1), newInput(random(r, in, 1)), make([]float32, n)
				for b.Loop() {
					o.rows[typ](y, w, &x.input)
				}
				reportMACs(b, n*in)
			})
		}
	}
}
