package compiler

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/table"
)

// sketch builds a program for one layer of a model with heads of 4 elements.
type sketch struct {
	s *state
	p *program
	l *layerPlan
}

func newSketch(t *testing.T, rows int, wide bool) *sketch {
	t.Helper()
	c := chipOf(t, "m4-pro")
	cfg := &arch.Config{Heads: 4, KVHeads: 2, HeadDim: 4, Vocab: 100, Width: 8, Eps: 1e-5}
	cfg.Experts.Count, cfg.Experts.Used, cfg.Experts.FF = 4, 2, 16
	s := &state{in: Input{Chip: c, Config: cfg}, cfg: cfg, byName: map[string]*weight{}, t: &table.Table{}}
	s.t.Header.Context = 4096
	s.tokens, s.stops, s.logits = s.slot("tokens", 0, 0, 4), s.slot("stops", 0, 0, 4), s.slot("logits", 0, 0, 4)
	s.logits.width = cfg.Vocab
	b := &sketch{s: s, p: s.newProgram("test", rows, wide, 0), l: &layerPlan{index: 3, cap: 4096, headDim: cfg.HeadDim, kvHeads: cfg.KVHeads}}
	b.l.k, b.l.v = s.slot("kv.k", 0, 0, 4), s.slot("kv.v", 0, 0, 4)
	s.layers = []*layerPlan{b.l}
	return b
}

// v creates a value, w a float16 matrix, and norm the weights of a norm.
func (b *sketch) v(name string, width int) *value { return b.p.value(name, width) }

func (b *sketch) w(name string, rows, cols int) *weight {
	return &weight{name: name, rows: rows, cols: cols, typ: dtype.F16, parts: []part{{data: make([]byte, 2*rows*cols)}}}
}

func (b *sketch) norm(name string, n int) *weight {
	return &weight{name: name, rows: 1, cols: n, typ: dtype.F32, parts: []part{{data: make([]byte, 4*n)}}}
}

// emit adds a node of the layer whose operands are whole values.
func (b *sketch) emit(r role, a args, in []*value, out ...*value) {
	operands := func(list []*value) (all []operand) {
		for _, v := range list {
			all = append(all, v.all())
		}
		return all
	}
	b.p.emit(spot{role: r, layer: b.l}, a, operands(in), operands(out)...)
}

// product emits the product of x with a matrix that has the name of the role.
func (b *sketch) product(r role, x, y *value) {
	b.emit(r, productArgs{wide: b.p.wide, w: b.w(roleNames[r], y.width, x.width)}, []*value{x}, y)
}

// text returns the nodes as text, without arena offsets.
func (b *sketch) text() []string {
	var lines []string
	for _, n := range b.p.nodes {
		lines = append(lines, strings.ReplaceAll(strings.Join(strings.Fields(n.String()), " "), "@0", ""))
	}
	return lines
}

// irTest is a program before and after a pass, as text.
type irTest struct {
	name   string
	rows   int  // 0 means 1
	wide   bool // a program of a chunk
	build  func(b *sketch)
	before string
	after  string // "" means the same as before
}

// irPass runs a pass on each program.
func irPass(t *testing.T, name string, tests []irTest) {
	t.Helper()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := newSketch(t, max(test.rows, 1), test.wide)
			test.build(b)
			lines := func(text string) (list []string) {
				for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
					list = append(list, strings.TrimSpace(line))
				}
				return list
			}
			if diff := cmp.Diff(lines(test.before), b.text()); diff != "" {
				t.Errorf("before (-want +got):\n%s", diff)
			}
			if err := passOf(t, name).run(b.s); err != nil {
				t.Fatal(err)
			}
			want := test.after
			if want == "" {
				want = test.before
			}
			if diff := cmp.Diff(lines(want), b.text()); diff != "" {
				t.Errorf("after %s (-want +got):\n%s", name, diff)
			}
		})
	}
}

func passOf(t *testing.T, name string) *pass {
	t.Helper()
	for i := range passes {
		if passes[i].name == name {
			return &passes[i]
		}
	}
	t.Fatalf("no pass %s", name)
	return nil
}

// qkv emits Q, K and V of x.
func qkv(b *sketch) (q, k, v *value) {
	x := b.v("x", 8)
	q, k, v = b.v("q", 16), b.v("k", 8), b.v("v", 8)
	b.product(roleQ, x, q)
	b.product(roleK, x, k)
	b.product(roleV, x, v)
	return q, k, v
}

const qkvText = `
	layer.3.attn.q gemv x -> q attn.q[16, 8] F16
	layer.3.attn.k gemv x -> k attn.k[8, 8] F16
	layer.3.attn.v gemv x -> v attn.v[8, 8] F16`

// edit changes the args of the node at index i.
func edit[A args](b *sketch, i int, f func(a *A)) {
	a := b.p.nodes[i].args.(A)
	f(&a)
	b.p.nodes[i].args = a
}

func TestFuseQKV(t *testing.T) {
	irPass(t, "fuse-qkv", []irTest{
		{name: "one type", build: func(b *sketch) {
			q, _, _ := qkv(b)
			b.product(roleO, q, b.v("o", 8)) // its input becomes columns of the fused output
		}, before: qkvText + `
			layer.3.attn.o gemv q -> o attn.o[8, 16] F16`, after: `
			layer.3.attn.qkv gemv x -> layer.3.attn.qkv layer.3.attn.qkv[32, 8] F16
			layer.3.attn.o gemv layer.3.attn.qkv[0:16] -> o attn.o[8, 16] F16`},
		{name: "biases", build: func(b *sketch) {
			qkv(b)
			for i := range 3 {
				edit(b, i, func(a *productArgs) { a.bias = b.norm("bias", a.w.rows) })
			}
		}, before: `
			layer.3.attn.q gemv x -> q attn.q[16, 8] F16 bias[1, 16] F32
			layer.3.attn.k gemv x -> k attn.k[8, 8] F16 bias[1, 8] F32
			layer.3.attn.v gemv x -> v attn.v[8, 8] F16 bias[1, 8] F32`, after: `
			layer.3.attn.qkv gemv x -> layer.3.attn.qkv layer.3.attn.qkv[32, 8] F16 layer.3.attn.qkv.bias[1, 32] F32`},
		{name: "not of two types", build: func(b *sketch) {
			qkv(b)
			edit(b, 2, func(a *productArgs) { a.w.typ = dtype.BF16 })
		}, before: strings.Replace(qkvText, "[8, 8] F16\n\tlayer.3.attn.v gemv x -> v attn.v[8, 8] F16", "[8, 8] F16\n\tlayer.3.attn.v gemv x -> v attn.v[8, 8] BF16", 1)},
		{name: "not with one bias", build: func(b *sketch) {
			qkv(b)
			edit(b, 1, func(a *productArgs) { a.bias = b.norm("bias", 8) })
		}, before: strings.Replace(qkvText, "attn.k[8, 8] F16", "attn.k[8, 8] F16 bias[1, 8] F32", 1)},
		{name: "not of two inputs", build: func(b *sketch) {
			qkv(b)
			b.p.nodes[1].in = []operand{b.v("other", 8).all()}
		}, before: strings.Replace(qkvText, "attn.k gemv x", "attn.k gemv other", 1)},
		{name: "not apart", build: func(b *sketch) {
			_, k, v := qkv(b)
			b.emit(roleAttnResidual, addArgs{}, []*value{k}, v)
			p := b.p.nodes
			p[2], p[3] = p[3], p[2]
		}, before: `
			layer.3.attn.q gemv x -> q attn.q[16, 8] F16
			layer.3.attn.k gemv x -> k attn.k[8, 8] F16
			layer.3.attn.residual add k -> v
			layer.3.attn.v gemv x -> v attn.v[8, 8] F16`},
		{name: "not of another role, whatever the label", build: func(b *sketch) {
			qkv(b)
			b.p.nodes[1].role = roleV
		}, before: strings.Replace(qkvText, "layer.3.attn.k ", "layer.3.attn.v ", 1)},
	})
}

func TestFuseGateUp(t *testing.T) {
	build := func(b *sketch) {
		x, gate, up := b.v("x", 8), b.v("gate", 16), b.v("up", 16)
		b.product(roleGate, x, gate)
		b.product(roleUp, x, up)
		b.emit(roleSiLUMul, siluMulArgs{}, []*value{gate, up}, b.v("act", 16))
	}
	irPass(t, "fuse-gate-up", []irTest{
		{name: "one type", build: build, before: `
			layer.3.ffn.gate gemv x -> gate ffn.gate[16, 8] F16
			layer.3.ffn.up gemv x -> up ffn.up[16, 8] F16
			layer.3.ffn.silu_mul silu_mul gate up -> act`, after: `
			layer.3.ffn.gate_up gemv x -> layer.3.ffn.gate_up layer.3.ffn.gate_up[32, 8] F16
			layer.3.ffn.silu_mul silu_mul layer.3.ffn.gate_up[0:16] layer.3.ffn.gate_up[16:32] -> act`},
		{name: "not up alone", build: func(b *sketch) { build(b); b.p.splice(0, 1) }, before: `
			layer.3.ffn.up gemv x -> up ffn.up[16, 8] F16
			layer.3.ffn.silu_mul silu_mul gate up -> act`},
	})
}

// siluDown emits an activation and the down product that reads it.
func siluDown(activation uint32) func(b *sketch) {
	return func(b *sketch) {
		both, act := b.v("gate_up", 32), b.v("act", 16)
		b.emit(roleSiLUMul, siluMulArgs{activation: activation}, []*value{both, both}, act)
		b.p.nodes[0].in = []operand{{v: both, width: 16}, {v: both, off: 16, width: 16}}
		b.product(roleDown, act, b.v("y", 8))
	}
}

func TestFuseSiLUDown(t *testing.T) {
	const before = `
		layer.3.ffn.silu_mul silu_mul gate_up[0:16] gate_up[16:32] -> act
		layer.3.ffn.down gemv act -> y ffn.down[8, 16] F16`
	wide := strings.Replace(before, "gemv", "gemm", 1)
	irPass(t, "fuse-silu-down", []irTest{
		{name: "few rows", build: siluDown(decl.ActivationSiLU), before: before, after: `
			layer.3.ffn.down gemv gate_up[0:16] gate_up[16:32] -> y ffn.down[8, 16] F16 silu_mul`},
		{name: "another activation", build: siluDown(decl.ActivationGELUTanh),
			before: strings.Replace(before, "-> act", "-> act activation=1", 1), after: `
			layer.3.ffn.down gemv gate_up[0:16] gate_up[16:32] -> y ffn.down[8, 16] F16 silu_mul activation=1`},
		{name: "not an activation that products lack", build: siluDown(decl.ActivationGELU),
			before: strings.Replace(before, "-> act", "-> act activation=2", 1)},
		{name: "not in a chunk", wide: true, build: siluDown(decl.ActivationSiLU), before: wide},
		{name: "in a chunk where the chip wants it", wide: true, build: func(b *sketch) {
			b.s.in.Chip.Fuse.SiLUDownChunk = true
			siluDown(decl.ActivationSiLU)(b)
		}, before: wide, after: `
			layer.3.ffn.down gemm gate_up[0:16] gate_up[16:32] -> y ffn.down[8, 16] F16 silu_mul`},
		{name: "not what another reads", build: func(b *sketch) {
			siluDown(decl.ActivationSiLU)(b)
			b.product(roleRouter, b.p.nodes[0].out[0].v, b.v("z", 4))
		}, before: before + `
			layer.3.ffn.router gemv act -> z ffn.router[4, 16] F16`},
		{name: "not of two strides", build: func(b *sketch) {
			siluDown(decl.ActivationSiLU)(b)
			b.p.nodes[0].in[1] = b.v("up", 16).all()
		}, before: strings.Replace(before, "gate_up[16:32]", "up", 1)},
	})
}

func TestFuseProductAdd(t *testing.T) {
	build := func(delta float32) func(b *sketch) {
		return func(b *sketch) {
			y := b.v("y", 8)
			b.product(roleDown, b.v("act", 16), y)
			b.emit(roleFFNResidual, addArgs{delta: delta}, []*value{y}, b.v("x", 8))
		}
	}
	const before = `
		layer.3.ffn.down gemv act -> y ffn.down[8, 16] F16
		layer.3.ffn.residual add y -> x`
	irPass(t, "fuse-product-add", []irTest{
		{name: "few rows", build: build(0), before: before, after: `
			layer.3.ffn.down gemv act -> x ffn.down[8, 16] F16 add`},
		{name: "the sum of experts", build: func(b *sketch) {
			y := b.v("y", 8)
			b.emit(roleExpertSum, expertSumArgs{}, []*value{b.v("all", 16), b.v("weights", 2)}, y)
			b.emit(roleFFNResidual, addArgs{}, []*value{y}, b.v("x", 8))
		}, before: `
			layer.3.ffn.experts.sum expert_sum all weights -> y
			layer.3.ffn.residual add y -> x`, after: `
			layer.3.ffn.experts.sum expert_sum all weights -> x add`},
		{name: "not with a factor", build: build(0.5), before: before},
		{name: "not in a chunk", wide: true, build: build(0), before: strings.Replace(before, "gemv", "gemm", 1)},
		{name: "not a norm", build: func(b *sketch) {
			y := b.v("y", 8)
			b.emit(roleFFNPostNorm, normArgs{w: b.norm("w", 8)}, []*value{b.v("z", 8)}, y)
			b.emit(roleFFNResidual, addArgs{}, []*value{y}, b.v("x", 8))
		}, before: `
			layer.3.ffn.post_norm rmsnorm z -> y w[1, 8] F32
			layer.3.ffn.residual add y -> x`},
		{name: "not what another reads", build: func(b *sketch) {
			build(0)(b)
			b.product(roleRouter, b.p.nodes[0].out[0].v, b.v("z", 4))
		}, before: before + `
			layer.3.ffn.router gemv y -> z ffn.router[4, 8] F16`},
	})
}

func TestFuseNormProduct(t *testing.T) {
	build := func(norm normArgs) func(b *sketch) {
		return func(b *sketch) {
			norm.w = b.norm("w", 8)
			y := b.v("y", 8)
			b.emit(roleFFNNorm, norm, []*value{b.v("x", 8)}, y)
			b.product(roleGate, y, b.v("gate", 16))
			b.product(roleUp, y, b.v("up", 16))
		}
	}
	const before = `
		layer.3.ffn.norm rmsnorm x -> y w[1, 8] F32
		layer.3.ffn.gate gemv y -> gate ffn.gate[16, 8] F16
		layer.3.ffn.up gemv y -> up ffn.up[16, 8] F16`
	const conv = `
		layer.3.conv.conv causal_conv gate -> state conv taps[1, 64] F32`
	irPass(t, "fuse-norm-product", []irTest{
		{name: "two products", build: build(normArgs{}), before: before, after: `
			layer.3.ffn.gate gemv x -> gate ffn.gate[16, 8] F16 w[1, 8] F32 norm
			layer.3.ffn.up gemv x -> up ffn.up[16, 8] F16 w[1, 8] F32 norm`},
		{name: "not after an addition", build: func(b *sketch) {
			build(normArgs{})(b)
			add := &node{spot: spot{role: roleAttnResidual, layer: b.l}, args: addArgs{}, in: []operand{b.v("delta", 8).all()}, out: b.p.nodes[0].in}
			b.p.splice(0, 0, add)
		}, before: "layer.3.attn.residual add delta -> x" + before},
		{name: "not of a row of a chunk", build: build(normArgs{fromRow: true}), before: before},
		{name: "not with a factor", build: build(normArgs{scale: 2}), before: before},
		{name: "not with a mean", build: build(normArgs{mean: true}), before: strings.Replace(before, "rmsnorm", "layernorm", 1)},
		{name: "not in a chunk", wide: true, build: build(normArgs{}), before: strings.ReplaceAll(before, "gemv", "gemm")},
		{name: "not what the router's choice reads too", build: func(b *sketch) {
			build(normArgs{})(b)
			y := b.p.nodes[0].out[0].v
			b.emit(roleExpertGate, expertProductArgs{w: b.w("experts", 64, 8), share: 2}, []*value{y, b.v("ids", 2)}, b.v("z", 32))
		}, before: before + `
			layer.3.ffn.experts.gate expert_gemv y ids -> z experts[64, 8] F16`},
		{name: "around a convolution of the first product", build: func(b *sketch) {
			build(normArgs{})(b)
			gate, up := b.p.nodes[1], b.p.nodes[2]
			b.emit(roleConv, convArgs{w: b.norm("taps", 64), form: decl.ConvSiLU, taps: 4}, []*value{gate.out[0].v}, b.v("state", 48), b.v("conv", 16))
			b.p.nodes[2], b.p.nodes[3] = b.p.nodes[3], up
		}, before: strings.Replace(before, "\n\t\tlayer.3.ffn.up", conv+"\n\t\tlayer.3.ffn.up", 1), after: `
			layer.3.ffn.gate gemv x -> gate ffn.gate[16, 8] F16 w[1, 8] F32 norm` + conv + `
			layer.3.ffn.up gemv x -> up ffn.up[16, 8] F16 w[1, 8] F32 norm`},
		{name: "not behind an addition to what is normalised", build: func(b *sketch) {
			x, y := b.v("x", 8), b.v("y", 8)
			b.emit(roleFFNNorm, normArgs{w: b.norm("w", 8)}, []*value{x}, y)
			b.emit(roleGate, productArgs{w: b.w("a", 8, 8), output: decl.OutputAdd}, []*value{y}, x)
			b.emit(roleUp, productArgs{w: b.w("b", 8, 8)}, []*value{y}, b.v("up", 8))
		}, before: `
			layer.3.ffn.norm rmsnorm x -> y w[1, 8] F32
			layer.3.ffn.gate gemv y -> x a[8, 8] F16 add
			layer.3.ffn.up gemv y -> up b[8, 8] F16`},
	})
}

func TestFuseResidualNorm(t *testing.T) {
	// build emits post(z), x += post(z), and norm(x). post and norm are optional.
	build := func(post, norm *normArgs, delta float32) func(b *sketch) {
		return func(b *sketch) {
			x, y := b.v("x", 8), b.v("y", 8)
			if post != nil {
				post.w = b.norm("post", 8)
				b.emit(roleAttnPostNorm, *post, []*value{b.v("z", 8)}, y)
			}
			b.emit(roleAttnResidual, addArgs{delta: delta}, []*value{y}, x)
			if norm != nil {
				norm.w = b.norm("w", 8)
				b.emit(roleFFNNorm, *norm, []*value{x}, b.v("out", 8))
			}
		}
	}
	const add, after, post = "layer.3.attn.residual add y -> x\n", "layer.3.ffn.norm rmsnorm x -> out w[1, 8] F32\n", "layer.3.attn.post_norm rmsnorm z -> y post[1, 8] F32\n"
	irPass(t, "fuse-residual-norm", []irTest{
		{name: "norm after", build: build(nil, &normArgs{}, 0), before: add + after, after: `
			layer.3.ffn.norm add_rmsnorm y -> x out w[1, 8] F32`},
		{name: "norm after, with factors", build: build(nil, &normArgs{scale: 2}, 0.5), before: add + after, after: `
			layer.3.ffn.norm add_rmsnorm y -> x out w[1, 8] F32`},
		{name: "norm before", build: build(&normArgs{}, nil, 0), before: post + add, after: `
			layer.3.attn.residual norm_add z -> x post[1, 8] F32`},
		{name: "norms before and after", build: build(&normArgs{}, &normArgs{}, 0), before: post + add + after, after: `
			layer.3.ffn.norm norm_add z -> x out post[1, 8] F32 w[1, 8] F32`},
		{name: "norms before and after with a factor", build: build(&normArgs{}, &normArgs{scale: 2}, 0), before: post + add + after, after: `
			layer.3.attn.residual norm_add z -> x post[1, 8] F32
			layer.3.ffn.norm rmsnorm x -> out w[1, 8] F32`},
		{name: "not before a factor", build: build(&normArgs{}, nil, 0.5), before: post + add},
		{name: "not of a row of a chunk", build: build(nil, &normArgs{fromRow: true}, 0), before: add + after},
		{name: "not with a mean", build: build(nil, &normArgs{mean: true}, 0), before: add + strings.Replace(after, "rmsnorm", "layernorm", 1)},
	})
}
