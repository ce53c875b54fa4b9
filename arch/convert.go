package arch

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// convertRule describes the parts of a family's GGUF form that do not follow from the
// configuration.
type convertRule struct {
	// Family is the descriptor whose GGUF form is the target of the conversion; "" is the family
	// itself.
	Family string `json:"family"`
	// Attention is the descriptor that replaces Family for models in which every layer has attention and
	// none has recurrent state.
	Attention string `json:"attention"`
	// Settings are keys that llama.cpp requires in addition to those that the model needs.
	Settings []convertSetting `json:"settings"`
	// Fold multiplies the factors of activations into the weights, as the GGUF form has no keys for them.
	Fold bool `json:"fold"`
}

// convertSetting is a key of GGUF metadata that is added unless it is already set.
type convertSetting struct {
	Key  string      `json:"key"`  // without the architecture's prefix
	From string      `json:"from"` // the key of config.json that holds the value
	Type settingType `json:"type"`
	// Absent is used if config.json has no value; null leaves the key out.
	Absent any `json:"absent"`
}

// settingType is the type of a metadata value.
type settingType string

func (t *settingType) UnmarshalText(text []byte) error {
	switch *t = settingType(text); *t {
	case "u32", "u32s", "f32", "bool", "string":
		return nil
	}
	return fmt.Errorf("type: %s is not u32, u32s, f32, bool or string", clip(string(text)))
}

func (r *convertRule) validate() error {
	for _, s := range r.Settings {
		if s.Key == "" || s.Type == "" {
			return fmt.Errorf("convert.settings: %q: key or type is missing", s.Key)
		}
	}
	return nil
}

// Conversion describes the GGUF file that a Hugging Face model is converted to.
type Conversion struct {
	Config   *Config // configuration of the source, without factors that Tensors contain and with the rows that they add
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

	// The tensor's content: the rows of all parts in order, or Values.
	Parts  []ConvertedRows
	Values []float32
	// PlusOne adds 1 to each element.
	PlusOne bool
	// MinusExp replaces each element x by -exp(x).
	MinusExp bool
}

// ConvertedRows are rows of a tensor of the source. The elements of a vector are rows of one
// column.
type ConvertedRows struct {
	Tensor        string // "" for rows of zeros
	Rows, Columns uint64
	// Row i is row First + i*Step of the tensor, which is treated as a matrix whatever its number
	// of dimensions. Step 0 means 1.
	First, Step uint64
	// Scale multiplies the elements, unless it is 0.
	Scale float32

	// Each head has Head rows. Its first Rotary rows are reordered from the layout Half to the
	// layout Interleaved. If Rotary is 0, no rows are reordered.
	Head, Rotary uint64

	// If Each is not 0, the rows are those of heads, each of Each rows, in groups of Heads heads. In the
	// tensor, Heads/Tiles heads of a group with the same key are neighbours; here, the keys alternate.
	Each, Heads, Tiles uint64

	// If Stack is not 0, the tensor is a list of transposed matrices, each [Columns, Stack]. Row
	// i is then column First + i*Step of the matrix with index Matrix. Skip rows of the tensor
	// precede the list.
	Stack, Matrix, Skip uint64
}

// Row returns the row of the tensor that comes at place i.
func (r *ConvertedRows) Row(i uint64) uint64 {
	if r.Each != 0 {
		group, head := i/r.Each/r.Heads, i/r.Each%r.Heads
		return r.First + (group*r.Heads+head%r.Tiles*(r.Heads/r.Tiles)+head/r.Tiles)*r.Each + i%r.Each
	}
	if r.Rotary == 0 {
		return r.First + i*max(r.Step, 1)
	}
	head, at := i/r.Head*r.Head, i%r.Head
	if at >= r.Rotary {
		return i
	}
	return head + at%2*(r.Rotary/2) + at/2
}

// InOrder reports whether the rows are consecutive in the tensor.
func (r *ConvertedRows) InOrder() bool {
	return r.Rotary == 0 && r.Step <= 1 && r.Stack == 0 && r.Each == 0
}

// Convert returns the GGUF file of its family that a Hugging Face model converts to, as
// llama.cpp's converter writes it. Properties that the GGUF form cannot express are lost; compare
// the results with [Config.Same].
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
	family := rule.Family
	if !c.Recurrent() {
		family = cmp.Or(rule.Attention, family)
	}
	if family != "" {
		if d = s.named(family); d == nil {
			return nil, fmt.Errorf("arch: %s: convert: there is no family %s", c.Arch, family)
		}
	}
	if d.GGUF == nil {
		return nil, fmt.Errorf("arch: %s has no GGUF form to convert to", c.Arch)
	}
	v := &conversion{Conversion: Conversion{Config: c}, src: src, form: d.GGUF, used: map[string]string{}, index: map[string]int{}}
	if rule.Fold {
		if err := v.fold(); err != nil {
			return nil, err
		}
	}
	h := s.named(c.Arch).HF
	f := h.withDefaults(hfFields(src))
	v.settings()
	v.mixers(f)
	v.rope(f, h)
	v.temper()
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

// conversion is the state of Convert.
type conversion struct {
	Conversion
	src   Source
	form  *ggufForm
	used  map[string]string // by tensor of the source and its first row: the tensor that it was converted to
	index map[string]int    // of Tensors, by name
	// folded are the factors that the weights of roles contain, and parts those of MambaIn, or zeros.
	folded map[Role]float32
	parts  [5]float32
}

// set adds a setting of the architecture under the name that the family uses.
func (v *conversion) set(key string, value any) {
	if own, ok := v.form.Keys[key]; ok {
		key = own
	}
	v.Settings = append(v.Settings, Setting{v.form.Architectures[0] + "." + key, value})
}

// has reports whether a setting of the architecture is set.
func (v *conversion) has(key string) bool {
	if own, ok := v.form.Keys[key]; ok {
		key = own
	}
	return slices.ContainsFunc(v.Settings, func(s Setting) bool { return s.Key == v.form.Architectures[0]+"."+key })
}

// number adds a factor or cap under a key, unless key is "", if the model has one or if the
// family has a default that it must override.
func (v *conversion) number(key string, x float32) {
	if _, ok := v.form.Defaults[key]; key != "" && (x != 0 || ok) {
		v.set(key, x)
	}
}

// settings adds the keys that every GGUF file has.
func (v *conversion) settings() {
	c := v.Config
	v.Settings = append(v.Settings, Setting{"general.architecture", v.form.Architectures[0]}, Setting{"general.type", "model"})
	v.set("block_count", uint32(c.Layers))
	v.set("context_length", uint32(c.Context))
	v.set("embedding_length", uint32(c.Width))
	if r := v.form.Recurrent; v.form.Layers == nil && (r == nil || !r.Single) {
		v.set(ffKey, uint32(c.FF))
	}
	v.set("attention.head_count", uint32(c.Heads))
	headDim := uint32(c.HeadDimAt(c.full()))
	v.set("attention.key_length", headDim)
	if c.Latent.KVRank > 0 {
		v.latentSettings()
	} else {
		v.set("attention.value_length", headDim)
	}
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
		if r.LogitFactor != "" {
			v.set(r.LogitFactor, cmp.Or(c.LogitScale, 1))
		}
	}
	v.expertSettings()
	v.windows()
	v.layers()
	v.altUp()
	v.noRope()
}

// windows adds the layers that have a sliding window.
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
	if w == nil || size == 0 || !w.Flags && periodic(flags, w.Period) {
		return
	}
	for period := 1; period <= c.Layers && !w.Flags; period++ {
		if periodic(flags, period) {
			v.set(key+"_pattern", uint32(period))
			return
		}
	}
	v.set(key+"_pattern", flags)
}

// periodic reports whether all but the last of every period flags are set, or all if period is 0.
func periodic(flags []bool, period int) bool {
	for i, set := range flags {
		if set != (period == 0 || (i+1)%period != 0) {
			return false
		}
	}
	return true
}

// full returns the first layer without a window, or the first layer if all have windows.
func (c *Config) full() int {
	return max(0, slices.IndexFunc(c.Layer, func(l Layer) bool { return l.Window == 0 }))
}

// rope adds the RoPE settings of the layers without a window. If layers have windows, these have
// settings of their own.
func (v *conversion) rope(f *fields, h *hfForm) {
	c := v.Config
	layer := c.full()
	at, all := c.Layer[layer].Rope, c.Layer[layer].Window > 0
	r := &c.Ropes[at]
	v.set("rope.dimension_count", uint32(r.Dim))
	v.set("rope.freq_base", float32(r.Base))
	for _, l := range c.Layer {
		if l.Window > 0 && v.form.Window != nil && (l.Rope != at || v.form.Window.Theta != 0) {
			v.set("rope.freq_base_swa", float32(c.Ropes[l.Rope].Base))
			if v.form.Layers != nil {
				v.set("rope.dimension_count_swa", uint32(c.Ropes[l.Rope].Dim))
			}
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
	spec := hfRope(f, p, c, theta, c.ropeWidth(layer))
	f.fail(p.err)
	if f.err != nil {
		return
	}
	// llama.cpp reads YaRN's own settings only for few families. If a family has a tensor of
	// frequency factors, the tensor covers all settings.
	odd := spec.kind == ropeYarn && (spec.betaFast != 32 || spec.betaSlow != 1 || spec.keepFraction)
	usual := 1.0
	switch kind := spec.kind; {
	case kind == ropeLinear:
		v.set("rope.scaling.type", "linear")
		v.set("rope.scaling.factor", float32(spec.factor))
	case kind == ropeLlama3, kind == ropeProportional, odd && v.form.RopeFactors != "":
		v.factors(f, r)
	case kind == ropeYarn:
		v.set("rope.scaling.type", "yarn")
		v.set("rope.scaling.factor", float32(spec.factor))
		v.set("rope.scaling.original_context_length", uint32(spec.origContext))
		v.set("rope.scaling.yarn_beta_fast", float32(spec.betaFast))
		v.set("rope.scaling.yarn_beta_slow", float32(spec.betaSlow))
		if usual = yarnScale(spec.factor, 1); c.Latent.KVRank > 0 {
			v.set("rope.scaling.yarn_log_multiplier", float32(scaleAllUnit*p.float("mscale_all_dim", 0, maxRopeFactor, 0)))
			usual = 1
		}
	case kind == ropeLong:
		v.long(f, r)
	}
	if attn := float32(float64(r.AttnFactor) / usual); math.Abs(float64(attn)-1) > 1e-6 {
		v.set("rope.scaling.attn_factor", attn)
	}
}

// temper adds the factors of Q that grow with the position.
func (v *conversion) temper() {
	t, c := v.form.Temper, v.Config
	if t == nil || c.Temper.Scale == 0 || t.Scale == "" {
		return
	}
	v.set(t.Scale, c.Temper.Scale)
	if !v.has(t.Span) {
		v.set(t.Span, uint32(c.Temper.Span))
	}
}

// hfRopeObject returns the RoPE settings of the layers with or without a window, if they differ.
// It returns an empty object if there are none.
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

// factors adds the tensor that divides the frequencies.
func (v *conversion) factors(f *fields, r *Rope) { v.vector(f, v.form.RopeFactors, r, r.InvFreq) }

// long adds the tensors and the settings of LongRoPE.
func (v *conversion) long(f *fields, r *Rope) {
	v.set("rope.scaling.original_context_length", uint32(r.LongFrom))
	v.vector(f, v.form.ShortFactors, r, r.InvFreq)
	v.vector(f, v.form.LongFactors, r, r.LongInvFreq)
}

// still is the divisor of the frequencies of pairs that are not rotated.
const still = 1e30

// vector adds a tensor of the divisors that turn unscaled frequencies into scaled.
func (v *conversion) vector(f *fields, name string, r *Rope, scaled []float32) {
	if name == "" {
		f.fail(fmt.Errorf("arch: RoPE scaling %s has no GGUF form in this family", r.Kind))
		return
	}
	plain := ropeSpec{dim: r.Dim, base: r.Base}
	values := make([]float32, r.Dim/2)
	for i := range values {
		if values[i] = still; scaled[i] != 0 {
			values[i] = 1 / plain.period(i) / scaled[i]
		}
	}
	v.Tensors = append(v.Tensors, Converted{Name: name, Shape: []uint64{uint64(len(values))}, Values: values})
}

// rule adds the settings that the descriptor lists.
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
		case "u32s":
			var list []uint32
			for _, x := range in.list(s.From) {
				list = append(list, uint32(in.integer(s.From, x, 0, math.MaxInt32)))
			}
			v.set(s.Key, list)
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
	for r := range AttnNorm {
		if r == Head && c.TiedHead {
			continue
		}
		for i := range c.places(r) {
			if err := v.role(r, i); err != nil {
				return err
			}
		}
		v.pad(r)
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
func (v *conversion) role(r Role, layer int) (err error) {
	names := v.form.names("")
	c := v.Config
	if r == KVUp {
		return v.latentUp(layer)
	}
	if r == Q && c.Latent.KVRank > 0 && c.Latent.QRank == 0 {
		names[Q] = v.form.Latent.DirectQ
	}
	if !c.Has(r, layer) && c.twin(r, layer) {
		return nil
	}
	if r == DeltaIn && c.Has(r, layer) && c.names[DeltaZ] == "" && names[DeltaZ] != "" {
		return v.divideDelta(layer, names)
	}
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
		if r == Conv && len(shape) == 3 {
			shape = []uint64{shape[0], shape[2]}
		}
		if r == SharedRouter { // a vector
			shape = shape[len(shape)-1:]
			rows.Rows = shape[0]
		}
		if len(shape) == 2 {
			rows.Columns = shape[1]
		}
		if column := c.columnShape(r, shape[0]); column != nil {
			shape = column
		}
		if c.names.fuse(r) && !names.fuse(r) {
			rows.First, rows.Rows, _ = c.Rows(r, layer)
			shape = append([]uint64{rows.Rows}, shape[1:]...)
		}
		pairs := r == Q || r == K || r == QNorm || r == KNorm
		if pairs && c.RopeLayout == Half && RopeLayout(*v.form.RopeLayout) == Interleaved {
			rows.Head, rows.Rotary = uint64(c.HeadDim), uint64(c.Ropes[c.Layer[layer].Rope].Dim)
			if rows.First > 0 || rows.Rows != c.WantShape(r, layer)[0] {
				return fmt.Errorf("arch: tensor %s: a tensor that fuses Q or K with other rows is not supported", of.from)
			}
		}
		parts := v.tileHeads(r, rows)
		if of.to == bias {
			err = v.add(of.to, shape, parts[0])
		} else {
			err = v.addScaled(r, of.to, shape, parts[0])
		}
		if err != nil {
			return err
		}
		if more := parts[1:]; len(more) > 0 {
			t := &v.Tensors[v.index[of.to]]
			t.Parts = append(t.Parts, more...)
		}
		if of.to != bias && c.NormPlusOne && !v.form.NormPlusOne && (r.norm() || r == QNorm || r == KNorm) {
			v.Tensors[v.index[of.to]].PlusOne = true
		}
		if r == DeltaRate && !c.Delta.Negative || r == MambaRate && !c.Mamba.Negative {
			v.Tensors[v.index[of.to]].MinusExp = true
		}
	}
	return nil
}

// add adds rows to a tensor. If several roles are one tensor in both forms, add is called for
// each; if they are one tensor only in the GGUF file, add joins them.
func (v *conversion) add(to string, shape []uint64, rows ConvertedRows) error {
	key := fmt.Sprintf("%s[%d:]", rows.Tensor, rows.First)
	if first, used := v.used[key]; used {
		if first != to {
			return fmt.Errorf("arch: tensor %s becomes two tensors in GGUF files, %s and %s, which is not supported", rows.Tensor, first, to)
		}
		return nil
	}
	v.used[key] = to
	i, there := v.index[to]
	if !there {
		v.index[to] = len(v.Tensors)
		v.Tensors = append(v.Tensors, Converted{Name: to, Shape: slices.Clone(shape), Parts: []ConvertedRows{rows}})
		return nil
	}
	t := &v.Tensors[i]
	if len(t.Shape) != len(shape) || !slices.Equal(t.Shape[1:], shape[1:]) {
		return fmt.Errorf("arch: tensor %s: shape %d does not match shape %d of %s", rows.Tensor, shape, t.Shape, to)
	}
	t.Parts = append(t.Parts, rows)
	t.Shape[0] += shape[0]
	return nil
}
