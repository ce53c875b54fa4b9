package arch

import (
	"math"
	"strings"
)

// Latent describes multi-head latent attention. K and V of a position are products of a latent, a
// vector of KVRank elements, with the up projections of each head; only the latent and the rotated
// elements of K, which all heads share, are cached. A compiler absorbs the up projections into Q and
// the output, so that all heads attend to the same rows of KVRank + Rope elements: [Config.KVHeads] is
// 1 and [Config.HeadDim] is KVRank + Rope.
type Latent struct {
	QRank  int  // rank of Q's projection; 0 if Q is projected directly
	KVRank int  // elements of a latent; 0 if the model has no latent attention
	Nope   int  // elements of a head of Q and K that RoPE does not rotate
	Rope   int  // elements that follow them, which RoPE rotates
	Value  int  // elements of a head of V
	Joined bool // K and V are rows of one tensor, KVUp
	// Eps is the epsilon of the norms of the latent and of Q's low-rank projection.
	Eps float32
}

// latentRule asks for latent attention in a file form. The keys of its settings are the same in all
// families.
type latentRule struct {
	DirectQ string  `json:"direct_q"` // name of Q without a low rank
	Eps     float64 `json:"eps"`      // epsilon of the norms inside; if it is 0, that of the other norms
}

// latentUnit divides the sizes of heads' parts, so that vector loads of them are aligned.
const latentUnit = 4

// scaleAllUnit is the factor of mscale_all_dim in GGUF files: rope.scaling.yarn_log_multiplier is
// 0.1 times as large.
const scaleAllUnit = 0.1

// latentEpsKey is the key of the epsilon of the norms inside in GGUF files that Pianola converts, if it
// differs from that of the other norms. llama.cpp has one epsilon.
const latentEpsKey = "attention.latent_layer_norm_rms_epsilon"

// readHF reads the settings of config.json.
func (r *latentRule) readHF(f *fields, c *Config, h *hfForm, prefix string) {
	c.Heads = f.need("num_attention_heads", 1, maxHeads)
	c.Latent = Latent{
		QRank: f.opt("q_lora_rank", 0, maxWidth, 0), KVRank: f.need("kv_lora_rank", 1, maxHeadDim), Joined: true,
		Nope: f.need("qk_nope_head_dim", 1, maxHeadDim), Rope: f.need("qk_rope_head_dim", 2, maxHeadDim), Value: f.need("v_head_dim", 1, maxHeadDim),
	}
	r.complete(f, c, "kv_lora_rank")
	if c.Latent.QRank == 0 {
		c.names[Q] = h.prefixed(r.DirectQ, prefix)
	}
}

// readGGUF reads the settings of a GGUF file. Older files have the sizes of heads in the keys without
// _mla, and one tensor for K and V.
func (r *latentRule) readGGUF(f *fields, c *Config, src Source) {
	c.Heads = f.need("attention.head_count", 1, maxHeads)
	rope := f.need("rope.dimension_count", 2, maxHeadDim)
	key := f.opt("attention.key_length_mla", 1, maxHeadDim, 0)
	value := f.opt("attention.value_length_mla", 1, maxHeadDim, 0)
	if key == 0 {
		key = f.need("attention.key_length", 1, maxHeadDim)
	}
	if value == 0 {
		value = f.need("attention.value_length", 1, maxHeadDim)
	}
	c.Latent = Latent{
		QRank: f.opt("attention.q_lora_rank", 0, maxWidth, 0), KVRank: f.need("attention.kv_lora_rank", 1, maxHeadDim),
		Nope: key - rope, Rope: rope, Value: value, Joined: !has(src, c.names.weight(K, 0)),
	}
	if f.err == nil && key <= rope {
		f.failf("attention.key_length", "%d is not above rope.dimension_count %d", key, rope)
	}
	r.complete(f, c, "attention.kv_lora_rank")
	if _, ok := f.value(latentEpsKey); ok {
		c.Latent.Eps = f.eps(latentEpsKey)
	}
	if c.Latent.QRank == 0 {
		c.names[Q] = r.DirectQ
	}
	if c.Latent.Joined {
		c.names[K], c.names[V] = "", ""
	} else {
		c.names[KVUp] = "" // some files have both
	}
}

// complete sets what follows from the sizes, and checks them.
func (r *latentRule) complete(f *fields, c *Config, rankKey string) {
	l := &c.Latent
	c.KVHeads, c.HeadDim, c.AttnScale = 1, l.KVRank+l.Rope, latentScale(c, 1)
	if l.Eps = float32(r.Eps); l.Eps == 0 {
		l.Eps = c.Eps
	}
	switch {
	case f.err != nil:
	case l.KVRank%latentUnit != 0 || l.Nope%latentUnit != 0 || l.Rope%latentUnit != 0 || l.Value%latentUnit != 0:
		f.failf(rankKey, "a latent of %d elements, heads of %d + %d and values of %d are not multiples of %d", l.KVRank, l.Nope, l.Rope, l.Value, latentUnit)
	case c.HeadDim > maxHeadDim:
		f.failf(rankKey, "a latent of %d and %d rotated elements are more than %d", l.KVRank, l.Rope, maxHeadDim)
	}
}

// validate checks the rule. It is nil for families without latent attention.
func (r *latentRule) validate(where string) error {
	if r == nil {
		return nil
	}
	if strings.Count(r.DirectQ, layerVerb) != 1 || strings.Count(r.DirectQ, "%") != 1 {
		return &FieldError{Key: where + ".latent.direct_q", Reason: "has no " + layerVerb + " for the layer"}
	}
	if r.Eps < 0 || r.Eps > maxEps {
		return &FieldError{Key: where + ".latent.eps", Reason: "is not an epsilon"}
	}
	return nil
}

// ropeWidth returns the number of elements of a head that RoPE could rotate in a layer.
func (c *Config) ropeWidth(layer int) int {
	if c.Latent.KVRank > 0 {
		return c.Latent.Rope
	}
	return c.HeadDimAt(layer)
}

// latentShape returns the shape of a role's tensor that differs with latent attention, or nil.
func (c *Config) latentShape(r Role) []uint64 {
	l := &c.Latent
	if l.KVRank == 0 {
		return nil
	}
	width, heads, rank := uint64(c.Width), uint64(c.Heads), uint64(l.KVRank)
	nope, rope, value := uint64(l.Nope), uint64(l.Rope), uint64(l.Value)
	switch r {
	case QDown:
		return []uint64{uint64(l.QRank), width}
	case QDownNorm:
		return []uint64{uint64(l.QRank)}
	case Q:
		if l.QRank > 0 {
			width = uint64(l.QRank)
		}
		return []uint64{heads * (nope + rope), width}
	case KVDown:
		return []uint64{rank + rope, width}
	case KVDownNorm:
		return []uint64{rank}
	case KVUp:
		return []uint64{heads * (nope + value), rank}
	case K:
		return []uint64{heads, rank, nope}
	case V:
		return []uint64{heads, value, rank}
	case O:
		return []uint64{width, heads * value}
	}
	return nil
}

// latentScale returns the factor of Q·K, where mscale is YaRN's factor for all elements of a head.
func latentScale(c *Config, mscale float64) float32 {
	return float32(mscale * mscale / math.Sqrt(float64(c.Latent.Nope+c.Latent.Rope)))
}

// hfRopeScale returns YaRN's factor for all elements of a head, from the settings of config.json.
func hfRopeScale(f *fields) float64 {
	p := f.object("rope_scaling")
	if p == nil {
		p = f.object("rope_parameters")
	}
	if p == nil || p.string("rope_type", p.string("type", ropeDefault)) == ropeDefault {
		return 1
	}
	scale := p.float("mscale_all_dim", 0, maxRopeFactor, 0)
	factor := p.float("factor", minRopeFactor, maxRopeFactor, 1)
	f.fail(p.err)
	return yarnScale(factor, scale)
}
