package arch

import (
	"fmt"
	"slices"
)

// ggufKeys are the metadata keys that a descriptor can rename, without the architecture's prefix.
// ggml's docs/gguf.md lists them.
var ggufKeys = []string{
	"block_count", "embedding_length", "attention.head_count", "attention.head_count_kv",
	"attention.key_length", "attention.value_length", "feed_forward_length", "vocab_size", "context_length",
	"attention.layer_norm_rms_epsilon", "attention.sliding_window", "rope.dimension_count", "rope.freq_base",
	"rope.freq_base_swa", attnSoftCap, logitSoftCap,
}

// readGGUF reads a GGUF file.
func (s *Set) readGGUF(src Source) (*Config, error) {
	meta := &fields{get: src.Meta}
	name := meta.string("general.architecture", "")
	if name == "" {
		meta.failf("general.architecture", "missing")
	}
	title := meta.string("general.name", "")
	if meta.err != nil {
		return nil, meta.err
	}
	at := slices.IndexFunc(s.list, func(d *descriptor) bool {
		return d.GGUF != nil && slices.Contains(d.GGUF.Architectures, name)
	})
	if at < 0 {
		return nil, &UnsupportedError{Name: name, Known: s.Names()}
	}
	d, g := s.list[at], s.list[at].GGUF
	f := &fields{
		get: func(key string) (any, bool) {
			if v, ok := src.Meta(name + "." + key); ok {
				if key == kvHeadsKey || key == ffKey {
					v = g.Layers.firstOf(g.Recurrent.first(v))
				}
				return v, true
			}
			v, ok := g.Defaults[key]
			return v, ok
		},
		prefix: name + ".",
		rename: g.Keys,
	}
	f.refuse(g.Refuse)

	c := d.config()
	c.Name = title
	c.Activation = Activation(*d.Activation)
	c.NormPlusOne = g.NormPlusOne
	c.RopeLayout = RopeLayout(*g.RopeLayout)
	c.names = g.names("")
	c.Layers = f.need("block_count", 1, maxLayers)
	c.Width = f.need("embedding_length", 1, maxWidth)
	c.FF = f.need(ffKey, 1, maxFF)
	c.Context = f.need("context_length", 1, maxContext)
	c.Eps = f.eps("attention.layer_norm_rms_epsilon")
	// Layers behind the model's own predict further tokens.
	if more := f.opt("nextn_predict_layers", 0, maxLayers, 0); more > 0 && more < c.Layers {
		c.Layers -= more
	}
	c.Layer = make([]Layer, c.Layers)
	c.joinQKV(src)
	if g.Latent != nil {
		g.Latent.readGGUF(f, c, src)
	} else {
		c.readHeads(f, src, "attention.head_count", kvHeadsKey, "attention.key_length")
		if n := f.opt("attention.value_length", 1, maxHeadDim, c.HeadDim); f.err == nil && n != c.HeadDim {
			f.failf("attention.value_length", "%d is not the key length %d", n, c.HeadDim)
		}
	}
	c.readVocab(f, src)
	if f.err != nil {
		return nil, f.err
	}

	c.TiedHead = !has(src, c.names.weight(Head, 0))
	for r := range roleCount {
		if p := c.Bias.field(r); p != nil {
			*p = *p || c.any(r, func(layer int) bool { return has(src, c.names.bias(r, layer)) })
		}
	}
	c.AttnSinks = has(src, c.names.weight(AttnSinks, 0))
	c.LayerScale = has(src, c.names.weight(LayerScale, 0))
	if g.QKNormOptional {
		c.QKNorm = has(src, c.names.weight(QNorm, 0))
	}
	if n := f.opt("expert_count", 0, maxExperts, 0); n > 0 && n == g.PlainExperts {
		c.QKNorm = false
	}
	c.QKLayerNorm = c.QKNorm && d.QKLayerNorm
	g.readParallel(f, c)
	c.readLimit(f)
	d.scales(f, c)
	if slices.Contains(g.WidthScale, c.Layers) {
		c.AttnScale = invRoot(float64(c.Width / c.Heads))
	}
	rope := g.readRope(f, src, c)
	c.readScales(f, g.Scales)
	g.Temper.readGGUF(f, c)
	g.readWindows(f, src, c, rope)
	g.Layers.readGGUF(f, c, src, func(key string) (any, bool) { return src.Meta(name + "." + key) })
	g.AltUp.readGGUF(f, c, src)
	if f.err == nil {
		heads, _ := src.Meta(name + "." + kvHeadsKey)
		widths, _ := src.Meta(name + "." + ffKey)
		g.Recurrent.readGGUF(f, src, c, heads, widths)
	}
	for _, key := range []string{"eos", "eot", "eom"} {
		c.StopIDs = meta.stopIDs(c.StopIDs, "tokenizer.ggml."+key+"_token_id", c.Vocab)
	}
	f.fail(meta.err)
	if f.err != nil {
		return nil, f.err
	}
	c.readExperts(f, src, g.Experts, &g.form, "")
	if f.err != nil {
		return nil, f.err
	}
	g.NoRope.mark(f, c)
	return c, f.err
}

// readVocab takes the size of the vocabulary from the metadata, or else from the embedding's
// rows.
func (c *Config) readVocab(f *fields, src Source) {
	name := c.names.weight(Embed, 0)
	shape, ok := src.Shape(name)
	switch {
	case f.err != nil:
	case !ok:
		f.fail(&TensorError{Name: name})
	case len(shape) != 2 || shape[0] < 1 || shape[0] > maxVocab:
		f.fail(&FieldError{
			Key:    "tensor " + name,
			Reason: fmt.Sprintf("shape %d is not a matrix of 1..%d rows", shape, maxVocab),
		})
	default:
		c.Vocab = f.opt("vocab_size", 1, maxVocab, int(shape[0]))
	}
}

// readRope reads the RoPE settings as llama.cpp does (llama-model.cpp, llama-context.cpp and
// ggml's ops.cpp).
//
// With YaRN, ggml multiplies cosines and sines by 0.1 ln(factor) + 1, and llama.cpp adjusts the
// factor so that the result is the same as in transformers, with rope.scaling.yarn_log_multiplier
// for mscale_all_dim and mscale 1. rope.scaling.yarn_attn_factor has no effect unless the share
// of extrapolation is 0. rope.scaling.attn_factor always multiplies.
func (g *ggufForm) readRope(f *fields, src Source, c *Config) ropeSpec {
	s := ropeSpec{
		kind:       ropeDefault,
		dim:        f.opt("rope.dimension_count", 2, c.ropeWidth(0), c.ropeWidth(0)),
		base:       f.float("rope.freq_base", minBase, maxBase, 10000),
		factor:     f.float("rope.scaling.factor", 0, maxRopeFactor, 0),
		attnFactor: 1,
	}
	if f.err == nil && s.dim%2 != 0 {
		f.failf("rope.dimension_count", "%d is odd", s.dim)
	}
	if s.factor == 0 {
		s.factor = f.float("rope.scale_linear", 0, maxRopeFactor, 0) // its former name
	}
	if s.factor == 0 {
		s.factor = 1
	}
	if f.err == nil && s.factor < minRopeFactor {
		f.failf("rope.scaling.factor", "%v is not in %v..%v", s.factor, minRopeFactor, maxRopeFactor)
	}
	if has(src, g.RopeFactors) {
		s.factors = g.RopeFactors
	}
	switch kind := f.string("rope.scaling.type", ropeLinear); kind {
	case "none":
	case ropeLinear, ropeLong: // their tensors define these kinds
		if s.factor != 1 {
			s.kind = ropeLinear
		}
	case ropeYarn:
		s.kind, s.keepFraction = ropeYarn, g.YarnFraction
		s.origContext = f.opt("rope.scaling.original_context_length", 1, maxContext, c.Context)
		s.betaFast = f.float("rope.scaling.yarn_beta_fast", minRopeFactor, maxRopeFactor, 32)
		s.betaSlow = f.float("rope.scaling.yarn_beta_slow", minRopeFactor, maxRopeFactor, 1)
		s.extrapolation = f.float("rope.scaling.yarn_ext_factor", 0, 1, 1)
		logMul := f.float("rope.scaling.yarn_log_multiplier", 0, maxRopeFactor, 0)
		switch {
		case g.Latent != nil: // mscale is mscale_all_dim
			s.attnFactor = 1
			c.AttnScale = latentScale(c, yarnScale(s.factor, logMul/scaleAllUnit))
		case s.extrapolation == 0:
			s.attnFactor = f.float("rope.scaling.yarn_attn_factor", minRopeFactor, maxRopeFactor, 1)
		case logMul != 0:
			s.attnFactor = yarnScale(s.factor, 1) / yarnScale(s.factor, logMul)
		default:
			s.attnFactor = yarnScale(s.factor, 1)
		}
	default:
		f.fail(&UnsupportedValueError{
			Key: f.name("rope.scaling.type"), Value: clip(kind), Known: []string{"none", ropeLinear, ropeYarn, ropeLong},
		})
	}
	s.attnFactor *= f.float("rope.scaling.attn_factor", minRopeFactor, maxRopeFactor, 1)
	if has(src, g.ShortFactors) || has(src, g.LongFactors) {
		s.kind, s.factors, s.longFactors = ropeLong, g.ShortFactors, g.LongFactors
		s.origContext = f.opt("rope.scaling.original_context_length", 1, maxContext, c.Context)
	}
	return s
}
