package arch

import (
	"fmt"
	"math"
	"slices"
)

// convertRule says what a family's GGUF form has that does not follow from the
// configuration.
type convertRule struct {
	// Family is the descriptor whose GGUF form models are converted to; "" is the
	// family's own.
	Family string `json:"family"`
	// Settings are keys that llama.cpp wants beside those that the model needs.
	Settings []convertSetting `json:"settings"`
}

// convertSetting is a key of GGUF metadata, unless it is there already.
type convertSetting struct {
	Key  string      `json:"key"`  // without the architecture's prefix
	From string      `json:"from"` // the key of config.json that has the value
	Type settingType `json:"type"`
	// Absent stands in where config.json has no value: null leaves the key out.
	Absent any `json:"absent"`
}

// settingType is the type of a metadata value.
type settingType string

func (t *settingType) UnmarshalText(text []byte) error {
	switch *t = settingType(text); *t {
	case "u32", "f32", "bool", "string":
		return nil
	}
	return fmt.Errorf("type: %s is not u32, f32, bool or string", clip(string(text)))
}

func (r *convertRule) validate() error {
	for _, s := range r.Settings {
		if s.Key == "" || s.Type == "" {
			return fmt.Errorf("convert.settings: %q: key or type is missing", s.Key)
		}
	}
	return nil
}

// Conversion says how a Hugging Face model is written as a GGUF file.
type Conversion struct {
	Config   *Config // of the source
	Settings []Setting
	Tensors  []Converted
}

// Setting is an entry of GGUF metadata: a string, bool, uint32, float32 or a
// slice of one of these.
type Setting struct {
	Key   string
	Value any
}

// Converted is a tensor of the GGUF file.
type Converted struct {
	Name  string
	Shape []uint64 // outermost dimension first

	// Its rows, those of one part after another, or Values.
	Parts  []ConvertedRows
	Values []float32
	// PlusOne says that one is added to each element.
	PlusOne bool
}

// ConvertedRows are rows of a source's tensor; the elements of a vector are rows
// of one column.
type ConvertedRows struct {
	Tensor        string
	Rows, Columns uint64
	// Row i is row First + i*Step of the tensor, whose rows follow one another
	// whatever its dimensions are; Step 0 is 1.
	First, Step uint64

	// Of each head of so many rows, the first Rotary are reordered from halves to
	// pairs; 0: none are.
	Head, Rotary uint64

	// With Stack above 0, the tensor has matrices of [Columns, Stack], and these
	// rows are columns of the one of number Matrix, from First on.
	Stack, Matrix uint64
}

// Row returns which row of the tensor comes at place i.
func (r *ConvertedRows) Row(i uint64) uint64 {
	if r.Rotary == 0 {
		return r.First + i*max(r.Step, 1)
	}
	head, at := i/r.Head*r.Head, i%r.Head
	if at >= r.Rotary {
		return i
	}
	return head + at%2*(r.Rotary/2) + at/2
}

// InOrder reports whether the rows follow one another in the tensor.
func (r *ConvertedRows) InOrder() bool {
	return r.Rotary == 0 && r.Step <= 1 && r.Stack == 0
}

// Convert returns how a model in Hugging Face's form is written as a GGUF file of
// its family, as llama.cpp's converter writes it. What the GGUF form cannot say
// of a model is for who reads the result to find, with [Config.Same].
func (s *Set) Convert(src Source) (*Conversion, error) {
	if src.Kind() != kindSafetensors {
		return nil, fmt.Errorf("arch: a model of kind %q is not converted", src.Kind())
	}
	c, err := s.readHF(src)
	if err != nil {
		return nil, err
	}
	if err := c.Check(src); err != nil {
		return nil, err
	}
	d := s.named(c.Arch)
	rule := d.Convert
	if rule == nil {
		rule = &convertRule{}
	}
	if rule.Family != "" {
		if d = s.named(rule.Family); d == nil {
			return nil, fmt.Errorf("arch: %s: convert.family: there is no %s", c.Arch, rule.Family)
		}
	}
	if d.GGUF == nil {
		return nil, fmt.Errorf("arch: %s has no GGUF form to convert to", c.Arch)
	}
	v := &conversion{Conversion: Conversion{Config: c}, src: src, form: d.GGUF, used: map[string]string{}, index: map[string]int{}}
	h := s.named(c.Arch).HF
	f := h.withDefaults(hfFields(src))
	v.settings()
	v.rope(f, h)
	v.rule(f, rule)
	if f.err != nil {
		return nil, f.err
	}
	if err := v.tensors(); err != nil {
		return nil, err
	}
	return &v.Conversion, nil
}

func (s *Set) named(name string) *descriptor {
	i := slices.IndexFunc(s.list, func(d *descriptor) bool { return d.Name == name })
	if i < 0 {
		return nil
	}
	return s.list[i]
}

// conversion is a Conversion in the making.
type conversion struct {
	Conversion
	src   Source
	form  *ggufForm
	used  map[string]string // by a source's tensor, where it went
	index map[string]int    // of Tensors, by name
}

// set adds a setting of the architecture, under the family's own name.
func (v *conversion) set(key string, value any) {
	if own, ok := v.form.Keys[key]; ok {
		key = own
	}
	v.Settings = append(v.Settings, Setting{v.form.Architectures[0] + "." + key, value})
}

// has reports whether a setting of the architecture is there.
func (v *conversion) has(key string) bool {
	if own, ok := v.form.Keys[key]; ok {
		key = own
	}
	return slices.ContainsFunc(v.Settings, func(s Setting) bool { return s.Key == v.form.Architectures[0]+"."+key })
}

// number adds a factor or a cap under a key, "" for none, if the model has one or
// the family has one for files that do not say.
func (v *conversion) number(key string, x float32) {
	if _, ok := v.form.Defaults[key]; key != "" && (x != 0 || ok) {
		v.set(key, x)
	}
}

// settings adds what every GGUF file has.
func (v *conversion) settings() {
	c := v.Config
	v.Settings = append(v.Settings, Setting{"general.architecture", v.form.Architectures[0]}, Setting{"general.type", "model"})
	v.set("block_count", uint32(c.Layers))
	v.set("context_length", uint32(c.Context))
	v.set("embedding_length", uint32(c.Width))
	v.set("feed_forward_length", uint32(c.FF))
	v.set("attention.head_count", uint32(c.Heads))
	v.set("attention.head_count_kv", uint32(c.KVHeads))
	v.set("attention.key_length", uint32(c.HeadDim))
	v.set("attention.value_length", uint32(c.HeadDim))
	v.set("attention.layer_norm_rms_epsilon", c.Eps)
	v.set("vocab_size", uint32(c.Vocab))
	v.number(attnSoftCap, c.AttnSoftCap)
	v.number(logitSoftCap, c.LogitSoftCap)
	if r := v.form.Scales; r != nil {
		v.number(r.Embed, c.EmbedScale)
		v.number(r.Attn, c.AttnScale)
		v.number(r.Residual, c.ResidualScale)
		if c.LogitScale != 0 {
			v.number(r.Logits, 1/c.LogitScale)
		}
	}
	v.expertSettings()
	v.windows()
}

// windows adds which layers have a sliding window.
func (v *conversion) windows() {
	const key = "attention.sliding_window"
	c, size := v.Config, 0
	flags := make([]bool, c.Layers)
	for i, l := range c.Layer {
		if flags[i] = l.Window > 0; flags[i] && size == 0 {
			size = l.Window
		}
	}
	if _, ok := v.form.Defaults[key]; size > 0 || ok {
		v.set(key, uint32(size))
	}
	w := v.form.Window
	if w == nil || size == 0 {
		return
	}
	for i, slides := range flags {
		if slides != (w.Period == 0 || (i+1)%w.Period != 0) {
			v.set(key+"_pattern", flags)
			return
		}
	}
}

// rope adds the RoPE set-up of layers without a window, which is that of all where
// they have one.
func (v *conversion) rope(f *fields, h *hfForm) {
	c := v.Config
	layer := max(0, slices.IndexFunc(c.Layer, func(l Layer) bool { return l.Window == 0 }))
	at, all := c.Layer[layer].Rope, c.Layer[layer].Window > 0
	r := &c.Ropes[at]
	v.set("rope.dimension_count", uint32(r.Dim))
	v.set("rope.freq_base", float32(r.Base))
	for _, l := range c.Layer {
		if l.Window > 0 && v.form.Window != nil && (l.Rope != at || v.form.Window.Theta != 0) {
			v.set("rope.freq_base_swa", float32(c.Ropes[l.Rope].Base))
			break
		}
	}
	p, theta := hfRopeObject(f, all), "rope_theta"
	if all && h.Window != nil && h.Window.Theta != "" {
		theta = h.Window.Theta
	}
	if f.err != nil {
		return
	}
	spec := hfRope(f, p, c, theta)
	f.fail(p.err)
	if f.err != nil {
		return
	}
	// llama.cpp reads YaRN's own settings for few families; where a family has a
	// tensor for frequencies, that holds them all.
	odd := spec.kind == ropeYarn && (spec.betaFast != 32 || spec.betaSlow != 1 || spec.keepFraction)
	usual := 1.0
	switch kind := spec.kind; {
	case kind == ropeLinear:
		v.set("rope.scaling.type", "linear")
		v.set("rope.scaling.factor", float32(spec.factor))
	case kind == ropeLlama3, odd && v.form.RopeFactors != "":
		v.factors(f, r)
	case kind == ropeYarn:
		v.set("rope.scaling.type", "yarn")
		v.set("rope.scaling.factor", float32(spec.factor))
		v.set("rope.scaling.original_context_length", uint32(spec.origContext))
		v.set("rope.scaling.yarn_beta_fast", float32(spec.betaFast))
		v.set("rope.scaling.yarn_beta_slow", float32(spec.betaSlow))
		usual = yarnScale(spec.factor, 1)
	case kind == ropeLong:
		v.long(f, r)
	}
	if attn := float32(float64(r.AttnFactor) / usual); math.Abs(float64(attn)-1) > 1e-6 {
		v.set("rope.scaling.attn_factor", attn)
	}
}

// hfRopeObject returns the settings of RoPE, of layers with a window or of those
// without where they differ, without any an empty object.
func hfRopeObject(f *fields, window bool) *fields {
	p := f.object("rope_scaling")
	if p == nil {
		p = f.object("rope_parameters")
	}
	if p == nil {
		return &fields{get: func(string) (any, bool) { return nil, false }}
	}
	kind := fullAttention
	if window {
		kind = slidingAttention
	}
	if sub := p.object(kind); sub != nil {
		return sub
	}
	f.fail(p.err)
	return p
}

// factors adds the tensor of what frequencies are divided by.
func (v *conversion) factors(f *fields, r *Rope) { v.vector(f, v.form.RopeFactors, r, r.InvFreq) }

// long adds the tensors and the settings of LongRoPE.
func (v *conversion) long(f *fields, r *Rope) {
	v.set("rope.scaling.original_context_length", uint32(r.LongFrom))
	v.vector(f, v.form.ShortFactors, r, r.InvFreq)
	v.vector(f, v.form.LongFactors, r, r.LongInvFreq)
}

// vector adds a tensor of what frequencies without scaling are divided by to give
// scaled.
func (v *conversion) vector(f *fields, name string, r *Rope, scaled []float32) {
	if name == "" {
		f.fail(fmt.Errorf("arch: RoPE scaling %s has no GGUF form in this family", r.Kind))
		return
	}
	plain := ropeSpec{dim: r.Dim, base: r.Base}
	values := make([]float32, r.Dim/2)
	for i := range values {
		values[i] = 1 / plain.period(i) / scaled[i]
	}
	v.Tensors = append(v.Tensors, Converted{Name: name, Shape: []uint64{uint64(len(values))}, Values: values})
}

// rule adds what the descriptor lists.
func (v *conversion) rule(f *fields, rule *convertRule) {
	for _, s := range rule.Settings {
		in := &fields{prefix: f.prefix, get: func(string) (any, bool) {
			if x, ok := f.value(s.From); ok && s.From != "" {
				return x, true
			}
			return s.Absent, true
		}}
		if _, ok := in.value(s.From); !ok || v.has(s.Key) {
			continue
		}
		switch s.Type {
		case "u32":
			v.set(s.Key, uint32(in.opt(s.From, 0, math.MaxInt32, 0)))
		case "f32":
			v.set(s.Key, float32(in.float(s.From, -math.MaxFloat32, math.MaxFloat32, 0)))
		case "bool":
			v.set(s.Key, in.bool(s.From, false))
		case "string":
			v.set(s.Key, in.string(s.From, ""))
		}
		if in.err != nil {
			f.fail(in.err)
		}
	}
}

// tensors adds the tensors of every role that the source has.
func (v *conversion) tensors() error {
	c := v.Config
	for _, r := range []Role{Embed, OutNorm, Head} {
		if r == Head && c.TiedHead {
			continue
		}
		if err := v.role(r, 0); err != nil {
			return err
		}
	}
	for layer := range c.Layers {
		for r := range roleCount {
			if !r.perLayer() {
				continue
			}
			if err := v.role(r, layer); err != nil {
				return err
			}
		}
		if err := v.experts(layer); err != nil {
			return err
		}
	}
	return nil
}

// role adds the weight and the bias of a role in a layer.
func (v *conversion) role(r Role, layer int) error {
	names := v.form.names("")
	c := v.Config
	bias := ""
	if stem := names.stem(r, layer); stem != "" {
		bias = stem + ".bias"
	}
	for _, of := range []struct{ from, to string }{{c.names.weight(r, layer), names.weight(r, layer)}, {c.BiasTensor(r, layer), bias}} {
		shape, ok := v.src.Shape(of.from)
		if of.from == "" || !ok {
			continue
		}
		if of.to == "" {
			return fmt.Errorf("arch: tensor %s has no name in GGUF files of %s", of.from, v.form.Architectures[0])
		}
		rows := ConvertedRows{Tensor: of.from, Rows: shape[0], Columns: 1}
		if len(shape) == 2 {
			rows.Columns = shape[1]
		}
		pairs := r == Q || r == K || r == QNorm || r == KNorm
		if pairs && c.RopeLayout == Half && RopeLayout(*v.form.RopeLayout) == Interleaved {
			rows.Head, rows.Rotary = uint64(c.HeadDim), uint64(c.Ropes[c.Layer[layer].Rope].Dim)
			if _, count, total := c.Rows(r); count != total {
				return fmt.Errorf("arch: tensor %s: its rows are not Q's or K's alone, which is not supported", of.from)
			}
		}
		if err := v.add(of.to, shape, rows); err != nil {
			return err
		}
		if of.to != bias && c.NormPlusOne && !v.form.NormPlusOne && (r.norm() || r == QNorm || r == KNorm) {
			v.Tensors[v.index[of.to]].PlusOne = true
		}
	}
	return nil
}

// add adds rows to a tensor. Roles that are one tensor on both sides come here
// once each; roles that are one only in the GGUF file are joined.
func (v *conversion) add(to string, shape []uint64, rows ConvertedRows) error {
	if first, used := v.used[rows.Tensor]; used {
		if first != to {
			return fmt.Errorf("arch: tensor %s is more than one in GGUF files, %s and %s, which is not supported", rows.Tensor, first, to)
		}
		return nil
	}
	v.used[rows.Tensor] = to
	i, there := v.index[to]
	if !there {
		v.index[to] = len(v.Tensors)
		v.Tensors = append(v.Tensors, Converted{Name: to, Shape: slices.Clone(shape), Parts: []ConvertedRows{rows}})
		return nil
	}
	t := &v.Tensors[i]
	if len(t.Shape) != len(shape) || !slices.Equal(t.Shape[1:], shape[1:]) {
		return fmt.Errorf("arch: tensor %s: shape %d does not go with %d of %s", rows.Tensor, shape, t.Shape, to)
	}
	t.Parts = append(t.Parts, rows)
	t.Shape[0] += shape[0]
	return nil
}
