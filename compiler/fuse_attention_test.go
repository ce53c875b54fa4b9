package compiler

import (
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
)

// ropes emits RoPE of Q and K and the KV write, after norms of Q and K with n elements unless n is 0.
func ropes(n int) func(b *sketch) {
	return func(b *sketch) {
		q, k, v, angles := b.v("q", 16), b.v("k", 8), b.v("v", 8), b.v("angles", 4)
		if n > 0 {
			b.emit(roleQNorm, headNormArgs{w: b.norm("qn", n), heads: 4}, nil, q)
			b.emit(roleKNorm, headNormArgs{w: b.norm("kn", n), heads: 2}, nil, k)
		}
		b.emit(roleQRope, ropeArgs{heads: 4, half: 2}, []*value{angles}, q)
		b.emit(roleKRope, ropeArgs{heads: 2, half: 2}, []*value{angles}, k)
		b.emit(roleKVWrite, kvWriteArgs{kvHeads: 2}, []*value{k, v}, b.l.k, b.l.v)
		b.emit(roleAttention, attentionArgs{heads: 4, kvHeads: 2, half: 2, splits: 1}, []*value{q, b.l.k, b.l.v}, b.v("out", 16))
	}
}

const (
	ropeText = `
		layer.3.attn.q_rope rope angles -> q
		layer.3.attn.k_rope rope angles -> k
		layer.3.attn.kv_write kv_write k v -> kv.k kv.v
		layer.3.attn.attention attn q kv.k kv.v -> out`
	ropeKVText = `
		layer.3.attn.rope_kv qk_rope_kv q k v angles -> layer.3.attn.q_rope kv.k kv.v
		layer.3.attn.attention attn layer.3.attn.q_rope kv.k kv.v -> out`
)

func TestFuseRopeKV(t *testing.T) {
	irPass(t, "fuse-rope-kv", []irTest{
		{name: "without QK norm", build: ropes(0), before: ropeText, after: ropeKVText},
		{name: "with QK norm", build: ropes(4), before: `
			layer.3.attn.q_norm head_norm -> q qn[1, 4] F32
			layer.3.attn.k_norm head_norm -> k kn[1, 4] F32` + ropeText,
			after: strings.Replace(ropeKVText, "q_rope kv.k kv.v\n", "q_rope kv.k kv.v layer.3.attn.qk_norm[2, 4] F32\n", 1)},
		{name: "not with a norm of all heads", build: ropes(16), before: `
			layer.3.attn.q_norm head_norm -> q qn[1, 16] F32
			layer.3.attn.k_norm head_norm -> k kn[1, 16] F32` + ropeText, after: `
			layer.3.attn.q_norm head_norm -> q qn[1, 16] F32
			layer.3.attn.k_norm head_norm -> k kn[1, 16] F32` + ropeKVText},
		{name: "not without RoPE", build: func(b *sketch) { ropes(0)(b); b.p.splice(0, 2) }, before: `
			layer.3.attn.kv_write kv_write k v -> kv.k kv.v
			layer.3.attn.attention attn q kv.k kv.v -> out`},
	})
}

func TestFuseRopeAttn(t *testing.T) {
	build := func(norm int) func(b *sketch) {
		return func(b *sketch) {
			ropes(norm)(b)
			if err := passOf(t, "fuse-rope-kv").run(b.s); err != nil {
				t.Fatal(err)
			}
		}
	}
	learned := func(b *sketch) {
		edit(b, 1, func(a *attentionArgs) { a.learned = b.norm("sinks", 4) })
	}
	normed := strings.Replace(ropeKVText, "q_rope kv.k kv.v\n", "q_rope kv.k kv.v layer.3.attn.qk_norm[2, 4] F32\n", 1)
	irPass(t, "fuse-rope-attn", []irTest{
		{name: "one row", build: build(0), before: ropeKVText, after: `
			layer.3.attn.attention rope_attn q k v angles -> kv.k kv.v out`},
		{name: "with QK norm", build: build(4), before: normed, after: `
			layer.3.attn.attention rope_attn q k v angles -> kv.k kv.v out layer.3.attn.qk_norm[2, 4] F32`},
		{name: "with learned logits", build: func(b *sketch) { build(4)(b); learned(b) }, before: normed + " sinks[1, 4] F32", after: `
			layer.3.attn.attention rope_attn q k v angles -> kv.k kv.v out layer.3.attn.heads[1, 8] F32`},
		{name: "not in a chunk", wide: true, build: build(0), before: ropeKVText},
		{name: "not where positions at the start are seen", build: func(b *sketch) { build(0)(b); b.l.sinks = 4 }, before: ropeKVText},
		{name: "not where another reads Q", build: func(b *sketch) {
			build(0)(b)
			b.emit(roleAttnResidual, addArgs{}, []*value{b.p.nodes[0].out[0].v}, b.v("x", 16))
		}, before: ropeKVText + `
			layer.3.attn.residual add layer.3.attn.q_rope -> x`},
	})
}

// attend emits attention and the output projection.
func attend(b *sketch) {
	out := b.v("out", 16)
	b.emit(roleAttention, attentionArgs{heads: 4, kvHeads: 2, half: 2, splits: 1, window: 2000}, []*value{b.v("q", 16), b.l.k, b.l.v}, out)
	b.product(roleO, out, b.v("o", 8))
}

const (
	attendText = `
		layer.3.attn.attention attn q kv.k kv.v -> out window=2000
		layer.3.attn.o gemv out -> o attn.o[8, 16] F16`
	splitText = `
		layer.3.attn.attention attn q kv.k kv.v -> layer.3.attn.parts window=2000 splits=8
		layer.3.attn.merge attn_merge layer.3.attn.parts -> out window=2000 splits=8
		layer.3.attn.o gemv out -> o attn.o[8, 16] F16`
)

func TestSplitAttention(t *testing.T) {
	irPass(t, "split-attention", []irTest{
		{name: "a long cache", build: attend, before: attendText, after: splitText},
		{name: "not a short cache", build: func(b *sketch) { attend(b); b.l.cap = 1024 }, before: attendText},
		{name: "not in a chunk", wide: true, build: attend, before: strings.Replace(attendText, "gemv", "gemm", 1)},
		{name: "not where positions at the start are seen", build: func(b *sketch) { attend(b); b.l.sinks = 4 }, before: attendText},
		{name: "not on a chip that never splits", build: func(b *sketch) { attend(b); b.s.in.Chip.SplitContext = 0 }, before: attendText},
		{name: "not on one core", build: func(b *sketch) { attend(b); b.s.in.Chip.Cores = 1; b.s.in.Chip.AttnThreads = 512 }, before: attendText},
	})
}

func TestFuseMergeProduct(t *testing.T) {
	build := func(b *sketch) {
		attend(b)
		if err := passOf(t, "split-attention").run(b.s); err != nil {
			t.Fatal(err)
		}
	}
	irPass(t, "fuse-merge-product", []irTest{
		{name: "few rows", build: build, before: splitText, after: `
			layer.3.attn.attention attn q kv.k kv.v -> layer.3.attn.parts window=2000 splits=8
			layer.3.attn.o gemv layer.3.attn.parts[0:128] layer.3.attn.parts[128:192] -> o attn.o[8, 16] F16 merge window=2000 splits=8`},
		{name: "not with heads of odd sizes", build: func(b *sketch) { build(b); b.l.headDim = 6 }, before: splitText},
		{name: "not what another reads", build: func(b *sketch) {
			build(b)
			b.product(roleGate, b.p.nodes[1].out[0].v, b.v("gate", 4))
		}, before: splitText + `
			layer.3.ffn.gate gemv out -> gate ffn.gate[4, 16] F16`},
	})
}

func TestSplitRows(t *testing.T) {
	build := func(b *sketch) {
		out := b.v("out", 16)
		q, k, v, angles := b.v("q", 16), b.v("k", 8), b.v("v", 8), b.v("angles", 4)
		b.emit(roleAttention, ropeAttnArgs{attentionArgs: attentionArgs{heads: 4, kvHeads: 2}}, []*value{q, k, v, angles}, b.l.k, b.l.v, out)
		b.product(roleO, out, b.v("o", 8))
	}
	const before = `
		layer.3.attn.attention rope_attn q k v angles -> kv.k kv.v out
		layer.3.attn.o gemv out -> o attn.o[8, 16] F16`
	irPass(t, "split-rows", []irTest{
		{name: "two rows", rows: 2, build: build, before: before, after: `
			layer.3.attn.attention.row0 rope_attn q k v angles -> kv.k kv.v out
			layer.3.attn.attention.row1 rope_attn q.1 k.1 v.1 angles.1 -> kv.k kv.v out.1
			layer.3.attn.o gemv out -> o attn.o[8, 16] F16`},
		{name: "products that merge", rows: 2, build: func(b *sketch) {
			b.emit(roleO, productArgs{w: b.w("o", 8, 16), input: decl.InputMerge, merge: mergeArgs{heads: 4, splits: 2}}, []*value{b.v("parts", 48)}, b.v("y", 8))
		}, before: `
			layer.3.attn.o gemv parts -> y o[8, 16] F16 merge splits=2`, after: `
			layer.3.attn.o.row0 gemv parts -> y o[8, 16] F16 merge splits=2
			layer.3.attn.o.row1 gemv parts.1 -> y.1 o[8, 16] F16 merge splits=2`},
		{name: "not one row", build: build, before: before},
	})
}

func TestFuseExperts(t *testing.T) {
	build := func(activation uint32) func(b *sketch) {
		return func(b *sketch) {
			x, ids := b.v("x", 8), b.v("ids", 2)
			gate, up, act := b.v("gate", 32), b.v("up", 32), b.v("act", 32)
			b.emit(roleExpertGate, expertProductArgs{w: b.w("g", 64, 8), share: 2}, []*value{x, ids}, gate)
			b.emit(roleExpertUp, expertProductArgs{w: b.w("u", 64, 8), share: 2}, []*value{x, ids}, up)
			b.emit(roleExpertSiLUMul, siluMulArgs{activation: activation}, []*value{gate, up}, act)
			b.emit(roleExpertDown, expertProductArgs{w: b.w("d", 32, 16), share: 1}, []*value{act, ids}, b.v("y", 16))
			for _, i := range []int{0, 1} {
				edit(b, i, func(a *expertProductArgs) { a.w.parts[0].rows = 64 })
			}
		}
	}
	const before = `
		layer.3.ffn.experts.gate expert_gemv x ids -> gate g[64, 8] F16
		layer.3.ffn.experts.up expert_gemv x ids -> up u[64, 8] F16
		layer.3.ffn.experts.silu_mul silu_mul gate up -> act
		layer.3.ffn.experts.down expert_gemv act ids -> y d[32, 16] F16`
	irPass(t, "fuse-experts", []irTest{
		{name: "one type", build: build(decl.ActivationSiLU), before: before, after: `
			layer.3.ffn.experts.gate_up expert_gemv x ids -> layer.3.ffn.experts.gate_up layer.3.ffn.experts.gate_up[128, 8] F16
			layer.3.ffn.experts.down expert_gemv layer.3.ffn.experts.gate_up[0:16] ids layer.3.ffn.experts.gate_up[16:32] -> y d[32, 16] F16 silu_mul`},
		{name: "not of two types", build: func(b *sketch) {
			build(decl.ActivationSiLU)(b)
			edit(b, 1, func(a *expertProductArgs) { a.w.typ = dtype.BF16 })
		}, before: strings.Replace(before, "u[64, 8] F16", "u[64, 8] BF16", 1)},
		{name: "not an activation that products lack", build: build(decl.ActivationGELU),
			before: strings.Replace(before, "-> act\n", "-> act activation=2\n", 1)},
	})
}

func TestInputHalves(t *testing.T) {
	gateUp := func(b *sketch) {
		x := b.v("x", 8)
		b.product(roleGate, x, b.v("gate", 16))
		b.product(roleUp, x, b.v("up", 16))
	}
	irPass(t, "split-input", []irTest{
		{name: "once for two products", wide: true, build: gateUp, before: `
			layer.3.ffn.gate gemm x -> gate ffn.gate[16, 8] F16
			layer.3.ffn.up gemm x -> up ffn.up[16, 8] F16`, after: `
			layer.3.ffn.gate.halves halves x -> layer.3.ffn.gate.halves
			layer.3.ffn.gate gemm_halves layer.3.ffn.gate.halves -> gate ffn.gate[16, 8] F16
			layer.3.ffn.up gemm_halves layer.3.ffn.gate.halves -> up ffn.up[16, 8] F16`},
		{name: "with the activation before it", wide: true, build: siluDown(decl.ActivationSiLU), before: `
			layer.3.ffn.silu_mul silu_mul gate_up[0:16] gate_up[16:32] -> act
			layer.3.ffn.down gemm act -> y ffn.down[8, 16] F16`, after: `
			layer.3.ffn.down.halves halves gate_up[0:16] gate_up[16:32] -> layer.3.ffn.down.halves silu_mul
			layer.3.ffn.down gemm_halves layer.3.ffn.down.halves -> y ffn.down[8, 16] F16`},
		{name: "not the activation without fusion", wide: true, build: func(b *sketch) {
			siluDown(decl.ActivationSiLU)(b)
			b.s.in.Options.NoFuse = true
		}, before: `
			layer.3.ffn.silu_mul silu_mul gate_up[0:16] gate_up[16:32] -> act
			layer.3.ffn.down gemm act -> y ffn.down[8, 16] F16`, after: `
			layer.3.ffn.silu_mul silu_mul gate_up[0:16] gate_up[16:32] -> act
			layer.3.ffn.down.halves halves act -> layer.3.ffn.down.halves
			layer.3.ffn.down gemm_halves layer.3.ffn.down.halves -> y ffn.down[8, 16] F16`},
		{name: "of quantised weights", wide: true, build: func(b *sketch) {
			gateUp(b)
			for i := range 2 {
				edit(b, i, func(a *productArgs) { a.w.typ = dtype.Q8_0 })
			}
		}, before: `
			layer.3.ffn.gate gemm x -> gate ffn.gate[16, 8] Q8_0
			layer.3.ffn.up gemm x -> up ffn.up[16, 8] Q8_0`, after: `
			layer.3.ffn.gate.halves halves x -> layer.3.ffn.gate.halves
			layer.3.ffn.gate gemm_halves layer.3.ffn.gate.halves -> gate ffn.gate[16, 8] Q8_0
			layer.3.ffn.up gemm_halves layer.3.ffn.gate.halves -> up ffn.up[16, 8] Q8_0`},
		{name: "not of float32 weights", wide: true, build: func(b *sketch) {
			gateUp(b)
			for i := range 2 {
				edit(b, i, func(a *productArgs) { a.w.typ = dtype.F32 })
			}
		}, before: `
			layer.3.ffn.gate gemm x -> gate ffn.gate[16, 8] F32
			layer.3.ffn.up gemm x -> up ffn.up[16, 8] F32`},
		{name: "not of quantised weights that are not in tiles, for warpgroups", wide: true, build: func(b *sketch) {
			gateUp(b)
			b.s.in.Chip.GEMMHalves = warpgroupThreads
			for i := range 2 {
				edit(b, i, func(a *productArgs) { a.w.typ = dtype.Q8_0 })
			}
		}, before: `
			layer.3.ffn.gate gemm x -> gate ffn.gate[16, 8] Q8_0
			layer.3.ffn.up gemm x -> up ffn.up[16, 8] Q8_0`},
		{name: "not in programs of few rows", build: gateUp, before: `
			layer.3.ffn.gate gemv x -> gate ffn.gate[16, 8] F16
			layer.3.ffn.up gemv x -> up ffn.up[16, 8] F16`},
	})
}

func TestSplitArgmax(t *testing.T) {
	build := func(parts, part int) func(b *sketch) {
		return func(b *sketch) {
			b.s.in.Chip.ArgmaxPart = part
			b.p.emit(spot{role: roleArgmax}, argmaxArgs{parts: parts}, []operand{b.s.logits.all(), b.s.stops.all()}, b.s.tokens.all())
		}
	}
	irPass(t, "split-argmax", []irTest{
		{name: "a large vocabulary", build: build(0, 64), before: `
			out.argmax argmax logits stops -> tokens`, after: `
			out.argmax_part argmax_part logits -> out.parts
			out.argmax argmax out.parts stops -> tokens splits=2`},
		{name: "not a small one", build: build(0, 128), before: `
			out.argmax argmax logits stops -> tokens`},
		{name: "not of parts", build: build(2, 64), before: `
			out.argmax argmax logits stops -> tokens splits=2`},
	})
}
