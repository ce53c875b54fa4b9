package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
)

// maxDescriptor bounds a descriptor's file, in bytes.
const maxDescriptor = 1 << 20

// descriptor describes a family of models, as one JSON file.
type descriptor struct {
	Name       string          `json:"name"`
	Activation *activationName `json:"activation"` // used if a model does not specify it
	QKNorm     bool            `json:"qk_norm"`
	WideQKNorm bool            `json:"wide_qk_norm"` // QK norm is over all heads together
	AttnGate   bool            `json:"attn_gate"`    // attention has a gate, in the tensor of Q
	LayerNorm  bool            `json:"layer_norm"`   // norms subtract the mean and add a bias
	// PlainLayerNorm makes norms of LayerNorm add no bias.
	PlainLayerNorm bool `json:"plain_layer_norm"`
	// QKNormRotated makes QK norm follow RoPE.
	QKNormRotated bool `json:"qk_norm_rotated"`
	QKLayerNorm   bool `json:"qk_layer_norm"` // QK norm, if a model has it, subtracts the mean, and each head has weights of its own
	BareQKNorm    bool `json:"bare_qk_norm"`  // QK norm has no weights and is only in layers with RoPE
	Ungated       bool `json:"ungated"`       // the feed-forward block has no gate
	// FixedActivation makes Read ignore the activation that a model specifies.
	FixedActivation bool         `json:"fixed_activation"`
	EmbedScale      embedScale   `json:"embed_scale"`
	AttnScale       float64      `json:"attn_scale"` // factor of Q·K; 0 means 1/sqrt(head size)
	ValueNorm       bool         `json:"value_norm"` // each head of V is divided by its root mean square
	SoftCaps        softCaps     `json:"soft_caps"`
	StopTokens      []string     `json:"stop_tokens"`
	HF              *hfForm      `json:"hf"`
	GGUF            *ggufForm    `json:"gguf"`
	Convert         *convertRule `json:"convert"`
}

// form holds the fields that the Hugging Face and the GGUF form of a family share.
type form struct {
	// Architectures lists the names of the family: class names in config.json, or values of
	// general.architecture in GGUF.
	Architectures []string            `json:"architectures"`
	RopeLayout    *layoutName         `json:"rope_layout"`
	Tensors       map[roleName]string `json:"tensors"`
	// NormPlusOne makes norms multiply by 1 + w, where w is the stored weight.
	NormPlusOne bool `json:"norm_plus_one"`
	// Keys maps usual setting names to the names that the family uses instead. For GGUF, both
	// names have no architecture prefix.
	Keys    map[string]string `json:"keys"`
	Experts *expertRule       `json:"experts"`
	// Refuse lists settings that would change the arithmetic in an unimplemented way. They must
	// be absent, null, false or 0. An entry "key=value" refuses only that text.
	Refuse []string `json:"refuse"`
	// Scales lists the keys of settings that multiply activations.
	Scales *scaleRule  `json:"scales"`
	NoRope *noRopeRule `json:"no_rope"`
	Latent *latentRule `json:"latent"`
	// Recurrent describes the layers with recurrent state.
	Recurrent *mixerRule `json:"recurrent"`
	// Layers describes what differs between layers, and the inputs of layers.
	Layers *layerRule `json:"layers"`
	// Parallel tells whether attention and the feed-forward block have the same input, the output of
	// attn_norm.
	Parallel biasRule    `json:"parallel"`
	Temper   *temperRule `json:"temper"`
	AltUp    *altUpRule  `json:"altup"`
}

// hfForm describes how a Hugging Face directory stores a model of the family.
type hfForm struct {
	form
	ModelTypes []string `json:"model_types"`
	// ByTensors reports whether the tensors' names may select the family if the metadata does
	// not name one.
	ByTensors bool `json:"by_tensors"`
	// Prefixes lists prefixes that the tensors' names may have in a file. The first prefix with
	// which the embedding exists is used, or none. If a prefix, such as model.language_model.,
	// begins with the first component of the embedding's name, it replaces that component.
	Prefixes []string `json:"prefixes"`
	// Defaults holds the values of keys that config.json lacks, but not of keys whose value is
	// null. They equal the defaults of the family's configuration class in transformers.
	Defaults map[string]any `json:"defaults"`
	// ModelDefaults holds defaults of model types that differ from Defaults.
	ModelDefaults map[string]map[string]any `json:"model_defaults"`
	Bias          map[roleName]biasRule     `json:"bias"`
	Window        *windowRule               `json:"window"`
	// FF adjusts the feed-forward width.
	FF *ffRule `json:"ff"`
	// QueryScalar is the key of the number d in the scale 1/sqrt(d) of attention scores. If it is
	// "", d is head_dim.
	QueryScalar string `json:"query_scalar"`
	// QKNormFlag is the key of a flag that QK norm exists. If it is "", or missing in a file,
	// QK norm exists if the descriptor says so.
	QKNormFlag string `json:"qk_norm_flag"`
}

// ggufForm describes how a GGUF file stores a model of the family. The biases are inferred from
// the tensors.
type ggufForm struct {
	form
	// RopeFactors is the name of the optional tensor with the divisors of RoPE's inverse
	// frequencies.
	RopeFactors string `json:"rope_factors"`
	// ShortFactors and LongFactors are the names of such tensors for contexts up to the original
	// context length and for longer ones.
	ShortFactors string `json:"short_factors"`
	LongFactors  string `json:"long_factors"`
	// YarnFraction prevents YaRN's correction range from being rounded to whole dimensions, as
	// the family's Hugging Face configuration does.
	YarnFraction bool `json:"yarn_fraction"`
	// Defaults holds the values of keys that a file lacks. The keys have no architecture prefix.
	Defaults map[string]any `json:"defaults"`
	Window   *ggufWindow    `json:"window"`
	// WidthScale lists the layer counts of models that divide Q·K by the square root of
	// width/heads instead of the head size. A GGUF file does not specify the divisor.
	WidthScale []int `json:"width_scale"`
	// QKNormOptional makes QK norm exist only if its tensors do.
	QKNormOptional bool `json:"qk_norm_optional"`
	// PlainExperts is the number of experts of the models without QK norm.
	PlainExperts int `json:"plain_experts"`
}

// windowRule lists the keys of config.json that describe sliding windows.
type windowRule struct {
	Size       string `json:"size"`        // key of the window's length; if its value is null, there is no window
	Enable     string `json:"enable"`      // key of a flag; without it Size alone decides
	LayerTypes string `json:"layer_types"` // key of a list of "full_attention" and "sliding_attention"
	From       string `json:"from"`        // if there is no list: key of the first layer with a window
	NoRope     bool   `json:"no_rope"`     // if there is no list: only layers without RoPE have a window
	// Chunked makes windows chunks of positions. In the list, their layers have the name
	// chunked_attention; without it, they are the layers with RoPE.
	Chunked bool `json:"chunked"`
	// Period applies if there is no list: of each Period layers all but the last have a window.
	// PeriodKeys are keys that may override it.
	Period     int      `json:"period"`
	PeriodKeys []string `json:"period_keys"`
	// Theta is the key of RoPE's base in layers with a window; their frequencies are then not
	// scaled. If it is "", these layers have the settings of the other layers.
	Theta string `json:"rope_theta"`
}

// named returns the name of the layers with a window in the list of layer types.
func (w *windowRule) named() string {
	if w.Chunked {
		return chunkedAttention
	}
	return slidingAttention
}

// biasRule tells whether a projection has a bias: always, never, or if a flag in config.json is
// set. In JSON it is true, false or the flag's key.
type biasRule struct {
	always bool
	flag   string
}

func (b *biasRule) UnmarshalJSON(text []byte) error {
	if err := json.Unmarshal(text, &b.always); err == nil {
		return nil
	}
	if err := json.Unmarshal(text, &b.flag); err != nil || b.flag == "" {
		return fmt.Errorf("bias: %s is not true, false or the key of a flag", clip(string(text)))
	}
	return nil
}

// Enumerations in JSON.
type (
	activationName Activation
	layoutName     RopeLayout
	roleName       Role
)

func (a *activationName) UnmarshalText(text []byte) error {
	v, ok := activationByName(string(text))
	if !ok {
		return fmt.Errorf("activation: %s is not one of %s", clip(string(text)), strings.Join(activationNames(), ", "))
	}
	*a = activationName(v)
	return nil
}

func (l *layoutName) UnmarshalText(text []byte) error {
	for _, v := range []RopeLayout{Half, Interleaved} {
		if v.String() == string(text) {
			*l = layoutName(v)
			return nil
		}
	}
	return fmt.Errorf("rope_layout: %s is not half or interleaved", clip(string(text)))
}

func (r *roleName) UnmarshalText(text []byte) error {
	for v := range roleCount {
		if v.String() == string(text) {
			*r = roleName(v)
			return nil
		}
	}
	return fmt.Errorf("role %s is not one of %s", clip(string(text)), strings.Join(roleNames[:], ", "))
}

// loadDescriptor reads and checks one file.
func loadDescriptor(fsys fs.FS, file string) (*descriptor, error) {
	r, err := fsys.Open(file)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, maxDescriptor+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxDescriptor {
		return nil, fmt.Errorf("longer than %d bytes", maxDescriptor)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	dec.UseNumber()
	d := new(descriptor)
	if err := dec.Decode(d); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("data after the descriptor")
	}
	return d, d.validate()
}

func (d *descriptor) validate() error {
	switch {
	case d.Name == "":
		return errors.New("name: missing")
	case d.Activation == nil:
		return errors.New("activation: missing")
	case d.HF == nil && d.GGUF == nil:
		return errors.New("hf and gguf: one of them is required")
	case d.WideQKNorm && !d.QKNorm:
		return errors.New("wide_qk_norm: requires qk_norm")
	case d.BareQKNorm && !d.QKNormRotated:
		return errors.New("bare_qk_norm: requires qk_norm_rotated")
	case d.QKNormRotated && !d.QKNorm:
		return errors.New("qk_norm_rotated: requires qk_norm")
	case d.AttnScale != 0 && !(d.AttnScale >= minScale && d.AttnScale <= maxScale):
		return fmt.Errorf("attn_scale: %v is not in %v..%v", d.AttnScale, minScale, maxScale)
	case d.PlainLayerNorm && !d.LayerNorm:
		return errors.New("plain_layer_norm: requires layer_norm")
	}
	if d.HF != nil {
		if len(d.HF.ModelTypes) == 0 {
			return errors.New("hf.model_types: missing")
		}
		if err := d.HF.form.validate("hf", hfKeys, d); err != nil {
			return err
		}
		if err := d.HF.validate(); err != nil {
			return err
		}
	}
	if d.Convert != nil {
		if err := d.Convert.validate(); err != nil {
			return err
		}
	}
	if d.GGUF != nil {
		if err := d.GGUF.form.validate("gguf", ggufKeys, d); err != nil {
			return err
		}
		if err := d.GGUF.validate(); err != nil {
			return err
		}
	}
	return nil
}

func (f *form) validate(where string, keys []string, d *descriptor) error {
	if len(f.Architectures) == 0 {
		return fmt.Errorf("%s.architectures: missing", where)
	}
	if f.RopeLayout == nil {
		return fmt.Errorf("%s.rope_layout: missing", where)
	}
	for r := range roleCount {
		stem, ok := f.Tensors[roleName(r)]
		optional := f.optional(r, d)
		want := 0
		if r.perLayer() || r.perCopy() && strings.Contains(stem, layerVerb) {
			want = 1
		}
		switch {
		case !ok && optional:
		case stem == "":
			return fmt.Errorf("%s.tensors.%v: missing", where, r)
		case strings.Count(stem, layerVerb) != want || strings.Count(stem, "%") != want:
			return fmt.Errorf("%s.tensors.%v: %q does not have %q %d times and no other %%", where, r, stem, layerVerb, want)
		}
	}
	for key := range f.Keys {
		if !slices.Contains(keys, key) {
			return fmt.Errorf("%s.keys: %q is not one of %s", where, key, strings.Join(keys, ", "))
		}
	}
	if err := f.fused(where); err != nil {
		return err
	}
	if f.Experts != nil {
		if err := f.Experts.validate(); err != nil {
			return fmt.Errorf("%s.experts: %w", where, err)
		}
	}
	if err := f.Latent.validate(where); err != nil {
		return err
	}
	if err := f.Recurrent.validate(where); err != nil {
		return err
	}
	_, beside := f.Tensors[roleName(DensePostNorm)]
	if _, post := f.Tensors[roleName(FFNPostNorm)]; post && f.Experts != nil && !beside {
		return fmt.Errorf("%s.tensors.%v: not supported with experts", where, FFNPostNorm)
	}
	if f.AltUp != nil && f.Layers == nil {
		return fmt.Errorf("%s.altup: requires layers", where)
	}
	return f.NoRope.validate(where)
}

// optional reports whether a family may have no tensor of role r.
func (f *form) optional(r Role, d *descriptor) bool {
	switch r {
	case QNorm, KNorm:
		return !d.QKNorm || d.BareQKNorm
	case AttnNorm:
		_, post := f.Tensors[roleName(AttnPostNorm)]
		return post
	case FFNNorm:
		_, post := f.Tensors[roleName(FFNPostNorm)]
		return post || f.Parallel.always || f.Recurrent != nil && f.Recurrent.Single
	case AttnPostNorm, FFNPostNorm, AttnSinks, RouterBias, SharedGate, SharedUp, SharedDown, SharedRouter:
		return true
	case K, V:
		return f.Latent != nil
	case ConvIn, ConvOut:
		return f.Recurrent == nil || Mixer(f.Recurrent.Kind) != ShortConv
	case Conv:
		return f.Recurrent == nil
	case DeltaZ, DeltaAlpha, InputEmbed, InputProj, InputProjNorm, InputGate, InputOut, InputPostNorm, LayerScale:
		return true
	case ExpertNorm, ExpertPostNorm, DensePostNorm, RouterNorm, ExpertScale:
		return true
	case DeltaIn, DeltaBeta, DeltaRate, DeltaShift, DeltaNorm, DeltaOut:
		return f.Recurrent == nil || Mixer(f.Recurrent.Kind) != GatedDelta
	case MambaNorm:
		return true
	case MambaIn, MambaRate, MambaShift, MambaSkip, MambaOut:
		return f.Recurrent == nil || Mixer(f.Recurrent.Kind) != Mamba2
	case AltUpProj, AltUpUnembed, AltUpRouter, AltUpRouterNorm, AltUpPredict, AltUpCorrect, AltUpScale, LaurelDown, LaurelUp, LaurelNorm:
		return f.AltUp == nil
	case QDown, QDownNorm, KVDown, KVDownNorm, KVUp:
		return f.Latent == nil
	case Gate:
		return d.Ungated || f.Experts != nil
	case Up, Down:
		return f.Experts != nil
	case Router:
		return f.Experts == nil
	}
	return false
}

// validate checks the settings. It rejects defaults that no setting reads, since they are
// misspelt.
func (h *hfForm) validate() error {
	if h.Window != nil && h.Window.Size == "" {
		return errors.New("hf.window.size: missing")
	}
	if h.Window != nil && (h.Window.Period < 0 || h.Window.Period == 0 && len(h.Window.PeriodKeys) > 0) {
		return errors.New("hf.window.period: below 1")
	}
	for _, prefix := range h.Prefixes {
		if strings.Contains(prefix, "%") {
			return fmt.Errorf("hf.prefixes: %q has a %%", prefix)
		}
	}
	for role := range h.Bias {
		if !Role(role).projection() {
			return fmt.Errorf("hf.bias: %v has no bias", Role(role))
		}
	}
	for key := range h.Defaults {
		if !h.reads(key) {
			return fmt.Errorf("hf.defaults: nothing reads %q", key)
		}
	}
	for name, defaults := range h.ModelDefaults {
		if !slices.Contains(h.ModelTypes, name) {
			return fmt.Errorf("hf.model_defaults: %q is not in model_types", name)
		}
		for key := range defaults {
			if !h.reads(key) {
				return fmt.Errorf("hf.model_defaults: nothing reads %q", key)
			}
		}
	}
	return nil
}

// reads reports whether the family reads a key of config.json.
func (h *hfForm) reads(key string) bool {
	for _, usual := range hfKeys {
		own := usual
		if k, ok := h.Keys[usual]; ok {
			own = k
		}
		if key == own {
			return true
		}
	}
	for _, rule := range h.Bias {
		if rule.flag == key {
			return true
		}
	}
	if h.Experts != nil && slices.Contains(h.Experts.keys(), key) || key == h.Parallel.flag || key == h.QKNormFlag {
		return true
	}
	if h.Recurrent.reads(key) || h.Layers.reads(key) || h.Temper.reads(key) || h.AltUp.reads(key) || h.FF.reads(key) || h.Scales.reads(key) || h.NoRope.reads(key) || key != "" && key == h.QueryScalar || key == attnSoftCap || key == logitSoftCap || key == keyLimit {
		return true
	}
	w := h.Window
	return w != nil && key != "" && (key == w.Size || key == w.Enable || key == w.LayerTypes || key == w.From || key == w.Theta)
}

// config returns a configuration with what the family has in all forms.
func (d *descriptor) config() *Config {
	return &Config{
		Arch:           d.Name,
		QKNorm:         d.QKNorm,
		WideQKNorm:     d.WideQKNorm,
		AttnGate:       d.AttnGate,
		LayerNorm:      d.LayerNorm,
		Ungated:        d.Ungated,
		PlainLayerNorm: d.PlainLayerNorm,
		QKNormRotated:  d.QKNormRotated,
		BareQKNorm:     d.BareQKNorm,
		ValueNorm:      d.ValueNorm,
		AttnScale:      float32(d.AttnScale),
		StopTokens:     slices.Clone(d.StopTokens),
	}
}

// claims returns the names in metadata that select d, each prefixed with the kind of name.
func (d *descriptor) claims() []string {
	var out []string
	add := func(what string, names []string) {
		for _, name := range names {
			out = append(out, fmt.Sprintf("%s %q", what, name))
		}
	}
	if d.HF != nil {
		add("model type", d.HF.ModelTypes)
		add("class", d.HF.Architectures)
	}
	if d.GGUF != nil {
		add("GGUF architecture", d.GGUF.Architectures)
	}
	return out
}

// names returns the form's tensor names with a prefix.
func (f *form) names(prefix string) tensorNames {
	var t tensorNames
	for role, stem := range f.Tensors {
		t[role] = f.prefixed(stem, prefix)
	}
	return t
}

// prefixed returns a name with a prefix. If prefix begins with the first part of the embedding's
// name, it replaces that part.
func (f *form) prefixed(stem, prefix string) string {
	root, _, _ := strings.Cut(f.Tensors[roleName(Embed)], ".")
	if prefix == "" || !strings.HasPrefix(prefix, root+".") {
		return prefix + stem
	}
	if rest, found := strings.CutPrefix(stem, root+"."); found {
		return prefix + rest
	}
	return stem
}
