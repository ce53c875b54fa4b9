package arch

import (
	"math"
	"slices"
)

// hfKeys are the keys of config.json that a descriptor can rename and give defaults for.
// transformers documents them with each family's configuration class.
var hfKeys = []string{
	"num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
	"intermediate_size", "vocab_size", "max_position_embeddings", "rms_norm_eps", "hidden_act",
	"tie_word_embeddings", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings",
}

// The layer types of config.json.
const (
	fullAttention    = "full_attention"
	slidingAttention = "sliding_attention"
	chunkedAttention = "chunked_attention"
)

// readHF reads a Hugging Face directory.
func (s *Set) readHF(src Source) (*Config, error) {
	f := hfFields(src)
	d, prefix, err := s.selectHF(f, src)
	if err != nil {
		return nil, err
	}
	h := d.HF
	f = h.withDefaults(f)
	f.refuse(h.Refuse)

	c := d.config()
	c.NormPlusOne = h.NormPlusOne
	c.RopeLayout = RopeLayout(*h.RopeLayout)
	c.names = h.names(prefix)
	c.Layers = h.Recurrent.layers(f)
	c.Width = f.need("hidden_size", 1, maxWidth)
	if widths := h.Layers.widths(f); widths != nil {
		c.FF = widths[0]
	} else {
		c.FF = h.FF.readFF(f)
	}
	c.Vocab = f.need("vocab_size", 1, maxVocab)
	c.Context = f.need("max_position_embeddings", 1, maxContext)
	c.Eps = f.eps("rms_norm_eps")
	c.TiedHead = f.bool("tie_word_embeddings", false)
	if h.Latent != nil {
		h.Latent.readHF(f, c, h, prefix)
	} else {
		c.readHeads(f, src, "num_attention_heads", "num_key_value_heads", "head_dim")
	}
	if h.QKNormFlag != "" {
		c.QKNorm = f.bool(h.QKNormFlag, d.QKNorm)
	}
	c.QKLayerNorm = c.QKNorm && d.QKLayerNorm
	h.readParallel(f, c)
	c.Activation, c.AttnSinks = Activation(*d.Activation), c.names[AttnSinks] != ""
	c.LayerScale = c.names[LayerScale] != ""
	if !d.FixedActivation {
		c.Activation = f.activation("hidden_act", c.Activation)
	}
	c.readLimit(f)
	d.scales(f, c)
	if h.QueryScalar != "" {
		if x := f.float(h.QueryScalar, minScale, maxScale, 0); x != 0 {
			c.AttnScale = invRoot(x)
		}
	}
	for role, rule := range h.Bias {
		*c.Bias.field(Role(role)) = rule.value(f)
	}
	if f.err != nil {
		return nil, f.err
	}
	c.readScales(f, h.Scales)
	c.Layer = make([]Layer, c.Layers)
	h.NoRope.mark(f, c)
	types := h.readWindows(f, c)
	h.Layers.readHF(f, c)
	h.AltUp.readHF(f, c)
	h.Recurrent.readHF(f, src, c)
	c.readExperts(f, src, h.Experts, &h.form, prefix)
	theta := ""
	if h.Window != nil {
		theta = h.Window.Theta
	}
	readHFRopes(f, c, types, theta)
	h.Temper.readHF(f, c)
	if h.Latent != nil {
		c.AttnScale = latentScale(c, hfRopeScale(f))
	}
	c.StopIDs = f.stopIDs(nil, "eos_token_id", c.Vocab)
	if generation := (&fields{get: src.Meta}).object("generation_config"); generation != nil {
		c.StopIDs = generation.stopIDs(c.StopIDs, "eos_token_id", c.Vocab)
		f.fail(generation.err)
	}
	if f.err != nil {
		return nil, f.err
	}
	return c, nil
}

// hfFields returns config.json's fields. Fields of a nested text_config, which multimodal models
// have, take precedence.
func hfFields(src Source) *fields {
	v, _ := src.Meta("text_config")
	text, _ := v.(map[string]any)
	return &fields{get: func(key string) (any, bool) {
		if v, ok := text[key]; ok {
			return v, true
		}
		return src.Meta(key)
	}}
}

// withDefaults returns fields that use the family's own names, and its defaults for fields that f
// lacks.
func (h *hfForm) withDefaults(f *fields) *fields {
	model, _ := f.get("model_type")
	name, _ := model.(string)
	return &fields{rename: h.Keys, get: func(key string) (any, bool) {
		if v, ok := f.get(key); ok {
			return v, true
		}
		if v, ok := h.ModelDefaults[name][key]; ok {
			return v, true
		}
		v, ok := h.Defaults[key]
		return v, ok
	}}
}

// selectHF returns the descriptor that fits a model, and the prefix of the tensors' names.
// model_type decides (the text model's takes precedence); without it the class name; without both
// the tensors.
func (s *Set) selectHF(f *fields, src Source) (d *descriptor, prefix string, err error) {
	model := f.string("model_type", "")
	var class string
	for _, v := range f.list("architectures") {
		if name, ok := v.(string); ok && class == "" {
			class = name
		}
	}
	top := (&fields{get: src.Meta}).string("model_type", "")
	if f.err != nil {
		return nil, "", f.err
	}
	for _, name := range []string{model, top} {
		for _, d := range s.list {
			switch {
			case d.HF == nil:
			case name != "":
				if slices.Contains(d.HF.ModelTypes, name) {
					return d, d.HF.prefix(src), nil
				}
			case class != "":
				if slices.Contains(d.HF.Architectures, class) {
					return d, d.HF.prefix(src), nil
				}
			case d.HF.ByTensors && d.fits(f, src):
				return d, d.HF.prefix(src), nil
			}
		}
	}
	name := model
	if name == "" {
		name = class
	}
	return nil, "", &UnsupportedError{Name: name, Known: s.Names()}
}

// prefix returns the prefix with which the embedding exists, or "".
func (h *hfForm) prefix(src Source) string {
	for _, prefix := range h.Prefixes {
		names := h.names(prefix)
		if has(src, names.weight(Embed, 0)) {
			return prefix
		}
	}
	return ""
}

// fits reports whether the first layer has exactly the head norms and biases of the family.
func (d *descriptor) fits(f *fields, src Source) bool {
	names := d.HF.names(d.HF.prefix(src))
	if !has(src, names.weight(Embed, 0)) || !has(src, names.weight(Q, 0)) {
		return false
	}
	if has(src, names.weight(QNorm, 0)) != d.QKNorm || has(src, names.weight(KNorm, 0)) != d.QKNorm {
		return false
	}
	f = d.HF.withDefaults(f)
	for r := range roleCount {
		if r.projection() && has(src, names.bias(r, 0)) != d.HF.Bias[roleName(r)].value(f) {
			return false
		}
	}
	return f.err == nil
}

func (b biasRule) value(f *fields) bool {
	if b.flag == "" {
		return b.always
	}
	return f.bool(b.flag, false)
}

// readWindows sets the windows in c.Layer and returns each layer's type.
func (h *hfForm) readWindows(f *fields, c *Config) (types []string) {
	types = slices.Repeat([]string{fullAttention}, c.Layers)
	w := h.Window
	if w == nil {
		return types
	}
	size := 0
	if w.Enable == "" || f.bool(w.Enable, false) {
		size = f.opt(w.Size, 1, maxContext, 0)
	}
	var list []any
	if w.LayerTypes != "" {
		list = f.list(w.LayerTypes)
	}
	from := 0
	switch {
	case list != nil:
		if len(list) != c.Layers {
			f.failf(w.LayerTypes, "%d entries for %d layers", len(list), c.Layers)
			return types
		}
	case w.From != "":
		from = f.opt(w.From, 0, maxContext, 0)
	}
	period := w.Period
	for _, key := range w.PeriodKeys {
		if list == nil { // else the pattern may be a text
			period = f.opt(key, 1, maxLayers, period)
		}
	}
	for i := range c.Layer {
		sliding := size > 0 && i >= from && (period == 0 || (i+1)%period != 0) && (c.Layer[i].NoRope || !w.NoRope) && !(c.Layer[i].NoRope && w.Chunked)
		if list != nil {
			switch list[i] {
			case fullAttention:
				sliding = false
			case w.named():
				sliding = true
			default:
				f.fail(&UnsupportedValueError{
					Key: f.name(w.LayerTypes), Value: clip(list[i]),
					Known: []string{fullAttention, w.named()},
				})
			}
		}
		if !sliding {
			continue
		}
		if size == 0 {
			f.failf(w.LayerTypes, "layer %d slides, but there is no %s", i, w.Size)
			return types
		}
		if !w.Chunked {
			types[i] = slidingAttention
		}
		c.Layer[i].Window, c.Layer[i].Chunked = size, w.Chunked
	}
	h.NoRope.markFull(c, size)
	return types
}

// readHFRopes sets c.Ropes and the layers' indices. The settings are in rope_parameters
// (transformers 5) or in rope_scaling and rope_theta (transformers 4). An empty or absent object
// means the default. rope_parameters may have an object per layer type. local is the key of the
// base of layers with a window, or "".
func readHFRopes(f *fields, c *Config, types []string, local string) {
	p := f.object("rope_scaling")
	if p == nil {
		p = f.object("rope_parameters")
	}
	none := &fields{get: func(string) (any, bool) { return nil, false }}
	if p == nil {
		p = none
	}
	if f.err != nil {
		return
	}
	nested := false
	for _, layerType := range []string{fullAttention, slidingAttention} {
		if _, ok := p.value(layerType); ok {
			nested = true
		}
	}
	index := map[string]int{}
	for i, layerType := range types {
		at, done := index[layerType]
		if !done {
			sub, theta := p, "rope_theta"
			if local != "" && layerType == slidingAttention {
				sub, theta = p.only(local), local
			}
			if nested {
				switch object := p.object(layerType); {
				case object != nil:
					sub = object
				case local == "":
					p.failf(layerType, "missing")
					f.fail(p.err)
					return
				default:
					sub = none
				}
			}
			spec := hfRope(f, sub, c, theta, c.ropeWidth(i))
			f.fail(sub.err)
			if f.err != nil {
				return
			}
			c.Ropes, at = addRope(c.Ropes, spec.rope())
			index[layerType] = at
		}
		c.Layer[i].Rope = at
	}
}

// hfRope reads one RoPE setting from p. Fields that p lacks are read from f, all of config.json;
// the base has the key theta. Heads have width elements that could be rotated. The rules are the same as in transformers 5 (modeling_rope_utils.py).
func hfRope(f, p *fields, c *Config, theta string, width int) ropeSpec {
	kind := p.string("type", ropeDefault)
	kind = longRopeName(p.string("rope_type", kind), p)
	s := ropeSpec{
		kind:       kind,
		base:       p.float("rope_theta", minBase, maxBase, f.float(theta, minBase, maxBase, 10000)),
		attnFactor: 1,
	}
	partial := f.float("partial_rotary_factor", 0, 1, 1)
	partial = p.float("partial_rotary_factor", 0, 1, partial)
	s.dim = f.opt("rotary_dim", 2, width, int(float64(width)*partial))
	if kind == ropeProportional {
		s.dim, s.pairs = width, int(float64(width)*partial/2)
	}
	if f.err == nil && p.err == nil && (s.dim < 2 || s.dim%2 != 0) {
		f.failf("partial_rotary_factor", "%v of head_dim %d are %d, not an even number of elements", partial, width, s.dim)
	}

	if kind == ropeMulti {
		kind, s.kind = ropeDefault, ropeDefault
	}
	if alpha := p.float("alpha", 0, maxRopeFactor, 0); kind == ropeDynamic && alpha > 0 && s.dim > 2 {
		// Up to the trained context, this is a larger base.
		kind, s.kind = ropeDefault, ropeDefault
		s.base *= math.Pow(alpha, float64(s.dim)/float64(s.dim-2))
	}

	// If original_max_position_embeddings is outside p, that one counts.
	original := func() int {
		n := p.opt("original_max_position_embeddings", 1, maxContext, c.Context)
		return f.opt("original_max_position_embeddings", 1, maxContext, n)
	}
	switch kind {
	case ropeDefault:
	case ropeProportional:
		s.factor = p.float("factor", minRopeFactor, maxRopeFactor, 1)
	case ropeLinear:
		s.factor = p.needFloat("factor", minRopeFactor, maxRopeFactor)
	case ropeLlama3:
		s.factor = p.needFloat("factor", minRopeFactor, maxRopeFactor)
		s.lowFreq = p.needFloat("low_freq_factor", minRopeFactor, maxRopeFactor)
		s.highFreq = p.needFloat("high_freq_factor", minRopeFactor, maxRopeFactor)
		s.origContext = original()
		if p.err == nil && s.highFreq < s.lowFreq {
			p.failf("high_freq_factor", "%v is below low_freq_factor %v", s.highFreq, s.lowFreq)
		}
	case ropeYarn:
		s.origContext = original()
		stretched := float64(c.Context) / float64(max(s.origContext, 1))
		s.factor = p.float("factor", minRopeFactor, maxRopeFactor, stretched)
		hfYarn(p, &s)
	case ropeLong:
		s.origContext = original()
		hfLongRope(p, &s, c)
	default:
		key := "rope_type"
		if _, ok := p.value(key); !ok {
			key = "type"
		}
		p.fail(&UnsupportedValueError{
			Key: p.name(key), Value: clip(kind),
			Known: []string{ropeDefault, ropeLinear, ropeLlama3, ropeYarn, ropeLong, ropeProportional},
		})
	}
	return s
}

// hfYarn reads the settings of YaRN. As in transformers, 0 means the default.
func hfYarn(p *fields, s *ropeSpec) {
	orElse := func(x, instead float64) float64 {
		if x == 0 {
			return instead
		}
		return x
	}
	s.betaFast = orElse(p.float("beta_fast", 0, maxRopeFactor, 0), 32)
	s.betaSlow = orElse(p.float("beta_slow", 0, maxRopeFactor, 0), 1)
	s.extrapolation = 1
	s.keepFraction = !p.bool("truncate", true)

	s.attnFactor = yarnScale(s.factor, 1)
	scale, scaleAll := p.float("mscale", 0, maxRopeFactor, 0), p.float("mscale_all_dim", 0, maxRopeFactor, 0)
	if scale != 0 && scaleAll != 0 {
		s.attnFactor = yarnScale(s.factor, scale) / yarnScale(s.factor, scaleAll)
	}
	s.attnFactor = p.float("attention_factor", minRopeFactor, maxRopeFactor, s.attnFactor)
}
