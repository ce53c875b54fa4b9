package compiler

import (
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
)

func TestFuseGated(t *testing.T) {
	build := func(activation uint32, output uint32) func(b *sketch) {
		return func(b *sketch) {
			y, both, act := b.v("y", 8), b.v("gate_up", 32), b.v("act", 16)
			b.emit(roleGateUp, productArgs{wide: b.p.wide, w: b.w("w", 32, 8), output: output}, []*value{y}, both)
			b.p.emit(spot{role: roleSiLUMul, layer: b.l}, siluMulArgs{activation: activation}, []operand{{v: both, width: 16}, {v: both, off: 16, width: 16}}, act.all())
		}
	}
	const before = `
		layer.3.ffn.gate_up gemv y -> gate_up w[32, 8] F16
		layer.3.ffn.silu_mul silu_mul gate_up[0:16] gate_up[16:32] -> act`
	irPass(t, "fuse-gated", []irTest{
		{name: "silu", build: build(decl.ActivationSiLU, 0), before: before, after: `
			layer.3.ffn.gate_up gemv y -> act w[32, 8] F16 gated`},
		{name: "gelu", build: build(decl.ActivationGELUTanh, 0), before: before + " activation=1", after: `
			layer.3.ffn.gate_up gemv y -> act w[32, 8] F16 activation=1 gated`},
		{name: "not what products cannot compute", build: build(decl.ActivationGELU, 0), before: before + " activation=2"},
		{name: "not a sum", build: build(decl.ActivationSiLU, decl.OutputAdd), before: strings.Replace(before, "F16\n", "F16 add\n", 1)},
		{name: "not in a chunk", wide: true, build: build(decl.ActivationSiLU, 0), before: strings.Replace(before, "gemv", "gemm", 1)},
		{name: "not what another reads", build: func(b *sketch) {
			build(decl.ActivationSiLU, 0)(b)
			b.product(roleRouter, b.p.nodes[0].out[0].v, b.v("z", 4))
		}, before: before + `
			layer.3.ffn.router gemv gate_up -> z ffn.router[4, 32] F16`},
		{name: "not a matrix that is divided", build: func(b *sketch) {
			build(decl.ActivationSiLU, 0)(b)
			b.p.nodes[0].args = productArgs{w: b.large("w")}
		}, before: strings.Replace(before, "32, 8] F16", "1048576, 8192] F16", 1)},
		{name: "not up and gate", build: func(b *sketch) {
			build(decl.ActivationSiLU, 0)(b)
			in := b.p.nodes[1].in
			in[0], in[1] = in[1], in[0]
		}, before: `
			layer.3.ffn.gate_up gemv y -> gate_up w[32, 8] F16
			layer.3.ffn.silu_mul silu_mul gate_up[16:32] gate_up[0:16] -> act`},
	})
}

// large returns a matrix that pass split-weights divides.
func (b *sketch) large(name string) *weight {
	w := b.w(name, 1, 1)
	w.rows, w.cols = 1<<20, 1<<13
	return w
}

func TestFuseScaled(t *testing.T) {
	build := func(output uint32, norm normArgs) func(b *sketch) {
		return func(b *sketch) {
			norm.w, norm.eps = b.norm("n", 20), 1e-5
			x, y := b.v("x", 20), b.v("y", 20)
			b.emit(roleO, productArgs{wide: b.p.wide, w: b.w("o", 20, 8), output: output}, []*value{b.v("a", 8)}, x)
			b.emit(roleFFNNorm, norm, []*value{x}, y)
			b.product(roleGate, y, b.v("gate", 16))
			b.product(roleUp, y, b.v("up", 16))
		}
	}
	const before = `
		layer.3.attn.o gemv a -> x o[20, 8] F16 add
		layer.3.ffn.norm rmsnorm x -> y n[1, 20] F32
		layer.3.ffn.gate gemv y -> gate ffn.gate[16, 20] F16
		layer.3.ffn.up gemv y -> up ffn.up[16, 20] F16`
	irPass(t, "fuse-scaled", []irTest{
		{name: "two readers", build: build(decl.OutputAdd, normArgs{}), before: before, after: `
			layer.3.attn.o gemv a -> x y layer.3.ffn.norm.squares o[20, 8] F16 n[1, 20] F32 add_scaled
			layer.3.ffn.gate gemv y layer.3.ffn.norm.squares -> gate ffn.gate[16, 20] F16 scaled
			layer.3.ffn.up gemv y layer.3.ffn.norm.squares -> up ffn.up[16, 20] F16 scaled`},
		{name: "not after another product", build: build(decl.OutputStore, normArgs{}), before: strings.Replace(before, " add", "", 1)},
		{name: "not of a row of a chunk", build: build(decl.OutputAdd, normArgs{fromRow: true}), before: before},
		{name: "not with a factor", build: build(decl.OutputAdd, normArgs{scale: 2}), before: before},
		{name: "not with a mean", build: build(decl.OutputAdd, normArgs{mean: true}), before: strings.Replace(before, "rmsnorm", "layernorm", 1)},
		{name: "not in a chunk", wide: true, build: build(decl.OutputAdd, normArgs{}), before: strings.ReplaceAll(before, "gemv", "gemm")},
		{name: "not what experts read", build: func(b *sketch) {
			build(decl.OutputAdd, normArgs{})(b)
			b.emit(roleExpertGate, expertProductArgs{w: b.w("experts", 64, 20), share: 2}, []*value{b.p.nodes[1].out[0].v, b.v("ids", 2)}, b.v("z", 32))
		}, before: before + `
			layer.3.ffn.experts.gate expert_gemv y ids -> z experts[64, 20] F16`},
		{name: "not the norm of another value", build: func(b *sketch) {
			build(decl.OutputAdd, normArgs{})(b)
			b.p.nodes[1].in[0] = b.v("z", 20).all()
		}, before: strings.Replace(before, "rmsnorm x", "rmsnorm z", 1)},
		{name: "not after a matrix that is divided", build: func(b *sketch) {
			build(decl.OutputAdd, normArgs{})(b)
			b.p.nodes[0].args = productArgs{w: b.large("o"), output: decl.OutputAdd}
		}, before: strings.Replace(before, "20, 8] F16 add", "1048576, 8192] F16 add", 1)},
	})
}

// TestMergeLimit checks that splits are merged apart if the threadgroups of the product would request
// more bytes than the chip's limit.
func TestMergeLimit(t *testing.T) {
	for _, test := range []struct {
		limit int
		want  bool
	}{{0, false}, {3*(4*(64+2*4))*2 - 1, true}, {3 * (4 * (64 + 2*4)) * 2, false}} {
		b := newSketch(t, 1, false)
		b.s.in.Chip.GEMVLimit, b.s.in.Chip.MergeLimit = 0, test.limit
		b.s.in.Chip.GEMVRows, b.s.in.Chip.GEMVWave = 8, 0
		if got := b.s.mergesTooMuch(b.w("o", 24, 64), mergeArgs{heads: 4, splits: 2}); got != test.want {
			t.Errorf("limit %d: %t", test.limit, got)
		}
	}
}

// TestGroupOf checks the number of rows of a threadgroup of gemv for matrices in Q4_0 of llama-3.1-8b
// and qwen3-0.6b.
func TestGroupOf(t *testing.T) {
	for _, test := range []struct {
		chip    string
		out, in int
		want    int
	}{
		{"m4-pro", 6144, 4096, 160}, {"m4-pro", 4096, 4096, 104}, {"m4-pro", 28672, 4096, 240}, {"m4-pro", 4096, 14336, 104},
		{"m4-pro", 4096, 1024, 104}, {"m4-pro", 1024, 2048, 32}, {"m4-pro", 1024, 3072, 32},
		{"m1", 1024, 2048, 64}, {"m3-ultra", 1024, 2048, 8}, {"m4-pro", 5, 64, 8},
	} {
		b := newSketch(t, 1, false)
		c := chipOf(t, test.chip)
		b.s.in.Chip = c
		w := &weight{name: "w", rows: test.out, cols: test.in, typ: dtype.Q4_0}
		if got := b.s.gemvGroup(w, b.s.in.Chip.Cores); got != test.want {
			t.Errorf("%s, [%d, %d]: %d rows, want %d", test.chip, test.out, test.in, got, test.want)
		}
	}
}
