package synth

import "fmt"

// Delta holds the dimensions of a hybrid model, in which most layers have the gated delta rule instead
// of attention.
type Delta struct {
	Interval uint32 // every Interval-th layer has attention
	KeyHeads uint32 // heads of Q and K
	Heads    uint32 // heads of V
	KeyDim   uint32 // elements of a head of Q and K
	ValueDim uint32 // elements of a head of V
	Taps     uint32 // positions that the convolution covers
	RopeDim  uint32 // elements of a head of attention that RoPE rotates
}

// check returns an error if the sizes are inconsistent. A shape without gated delta layers is valid.
func (d *Delta) check(s *Shape) error {
	switch {
	case d == nil:
		return nil
	case d.Interval == 0 || d.KeyHeads == 0 || d.Heads == 0 || d.Heads%d.KeyHeads != 0 || d.KeyDim == 0 || d.ValueDim == 0 || d.Taps < 2:
		return fmt.Errorf("synth: shape %s: the gated delta layers %+v are inconsistent", s.Name, *d)
	case d.RopeDim == 0 || d.RopeDim%2 != 0 || d.RopeDim > s.HeadDim:
		return fmt.Errorf("synth: shape %s: RoPE rotates %d of %d elements", s.Name, d.RopeDim, s.HeadDim)
	}
	return nil
}

// has reports whether a layer has the gated delta rule.
func (d *Delta) has(layer uint32) bool { return d != nil && (layer+1)%d.Interval != 0 }

// channels returns the number of elements of Q, K and V together.
func (d *Delta) channels() uint64 {
	return 2*uint64(d.KeyHeads)*uint64(d.KeyDim) + uint64(d.Heads)*uint64(d.ValueDim)
}

// delta lists the tensors of a block with the gated delta rule.
func (l *lister) delta(blk string, hidden uint64, d *Delta) {
	heads, values := uint64(d.Heads), uint64(d.Heads)*uint64(d.ValueDim)
	l.vector(blk+"ssm_a", heads, decayRate)
	l.matrix(blk+"ssm_conv1d.weight", d.channels(), uint64(d.Taps), matrix)
	l.vector(blk+"ssm_dt.bias", heads, decayShift)
	l.matrix(blk+"ssm_alpha.weight", heads, hidden, matrix)
	l.matrix(blk+"ssm_beta.weight", heads, hidden, matrix)
	l.matrix(blk+"attn_qkv.weight", d.channels(), hidden, matrix)
	l.matrix(blk+"attn_gate.weight", values, hidden, matrix)
	l.vector(blk+"ssm_norm.weight", uint64(d.ValueDim), norm)
	l.matrix(blk+"ssm_out.weight", hidden, values, attentionOutput)
}

// metadata passes the metadata entries of a hybrid model to add.
func (d *Delta) metadata(add func(key string, value any)) {
	if d == nil {
		return
	}
	add("rope.dimension_count", d.RopeDim)
	// llama.cpp rotates the pairs of a head by the positions of three axes in these proportions. Text
	// has the same position on all axes.
	pairs := int32(d.RopeDim / 2)
	add("rope.dimension_sections", []int32{pairs - pairs/3*2 - 1, pairs/3 + 1, pairs / 3, 0})
	add("ssm.conv_kernel", d.Taps)
	add("ssm.state_size", d.KeyDim)
	add("ssm.group_count", d.KeyHeads)
	add("ssm.time_step_rank", d.Heads)
	add("ssm.inner_size", d.Heads*d.ValueDim)
	add("full_attention_interval", d.Interval)
}
