package cpu

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// BenchmarkFloat multiplies a matrix with a chunk of rows of activations on one core, as prefill
// does.
func BenchmarkFloat(b *testing.B) {
	r := rand.New(rand.NewPCG(64, 1))
	const rows = 256
	for name, o := range implementations() {
		if name == "portable" {
			continue
		}
		for _, t := range floatTypes {
			for _, size := range []struct{ n, in int }{{2048, 1024}, {1024, 3072}} {
				b.Run(fmt.Sprintf("%s/%v/%dx%d", name, t, size.n, size.in), func(b *testing.B) {
					w := randomBytes(b, r, t, size.n*size.in, 1)
					x := &floatInput{x: random(r, rows*size.in, 1), in: size.in, stride: size.in, rows: rows}
					y := make([]float32, rows*size.n)
					for b.Loop() {
						o.float[t](y, size.n, w, size.n, x)
					}
					reportMACs(b, size.n*size.in*rows)
				})
			}
		}
	}
}

// BenchmarkAttn attends to 512 positions in the second-level cache, with the heads that share K
// and V.
func BenchmarkAttn(b *testing.B) {
	r := rand.New(rand.NewPCG(65, 1))
	for name, o := range implementations() {
		if name == "portable" {
			continue
		}
		for _, d := range []int{64, 128} {
			for _, heads := range []int{1, 2, 4, 16} {
				const positions = 512
				k := randomBytes(b, r, dtype.F16, positions*d, 1)
				x := &floatInput{x: random(r, heads*d, 1), in: d, stride: d, rows: heads}
				scores, acc := random(r, heads*positions, 1), make([]float32, heads*d)
				b.Run(fmt.Sprintf("%s/%d/%d/score", name, d, heads), func(b *testing.B) {
					for b.Loop() {
						for at := 0; at < positions; at += attnBlock {
							o.float[dtype.F16](scores[at*heads:], attnBlock, k[2*at*d:], attnBlock, x)
						}
					}
					reportMACs(b, positions*d*heads)
				})
				b.Run(fmt.Sprintf("%s/%d/%d/weigh", name, d, heads), func(b *testing.B) {
					for b.Loop() {
						for at := 0; at < positions; at += attnBlock {
							o.addScaledF16(acc, d, k[2*at*d:][:2*attnBlock*d], attnBlock, scores[at*heads:], attnBlock)
						}
					}
					reportMACs(b, positions*d*heads)
				})
			}
		}
	}
	s := random(r, attnBlock, 3)
	b.Run("softmax", func(b *testing.B) {
		o := fastest()
		for b.Loop() {
			m := o.scaleMax(s, 0.9)
			o.expSub(s, m)
			s[0] += o.dot(s, ones[:])
		}
	})
	gate, up, out := random(r, 768, 3), random(r, 768, 1), make([]float32, 768)
	b.Run("silu", func(b *testing.B) {
		o := fastest()
		for b.Loop() {
			o.siluMul(out, gate, up)
		}
	})
}

// reportMACs reports the multiply-adds per second, given n of them per iteration.
func reportMACs(b *testing.B, n int) {
	b.ReportMetric(float64(b.N)*float64(n)/b.Elapsed().Seconds()/1e9, "GMAC/s")
}
