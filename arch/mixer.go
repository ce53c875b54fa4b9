package arch

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// Mixer is the block of a layer that mixes positions.
type Mixer uint8

// The mixers.
const (
	Attention Mixer = iota
	// ShortConv is out(C * conv(B * x)), where in(y) = (B, C, x), and conv is a causal convolution of
	// each element over [Config.ConvTaps] positions.
	ShortConv
	// GatedDelta is out(norm(delta(silu(conv(in(y))))) * silu(z(y))) with the gated delta rule of [Delta].
	GatedDelta
	// Mamba2 is out(norm(scan(silu(conv(x, B, C)), dt) * silu(z))), where in(y) = (z, x, B, C, dt), with
	// the selective state space of [Mamba].
	Mamba2
	// NoMixer is the mixer of layers that have only a feed-forward block.
	NoMixer
	mixerCount
)

// String returns the mixer's name in descriptors, such as "short_conv".
func (m Mixer) String() string {
	if m < mixerCount {
		return [...]string{"attention", "short_conv", "gated_delta", "mamba2", "none"}[m]
	}
	return "mixer?"
}

// Recurrent reports whether a layer with the mixer has a state of fixed size.
func (m Mixer) Recurrent() bool { return m != Attention && m != NoMixer }

// Attends reports whether the layer has attention.
func (l *Layer) Attends() bool { return l.Mixer == Attention || l.Beside }

// Recurrent reports whether some layer has recurrent state.
func (c *Config) Recurrent() bool {
	for i := range c.Layer {
		if c.Layer[i].Mixer.Recurrent() {
			return true
		}
	}
	return false
}

// mixerName is a Mixer in JSON.
type mixerName Mixer

func (m *mixerName) UnmarshalText(text []byte) error {
	for v := range mixerCount {
		if v.String() == string(text) && v.Recurrent() {
			*m = mixerName(v)
			return nil
		}
	}
	return fmt.Errorf("recurrent: %s is not short_conv, gated_delta or mamba2", clip(string(text)))
}

// mixerRule asks for layers with recurrent state in a file form.
type mixerRule struct {
	Kind mixerName `json:"kind"`
	Taps string    `json:"taps"` // key of the number of positions that a convolution covers
	// LayerTypes is the key of a list of names, of which Types tells what the layer has. Without the
	// list, Attention is the key of a list of the layers with attention. In GGUF files, layers without
	// attention have no KV heads.
	LayerTypes string               `json:"layer_types"`
	Types      map[string]layerPart `json:"types"`
	Attention  string               `json:"attention_layers"`
	// Pattern is the key of a text whose characters are such names, if there is no list.
	Pattern string `json:"pattern"`
	// Single makes each layer have one block: with recurrent state, attention, or a feed-forward block. In
	// GGUF files, only the layers with a feed-forward block have a feed-forward width.
	Single bool `json:"single"`
	// Interval is the key of a number n; with neither list, every n-th layer has attention.
	Interval string `json:"interval"`
	// The keys of the sizes of Delta. In GGUF files, ValueDim is the key of ValueDim*Heads.
	KeyHeads string `json:"key_heads"`
	Heads    string `json:"heads"`
	KeyDim   string `json:"key_dim"`
	ValueDim string `json:"value_dim"`
	// Neighbours: in GGUF files too, heads of V with the same Q and K are neighbours.
	Neighbours bool `json:"neighbours"`
	// Joined is the name of DeltaIn in GGUF files without DeltaZ.
	Joined string `json:"joined"`
	// Beside makes each layer have attention beside the block with recurrent state.
	Beside bool `json:"beside"`
	// Mamba lists the keys of the sizes of Mamba.
	Mamba *mambaRule `json:"mamba"`
}

// layerPart is what a layer has, in descriptors.
type layerPart string

const (
	partRecurrent layerPart = "recurrent"
	partAttention layerPart = "attention"
	partFF        layerPart = "feed_forward"
)

func (p *layerPart) UnmarshalText(text []byte) error {
	switch *p = layerPart(text); *p {
	case partRecurrent, partAttention, partFF:
		return nil
	}
	return fmt.Errorf("types: %s is not %s, %s or %s", clip(string(text)), partRecurrent, partAttention, partFF)
}

// Delta describes the gated delta rule. Each head has a state, a matrix [ValueDim, KeyDim].
type Delta struct {
	KeyHeads, Heads  int // heads of Q and K, and of V
	KeyDim, ValueDim int // elements of a head of Q and K, and of V
	// Tiled: head h of V uses Q and K of head h % KeyHeads; otherwise heads of V with the same Q and K are
	// neighbours.
	Tiled bool `json:",omitempty"`
	// Negative: the weights of the decay are the negative rates, not their logarithms.
	Negative bool `json:",omitempty"`
}

// channels returns the number of elements that the convolution of a mixer has.
func (c *Config) channels() int {
	if d := &c.Delta; d.Heads > 0 {
		return 2*d.KeyHeads*d.KeyDim + d.Heads*d.ValueDim
	}
	if m := &c.Mamba; m.Heads > 0 {
		return m.channels()
	}
	return c.Width
}

// Limits of the gated delta rule.
const (
	maxDeltaHeads = 1 << 8
	maxDeltaDim   = 256
)

// delta reads the sizes of the gated delta rule.
func (r *mixerRule) delta(f *fields, c *Config, gguf bool) {
	if Mixer(r.Kind) != GatedDelta {
		return
	}
	d := &c.Delta
	d.KeyHeads, d.Heads, d.KeyDim = f.need(r.KeyHeads, 1, maxDeltaHeads), f.need(r.Heads, 1, maxDeltaHeads), f.need(r.KeyDim, 1, maxDeltaDim)
	if d.ValueDim = f.need(r.ValueDim, 1, maxDeltaDim*maxDeltaHeads); f.err != nil {
		return
	}
	if gguf {
		if d.ValueDim%d.Heads != 0 {
			f.failf(r.ValueDim, "%d is not a multiple of %d heads", d.ValueDim, d.Heads)
			return
		}
		d.ValueDim, d.Negative = d.ValueDim/d.Heads, true
		d.Tiled = d.KeyHeads != 1 && d.KeyHeads != d.Heads && !r.Neighbours
	}
	if d.ValueDim > maxDeltaDim || d.Heads%d.KeyHeads != 0 {
		f.failf(r.Heads, "%d heads of %d elements are not at most %d elements of a multiple of %d heads", d.Heads, d.ValueDim, maxDeltaDim, d.KeyHeads)
	}
}

// Limits of convolutions.
const (
	minTaps = 2
	maxTaps = 8
)

// kvHeadsKey is the key of the number of KV heads in GGUF files, which is a list if some layers have none.
const kvHeadsKey = "attention.head_count_kv"

// reads reports whether the rule reads a key. It is nil for families without recurrent state.
func (r *mixerRule) reads(key string) bool {
	return r != nil && key != "" && (slices.Contains([]string{r.Taps, r.LayerTypes, r.Pattern, r.Attention, r.Interval, r.KeyHeads, r.Heads, r.KeyDim, r.ValueDim}, key) || slices.Contains(r.Mamba.keys(), key))
}

// mark sets the blocks of the layers. attention reports the layers with attention; the others have
// recurrent state.
func (r *mixerRule) mark(f *fields, c *Config, attention func(layer int) bool) {
	r.markParts(f, c, func(layer int) layerPart {
		if attention(layer) {
			return partAttention
		}
		return partRecurrent
	})
}

// markParts sets the blocks of the layers.
func (r *mixerRule) markParts(f *fields, c *Config, part func(layer int) layerPart) {
	c.ConvTaps = f.need(r.Taps, minTaps, maxTaps)
	found := r.Beside
	for i := range c.Layer {
		l := &c.Layer[i]
		l.NoFF = r.Single
		switch part(i) {
		case partAttention:
			found = true
		case partFF:
			l.Mixer, l.NoFF = NoMixer, false
		default:
			l.Mixer, l.Beside = Mixer(r.Kind), r.Beside
		}
	}
	if !c.Recurrent() { // the sizes describe no layer
		c.ConvTaps, c.Delta, c.Mamba, c.Bias.Conv = 0, Delta{}, Mamba{}, false
	}
	if f.err == nil && !found {
		f.fail(&FieldError{Key: "layers", Reason: "none has attention"})
	}
}

// names returns the names of the layers' blocks in config.json, or nil if it has none.
func (r *mixerRule) names(f *fields) []any {
	list := f.list(r.LayerTypes)
	if list == nil && r.Pattern != "" {
		for _, name := range f.string(r.Pattern, "") {
			list = append(list, string(name))
		}
	}
	return list
}

// layers returns the number of layers. Without the usual key, it is that of the names of blocks.
func (r *mixerRule) layers(f *fields) int {
	const usual = "num_hidden_layers"
	if r != nil && r.Single {
		if n := len(r.names(f)); n > 0 && n <= maxLayers {
			return f.opt(usual, 1, maxLayers, n)
		}
	}
	return f.need(usual, 1, maxLayers)
}

// readHF reads the settings of config.json.
func (r *mixerRule) readHF(f *fields, src Source, c *Config) {
	if r == nil {
		return
	}
	c.convMatrix = true
	r.delta(f, c, false)
	r.Mamba.read(f, src, c)
	if r.Beside {
		r.mark(f, c, func(int) bool { return false })
		return
	}
	list := r.names(f)
	if list == nil && r.Interval != "" {
		r.periodic(f, c)
		return
	}
	if list == nil {
		with := map[int]bool{}
		for _, v := range f.list(r.Attention) {
			with[f.integer(r.Attention, v, 0, c.Layers-1)] = true
		}
		r.mark(f, c, func(layer int) bool { return with[layer] })
		return
	}
	if len(list) != c.Layers {
		f.failf(r.LayerTypes, "%d entries for %d layers", len(list), c.Layers)
		return
	}
	parts := make([]layerPart, len(list))
	for i, v := range list {
		name, _ := v.(string)
		if parts[i] = r.Types[name]; parts[i] == "" {
			f.fail(&UnsupportedValueError{Key: f.name(r.LayerTypes), Value: clip(v), Known: slices.Sorted(maps.Keys(r.Types))})
		}
	}
	r.markParts(f, c, func(layer int) layerPart { return parts[layer] })
}

// periodic sets the mixers of layers of which every n-th has attention.
func (r *mixerRule) periodic(f *fields, c *Config) {
	n := f.need(r.Interval, 1, maxLayers)
	r.mark(f, c, func(layer int) bool { return (layer+1)%max(n, 1) == 0 })
}

// readGGUF reads the settings of a GGUF file. heads and widths are the values of kvHeadsKey and ffKey.
func (r *mixerRule) readGGUF(f *fields, src Source, c *Config, heads, widths any) {
	if r == nil {
		return
	}
	r.delta(f, c, true)
	c.joinDelta(src, r.Joined)
	r.Mamba.read(f, src, c)
	if r.Beside {
		r.mark(f, c, func(int) bool { return false })
		return
	}
	if r.Interval != "" {
		r.periodic(f, c)
		return
	}
	list := reflect.ValueOf(heads)
	if !isSlice(heads) || list.Len() != c.Layers {
		f.failf(kvHeadsKey, "is not a list of %d numbers", c.Layers)
		return
	}
	has := func(key string, list reflect.Value, layer, usual int) bool {
		n, ok := toInt(list.Index(layer).Interface())
		if !ok || n != 0 && n != int64(usual) {
			f.failf(key, "%s of layer %d is not 0 or %d", clip(list.Index(layer).Interface()), layer, usual)
		}
		return n != 0
	}
	if !r.Single {
		r.mark(f, c, func(layer int) bool { return has(kvHeadsKey, list, layer, c.KVHeads) })
		return
	}
	of := reflect.ValueOf(widths)
	if !isSlice(widths) || of.Len() != c.Layers {
		f.failf(ffKey, "is not a list of %d numbers", c.Layers)
		return
	}
	r.markParts(f, c, func(layer int) layerPart {
		switch {
		case has(kvHeadsKey, list, layer, c.KVHeads):
			return partAttention
		case has(ffKey, of, layer, c.FF):
			return partFF
		}
		return partRecurrent
	})
}

// joinDelta selects the tensor with Q, K, V and Z if no layer of a GGUF file has one with Z alone.
func (c *Config) joinDelta(src Source, name string) {
	joined, found := tensorNames{DeltaIn: name}, false
	for i := range c.Layers {
		if has(src, c.names.weight(DeltaZ, i)) {
			return
		}
		found = found || has(src, joined.weight(DeltaIn, i))
	}
	if found {
		c.names[DeltaIn], c.names[DeltaZ] = name, ""
	}
}

// first returns the first number of a list that is not 0, as the value of kvHeadsKey and ffKey may be.
func (r *mixerRule) first(value any) any {
	list := reflect.ValueOf(value)
	if r == nil || !isSlice(value) {
		return value
	}
	for i := range list.Len() {
		if n, ok := toInt(list.Index(i).Interface()); ok && n > 0 {
			return n
		}
	}
	return value
}

// ffRule adjusts the feed-forward width of config.json, as LFM2 does: with a flag, it becomes two thirds of
// itself, times a factor, rounded up to a multiple. The fields are keys.
type ffRule struct {
	Width      string `json:"width"`   // replaces intermediate_size if it is present
	Experts    string `json:"experts"` // number of experts; unless it is 0, Width does not apply
	Adjust     string `json:"adjust"`
	Multiplier string `json:"multiplier"`
	Multiple   string `json:"multiple"`
}

// reads reports whether the rule reads a key. It is nil for most families.
func (r *ffRule) reads(key string) bool {
	return r != nil && key != "" && (key == r.Width || key == r.Experts || key == r.Adjust || key == r.Multiplier || key == r.Multiple)
}

// readFF returns the feed-forward width.
func (r *ffRule) readFF(f *fields) int {
	const usual = "intermediate_size"
	if r == nil {
		return f.need(usual, 1, maxFF)
	}
	width := f.opt(r.Width, 1, maxFF, 0)
	if width == 0 || r.Experts != "" && f.opt(r.Experts, 0, maxExperts, 0) > 0 {
		width = f.need(usual, 1, maxFF)
	}
	if !f.bool(r.Adjust, false) {
		return width
	}
	multiple := f.opt(r.Multiple, 1, maxFF, 1)
	width = int(f.float(r.Multiplier, 0, 16, 1) * float64(2*width/3))
	width = (width + multiple - 1) / multiple * multiple
	if f.err == nil && (width < 1 || width > maxFF) {
		f.failf(usual, "%d after its adjustment is not in 1..%d", width, maxFF)
	}
	return width
}

// mixers adds the number of KV heads, of each layer if some have none, and the settings of recurrent
// state.
func (v *conversion) mixers(f *fields) {
	c, r := v.Config, v.form.Recurrent
	if r == nil {
		if v.form.Layers == nil {
			v.set(kvHeadsKey, uint32(c.KVHeads))
		}
		return
	}
	v.set(r.Taps, uint32(c.ConvTaps))
	v.mamba(f, r.Mamba)
	if d := &c.Delta; d.Heads > 0 {
		v.set(r.KeyHeads, uint32(d.KeyHeads))
		v.set(r.Heads, uint32(d.Heads))
		v.set(r.KeyDim, uint32(d.KeyDim))
		v.set(r.ValueDim, uint32(d.Heads*d.ValueDim))
	}
	if r.Interval != "" {
		n := 1 + slices.IndexFunc(c.Layer, func(l Layer) bool { return !l.Mixer.Recurrent() })
		for i := range c.Layer {
			if c.Layer[i].Mixer.Recurrent() == ((i+1)%n == 0) {
				f.fail(fmt.Errorf("arch: %s: layers with attention at other intervals than %d are not converted", c.Arch, n))
			}
		}
		v.set(r.Interval, uint32(n))
		v.set(kvHeadsKey, uint32(c.KVHeads))
		return
	}
	if r.Beside {
		v.set(kvHeadsKey, uint32(c.KVHeads))
		return
	}
	heads, widths := make([]uint32, c.Layers), make([]uint32, c.Layers)
	for i := range heads {
		if c.Layer[i].Attends() {
			heads[i] = uint32(c.KVHeads)
		}
		if !c.Layer[i].NoFF {
			widths[i] = uint32(c.FF)
		}
	}
	v.set(kvHeadsKey, heads)
	if r.Single {
		v.set(ffKey, widths)
	}
}

// divideDelta adds the rows of Q, K and V, and of Z, from a tensor that has those of each head of Q and
// K together.
func (v *conversion) divideDelta(layer int, names tensorNames) error {
	c := v.Config
	d := &c.Delta
	from := c.names.weight(DeltaIn, layer)
	key, value := uint64(d.KeyDim), uint64(d.Heads/d.KeyHeads*d.ValueDim)
	for _, of := range []struct {
		role        Role
		first, rows uint64
	}{{DeltaIn, 0, key}, {DeltaIn, key, key}, {DeltaIn, 2 * key, value}, {DeltaZ, 2*key + value, value}} {
		for g := range uint64(d.KeyHeads) {
			rows := ConvertedRows{Tensor: from, Rows: of.rows, Columns: uint64(c.Width), First: 2*g*(key+value) + of.first}
			if err := v.add(names.weight(of.role, layer), []uint64{of.rows, rows.Columns}, rows); err != nil {
				return err
			}
		}
	}
	return nil
}

// tileHeads returns rows of a role's tensor in the order of a GGUF file, in which the heads of V with
// the same Q and K are not neighbours.
func (v *conversion) tileHeads(r Role, rows ConvertedRows) []ConvertedRows {
	d := &v.Config.Delta
	if d.Heads == 0 || d.Tiled || v.form.Recurrent.Neighbours || d.KeyHeads == 1 || d.KeyHeads == d.Heads {
		return []ConvertedRows{rows}
	}
	heads := rows
	heads.Heads, heads.Tiles = uint64(d.Heads), uint64(d.KeyHeads)
	switch r {
	case DeltaIn, Conv: // Q and K come first
		rows.Rows = uint64(2 * d.KeyHeads * d.KeyDim)
		heads.First, heads.Rows, heads.Each = rows.Rows, heads.Rows-rows.Rows, uint64(d.ValueDim)
		return []ConvertedRows{rows, heads}
	case DeltaZ:
		heads.Each = uint64(d.ValueDim)
	case DeltaBeta, DeltaAlpha, DeltaRate, DeltaShift:
		heads.Each = 1
	case DeltaOut: // the columns of each head count as a row
		heads.Rows, heads.Columns, heads.Each = heads.Rows*heads.Heads, uint64(d.ValueDim), 1
	default:
		return []ConvertedRows{rows}
	}
	return []ConvertedRows{heads}
}

// deltaShape returns the shape of a role of layers with GatedDelta.
func (c *Config) deltaShape(r Role) []uint64 {
	d, width := &c.Delta, uint64(c.Width)
	heads, values := uint64(d.Heads), uint64(d.Heads*d.ValueDim)
	switch r {
	case DeltaIn:
		rows := uint64(c.channels())
		if c.names[DeltaZ] == "" {
			rows += values
		}
		return []uint64{rows, width}
	case DeltaZ:
		return []uint64{values, width}
	case DeltaBeta, DeltaAlpha:
		if c.names[DeltaAlpha] == "" {
			heads *= 2
		}
		return []uint64{heads, width}
	case DeltaRate, DeltaShift:
		return []uint64{heads}
	case DeltaNorm:
		return []uint64{uint64(d.ValueDim)}
	}
	return []uint64{width, values}
}
