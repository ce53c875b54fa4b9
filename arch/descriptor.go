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

// descriptor is a family of models as data, one JSON file.
type descriptor struct {
	Name       string          `json:"name"`
	Activation *activationName `json:"activation"` // what a model has that does not say
	QKNorm     bool            `json:"qk_norm"`
	WideQKNorm bool            `json:"wide_qk_norm"` // over all heads at once
	LayerNorm  bool            `json:"layer_norm"`   // norms subtract the mean and add a bias
	Ungated    bool            `json:"ungated"`      // the feed-forward block has no gate
	// FixedActivation says that a model's own word for the activation does not
	// count.
	FixedActivation bool         `json:"fixed_activation"`
	EmbedScale      embedScale   `json:"embed_scale"`
	SoftCaps        softCaps     `json:"soft_caps"`
	StopTokens      []string     `json:"stop_tokens"`
	HF              *hfForm      `json:"hf"`
	GGUF            *ggufForm    `json:"gguf"`
	Convert         *convertRule `json:"convert"`
}

// form is what the two file forms of a family have in common.
type form struct {
	// Architectures are the names that the form has for the family: class names
	// in config.json, general.architecture in GGUF.
	Architectures []string            `json:"architectures"`
	RopeLayout    *layoutName         `json:"rope_layout"`
	Tensors       map[roleName]string `json:"tensors"`
	// NormPlusOne says that norms multiply with 1 + w, w being what the form has.
	NormPlusOne bool `json:"norm_plus_one"`
	// Keys renames settings that the family calls otherwise than most do. In
	// GGUF both names go without the architecture's prefix.
	Keys    map[string]string `json:"keys"`
	Experts *expertRule       `json:"experts"`
	// Refuse lists settings that would change the arithmetic in a way that is
	// not implemented, so that they have to be absent, null, false or 0.
	Refuse []string `json:"refuse"`
	// Scales names the settings that multiply activations.
	Scales *scaleRule  `json:"scales"`
	NoRope *noRopeRule `json:"no_rope"`
}

// hfForm is a family as a Hugging Face directory.
type hfForm struct {
	form
	ModelTypes []string `json:"model_types"`
	// ByTensors lets the tensors' names decide for this family where the
	// metadata names none.
	ByTensors bool `json:"by_tensors"`
	// Prefixes are tried before the tensors' names, after "". One that begins as
	// the embedding's name does, as model.language_model., is instead of its first
	// part.
	Prefixes []string `json:"prefixes"`
	// Defaults stand in for keys that config.json lacks (but not for nulls), as
	// the family's configuration class in transformers has them.
	Defaults map[string]any        `json:"defaults"`
	Bias     map[roleName]biasRule `json:"bias"`
	Window   *windowRule           `json:"window"`
	// QueryScalar is the key of the number whose root Q·K is divided by; "" is
	// head_dim.
	QueryScalar string `json:"query_scalar"`
}

// ggufForm is a family as a GGUF file. Its biases follow from its tensors.
type ggufForm struct {
	form
	// RopeFactors names the optional tensor that divides the inverse frequencies.
	RopeFactors string `json:"rope_factors"`
	// ShortFactors and LongFactors are two of those, for contexts up to the
	// original one and beyond it.
	ShortFactors string `json:"short_factors"`
	LongFactors  string `json:"long_factors"`
	// YarnFraction says that YaRN's correction range is not rounded to whole
	// dimensions, as the family's own configuration has it.
	YarnFraction bool `json:"yarn_fraction"`
	// Defaults stand in for keys that a file lacks, named without the
	// architecture's prefix.
	Defaults map[string]any `json:"defaults"`
	Window   *ggufWindow    `json:"window"`
	// WidthScale lists the layer counts of the models that divide Q·K by the root
	// of width/heads and not of the heads' size, of which a file says nothing.
	WidthScale []int `json:"width_scale"`
}

// windowRule names config.json's keys for sliding windows.
type windowRule struct {
	Size       string `json:"size"`        // positions; null: no window
	Enable     string `json:"enable"`      // a flag; without it Size alone decides
	LayerTypes string `json:"layer_types"` // a list of "full_attention" and "sliding_attention"
	From       string `json:"from"`        // without a list, the first layer with a window
	NoRope     bool   `json:"no_rope"`     // without a list, layers without RoPE alone have one
	// Period is the other rule without a list: of so many layers all but the last
	// have a window. PeriodKeys may give another.
	Period     int      `json:"period"`
	PeriodKeys []string `json:"period_keys"`
	// Theta is the key of RoPE's base in layers with a window, whose frequencies
	// nothing scales then; "": they are as in the others.
	Theta string `json:"rope_theta"`
}

// biasRule says whether a projection has a bias: always, never, or as a flag in
// config.json says. In JSON it is true, false or the flag's key.
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

// The enumerations in JSON.
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
		return nil, errors.New("something follows the descriptor")
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
		return errors.New("neither hf nor gguf is there")
	case d.WideQKNorm && !d.QKNorm:
		return errors.New("wide_qk_norm: there is no qk_norm")
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
		if r.perLayer() {
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
	return f.NoRope.validate(where)
}

// optional reports whether a family may have no tensor of role r.
func (f *form) optional(r Role, d *descriptor) bool {
	switch r {
	case QNorm, KNorm:
		return !d.QKNorm
	case AttnNorm:
		_, post := f.Tensors[roleName(AttnPostNorm)]
		return post
	case FFNNorm:
		_, post := f.Tensors[roleName(FFNPostNorm)]
		return post
	case AttnPostNorm, FFNPostNorm, AttnSinks:
		return true
	case Gate:
		return d.Ungated || f.Experts != nil
	case Up, Down:
		return f.Experts != nil
	case Router:
		return f.Experts == nil
	}
	return false
}

// validate looks for defaults that nothing reads, which are misspelt.
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
	return nil
}

// reads reports whether the family has a use for a key of config.json.
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
	if e := h.Experts; e != nil && (slices.Contains(e.Count, key) || slices.Contains([]string{e.Used, e.FF, e.Norm, e.Step, e.Dense}, key)) {
		return true
	}
	if h.Scales.reads(key) || h.NoRope.reads(key) || key != "" && key == h.QueryScalar || key == attnSoftCap || key == logitSoftCap || key == keyLimit {
		return true
	}
	w := h.Window
	return w != nil && key != "" && (key == w.Size || key == w.Enable || key == w.LayerTypes || key == w.From || key == w.Theta)
}

// claims returns what d answers to in metadata, each with the kind of name.
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

// names returns the form's tensor names with prefix before them.
func (f *form) names(prefix string) tensorNames {
	var t tensorNames
	for role, stem := range f.Tensors {
		t[role] = f.prefixed(stem, prefix)
	}
	return t
}

// prefixed returns a name with prefix before it, or instead of the first part
// that the embedding's name and prefix share.
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
