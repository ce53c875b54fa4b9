package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// second returns the static secondary fields of a solo command.
func second(index, kvLen, rows int) map[int]uint32 {
	return map[int]uint32{decl.SecondIndex: uint32(index), decl.SecondKVLen: uint32(kvLen), decl.SecondRows: uint32(rows)}
}

// everywhere runs a command with every implementation and several teams, checks that the output
// has the same bits each time, and returns it. An output that is also an input is set to in
// before each run.
func (s *solo) everywhere(name string, in []float32) []float32 {
	s.tb.Helper()
	teams := exhaustive.Pick([]int{1, 2, 5, 16}, []int{1, 5})
	var want []float32
	for impl, o := range implementations() {
		for _, parts := range teams {
			if in != nil {
				s.fill(name, in)
			} else {
				for i := range s.f32(name) {
					s.f32(name)[i] = float32(math.NaN())
				}
			}
			s.run(o, parts)
			if want == nil {
				want = slices.Clone(s.f32(name))
			}
			same(s.tb, fmt.Sprintf("%s of %d", impl, parts), s.f32(name), want)
		}
	}
	return want
}

func refNorm(x []float64, w []float32, eps float64) []float64 {
	var sum float64
	for _, v := range x {
		sum += v * v
	}
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v / math.Sqrt(sum/float64(len(x))+eps) * float64(w[i])
	}
	return out
}

func TestEmbed(t *testing.T) {
	r := rand.New(rand.NewPCG(20, 1))
	for _, weight := range weightTypes {
		const vocab, ringLen, rows = 11, 6, 4
		typ, n := weight.t, 96
		if elems, _ := typ.Block(); elems > blockElems {
			n = 2 * elems
		}
		s := newSolo(t, kernels.Embed, []uint32{uint32(typ)}, kernels.EmbedParams{N: uint32(n), Vocab: vocab, Ring: ringLen, Scale: 1.5}, second(3, 0, rows))
		copy(s.bytes("w"), randomBytes(t, r, typ, vocab*n, 1))
		// The last row is past the ring and reads its last entry. Ids past the vocabulary read
		// the last row.
		putU32s(s.bytes("tokens"), 9, 9, 9, 4, vocab, math.MaxUint32)
		var want []float32
		w := dequantized(t, typ, s.bytes("w"))
		for _, id := range []int{4, vocab - 1, vocab - 1, vocab - 1} {
			for _, v := range w[id*n:][:n] {
				want = append(want, float32(v)*1.5)
			}
		}
		same(t, typ.String(), s.everywhere("out", nil), want)
	}
}

func TestRoPEAngles(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 1))
	for _, factors := range []uint32{0, 1} {
		const half, rows, pos = 33, 3, 700
		missing := []string{"factors"}[:1-factors]
		s := newSolo(t, kernels.RoPEAngles, []uint32{factors}, kernels.RoPEAnglesParams{Half: half, AttnFactor: 1.25}, second(pos, 0, rows), missing...)
		freq, by := random(r, half, 1), make([]float32, half)
		for i := range by {
			by[i] = 1 + r.Float32()*8
		}
		s.fill("inv_freq", freq)
		if factors == 1 {
			s.fill("factors", by)
		}
		var want []float64
		for row := range rows {
			for i := range half {
				a := float32(pos+row) * freq[i]
				if factors == 1 {
					a /= by[i]
				}
				want = append(want, 1.25*math.Cos(float64(a)), 1.25*math.Sin(float64(a)))
			}
		}
		near(t, s.everywhere("out", nil), want, 2e-7)
	}
}

func TestRMSNorm(t *testing.T) {
	r := rand.New(rand.NewPCG(22, 1))
	for _, n := range []int{1, 5, 32, 77, 256} {
		for _, scale := range []float64{1e-6, 1, 1e6} {
			const xRows, rows, first = 6, 4, 3 // the last row is clamped
			s := newSolo(t, kernels.RMSNorm, nil, kernels.RMSNormParams{N: uint32(n), XRows: xRows, Eps: 1e-5}, second(first, 0, rows))
			x, w := random(r, xRows*n, scale), random(r, n, 1)
			s.fill("x", x)
			s.fill("w", w)
			var want []float64
			for row := range rows {
				want = append(want, refNorm(widen(x[min(first+row, xRows-1)*n:][:n]), w, 1e-5)...)
			}
			near(t, s.everywhere("out", nil), want, 2e-6)
		}
	}
}

func TestAddRMSNorm(t *testing.T) {
	r := rand.New(rand.NewPCG(23, 1))
	for _, n := range []int{3, 64, 100} {
		const rows = 3
		x, delta, w := random(r, rows*n, 1), random(r, rows*n, 1), random(r, n, 1)
		s := newSolo(t, kernels.AddRMSNorm, nil, kernels.AddRMSNormParams{N: uint32(n), Eps: 1e-6}, second(0, 0, rows))
		s.fill("delta", delta)
		s.fill("w", w)
		sum := s.everywhere("x", x)
		out := slices.Clone(s.f32("out"))

		a := newSolo(t, kernels.Add, nil, kernels.AddParams{N: uint32(n)}, second(0, 0, rows))
		a.fill("delta", delta)
		same(t, "sum", sum, a.everywhere("x", x))
		nm := newSolo(t, kernels.RMSNorm, nil, kernels.RMSNormParams{N: uint32(n), XRows: rows, Eps: 1e-6}, second(0, 0, rows))
		nm.fill("x", sum)
		nm.fill("w", w)
		same(t, "norm", out, nm.everywhere("out", nil))
		want := make([]float64, len(x))
		for i := range want {
			want[i] = float64(x[i]) + float64(delta[i])
		}
		near(t, sum, want, 1e-7)
	}
}

// TestMatmul checks both kernels on every type, with strides, tails, bias and both inputs, and
// checks that a row's result does not depend on the other rows.
func TestMatmul(t *testing.T) {
	r := rand.New(rand.NewPCG(24, 1))
	for _, p := range products {
		for _, input := range []uint32{decl.InputPlain, decl.InputSiLUMul} {
			for _, bias := range []uint32{0, 1} {
				t.Run(fmt.Sprintf("%v/input%d/bias%d", p, input, bias), func(t *testing.T) {
					for _, size := range [][4]int{{1, 1, 1, 1}, {9, 5, 3, 4}, {37, 11, 2, 100}, {50, 3, 5, 8}} {
						testMatmul(t, r, p, input, bias, size[0], size[1], size[2], size[3])
					}
				})
			}
		}
	}
}

// TestMatmulUnits executes the units of products of many rows in pieces, and checks that each product is computed once.
func TestMatmulUnits(t *testing.T) {
	r := rand.New(rand.NewPCG(24, 2))
	for range 200 {
		rows, out := 1+r.IntN(300), 1+r.IntN(3000)
		k := &matmul{in: 1, out: out, group: 1 + r.IntN(40), xStride: 1, yStride: out, rowBytes: []int{4, 4 << 10}[r.IntN(2)]}
		k.x, k.y, k.w = make([]float32, rows), make([]float32, rows*out), make([]byte, out*k.rowBytes)
		for i := range k.x {
			k.x[i] = float32(i)
		}
		k.float = func(y []float32, yStride int, w []byte, n int, x *floatInput) {
			if n <= 0 || x.rows <= 0 || x.rows > rowBlock || n*k.rowBytes != len(w) {
				t.Fatalf("%d rows of W of %d bytes with %d of x", n, len(w), x.rows)
			}
			for j := range x.rows {
				for i := range n {
					y[j*yStride+i] += 1 + x.row(j)[0]
				}
			}
		}
		w := &worker{rows: rows}
		for lo, units := 0, k.units(w); lo < units; {
			hi := min(units, lo+1+r.IntN(1+units/(1+r.IntN(20))))
			k.run(w, lo, hi)
			lo = hi
		}
		for i, v := range k.y {
			if v != float32(1+i/out) {
				t.Fatalf("%d rows, %d of W in groups of %d: y[%d] is %v", rows, out, k.group, i, v)
			}
		}
		if w.rows != rows || w.from != 0 {
			t.Fatalf("the worker has rows %d to %d after it", w.from, w.from+w.rows)
		}
	}
}

func testMatmul(t *testing.T, r *rand.Rand, p product, input, bias uint32, out, blocks, rows, group int) {
	t.Helper()
	elems, _ := p.weight.Block()
	in := blocks * elems
	if !p.weight.Quantized() {
		in = blocks*17 + 1
	}
	xStride, yStride := in+3, out+2
	params := kernels.GEMVParams{In: uint32(in), Out: uint32(out), XStride: uint32(xStride), YStride: uint32(yStride), Group: uint32(group), RowGroup: 1}
	var missing []string
	if input == decl.InputPlain {
		missing = append(missing, "x2")
	}
	if bias == 0 {
		missing = append(missing, "b")
	}
	specs := []uint32{uint32(p.weight), p.act, input, bias}
	s := newSolo(t, kernels.GEMM, specs, kernels.GEMMParams(params), second(0, 0, rows), missing...)
	w := randomBytes(t, r, p.weight, out*in, 1)
	copy(s.bytes("w"), w)
	n := (rows-1)*xStride + in
	x, x2 := random(r, n, 2), random(r, n, 1)
	s.fill("x", x)
	if input != decl.InputPlain {
		s.fill("x2", x2)
	}
	b := random(r, out, 1)
	if bias != 0 {
		s.fill("b", b)
	}
	start := make([]float32, (rows-1)*yStride+out)
	for i := range start {
		start[i] = -12345 // a mark between the rows that must not change
	}
	got := s.everywhere("y", start)
	f := dequantized(t, p.weight, w)
	var want, size []float64 // size is the sum of magnitudes, to which rounding errors are relative
	for row := range rows {
		x := slices.Clone(x[row*xStride:][:in])
		if input != decl.InputPlain {
			siluMul(x, x, x2[row*xStride:][:in])
		}
		v := widen(x)
		if p.act == decl.ActQ8 {
			q := newInput(x)
			for i := range v {
				v[i] = float64(q.d[i/blockElems]) * float64(q.q[i])
			}
		}
		for o := range out {
			var sum, abs float64
			for i := range in {
				sum += f[o*in+i] * v[i]
				abs += math.Abs(f[o*in+i] * v[i])
			}
			if bias != 0 {
				sum += float64(b[o])
				abs += math.Abs(float64(b[o]))
			}
			want, size = append(want, sum), append(size, abs)
		}
		if row < rows-1 {
			want, size = append(want, -12345, -12345), append(size, 0, 0)
		}
	}
	for i := range got {
		if d := math.Abs(float64(got[i]) - want[i]); !(d <= 2e-6*size[i]) {
			t.Fatalf("element %d: %v, want %v (sum of magnitudes %v)", i, got[i], want[i], size[i])
		}
	}

	// Row by row with gemv.
	for row := range rows {
		one := newSolo(t, kernels.GEMV, specs, params, second(0, 0, 1), missing...)
		copy(one.bytes("w"), w)
		one.fill("x", x[row*xStride:][:in])
		if input != decl.InputPlain {
			one.fill("x2", x2[row*xStride:][:in])
		}
		if bias != 0 {
			one.fill("b", b)
		}
		same(t, fmt.Sprintf("row %d", row), one.everywhere("y", nil), got[row*yStride:][:out])
	}
}

// TestSiLUMulFused compares a product of silu(x)*x2 with silu_mul followed by a plain product.
func TestSiLUMulFused(t *testing.T) {
	r := rand.New(rand.NewPCG(25, 1))
	for _, p := range products {
		const out, rows = 12, 3
		in := 288
		if elems, _ := p.weight.Block(); elems > blockElems {
			in = 3 * elems
		}
		gate, up := random(r, rows*in, 3), random(r, rows*in, 1)
		w := randomBytes(t, r, p.weight, out*in, 1)
		mp := kernels.GEMMParams{In: uint32(in), Out: out, XStride: uint32(in), YStride: out, Group: 8, RowGroup: 1}
		fused := newSolo(t, kernels.GEMM, []uint32{uint32(p.weight), p.act, decl.InputSiLUMul, 0}, mp, second(0, 0, rows), "b")
		copy(fused.bytes("w"), w)
		fused.fill("x", gate)
		fused.fill("x2", up)

		act := newSolo(t, kernels.SiLUMul, nil, kernels.SiLUMulParams{N: uint32(in), Stride: uint32(in)}, second(0, 0, rows))
		act.fill("gate", gate)
		act.fill("up", up)
		plain := newSolo(t, kernels.GEMM, []uint32{uint32(p.weight), p.act, decl.InputPlain, 0}, mp, second(0, 0, rows), "x2", "b")
		copy(plain.bytes("w"), w)
		plain.fill("x", act.everywhere("out", nil))
		same(t, p.String(), fused.everywhere("y", nil), plain.everywhere("y", nil))
	}
}

// TestNormProductAdd compares a normalised product that is added to y with separate norm, product
// and sum.
func TestNormProductAdd(t *testing.T) {
	r := rand.New(rand.NewPCG(29, 1))
	for _, p := range products {
		for _, out := range []int{5, 12, 300, 530} {
			const rows = 3
			in := 288
			if elems, _ := p.weight.Block(); elems > blockElems {
				in = 3 * elems
			}
			x, factors, b, y := random(r, rows*in, 3), random(r, in, 1), random(r, out, 1), random(r, rows*out, 2)
			w := randomBytes(t, r, p.weight, out*in, 1)
			gp := kernels.GEMVParams{In: uint32(in), Out: uint32(out), XStride: uint32(in), YStride: uint32(out), Group: 8, RowGroup: 1, Eps: 1e-5}
			fused := newSolo(t, kernels.GEMV, []uint32{uint32(p.weight), p.act, decl.InputNorm, 1, 0, decl.OutputAdd}, gp, second(0, 0, rows))
			copy(fused.bytes("w"), w)
			fused.fill("x", x)
			fused.fill("x2", factors)
			fused.fill("b", b)

			norm := newSolo(t, kernels.RMSNorm, nil, kernels.RMSNormParams{N: uint32(in), XRows: rows, Eps: 1e-5}, second(0, 0, rows))
			norm.fill("x", x)
			norm.fill("w", factors)
			plain := newSolo(t, kernels.GEMV, []uint32{uint32(p.weight), p.act, decl.InputPlain, 1}, gp, second(0, 0, rows), "x2")
			copy(plain.bytes("w"), w)
			plain.fill("x", norm.everywhere("out", nil))
			plain.fill("b", b)
			sum := newSolo(t, kernels.Add, nil, kernels.AddParams{N: uint32(out)}, second(0, 0, rows))
			sum.fill("delta", plain.everywhere("y", nil))
			same(t, fmt.Sprintf("%v, %d rows of W", p, out), fused.everywhere("y", y), sum.everywhere("x", y))
		}
	}
}

// TestMergeProduct compares a product of merged splits with attn_merge followed by the product.
func TestMergeProduct(t *testing.T) {
	r := rand.New(rand.NewPCG(35, 1))
	for _, p := range products {
		for _, c := range []struct{ heads, headDim, splits, kvLen, window int }{
			{8, 96, 8, 1000, 0}, {12, 64, 3, 40, 0}, {3, 256, 8, 17, 0}, {24, 32, 5, 700, 90}, {8, 96, 1, 1, 0},
		} {
			const out, span = 12, 16
			in, parts := c.heads*c.headDim, c.heads*c.splits
			part := random(r, parts*(c.headDim+2), 3)
			for i := range parts {
				part[parts*c.headDim+2*i+1] = 1 + r.Float32()
			}
			w, y := randomBytes(t, r, p.weight, out*in, 1), random(r, out, 2)
			gp := kernels.GEMVParams{
				In: uint32(in), Out: out, XStride: uint32(len(part)), YStride: out, Group: 8, RowGroup: 1,
				Heads: uint32(c.heads), HeadDim: uint32(c.headDim), Splits: uint32(c.splits), Span: span, Window: uint32(c.window),
			}
			fused := newSolo(t, kernels.GEMV, []uint32{uint32(p.weight), p.act, decl.InputMerge, 0, 0, decl.OutputAdd}, gp, second(0, c.kvLen, 1), "b")
			copy(fused.bytes("w"), w)
			fused.fill("x", part[:parts*c.headDim])
			fused.fill("x2", part[parts*c.headDim:])

			merge := newSolo(t, kernels.AttnMerge, []uint32{uint32(c.headDim)}, kernels.AttnMergeParams{
				Heads: uint32(c.heads), Splits: uint32(c.splits), Span: span, Window: uint32(c.window),
			}, second(0, c.kvLen, 1))
			merge.fill("part", part)
			gp.XStride = uint32(in)
			plain := newSolo(t, kernels.GEMV, []uint32{uint32(p.weight), p.act, decl.InputPlain, 0, 0, decl.OutputAdd}, gp, second(0, 0, 1), "x2", "b")
			copy(plain.bytes("w"), w)
			plain.fill("x", merge.everywhere("out", nil))
			same(t, fmt.Sprintf("%v, %+v", p, c), fused.everywhere("y", y), plain.everywhere("y", y))
		}
	}
}

func TestSiLUMulStride(t *testing.T) {
	r := rand.New(rand.NewPCG(26, 1))
	const n, stride, rows = 13, 29, 3
	s := newSolo(t, kernels.SiLUMul, nil, kernels.SiLUMulParams{N: n, Stride: stride}, second(0, 0, rows))
	g, u := random(r, (rows-1)*stride+n, 4), random(r, (rows-1)*stride+n, 1)
	s.fill("gate", g)
	s.fill("up", u)
	var want []float64
	for row := range rows {
		for i := range n {
			x := float64(g[row*stride+i])
			want = append(want, x/(1+math.Exp(-x))*float64(u[row*stride+i]))
		}
	}
	near(t, s.everywhere("out", nil), want, 1e-6)
}

func TestArgmax(t *testing.T) {
	nan := float32(math.NaN())
	const ringLen = 3
	for _, c := range []struct {
		logits []float32
		want   uint32
		stop   uint32
	}{
		{[]float32{1, 3, 2, 3, 3, 0}, 1, 0},
		{[]float32{1, 3, 2, 3, 9, 0}, 4, 1},
		{[]float32{nan, 3, nan, 2}, 1, 0},
		{[]float32{nan, nan, nan, nan, nan}, 0, 0},
		{[]float32{nan, minusInf, minusInf}, 1, 0},
		{[]float32{-5}, 0, 0},
		{[]float32{0, 0, 0, 0, 0, 0, 0, 0, 7}, 8, 0},
		{[]float32{nan, nan, nan, nan, -1, nan, nan, -1}, 4, 1},
		{[]float32{nan, nan, nan, nan, nan, minusInf, nan, nan, minusInf}, 5, 0},
		{[]float32{float32(math.Copysign(0, -1)), -1, -2, -3, 0, 0}, 0, 0},
		{[]float32{-2, -1, -2, -3, -1, -1, -1, -1, -4, -1}, 1, 0},
	} {
		for _, at := range []int{2, 50} { // past the ring: the last entry is written
			s := newSolo(t, kernels.Argmax, nil, kernels.ArgmaxParams{N: uint32(len(c.logits)), Ring: ringLen, MaxStops: 2}, second(at, 0, 0))
			s.fill("logits", c.logits)
			putU32s(s.bytes("stops"), math.MaxUint32, 4, 77) // a count past the end is clamped
			step := s.run(fastest(), 3)
			if got := uint32s(s.bytes("tokens"))[2]; got != c.want || step.Count != 1 || step.Stop != c.stop {
				t.Errorf("%v: token %d, stop %d, count %d", c.logits, got, step.Stop, step.Count)
			}

			// The same in parts of 4 logits.
			part := newSolo(t, kernels.ArgmaxPart, nil, kernels.ArgmaxPartParams{N: uint32(len(c.logits)), Part: 4}, second(0, 0, 1))
			part.fill("logits", c.logits)
			part.run(fastest(), 2)
			parts := len(part.f32("out")) / 2
			s = newSolo(t, kernels.Argmax, []uint32{1}, kernels.ArgmaxParams{N: uint32(parts), Ring: ringLen, MaxStops: 2}, second(at, 0, 0))
			copy(s.bytes("logits"), part.bytes("out"))
			putU32s(s.bytes("stops"), 1, 4, 77)
			step = s.run(fastest(), 3)
			if got := uint32s(s.bytes("tokens"))[2]; parts != (len(c.logits)+3)/4 || got != c.want || step.Count != 1 || step.Stop != c.stop {
				t.Errorf("%v in %d parts: token %d, stop %d, count %d", c.logits, parts, got, step.Stop, step.Count)
			}
		}
	}
}
