package cpu

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// shape holds the sizes of a transformer.
type shape struct {
	vocab, width, layers, heads, kvHeads, headDim, ffn, ctx, chunk int
	splits                                                         int // 0: unsplit attention
	window                                                         int // 0: all positions
	weight                                                         dtype.Type
	act                                                            uint32
	fused                                                          bool
}

// gopherShape has the sizes of testdata/gopher.
var gopherShape = shape{
	vocab: 4096, width: 256, layers: 8, heads: 4, kvHeads: 2, headDim: 64, ffn: 704, ctx: 1024, chunk: 128,
	weight: dtype.Q8_0, act: decl.ActQ8, fused: true,
}

// smallShape has odd sizes and a cache that wraps around.
var smallShape = shape{
	vocab: 300, width: 96, layers: 2, heads: 6, kvHeads: 2, headDim: 32, ffn: 160, ctx: 256, chunk: 16,
	weight: dtype.Q8_0, act: decl.ActQ8, fused: true,
}

// arena allocates offsets in the scratch slot.
type arena struct{ size int }

func (a *arena) take(floats int) at {
	p := at{"scratch", a.size}
	a.size += (4*floats + 63) &^ 63
	return p
}

// transformer returns the table of a whole model with random weights: Llama with QK norm, fused
// or not.
func transformer(tb testing.TB, s shape) *builder {
	tb.Helper()
	b := newBuilder(tb, s.vocab, s.width, s.ctx, s.chunk, 4)
	r := rand.New(rand.NewPCG(11, 12))
	qkv := (s.heads + 2*s.kvHeads) * s.headDim
	capacity := s.ctx
	if s.window > 0 {
		capacity = s.window + s.chunk
	}
	matrix := func(name string, out, in int) {
		b.weight(name, s.weight, randomBytes(tb, r, s.weight, out*in, 1/math.Sqrt(float64(in))))
	}
	norm := func(name string, n int) {
		w := random(r, n, 0.1)
		for i := range w {
			w[i]++
		}
		b.weight(name, dtype.F32, bytesOf(tb, w))
	}
	matrix("embd", s.vocab, s.width)
	norm("output_norm", s.width)
	freq := make([]float32, s.headDim/2)
	for i := range freq {
		freq[i] = float32(math.Pow(10000, -2*float64(i)/float64(s.headDim)))
	}
	b.weight("freq", dtype.F32, bytesOf(tb, freq))
	for l := range s.layers {
		p := fmt.Sprintf("l%d.", l)
		norm(p+"attn_norm", s.width)
		matrix(p+"qkv", qkv, s.width)
		norm(p+"qk_norm", 2*s.headDim)
		matrix(p+"o", s.width, s.heads*s.headDim)
		norm(p+"ffn_norm", s.width)
		matrix(p+"gate_up", 2*s.ffn, s.width)
		matrix(p+"down", s.width, s.ffn)
		for _, kv := range []string{"k", "v"} {
			b.slot(p+kv, table.SlotKV, table.ScopeSession, s.kvHeads*capacity*s.headDim*2)
		}
	}
	var a arena
	x, h, ang := a.take(s.chunk*s.width), a.take(s.chunk*s.width), a.take(s.chunk*s.headDim)
	qkvAt, q, att := a.take(s.chunk*qkv), a.take(s.chunk*s.heads*s.headDim), a.take(s.chunk*s.heads*s.headDim)
	parts := a.take(s.chunk * s.heads * max(s.splits, 1) * (s.headDim + 2))
	ff, mul := a.take(s.chunk*2*s.ffn), a.take(s.chunk*s.ffn)
	b.slot("scratch", table.SlotScratch, table.ScopeExecutor, a.size)
	b.program(table.ProgramDecode, 1)
	s.forward(b, 1, capacity, x, h, ang, qkvAt, q, att, parts, ff, mul)
	s.head(b, x, h, 1)
	b.program(table.ProgramPrefill, s.chunk)
	s.forward(b, s.chunk, capacity, x, h, ang, qkvAt, q, att, parts, ff, mul)
	b.program(table.ProgramHead, 1)
	s.head(b, x, h, s.chunk)
	return b
}

// head adds norm, logits and argmax of one row of x.
func (s shape) head(b *builder, x, h at, xRows int) {
	row := map[int]uint32{decl.SecondRows: 1}
	patch := table.PatchRow
	if xRows == 1 {
		patch = table.PatchNone
	}
	b.cmd(kernels.RMSNorm, nil, kernels.RMSNormParams{N: uint32(s.width), XRows: uint32(xRows), Eps: 1e-5}, patch, row,
		x, at{"output_norm", 0}, h)
	b.cmd(kernels.GEMV, []uint32{uint32(s.weight), s.act},
		kernels.GEMVParams{In: uint32(s.width), Out: uint32(s.vocab), XStride: uint32(s.width), YStride: uint32(s.vocab), Group: 8, RowGroup: 1}, table.PatchNone, row,
		h, at{}, at{"embd", 0}, at{}, at{"logits", 0})
	b.cmd(kernels.Argmax, nil, kernels.ArgmaxParams{N: uint32(s.vocab), Ring: uint32(s.ctx + 1), MaxStops: 4}, table.PatchArgmax, nil,
		at{"logits", 0}, at{"stops", 0}, at{"tokens", 0})
}

func (s shape) forward(b *builder, rows, capacity int, x, h, ang, qkvAt, q, att, parts, ff, mul at) {
	half, qkv := s.headDim/2, (s.heads+2*s.kvHeads)*s.headDim
	second := map[int]uint32{decl.SecondRows: uint32(rows), decl.SecondKVLen: 1}
	withRows := func(p table.Patch) table.Patch {
		if rows > 1 {
			return p | table.PatchRows
		}
		return p
	}
	product := map[int]uint32{decl.SecondRows: uint32(rows)}
	matmul := func(w string, in, out, xStride int, x, x2, y at, input uint32) {
		p := kernels.GEMVParams{In: uint32(in), Out: uint32(out), XStride: uint32(xStride), YStride: uint32(out), Group: 8, RowGroup: 1}
		spec := []uint32{uint32(s.weight), s.act, input}
		if rows > 1 {
			b.cmd(kernels.GEMM, spec, kernels.GEMMParams(p), table.PatchRows, product, x, x2, at{w, 0}, at{}, y)
		} else {
			b.cmd(kernels.GEMV, spec, p, table.PatchNone, product, x, x2, at{w, 0}, at{}, y)
		}
	}
	b.cmd(kernels.Embed, []uint32{uint32(s.weight)}, kernels.EmbedParams{N: uint32(s.width), Vocab: uint32(s.vocab), Ring: uint32(s.ctx + 1), Scale: 1},
		withRows(table.PatchToken), second, at{"tokens", 0}, at{"embd", 0}, x)
	b.cmd(kernels.RoPEAngles, nil, kernels.RoPEAnglesParams{Half: uint32(half), AttnFactor: 1}, withRows(table.PatchPosition), second,
		at{"freq", 0}, at{}, ang)
	addNorm := func(delta at, w string) {
		if s.fused {
			b.cmd(kernels.AddRMSNorm, nil, kernels.AddRMSNormParams{N: uint32(s.width), Eps: 1e-5}, withRows(0), second, x, delta, at{w, 0}, h)
			return
		}
		b.cmd(kernels.Add, nil, kernels.AddParams{N: uint32(s.width)}, withRows(0), second, x, delta)
		b.cmd(kernels.RMSNorm, nil, kernels.RMSNormParams{N: uint32(s.width), XRows: uint32(rows), Eps: 1e-5}, withRows(0), second, x, at{w, 0}, h)
	}
	kAt, vAt := at{"scratch", qkvAt.offset + 4*s.heads*s.headDim}, at{"scratch", qkvAt.offset + 4*(s.heads+s.kvHeads)*s.headDim}
	for l := range s.layers {
		p := fmt.Sprintf("l%d.", l)
		if l == 0 {
			b.cmd(kernels.RMSNorm, nil, kernels.RMSNormParams{N: uint32(s.width), XRows: uint32(rows), Eps: 1e-5}, withRows(0), second, x, at{p + "attn_norm", 0}, h)
		} else {
			addNorm(mul, p+"attn_norm")
		}
		matmul(p+"qkv", s.width, qkv, s.width, h, at{}, qkvAt, 0)
		qFrom, qStride := q, s.heads*s.headDim
		if s.fused {
			b.cmd(kernels.QKRoPEKV, []uint32{uint32(s.headDim), decl.LayoutHalf, 1},
				kernels.QKRoPEKVParams{Heads: uint32(s.heads), KVHeads: uint32(s.kvHeads), QStride: uint32(qkv), KStride: uint32(qkv), VStride: uint32(qkv), Half: uint32(half), Cap: uint32(capacity), Eps: 1e-5, HeadGroup: 1},
				withRows(table.PatchKVLen), second, qkvAt, kAt, vAt, ang, at{p + "qk_norm", 0}, q, at{p + "k", 0}, at{p + "v", 0})
		} else {
			qFrom, qStride = qkvAt, qkv
			for i, heads := range []int{s.heads, s.kvHeads} {
				from := []at{qkvAt, kAt}[i]
				b.cmd(kernels.HeadNorm, []uint32{uint32(s.headDim)}, kernels.HeadNormParams{Heads: uint32(heads), Stride: uint32(qkv), Eps: 1e-5}, withRows(0), second,
					from, at{p + "qk_norm", 4 * i * s.headDim})
				b.cmd(kernels.RoPE, []uint32{uint32(s.headDim), decl.LayoutHalf}, kernels.RoPEParams{Heads: uint32(heads), Stride: uint32(qkv), Half: uint32(half)}, withRows(0), second,
					from, ang)
			}
			b.cmd(kernels.KVWrite, []uint32{uint32(s.headDim)}, kernels.KVWriteParams{KVHeads: uint32(s.kvHeads), KStride: uint32(qkv), VStride: uint32(qkv), Cap: uint32(capacity)},
				withRows(table.PatchKVLen), second, kAt, vAt, at{p + "k", 0}, at{p + "v", 0})
		}
		ap := kernels.AttnParams{Heads: uint32(s.heads), KVHeads: uint32(s.kvHeads), QStride: uint32(qStride), Cap: uint32(capacity),
			Window: uint32(s.window), Span: uint32((s.ctx + 63) / 64 * 64), Splits: 1, Scale: float32(1 / math.Sqrt(float64(s.headDim))), HeadGroup: 1}
		windowed := uint32(min(s.window, 1))
		if s.splits > 0 {
			ap.Splits, ap.Span = uint32(s.splits), 16
			b.cmd(kernels.Attn, []uint32{uint32(s.headDim), windowed, 1}, ap, withRows(table.PatchKVLen), second, qFrom, at{p + "k", 0}, at{p + "v", 0}, parts)
			b.cmd(kernels.AttnMerge, []uint32{uint32(s.headDim)}, kernels.AttnMergeParams{Heads: uint32(s.heads), Splits: uint32(s.splits), Span: 16, Window: uint32(s.window)},
				withRows(table.PatchKVLen), second, parts, att)
		} else {
			b.cmd(kernels.Attn, []uint32{uint32(s.headDim), windowed, 0}, ap, withRows(table.PatchKVLen), second, qFrom, at{p + "k", 0}, at{p + "v", 0}, att)
		}
		matmul(p+"o", s.heads*s.headDim, s.width, s.heads*s.headDim, att, at{}, h, 0)
		// The product's output is in the place of h, which the norm then overwrites.
		b.cmd(kernels.Add, nil, kernels.AddParams{N: uint32(s.width)}, withRows(0), second, x, h)
		b.cmd(kernels.RMSNorm, nil, kernels.RMSNormParams{N: uint32(s.width), XRows: uint32(rows), Eps: 1e-5}, withRows(0), second, x, at{p + "ffn_norm", 0}, h)
		matmul(p+"gate_up", s.width, 2*s.ffn, s.width, h, at{}, ff, 0)
		up := at{"scratch", ff.offset + 4*s.ffn}
		if s.fused {
			matmul(p+"down", s.ffn, s.width, 2*s.ffn, ff, up, mul, decl.InputSiLUMul)
		} else {
			b.cmd(kernels.SiLUMul, nil, kernels.SiLUMulParams{N: uint32(s.ffn), Stride: uint32(2 * s.ffn)}, withRows(0), second, ff, up, parts)
			matmul(p+"down", s.ffn, s.width, s.ffn, parts, at{}, mul, 0)
		}
	}
	b.cmd(kernels.Add, nil, kernels.AddParams{N: uint32(s.width)}, withRows(0), second, x, mul)
}

// generate prefills a prompt in chunks, decodes n tokens and returns the token ring and the last
// logits.
func generate(tb testing.TB, d *Device, s shape, prompt, n, chunk int) ([]uint32, []float32) {
	tb.Helper()
	id := newSession(tb, d, 0)
	defer d.CloseSession(id)
	_, tokens, _ := d.table.Slot(table.SlotTokens)
	for i := range prompt {
		if err := d.Write(id, tokens, uint64(4*i), binary.LittleEndian.AppendUint32(nil, uint32(i*i+3)%uint32(s.vocab))); err != nil {
			tb.Fatal(err)
		}
	}
	sub := &replay.Submission{Session: id}
	for at := 0; at < prompt; at += chunk {
		rows := uint32(min(chunk, prompt-at))
		step := table.Step{Position: uint32(at), KVRow: uint32(at), KVLen: uint32(at) + 1, TokenIndex: uint32(at), Rows: rows}
		sub.Runs = append(sub.Runs, replay.Run{Program: 1, Count: 1, Step: step})
		if at+chunk >= prompt {
			step.Row, step.TokenIndex, step.Rows = rows-1, uint32(prompt-1), 1
			sub.Runs = append(sub.Runs, replay.Run{Program: 2, Count: 1, Step: step})
		}
	}
	p := uint32(prompt)
	sub.Runs = append(sub.Runs, replay.Run{Count: uint32(n), Step: table.Step{Position: p, KVRow: p, KVLen: p + 1, TokenIndex: p, Rows: 1}})
	if res := submit(tb, d, sub); res.Count != n+1 {
		tb.Fatalf("%d tokens, want %d", res.Count, n+1)
	}
	_, slot, _ := d.table.Slot(table.SlotLogits)
	buf := bytesOf(tb, make([]float32, s.vocab))
	if err := d.Read(id, slot, 0, buf); err != nil {
		tb.Fatal(err)
	}
	return ring(tb, d, id, prompt+n+1), float32s(buf)
}

func BenchmarkDecode(b *testing.B) {
	for _, t := range []dtype.Type{dtype.Q8_0, dtype.Q4_0, dtype.F16} {
		for _, portable := range []bool{false, true} {
			s := gopherShape
			s.weight = t
			if t == dtype.F16 {
				s.act = decl.ActF32
			}
			b.Run(fmt.Sprintf("%v/portable=%t", t, portable), func(b *testing.B) {
				d := transformer(b, s).load(Options{Portable: portable})
				id := newSession(b, d, 5)
				sub := &replay.Submission{Session: id, Runs: []replay.Run{{Count: 32, Step: table.Step{KVLen: 1, Rows: 1}}}}
				for b.Loop() {
					submit(b, d, sub)
				}
				b.ReportMetric(32*float64(b.N)/b.Elapsed().Seconds(), "tok/s")
			})
		}
	}
}

func BenchmarkPrefill(b *testing.B) {
	for _, t := range []dtype.Type{dtype.Q8_0, dtype.Q4_0, dtype.F16} {
		s := gopherShape
		s.weight = t
		if t == dtype.F16 {
			s.act = decl.ActF32
		}
		b.Run(t.String(), func(b *testing.B) {
			d := transformer(b, s).load(Options{})
			id := newSession(b, d, 5)
			rows := uint32(s.chunk)
			sub := &replay.Submission{Session: id, Runs: []replay.Run{{Program: 1, Count: 1, Step: table.Step{KVLen: 1, Rows: rows}}}}
			for b.Loop() {
				submit(b, d, sub)
			}
			b.ReportMetric(float64(rows)*float64(b.N)/b.Elapsed().Seconds(), "tok/s")
		})
	}
}
