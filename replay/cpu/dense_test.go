package cpu

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/activation"
	"github.com/pianola-engine/pianola/internal/kernels"
)

func TestLayerNorm(t *testing.T) {
	r := rand.New(rand.NewPCG(40, 1))
	for _, n := range []int{1, 5, 32, 77, 256} {
		for _, mean := range []float32{0, 3, -200} {
			const xRows, rows, first = 6, 4, 3 // the last row is clamped
			const eps = 1e-5
			s := newSolo(t, kernels.LayerNorm, nil, kernels.LayerNormParams{N: uint32(n), XRows: xRows, Eps: eps}, second(first, 0, rows))
			x, w := random(r, xRows*n, 1), random(r, 2*n, 1)
			for i := range x {
				x[i] += mean
			}
			s.fill("x", x)
			s.fill("w", w)
			var want []float64
			for row := range rows {
				x := widen(x[min(first+row, xRows-1)*n:][:n])
				var sum, squares float64
				for _, v := range x {
					sum += v
				}
				for _, v := range x {
					squares += (v - sum/float64(n)) * (v - sum/float64(n))
				}
				for i, v := range x {
					want = append(want, (v-sum/float64(n))/math.Sqrt(squares/float64(n)+eps)*float64(w[i])+float64(w[n+i]))
				}
			}
			near(t, s.everywhere("out", nil), want, 1e-6*max(1, math.Abs(float64(mean))))
		}
	}
}

func TestActivate(t *testing.T) {
	r := rand.New(rand.NewPCG(41, 1))
	for id, function := range activation.Functions {
		f := function.Of
		if f == nil {
			continue // a function of the gate and of up, which activate does not compute
		}
		for _, n := range []int{1, 7, 64, 1000} {
			const rows = 3
			x := random(r, rows*n, 4)
			copy(x, []float32{0, 40, -40, 1e15, -1e15})
			s := newSolo(t, kernels.Activate, []uint32{uint32(id)}, kernels.ActivateParams{N: uint32(n), Group: 100}, second(0, 0, rows))
			for i, got := range s.everywhere("x", x) {
				want := f(float64(x[i]))
				if d := math.Abs(float64(got) - want); !(d <= 1e-6*max(math.Abs(want), 0.5)) {
					t.Errorf("activation %d of %v is %v, want %v", id, x[i], got, want)
				}
			}
		}
	}
}

// A factor for the added row and one for the normalised row, fused or not.
func TestScaledResidual(t *testing.T) {
	r := rand.New(rand.NewPCG(42, 1))
	for _, n := range []int{3, 64, 100} {
		const rows, delta, scale = 3, 0.22, 1.0 / 3
		x, d, w := random(r, rows*n, 1), random(r, rows*n, 1), random(r, n, 1)
		s := newSolo(t, kernels.AddRMSNorm, nil, kernels.AddRMSNormParams{N: uint32(n), Eps: 1e-6, Scale: scale, DeltaScale: delta}, second(0, 0, rows))
		s.fill("delta", d)
		s.fill("w", w)
		sum := s.everywhere("x", x)
		out := slices.Clone(s.f32("out"))

		a := newSolo(t, kernels.Add, nil, kernels.AddParams{N: uint32(n), DeltaScale: delta}, second(0, 0, rows))
		a.fill("delta", d)
		same(t, "sum", sum, a.everywhere("x", x))
		nm := newSolo(t, kernels.RMSNorm, nil, kernels.RMSNormParams{N: uint32(n), XRows: rows, Eps: 1e-6, Scale: scale}, second(0, 0, rows))
		nm.fill("x", sum)
		nm.fill("w", w)
		same(t, "norm", out, nm.everywhere("out", nil))

		want := make([]float64, len(x))
		for i := range want {
			want[i] = float64(x[i]) + delta*float64(d[i])
		}
		near(t, sum, want, 1e-6)
		var norms []float64
		for row := range rows {
			for _, v := range refNorm(want[row*n:][:n], w, 1e-6) {
				norms = append(norms, v*scale)
			}
		}
		near(t, out, norms, 2e-6)
	}
}
