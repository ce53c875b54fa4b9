package compiler

import (
	"math/bits"
	"strings"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// isMatmul reports whether a node is a matrix product.
func (n *node) isMatmul() bool {
	return n.kernel == kernels.GEMV || n.kernel == kernels.GEMM
}

// run returns the nodes from i on if their labels end in suffixes, in order.
func (p *program) run(i int, suffixes ...string) []*node {
	if i+len(suffixes) > len(p.nodes) {
		return nil
	}
	nodes := p.nodes[i : i+len(suffixes)]
	for j, suffix := range suffixes {
		if !strings.HasSuffix(nodes[j].label, suffix) {
			return nil
		}
	}
	return nodes
}

// splice replaces n nodes from i on.
func (p *program) splice(i, n int, with ...*node) {
	p.nodes = append(p.nodes[:i:i], append(with, p.nodes[i+n:]...)...)
}

// rename makes every operand that is old, or columns of it, the same columns of
// v, which holds old's from column off on.
func (p *program) rename(old, v *value, off int) {
	for _, n := range p.nodes {
		for _, list := range [][]operand{n.in, n.out} {
			for i, o := range list {
				if o.v == old {
					list[i] = operand{v: v, off: o.off + off, width: o.width}
				}
			}
		}
	}
}

// uses counts the nodes that read or write v.
func (p *program) uses(v *value) int {
	count := 0
	for _, n := range p.nodes {
		for _, list := range [][]operand{n.in, n.out} {
			for _, o := range list {
				if o.v == v {
					count++
				}
			}
		}
	}
	return count
}

// fuseQKV joins Q, K and V where they are of one type and all or none have a
// bias.
func (s *state) fuseQKV() error {
	for _, p := range s.programs {
		for i := range p.nodes {
			if n := p.run(i, ".attn.q", ".attn.k", ".attn.v"); n != nil && joinable(n) {
				s.join(p, i, n, strings.TrimSuffix(n[0].label, "q")+"qkv")
			}
		}
	}
	return nil
}

// fuseGateUp joins the gate and up projections likewise.
func (s *state) fuseGateUp() error {
	for _, p := range s.programs {
		for i := range p.nodes {
			if n := p.run(i, ".ffn.gate", ".ffn.up"); n != nil && joinable(n) {
				s.join(p, i, n, strings.TrimSuffix(n[0].label, "gate")+"gate_up")
			}
		}
	}
	return nil
}

// joinable reports whether matrix products can be one: the same input, type
// and columns, and all or none with a bias.
func joinable(nodes []*node) bool {
	a := nodes[0]
	for _, b := range nodes {
		if !b.isMatmul() || b.kernel != a.kernel || b.in[0] != a.in[0] || b.w.typ != a.w.typ || b.w.cols != a.w.cols ||
			(b.bias == nil) != (a.bias == nil) {
			return false
		}
	}
	return true
}

// join replaces matrix products by one whose output holds theirs side by side.
func (s *state) join(p *program, i int, nodes []*node, label string) {
	joined := &node{kernel: nodes[0].kernel, label: label, region: label, in: nodes[0].in}
	var ws, biases []*weight
	width := 0
	for _, n := range nodes {
		ws = append(ws, n.w)
		biases = append(biases, n.bias)
		width += n.w.rows
	}
	joined.w = s.concat(label, ws...)
	if nodes[0].bias != nil {
		joined.bias = s.concatVectors(label+".bias", biases)
	}
	out := p.value(label, width)
	joined.out = []operand{out.all()}
	p.splice(i, len(nodes), joined)
	off := 0
	for _, n := range nodes {
		p.rename(n.out[0].v, out, off)
		off += n.w.rows
	}
}

// concatVectors returns the vector of list's elements one after another.
func (s *state) concatVectors(name string, list []*weight) *weight {
	w := &weight{name: name, rows: 1, typ: list[0].typ}
	for _, l := range list {
		w.cols += l.cols
		w.parts = append(w.parts, l.parts...)
	}
	return s.share(w)
}

// fuseRopeKV makes one command of QK norm, RoPE of Q and K, and the KV write.
// Q goes to a value of its own, since the command reads what it came from.
func (s *state) fuseRopeKV() error {
	for _, p := range s.programs {
		for i := 0; i < len(p.nodes); i++ {
			var q, k *weight
			n := p.run(i, ".attn.q_norm", ".attn.k_norm", ".attn.q_rope", ".attn.k_rope", ".attn.kv_write")
			if n != nil && n[0].w.cols == s.cfg.HeadDim && n[1].w.cols == s.cfg.HeadDim { // not over all heads at once
				q, k = n[0].w, n[1].w
			} else if n = p.run(i, ".attn.q_rope", ".attn.k_rope", ".attn.kv_write"); n == nil {
				continue
			}
			qRope, write := n[len(n)-3], n[len(n)-1]
			pre := strings.TrimSuffix(qRope.label, "q_rope")
			oldQ := qRope.out[0]
			newQ := p.value(pre+"q_rope", oldQ.width)
			fused := &node{
				kernel: kernels.QKRoPEKV, label: pre + "rope_kv", region: newQ.name,
				in:    []operand{oldQ, write.in[0], write.in[1], qRope.in[0]},
				out:   append([]operand{newQ.all()}, write.out...),
				heads: qRope.heads, kvHeads: write.kvHeads, half: qRope.half, layer: qRope.layer, eps: s.cfg.Eps,
			}
			if q != nil {
				fused.w = s.concat(pre+"qk_norm", q, k)
			}
			p.splice(i, len(n), fused)
			for _, later := range p.nodes[i+1:] {
				for j, o := range later.in {
					if o == oldQ {
						later.in[j] = newQ.all()
					}
				}
			}
		}
	}
	return nil
}

// fuseRopeAttn joins QK norm, RoPE and KV write with the attention after it, in
// programs of a few rows, for each of which pass split-rows makes a command: a row
// reads what the one before writes. Not where positions at the start are seen: it
// has no binding left for their angles.
func (s *state) fuseRopeAttn() error {
	for _, p := range s.programs {
		for i := 0; i+1 < len(p.nodes); i++ {
			a, b := p.nodes[i], p.nodes[i+1]
			if a.kernel != kernels.QKRoPEKV || p.wide || b.kernel != kernels.Attn || b.layer.sinks > 0 || b.in[0] != a.out[0] || p.uses(a.out[0].v) != 2 {
				continue
			}
			b.kernel, b.half, b.eps, b.w = kernels.RoPEAttn, a.half, a.eps, a.w
			b.norm = a.w != nil
			if b.extra != nil {
				// The kernel has one binding for what heads have of their own.
				list := []*weight{b.extra}
				if b.norm {
					list = []*weight{a.w, b.extra}
				}
				b.w, b.extra = s.concatVectors(strings.TrimSuffix(b.label, "attention")+"heads", list), nil
				b.learned = true
			}
			b.in, b.out = a.in, []operand{a.out[1], a.out[2], b.out[0]}
			p.splice(i, 1)
		}
	}
	return nil
}

// inProducts reports whether products have the activation of a silu_mul.
func inProducts(n *node) bool { return n.activation <= decl.ActivationGELUTanh }

// fuseSiLUDown moves silu(gate) * up into the product that alone reads it. In a
// program of a chunk it does so only where the chip wants that: every threadgroup
// of gemm computes the activation again.
func (s *state) fuseSiLUDown() error {
	for _, p := range s.programs {
		if p.wide && !s.in.Chip.Fuse.SiLUDownChunk {
			continue
		}
		for i := 0; i+1 < len(p.nodes); i++ {
			a, b := p.nodes[i], p.nodes[i+1]
			if a.kernel != kernels.SiLUMul || !inProducts(a) || !b.isMatmul() || b.in[0] != a.out[0] || p.uses(a.out[0].v) != 2 ||
				a.in[0].v.width != a.in[1].v.width { // the kernel has one stride for both
				continue
			}
			b.in, b.input, b.activation = a.in, decl.InputSiLUMul, a.activation
			p.splice(i, 1)
		}
	}
	return nil
}

// splitInput makes float16 of the input of products of a chunk, once for those
// that follow each other and read the same. silu(gate) * up becomes a part of
// it if nothing else reads that.
func (s *state) splitInput() error {
	fuse := s.in.Chip.Fuse.SiLUDown && !s.in.Options.NoFuse
	for _, p := range s.programs {
		if !p.wide {
			continue
		}
		var made *node // of the products before, if they have the same input
		var from operand
		for i := 0; i < len(p.nodes); i++ {
			n := p.nodes[i]
			if n.kernel != kernels.GEMM || !splittable(n.w) {
				made = nil
				continue
			}
			if made == nil || from != n.in[0] {
				from = n.in[0]
				out := p.value(n.label+".halves", halvesWidth(n.w.cols))
				made = &node{kernel: kernels.Halves, label: n.label + ".halves", region: out.name, in: n.in, out: []operand{out.all()}}
				if a := p.nodes[max(i-1, 0)]; fuse && a.kernel == kernels.SiLUMul && inProducts(a) && a.out[0] == from && p.uses(from.v) == 2 &&
					a.in[0].v.width == a.in[1].v.width { // the kernel has one stride for both
					made.in, made.input, made.activation = a.in, decl.InputSiLUMul, a.activation
					p.splice(i-1, 1, made)
				} else {
					p.splice(i, 0, made)
					i++
				}
			}
			n.kernel, n.in = kernels.GEMMHalves, made.out
		}
	}
	return nil
}

// splittable reports whether gemm_halves has a matrix: of float16 or bfloat16, in
// whole pieces.
func splittable(w *weight) bool {
	return (w.typ == dtype.F16 || w.typ == dtype.BF16) && w.layout == dtype.Rows && w.cols%8 == 0
}

// halvesWidth returns the size of a row of halves of n columns in float32.
func halvesWidth(n int) int { return roundUp(n, 64) + 4 }

// fuseProductAdd makes x += delta a part of the product that delta is, in
// programs of a few rows.
func (s *state) fuseProductAdd() error {
	for _, p := range s.programs {
		for i := 0; i+1 < len(p.nodes); i++ {
			a, b := p.nodes[i], p.nodes[i+1]
			if a.kernel != kernels.GEMV && a.kernel != kernels.ExpertSum || p.wide || b.kernel != kernels.Add || b.delta != 0 || b.in[0] != a.out[0] || p.uses(a.out[0].v) != 2 {
				continue
			}
			a.out, a.add = b.out, true
			p.splice(i+1, 1)
		}
	}
	return nil
}

// fuseNormProduct makes a norm a part of the products that alone read it, in
// programs of a few rows: each normalises x for itself.
func (s *state) fuseNormProduct() error {
	for _, p := range s.programs {
		for i := 0; i < len(p.nodes); i++ {
			n := p.nodes[i]
			if n.kernel != kernels.RMSNorm || p.wide || n.rowPatch || n.scale != 0 {
				continue
			}
			readers := p.normReaders(i)
			if len(readers) == 0 {
				continue
			}
			for _, r := range readers {
				r.in, r.input, r.extra, r.eps = n.in, decl.InputNorm, n.w, n.eps
			}
			p.splice(i, 1)
		}
	}
	return nil
}

// normReaders returns the products that follow the norm at i if nothing else
// reads it.
func (p *program) normReaders(i int) []*node {
	out := p.nodes[i].out[0]
	var list []*node
	for _, n := range p.nodes[i+1:] {
		if n.kernel != kernels.GEMV || n.input != decl.InputPlain || n.in[0] != out {
			break
		}
		list = append(list, n)
		if n.add {
			break // it may be x that it is added to
		}
	}
	if p.uses(out.v) != 1+len(list) {
		return nil
	}
	return list
}

// fuseResidualNorm joins x += delta with the norm of x after it, and with that of
// delta before it.
func (s *state) fuseResidualNorm() error {
	for _, p := range s.programs {
		for i := 0; i+1 < len(p.nodes); i++ {
			a, b := p.nodes[i], p.nodes[i+1]
			if a.kernel != kernels.RMSNorm || a.rowPatch || b.kernel != kernels.Add || b.delta != 0 || b.in[0] != a.out[0] || p.uses(a.out[0].v) != 2 {
				continue
			}
			b.kernel, b.in, b.w, b.eps = kernels.NormAdd, a.in, a.w, a.eps
			p.splice(i, 1)
		}
		for i := 0; i+1 < len(p.nodes); i++ {
			a, b := p.nodes[i], p.nodes[i+1]
			if a.kernel != kernels.Add && a.kernel != kernels.NormAdd || b.kernel != kernels.RMSNorm || b.in[0] != a.out[0] || b.rowPatch || a.kernel == kernels.NormAdd && b.scale != 0 {
				continue
			}
			b.kernel = kernels.AddRMSNorm
			if a.kernel == kernels.NormAdd {
				b.kernel, b.extra, b.w = a.kernel, b.w, a.w
			}
			b.in, b.out, b.delta = a.in, []operand{a.out[0], b.out[0]}, a.delta
			p.splice(i, 1)
		}
	}
	return nil
}

// splitAttention divides the positions of a row among threadgroups where the
// cache is long and the program has few rows, and merges the parts with a second
// command.
func (s *state) splitAttention() error {
	limit := s.in.Chip.SplitContext
	if limit == 0 {
		return nil
	}
	for _, p := range s.programs {
		for i := 0; i < len(p.nodes); i++ {
			n := p.nodes[i]
			if n.kernel != kernels.Attn && n.kernel != kernels.RoPEAttn || p.wide || n.layer.cap <= limit || n.layer.sinks > 0 {
				continue
			}
			splits := s.splits(n)
			if splits < 2 {
				continue
			}
			pre := strings.TrimSuffix(n.label, "attention")
			part := p.value(pre+"parts", n.heads*splits*(s.cfg.HeadDim+2))
			last := len(n.out) - 1
			merge := &node{kernel: kernels.AttnMerge, label: pre + "merge", region: n.region,
				in: []operand{part.all()}, out: []operand{n.out[last]}, heads: n.heads, window: n.window, splits: splits, layer: n.layer}
			n.splits, n.out[last], n.region = splits, part.all(), part.name
			p.splice(i+1, 0, merge)
			i++
		}
	}
	return nil
}

// fuseMergeProduct moves the merging of attention's splits into the product that
// alone reads it, in programs of a few rows: each of its threadgroups merges them.
func (s *state) fuseMergeProduct() error {
	d := s.cfg.HeadDim
	for _, p := range s.programs {
		for i := 0; i+1 < len(p.nodes); i++ {
			a, b := p.nodes[i], p.nodes[i+1]
			if a.kernel != kernels.AttnMerge || p.wide || b.kernel != kernels.GEMV || b.input != decl.InputPlain || b.in[0] != a.out[0] ||
				p.uses(a.out[0].v) != 2 || d%4 != 0 {
				continue
			}
			part, n := a.in[0].v, a.heads*a.splits
			b.in = []operand{{v: part, width: n * d}, {v: part, off: n * d, width: 2 * n}}
			b.input, b.heads, b.splits, b.window = decl.InputMerge, a.heads, a.splits, a.window
			p.splice(i, 1)
		}
	}
	return nil
}

// maxSplits is how many splits there are at most: as many as a product reads at
// once to merge them.
const maxSplits = 8

// splitThreads is how many threads a core should have at least where attention
// is split.
const splitThreads = 512

// splits returns among how many threadgroups the positions of a row are divided,
// a power of two: as many as there are cores for, and as there can be spans.
func (s *state) splits(n *node) int {
	c := s.in.Chip
	groups := n.kvHeads * ceil(n.heads/n.kvHeads, c.AttnHeads)
	most := min(ceil(int(s.t.Header.Context), c.SplitSpan), max(c.Cores, 1)*max(1, splitThreads/c.AttnThreads)/groups, maxSplits)
	return 1 << bits.Len(uint(max(most, 1))) >> 1
}

// splitArgmax finds the largest logits of parts of the vocabulary first, where
// it is more than one threadgroup should read.
func (s *state) splitArgmax() error {
	part := s.in.Chip.ArgmaxPart
	if s.cfg.Vocab <= part {
		return nil
	}
	parts := ceil(s.cfg.Vocab, part)
	for _, p := range s.programs {
		for i, n := range p.nodes {
			if n.kernel != kernels.Argmax || n.splits > 0 {
				continue
			}
			best := p.value("out.parts", 2*parts)
			p.splice(i, 0, &node{kernel: kernels.ArgmaxPart, label: "out.argmax_part", region: best.name, in: []operand{n.in[0]}, out: []operand{best.all()}, part: part})
			n.in[0], n.splits = best.all(), parts
			break
		}
	}
	return nil
}
