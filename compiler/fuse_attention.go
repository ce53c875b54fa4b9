package compiler

import (
	"math/bits"
	"slices"

	"github.com/pianola-engine/pianola/table"
)

// fuseRopeKV fuses QK norm, RoPE of Q and K, and the KV write. The fused node writes Q to a new
// value, because its input is the output of the QKV product.
func (s *state) fuseRopeKV() error {
	for _, p := range s.programs {
		for i := 0; i < len(p.nodes); i++ {
			if n := p.match(i, roleQNorm, roleKNorm, roleQRope, roleKRope, roleKVWrite); n != nil {
				q, okQ := n[0].args.(headNormArgs)
				k, okK := n[1].args.(headNormArgs)
				if d := n[0].layer.headDim; okQ && okK && q.w.cols == d && k.w.cols == d { // each head is normalised separately
					s.ropeKV(p, i, n, s.concat(n[0].layer.name("attn.qk_norm"), q.w, k.w))
					continue
				}
			}
			if n := p.match(i, roleQRope, roleKRope, roleKVWrite); n != nil {
				s.ropeKV(p, i, n, nil)
			}
		}
	}
	return nil
}

// ropeKV replaces nodes, which begin at index i and end with RoPE of Q, RoPE of K and the KV write,
// by one node.
func (s *state) ropeKV(p *program, i int, nodes []*node, norm *weight) {
	rope, write := nodes[len(nodes)-3], nodes[len(nodes)-1]
	q, kv := rope.args.(ropeArgs), write.args.(kvWriteArgs)
	oldQ := rope.out[0]
	newQ := p.value(rope.label(), oldQ.width)
	p.splice(i, len(nodes), &node{
		spot: spot{role: roleRopeKV, layer: rope.layer},
		args: ropeKVArgs{norm: norm, heads: q.heads, kvHeads: kv.kvHeads, half: q.half, eps: s.cfg.Eps},
		in:   []operand{oldQ, write.in[0], write.in[1], rope.in[0]},
		out:  append([]operand{newQ.all()}, write.out...),
	})
	for _, later := range p.nodes[i+1:] {
		for j, o := range later.in {
			if o == oldQ {
				later.in[j] = newQ.all()
			}
		}
	}
}

// fuseRopeAttn fuses QK norm, RoPE and KV write with the attention after them, except in programs of
// a chunk. In programs of several rows, pass split-rows then creates one command per row, because a
// row reads the K and V of the previous one. Layers with attention sinks are not fused: the kernel
// has no binding left for the angles of the sinks. Nor are those whose rows see chunks of positions.
func (s *state) fuseRopeAttn() error {
	for _, p := range s.programs {
		if p.wide {
			continue
		}
		pairs(p, func(a *node, rope ropeKVArgs, b *node, attn attentionArgs) bool {
			if b.layer.sinks > 0 || attn.chunked || !p.feeds(a, b) {
				return false
			}
			args := ropeAttnArgs{
				attentionArgs: attn, own: s.ownWeights(b.layer, rope.norm, attn.learned), qkNorm: rope.norm != nil, logits: attn.learned != nil, eps: rope.eps,
			}
			args.half, args.learned = rope.half, nil
			b.args, b.in, b.out = args, a.in, []operand{a.out[1], a.out[2], b.out[0]}
			return true
		})
	}
	return nil
}

// ownWeights returns the weights of heads in one vector, because rope_attn and rope_attn_tile have one binding for
// them: those of QK norm, then the learned sink logits. Each may be nil.
func (s *state) ownWeights(l *layerPlan, norm, learned *weight) *weight {
	switch {
	case learned == nil:
		return norm
	case norm == nil:
		return s.concatVectors(l.name("attn.heads"), learned)
	}
	return s.concatVectors(l.name("attn.heads"), norm, learned)
}

// fuseRopeTile fuses QK norm, RoPE and KV write with attn_tile whose result becomes float16, in the programs that
// compute one row, or rows of different sequences: no row reads the K and V of another one. In joint passes,
// where rows of a prompt do, rows that are the only ones of their sequence get a fused node of their own, if there may
// be many of them.
func (s *state) fuseRopeTile() error {
	for _, p := range s.programs {
		mixed := p.flags.Has(table.FlagBatch) && !p.flags.Has(table.FlagChooses)
		if p.rows > 1 && !p.flags.Has(table.FlagBatch) {
			continue
		}
		pairs(p, func(a *node, rope ropeKVArgs, b *node, attn attnTileArgs) bool {
			if !p.feeds(a, b) || !s.fitsOwn(b.layer, attn) || stride(a.in[1]) != stride(a.in[2]) {
				return false
			}
			// pairs meets the nodes of a joint pass again after the new one was put before them.
			if mixed && (rope.joined || p.rows*attn.kvHeads < mixedWaves*s.in.Chip.Cores) {
				return false
			}
			args := ropeAttnTileArgs{
				attnTileArgs: attn, own: s.ownWeights(b.layer, rope.norm, attn.learned), qkNorm: rope.norm != nil, logits: attn.learned != nil, eps: rope.eps,
			}
			args.half, args.learned = rope.half, nil
			in, out := a.in, []operand{a.out[1], a.out[2], b.out[0]}
			if !mixed {
				b.args, b.in, b.out = args, in, out
				return true
			}
			rope.joined, attn.joined = true, true
			a.args, b.args = rope, attn
			p.splice(slices.Index(p.nodes, a), 0, &node{spot: b.with(".alone"), args: args, in: slices.Clone(in), out: out})
			return false
		})
	}
	return nil
}

// mixedWaves is the least number of waves of threadgroups of attn_tile, one for each row, in which a joint pass has a
// command of its own for rows that are the only ones of their sequence. It is an estimate: passes of 240 rows and more
// were measured (docs/rationale/kernels.md).
const mixedWaves = 2

// splitAttention splits the positions of a row among threadgroups if the cache is long, and adds a
// node that merges the results. It does not change programs of a chunk, whose many rows keep the
// chip busy.
func (s *state) splitAttention() error {
	limit := s.in.Chip.SplitContext
	if limit == 0 {
		return nil
	}
	for _, p := range s.programs {
		if p.wide {
			continue
		}
		for i := 0; i < len(p.nodes); i++ {
			n := p.nodes[i]
			a, ok := n.attention()
			if !ok || n.layer.cap <= limit || n.layer.sinks > 0 || a.chunked {
				continue
			}
			heads := s.in.Chip.AttnHeads
			if _, fused := n.args.(ropeAttnArgs); fused {
				heads = s.attnHeads(n.layer)
			}
			if a.splits = s.splits(a, heads); a.splits < 2 {
				continue
			}
			part := p.value(n.layer.name("attn.parts"), a.heads*a.splits*(n.layer.headDim+2))
			last := len(n.out) - 1
			merge := &node{
				spot: spot{role: roleMerge, layer: n.layer}, args: mergeArgs{heads: a.heads, splits: a.splits, window: a.window},
				in: []operand{part.all()}, out: []operand{n.out[last]},
			}
			n.setAttention(a)
			n.out[last] = part.all()
			p.splice(i+1, 0, merge)
			i++
		}
	}
	return nil
}

// attention returns the attention args of a node, also if RoPE is fused with it.
func (n *node) attention() (attentionArgs, bool) {
	switch a := n.args.(type) {
	case attentionArgs:
		return a, true
	case ropeAttnArgs:
		return a.attentionArgs, true
	}
	return attentionArgs{}, false
}

// setAttention replaces the args that attention returns.
func (n *node) setAttention(a attentionArgs) {
	if both, ok := n.args.(ropeAttnArgs); ok {
		both.attentionArgs = a
		n.args = both
		return
	}
	n.args = a
}

// maxSplits is the largest number of splits. A product that merges the splits reads
// all of them at once.
const maxSplits = 8

// splitThreads is the smallest number of threads that each core should have when
// attention is split.
const splitThreads = 512

// splits returns the number of threadgroups among which the positions of a row are
// divided. It is a power of two, limited by the number of cores, by the number of
// spans in the context, and by maxSplits. heads is the largest number of heads of a threadgroup.
func (s *state) splits(a attentionArgs, heads int) int {
	c := s.in.Chip
	groups := a.kvHeads * ceil(a.heads/a.kvHeads, heads)
	most := min(ceil(int(s.t.Header.Context), c.SplitSpan), max(c.Cores, 1)*max(1, splitThreads/c.AttnThreads)/groups, maxSplits)
	return 1 << bits.Len(uint(max(most, 1))) >> 1
}
