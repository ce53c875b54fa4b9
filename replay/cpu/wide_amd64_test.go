package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
)

func needWide(tb testing.TB) *wideLoops {
	tb.Helper()
	o := fastest()
	if o.wide == nil {
		tb.Skip("the processor has no AVX-512")
	}
	return o.wide
}

// TestWideScores compares the products of 32 rows of Q with dot.
func TestWideScores(t *testing.T) {
	loops := needWide(t)
	r := rand.New(rand.NewPCG(61, 1))
	for _, d := range []int{32, 64, 96, 128, 256} {
		for _, n := range []int{1, 4, 7, 16, attnBlock} {
			whole := (n + 3) &^ 3
			k, rows := guardedFloats(t, random(r, whole*d, 1)), guardedFloats(t, random(r, attnRows*d, 1))
			q, out := guardedFloats(t, make([]float32, attnRows*d)), guardedFloats(t, make([]float32, attnRows*attnBlock))
			for i := 0; i < attnRows; i += wideLanes {
				loops.transpose(q[i*d:], rows[i*d:], d)
			}
			loops.scores(out, k, n, d, q, guardedFloats(t, make([]float32, 16*wideLanes)))
			for i := range attnRows {
				for p := range n {
					got, want := out[i/wideLanes*wideLanes*attnBlock+p*wideLanes+i%wideLanes], dot(rows[i*d:][:d], k[p*d:][:d])
					if math.Float32bits(got) != math.Float32bits(want) {
						t.Fatalf("%d rows of %d elements: row %d of Q, row %d of K: %v, want %v", n, d, i, p, got, want)
					}
				}
			}
		}
	}
}

// TestWideSoften compares the softmax of 16 rows, which see different numbers of positions, with that of single
// rows, also with scores that are infinite or NaN.
func TestWideSoften(t *testing.T) {
	loops := needWide(t)
	r := rand.New(rand.NewPCG(62, 1))
	odd := []float32{float32(math.Inf(1)), minusInf, float32(math.NaN()), 0, float32(math.Copysign(0, -1)), -1e30}
	equal := func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b }
	reference := portable()
	for i := range 600 {
		n, rows, d, scale := 1+r.IntN(attnBlock), 1+r.IntN(wideLanes), []int{32, 64, 96}[r.IntN(3)], float32(0.3)
		scores, seen := guardedFloats(t, random(r, attnBlock*wideLanes, 30)), make([]int32, wideLanes)
		if i%4 == 0 {
			for range 8 {
				scores[r.IntN(n*wideLanes)] = odd[r.IntN(len(odd))]
			}
		}
		least := n
		for j := range seen {
			seen[j] = int32(n)
			if i%2 == 0 && j < rows {
				seen[j] = int32(r.IntN(n + 1))
				least = min(least, int(seen[j]))
			}
		}
		top, sum := guardedFloats(t, random(r, wideLanes, 30)), guardedFloats(t, random(r, wideLanes, 5))
		acc := guardedFloats(t, random(r, rows*d, 1))
		if i%3 == 0 {
			top[0], sum[0] = minusInf, 0
			top[rows-1] = odd[r.IntN(len(odd))]
		}
		before, tops, sums, accs := slices.Clone(scores), slices.Clone(top), slices.Clone(sum), slices.Clone(acc)
		loops.soften(scores, n, least, seen, scale, rows, top, sum, acc, d)
		for j := range wideLanes {
			row, see := make([]float32, attnBlock), int(seen[j])
			if j >= rows {
				if !equal(top[j], tops[j]) || !equal(sum[j], sums[j]) {
					t.Fatalf("round %d: lane %d, which is not in use, changed", i, j)
				}
				continue
			}
			for p := range see {
				row[p] = before[p*wideLanes+j]
			}
			want := accs[j*d:][:d]
			if see > 0 {
				reference.soften(row, see, scale, tops[j:j+1], sums[j:j+1], want, d)
			}
			ok := equal(top[j], tops[j]) && equal(sum[j], sums[j]) && slices.EqualFunc(acc[j*d:][:d], want, equal)
			for p := range (n + 15) &^ 15 {
				ok = ok && equal(scores[p*wideLanes+j], row[p])
			}
			if !ok {
				t.Fatalf("round %d: %d positions, lane %d sees %d: maximum %v, sum %v; want %v, %v", i, n, j, see, top[j], sum[j], tops[j], sums[j])
			}
		}
	}
}

// TestWideValues compares the conversions of K and V and the weighted sums with those for few rows.
func TestWideValues(t *testing.T) {
	loops := needWide(t)
	r := rand.New(rand.NewPCG(63, 1))
	reference := portable()
	for _, d := range []int{32, 64, 96, 128, 160} {
		for rows := 1; rows <= wideLanes; rows++ {
			m := 1 + r.IntN(attnBlock)
			v := randomBytes(t, r, dtype.F16, m*d, 1)
			wide, weights := guardedFloats(t, make([]float32, m*d)), guardedFloats(t, random(r, (m-1)*wideLanes+rows, 1))
			loops.widenF16(wide, v)
			want := random(r, rows*d, 1)
			got := guardedFloats(t, want)
			loops.addScaled(got, d, wide, m, weights)
			w := make([]float32, rows*attnBlock)
			for i := range rows {
				for p := range m {
					w[i*attnBlock+p] = weights[p*wideLanes+i]
				}
			}
			reference.addScaledF16(want, d, v, m, w, attnBlock)
			same(t, fmt.Sprintf("%d rows of %d elements, %d of V", rows, d, m), got, want)
		}
		q, scales := make([]byte, 5*d), random(r, 5*d/decl.KVBlock, 1)
		for i := range q {
			q[i] = byte(r.IntN(255) - 127)
		}
		got, want := guardedFloats(t, make([]float32, len(q))), make([]float32, len(q))
		loops.widenQ8(got, q, scales)
		kvQ8(want, int8s(q), scales)
		same(t, fmt.Sprintf("int8, rows of %d", d), got, want)
	}
}

// TestAttnWide checks that a chunk of many rows is computed with wideLoops, and that its rows have the bits of the
// other loops: with windows, which begin within a block, with groups of heads that do not fill the vectors, and
// with several parts.
func TestAttnWide(t *testing.T) {
	needWide(t)
	r := rand.New(rand.NewPCG(64, 1))
	for _, c := range bothKinds([]attnCase{
		{8, 4, 64, 1024, 0, 1, 1, 200, 1, 0},
		{8, 4, 128, 1024, 0, 1, 130, 100, 1, 0},
		{4, 4, 32, 700, 200, 1, 250, 400, 1, 0},
		{14, 2, 64, 1024, 0, 1, 60, 90, 1, 0},
		{40, 2, 32, 1024, 0, 1, 60, 40, 1, 0},
		{10, 2, 96, 1024, 0, 1, 900, 90, 1, 0},
		{6, 2, 160, 300, 33, 1, 70, 100, 1, 0},
	}) {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			s := c.solo(t, r)
			o := fastest()
			loops, blocks := *o.wide, 0
			loops.soften = func(scores []float32, n, least int, seen []int32, scale float32, rows int, top, sum, acc []float32, d int) {
				blocks++
				o.wide.soften(scores, n, least, seen, scale, rows, top, sum, acc, d)
			}
			with, without := *o, *o
			with.wide, without.wide = &loops, nil
			s.run(&with, 1)
			got := slices.Clone(s.f32("out"))
			s.run(&without, 1)
			same(t, "the loops for few rows", got, s.f32("out"))
			if blocks == 0 {
				t.Error("no block was computed with wide loops")
			}
		})
	}
}
