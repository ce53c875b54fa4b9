package cpu

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/kernels"
)

func TestRoPE(t *testing.T) {
	r := rand.New(rand.NewPCG(30, 1))
	for _, layout := range []uint32{decl.LayoutHalf, decl.LayoutInterleaved} {
		const heads, headDim, half, rows, stride = 3, 20, 7, 2, 67
		s := newSolo(t, kernels.RoPE, []uint32{headDim, layout}, kernels.RoPEParams{Heads: heads, Stride: stride, Half: half}, second(0, 0, rows))
		x, angles := random(r, (rows-1)*stride+heads*headDim, 1), random(r, rows*half*2, 1)
		s.fill("angles", angles)
		want := widen(x)
		for row := range rows {
			for h := range heads {
				head, in := want[row*stride+h*headDim:], widen(x)[row*stride+h*headDim:]
				for i := range half {
					a, b := i, i+half
					if layout == decl.LayoutInterleaved {
						a, b = 2*i, 2*i+1
					}
					c, sn := float64(angles[2*(row*half+i)]), float64(angles[2*(row*half+i)+1])
					head[a], head[b] = in[a]*c-in[b]*sn, in[b]*c+in[a]*sn
				}
			}
		}
		near(t, s.everywhere("x", x), want, 1e-6)
	}
}

func TestHeadNorm(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 1))
	for _, d := range []int{8, 50, 64} {
		const heads, rows = 3, 2
		stride := heads*d + 5
		s := newSolo(t, kernels.HeadNorm, []uint32{uint32(d)}, kernels.HeadNormParams{Heads: heads, Stride: uint32(stride), Eps: 1e-6}, second(0, 0, rows))
		x, w := random(r, (rows-1)*stride+heads*d, 1), random(r, d, 1)
		s.fill("w", w)
		want := widen(x)
		for row := range rows {
			for h := range heads {
				at := row*stride + h*d
				copy(want[at:], refNorm(widen(x[at:][:d]), w, 1e-6))
			}
		}
		near(t, s.everywhere("x", x), want, 2e-6)
	}
}

// TestQKRoPEKV compares the fused kernel with head_norm, rope and kv_write, on a cache that wraps
// around.
func TestQKRoPEKV(t *testing.T) {
	r := rand.New(rand.NewPCG(32, 1))
	for _, norm := range []uint32{0, 1} {
		for _, layout := range []uint32{decl.LayoutHalf, decl.LayoutInterleaved} {
			const heads, kvHeads, d, half, rows, capacity, kvLen = 4, 2, 36, 13, 5, 7, 12
			const stride = (heads+2*kvHeads)*d + 3
			qkv := random(r, rows*stride, 1)
			part := func(from, n int) []float32 { return qkv[from*d:][:(rows-1)*stride+n*d] }
			angles, norms := random(r, rows*half*2, 1), random(r, 2*d, 1)
			fused := newSolo(t, kernels.QKRoPEKV, []uint32{d, layout, norm},
				kernels.QKRoPEKVParams{Heads: heads, KVHeads: kvHeads, QStride: stride, KStride: stride, VStride: stride, Half: half, Cap: capacity, Eps: 1e-5, HeadGroup: 1},
				second(0, kvLen, rows), []string{"norm"}[:1-norm]...)
			fused.fill("q", part(0, heads))
			fused.fill("k", part(heads, kvHeads))
			fused.fill("v", part(heads+kvHeads, kvHeads))
			fused.fill("angles", angles)
			if norm == 1 {
				fused.fill("norm", norms)
			}
			got := fused.everywhere("q_out", nil)

			turned := func(x []float32, n int, w []float32) []float32 {
				if norm == 1 {
					s := newSolo(t, kernels.HeadNorm, []uint32{d}, kernels.HeadNormParams{Heads: uint32(n), Stride: stride, Eps: 1e-5}, second(0, 0, rows))
					s.fill("w", w)
					x = s.everywhere("x", x)
				}
				s := newSolo(t, kernels.RoPE, []uint32{d, layout}, kernels.RoPEParams{Heads: uint32(n), Stride: stride, Half: half}, second(0, 0, rows))
				s.fill("angles", angles)
				return s.everywhere("x", x)
			}
			q := turned(part(0, heads), heads, norms[:d])
			for row := range rows {
				same(t, fmt.Sprintf("row %d", row), got[row*heads*d:][:heads*d], q[row*stride:][:heads*d])
			}
			write := newSolo(t, kernels.KVWrite, []uint32{d}, kernels.KVWriteParams{KVHeads: kvHeads, KStride: stride, VStride: stride, Cap: capacity}, second(0, kvLen, rows))
			write.fill("k", turned(part(heads, kvHeads), kvHeads, norms[d:]))
			write.fill("v", part(heads+kvHeads, kvHeads))
			write.run(portable(), 2)
			for _, cache := range []string{"k_cache", "v_cache"} {
				if !bytes.Equal(fused.bytes(cache), write.bytes(cache)) {
					t.Errorf("%s differs", cache)
				}
			}
			// V of row r must be at (kvLen-1+r) mod capacity, and nowhere else.
			for h := range kvHeads {
				for at := range capacity {
					row := (at - (kvLen - 1) + 10*capacity) % capacity
					for i := range d {
						var want uint16
						if row < rows {
							want = dtype.F32ToF16(part(heads+kvHeads, kvHeads)[row*stride+h*d+i])
						}
						off := 2 * ((h*capacity+at)*d + i)
						if b := write.bytes("v_cache"); uint16(b[off])|uint16(b[off+1])<<8 != want {
							t.Fatalf("head %d, cache row %d, element %d", h, at, i)
						}
					}
				}
			}
		}
	}
}

// attnSpan is the smallest number of positions per split.
const attnSpan = 20

// attnCase is one command of attention.
type attnCase struct {
	heads, kvHeads, d, capacity, window, splits, kvLen, rows int
	scale                                                    float64 // of the cached values
	kv                                                       uint32  // element type of the cache
}

// random fills a cache with random values.
func (c attnCase) random(t *testing.T, r *rand.Rand, cache []byte, scale float64) {
	t.Helper()
	if c.kv == decl.KVF16 {
		copy(cache, randomBytes(t, r, dtype.F16, c.kvHeads*c.capacity*c.d, scale))
		return
	}
	n := c.kvHeads * c.capacity * c.d
	for i := range n {
		cache[i] = byte(r.IntN(255) - 127)
	}
	copy(cache[n:], randomBytes(t, r, dtype.F16, n/32, scale/64))
}

// values returns the content of a cache as numbers.
func (c attnCase) values(t *testing.T, cache []byte) []float64 {
	t.Helper()
	if c.kv == decl.KVF16 {
		return dequantized(t, dtype.F16, cache)
	}
	n := c.kvHeads * c.capacity * c.d
	x, scales := make([]float64, n), dequantized(t, dtype.F16, cache[n:])
	for i := range x {
		x[i] = float64(int8(cache[i])) * scales[i/32]
	}
	return x
}

func (c attnCase) solo(t *testing.T, r *rand.Rand) *solo {
	t.Helper()
	qStride := c.heads*c.d + 1
	s := newSolo(t, kernels.Attn, []uint32{uint32(c.d), uint32(min(c.window, 1)), uint32(min(c.splits-1, 1)), c.kv}, kernels.AttnParams{
		Heads: uint32(c.heads), KVHeads: uint32(c.kvHeads), QStride: uint32(qStride), Cap: uint32(c.capacity), Window: uint32(c.window),
		Span: attnSpan, Splits: uint32(c.splits), Scale: float32(1 / math.Sqrt(float64(c.d))), HeadGroup: 1,
	}, second(0, c.kvLen, c.rows), "turn")
	s.fill("q", random(r, (c.rows-1)*qStride+c.heads*c.d, c.scale))
	c.random(t, r, s.bytes("k_cache"), c.scale)
	c.random(t, r, s.bytes("v_cache"), 1)
	return s
}

// reference computes the attention in float64.
func (c attnCase) reference(t *testing.T, s *solo) []float64 {
	k, v := c.values(t, s.bytes("k_cache")), c.values(t, s.bytes("v_cache"))
	q := widen(s.f32("q"))
	var out []float64
	for r := range c.rows {
		for h := range c.heads {
			q := q[r*(c.heads*c.d+1)+h*c.d:][:c.d]
			end := c.kvLen + r
			begin := 0
			if c.window > 0 {
				begin = max(0, end-c.window)
			}
			acc := make([]float64, c.d)
			var sum float64
			top := math.Inf(-1)
			scores := make([]float64, end-begin)
			row := func(p int) int { return ((h/(c.heads/c.kvHeads))*c.capacity + p%c.capacity) * c.d }
			for p := begin; p < end; p++ {
				for i := range c.d {
					scores[p-begin] += q[i] * k[row(p)+i]
				}
				scores[p-begin] /= math.Sqrt(float64(c.d))
				top = max(top, scores[p-begin])
			}
			for p := begin; p < end; p++ {
				w := math.Exp(scores[p-begin] - top)
				sum += w
				for i := range c.d {
					acc[i] += w * v[row(p)+i]
				}
			}
			for _, a := range acc {
				out = append(out, a/sum)
			}
		}
	}
	return out
}

// bothKinds returns each case with a float16 cache and, if its heads consist of whole blocks,
// also with an int8 cache.
func bothKinds(list []attnCase) []attnCase {
	for _, c := range list {
		if c.d%decl.KVBlock == 0 {
			c.kv = decl.KVQ8
			list = append(list, c)
		}
	}
	return list
}

func TestAttn(t *testing.T) {
	r := rand.New(rand.NewPCG(33, 1))
	for _, c := range bothKinds([]attnCase{
		{1, 1, 8, 1024, 0, 1, 1, 1, 1, 0},
		{4, 2, 64, 1024, 0, 1, 200, 3, 1, 0},
		{6, 2, 80, 1024, 0, 1, 129, 2, 2, 0},
		{3, 1, 20, 1024, 0, 1, 63, 4, 1, 0},
		{2, 2, 128, 1024, 0, 1, 1000, 1, 3, 0},
		{4, 2, 32, 70, 50, 1, 300, 5, 1, 0}, // wraps around in the middle of a block
		{4, 2, 32, 70, 50, 1, 20, 5, 1, 0},  // the window is longer than the context so far
		{4, 2, 64, 1024, 0, 4, 700, 3, 1, 0},
		{4, 1, 48, 1024, 0, 8, 5, 2, 1, 0}, // most splits are empty
		{2, 1, 32, 200, 130, 4, 500, 3, 1, 0},
		{4, 2, 40, 90, 60, 3, 300, 20, 1, 0}, // two of three splits are used
		{4, 2, 64, 1024, 0, 8, 158, 5, 1, 0}, // rows whose splits differ
		{4, 2, 48, 70, 5, 1, 50, 30, 1, 0},
		{6, 1, 32, 200, 100, 1, 155, 70, 1, 0},
		{40, 2, 16, 1024, 0, 1, 60, 9, 1, 0},
		{4, 1, 64, 2048, 0, 1, 2000, 1, 1, 0}, // more parts than workers
		{6, 2, 80, 1024, 0, 1, 257, 1, 1, 0},
	}) {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			s := c.solo(t, r)
			got := s.everywhere("out", nil)
			tol := 4e-6
			if c.splits > 1 {
				m := newSolo(t, kernels.AttnMerge, []uint32{uint32(c.d)}, kernels.AttnMergeParams{
					Heads: uint32(c.heads), Splits: uint32(c.splits), Span: attnSpan, Window: uint32(c.window),
				}, second(0, c.kvLen, c.rows))
				m.fill("part", got)
				got = m.everywhere("out", nil)
			}
			near(t, got, c.reference(t, s), tol)
		})
	}
}

// TestAttnRows checks that a row's result does not depend on the chunk.
func TestAttnRows(t *testing.T) {
	r := rand.New(rand.NewPCG(34, 1))
	for _, c := range bothKinds([]attnCase{
		{4, 2, 64, 1024, 0, 1, 120, 20, 1, 0},
		{4, 2, 40, 90, 60, 1, 300, 20, 1, 0},
		{4, 2, 48, 70, 5, 1, 50, 30, 1, 0}, // rows without common visible positions
		{6, 1, 32, 200, 100, 1, 155, 70, 1, 0},
		{2, 2, 64, 1024, 0, 1, 1, 150, 1, 0},
		{40, 2, 16, 1024, 0, 1, 60, 9, 1, 0}, // more heads than are computed together
		// Rows with several parts, which several workers compute if they are alone.
		{4, 1, 64, 1024, 0, 1, 250, 20, 1, 0},
		{6, 2, 80, 2048, 0, 1, 1020, 10, 1, 0},
		{40, 2, 32, 1024, 0, 1, 500, 20, 1, 0},
		{4, 1, 96, 800, 600, 1, 1000, 40, 1, 0},
		{4, 2, 32, 150, 90, 5, 300, 50, 1, 0},
		{4, 2, 64, 1024, 0, 5, 250, 9, 1, 0},
	}) {
		s := c.solo(t, r)
		got := s.everywhere("out", nil)
		size := len(got) / c.rows
		for row := 0; row < c.rows; row += exhaustive.Pick(1, 4) {
			one := c
			one.rows, one.kvLen = 1, c.kvLen+row
			o := one.solo(t, r)
			o.fill("q", s.f32("q")[row*(c.heads*c.d+1):][:c.heads*c.d])
			copy(o.bytes("k_cache"), s.bytes("k_cache"))
			copy(o.bytes("v_cache"), s.bytes("v_cache"))
			same(t, fmt.Sprintf("%v, row %d", c, row), o.everywhere("out", nil), got[row*size:][:size])
		}
	}
}

// TestAttnParts checks that a row with attention sinks, with learned logits or with a window has the same result
// alone, where several workers compute its parts, and in a chunk, whose rows see different parts.
func TestAttnParts(t *testing.T) {
	r := rand.New(rand.NewPCG(36, 1))
	const heads, kvHeads, d, half, capacity, qStride = 6, 2, 32, 8, 1024, 6 * 32
	for _, c := range []struct {
		window, first  uint32
		learned        uint32
		kvLen, rows    int
		sinks, windows uint32
	}{
		{learned: 1, kvLen: 500, rows: 30},
		{window: 300, windows: 1, first: 5, sinks: 1, kvLen: 550, rows: 30}, // windows that begin before and behind a part
		{window: 300, windows: 1, first: 5, sinks: 1, learned: 1, kvLen: 3, rows: 20},
		{window: 600, windows: 1, first: 70, sinks: 1, learned: 1, kvLen: 800, rows: 90},
	} {
		make := func(kvLen, rows int) *solo {
			return newSolo(t, kernels.Attn, []uint32{d, c.windows, 0, decl.KVF16, c.sinks, decl.LayoutHalf, c.learned}, kernels.AttnParams{
				Heads: heads, KVHeads: kvHeads, QStride: qStride, Cap: capacity, Window: c.window, Splits: 1,
				Scale: float32(1 / math.Sqrt(d)), HeadGroup: 1, First: c.first, Half: half,
			}, second(0, kvLen, rows), absent(c.sinks == 0, "turn", c.learned == 0, "logits")...)
		}
		s := make(c.kvLen, c.rows)
		s.fill("q", random(r, (c.rows-1)*qStride+heads*d, 1))
		for _, cache := range []string{"k_cache", "v_cache"} {
			attnCase{kvHeads: kvHeads, d: d, capacity: capacity}.random(t, r, s.bytes(cache), 1)
		}
		if c.sinks != 0 {
			s.fill("turn", random(r, c.rows*2*half, 1))
		}
		if c.learned != 0 {
			s.fill("logits", random(r, heads, 1))
		}
		got := s.everywhere("out", nil)
		size := len(got) / c.rows
		for row := range c.rows {
			o := make(c.kvLen+row, 1)
			o.fill("q", s.f32("q")[row*qStride:][:heads*d])
			copy(o.bytes("k_cache"), s.bytes("k_cache"))
			copy(o.bytes("v_cache"), s.bytes("v_cache"))
			if c.sinks != 0 {
				o.fill("turn", s.f32("turn")[row*2*half:][:2*half])
			}
			if c.learned != 0 {
				o.fill("logits", s.f32("logits"))
			}
			same(t, fmt.Sprintf("%+v, row %d", c, row), o.everywhere("out", nil), got[row*size:][:size])
		}
	}
}

// absent returns the names whose condition holds.
func absent(a bool, nameA string, b bool, nameB string) (names []string) {
	if a {
		names = append(names, nameA)
	}
	if b {
		names = append(names, nameB)
	}
	return names
}

// TestKVQ8 writes K and V as int8. Each element must be within half a step, zeros must stay zero,
// nothing else may be written, and the fused kernel must write the same.
func TestKVQ8(t *testing.T) {
	r := rand.New(rand.NewPCG(35, 1))
	const heads, kvHeads, d, rows, capacity, kvLen = 4, 2, 96, 5, 7, 12
	const stride = (heads+2*kvHeads)*d + 3
	qkv := random(r, rows*stride, 3)
	part := func(from, n int) []float32 { return qkv[from*d:][:(rows-1)*stride+n*d] }
	k, v := part(heads, kvHeads), part(heads+kvHeads, kvHeads)
	clear(v[stride+d+32:][:32]) // a block of zeros
	s := newSolo(t, kernels.KVWrite, []uint32{d, decl.KVQ8}, kernels.KVWriteParams{KVHeads: kvHeads, KStride: stride, VStride: stride, Cap: capacity}, second(0, kvLen, rows))
	s.fill("k", k)
	s.fill("v", v)
	for _, o := range implementations() {
		clear(s.bytes("k_cache"))
		clear(s.bytes("v_cache"))
		s.run(o, 2)
		c := attnCase{kvHeads: kvHeads, d: d, capacity: capacity, kv: decl.KVQ8}
		for name, x := range map[string][]float32{"k_cache": k, "v_cache": v} {
			got := c.values(t, s.bytes(name))
			for h := range kvHeads {
				for at := range capacity {
					row := (at - (kvLen - 1) + 10*capacity) % capacity
					for i := range d {
						g := got[(h*capacity+at)*d+i]
						if row >= rows {
							if g != 0 {
								t.Fatalf("%s: head %d, cache row %d is written", name, h, at)
							}
							continue
						}
						head := x[row*stride+h*d:][:d]
						var most float64
						for _, e := range head[i/32*32:][:32] {
							most = max(most, math.Abs(float64(e)))
						}
						if e := math.Abs(g - float64(head[i])); e > most*(0.5/127+1.0/2048) {
							t.Fatalf("%s: head %d, cache row %d, element %d: %v, want %v", name, h, at, i, g, head[i])
						}
					}
				}
			}
		}
	}
	const half = d / 2
	angles := make([]float32, rows*half*2)
	for i := range rows * half {
		angles[2*i] = 1 // a rotation by 0
	}
	fused := newSolo(t, kernels.QKRoPEKV, []uint32{d, decl.LayoutHalf, 0, decl.KVQ8},
		kernels.QKRoPEKVParams{Heads: heads, KVHeads: kvHeads, QStride: stride, KStride: stride, VStride: stride, Half: half, Cap: capacity, Eps: 1e-5, HeadGroup: 1},
		second(0, kvLen, rows), "norm")
	fused.fill("q", part(0, heads))
	fused.fill("k", k)
	fused.fill("v", v)
	fused.fill("angles", angles)
	fused.run(fastest(), 3)
	for _, cache := range []string{"k_cache", "v_cache"} {
		if !bytes.Equal(fused.bytes(cache), s.bytes(cache)) {
			t.Errorf("%s differs with fusion", cache)
		}
	}
}

func TestFairRow(t *testing.T) {
	for rows := 1; rows < 9; rows++ {
		var seen []int
		for i := range rows {
			seen = append(seen, fairRow(i, rows))
		}
		slices.Sort(seen)
		for i, r := range seen {
			if i != r {
				t.Errorf("%d rows: %v", rows, seen)
			}
		}
	}
}
