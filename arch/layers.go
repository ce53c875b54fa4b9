package arch

import (
	"cmp"
	"fmt"
	"reflect"
)

// layerRule describes sizes that differ between layers, layers that share K and V, and inputs of
// layers. The fields are keys of settings; "" means that the family has no such setting.
//
// In config.json there are sizes of the layers without a window, which replace the usual ones. In
// GGUF files HeadDim is the key of the size of heads in the layers with a window, and the numbers of
// KV heads and the feed-forward widths may be lists.
type layerRule struct {
	HeadDim string `json:"head_dim"`
	KVHeads string `json:"kv_heads"` // in config.json, used only if the flag ValueIsKey is set
	// ValueIsKey is the key of a flag that V is the product of K in the layers without a window. In GGUF
	// files, these layers have no tensor of V.
	ValueIsKey string `json:"value_is_key"`
	// Shared is the key of the number of layers at the end that use the K and V of an earlier layer: the
	// last one of the other layers that, like they, has a window or none.
	Shared string `json:"shared"`
	// FF is the key of the feed-forward width if config.json may have a list with a width for each layer.
	FF string `json:"ff"`
	// WideFF is the key of a flag that the layers that share K and V have twice the feed-forward width.
	WideFF string `json:"wide_ff"`
	// Inputs and InputVocab are the keys of the sizes of LayerInputs. In GGUF files the latter follows
	// from the tensor.
	Inputs     string `json:"inputs"`
	InputVocab string `json:"input_vocab"`
	// ShortInputs allows an embedding of inputs with fewer rows than the vocabulary has tokens. The
	// tokens without a row, which stand for images and sounds, get the last row.
	ShortInputs bool `json:"short_inputs"`
}

// reads reports whether the rule reads a key. It is nil for most families.
func (r *layerRule) reads(key string) bool {
	return r != nil && key != "" && (key == r.HeadDim || key == r.KVHeads || key == r.ValueIsKey || key == r.Shared ||
		key == r.WideFF || key == r.FF || key == r.Inputs || key == r.InputVocab)
}

// inputUnit divides the width of LayerInputs, so that the columns of each layer are aligned.
const inputUnit = 4

// layerSizes are the sizes that may differ between layers.
type layerSizes struct{ headDim, kvHeads, ff int }

// readHF reads the settings of config.json. The windows of the layers are known.
func (r *layerRule) readHF(f *fields, c *Config) {
	if r == nil {
		return
	}
	usual := layerSizes{c.HeadDim, c.KVHeads, c.FF}
	full := usual
	full.headDim = f.opt(r.HeadDim, 1, maxHeadDim, usual.headDim)
	valueIsKey := f.bool(r.ValueIsKey, false)
	if valueIsKey {
		full.kvHeads = f.opt(r.KVHeads, 1, maxHeads, usual.kvHeads)
	}
	r.share(f, c)
	wide, widths := f.bool(r.WideFF, false), r.widths(f)
	if f.err == nil && widths != nil && len(widths) != c.Layers {
		f.failf(r.FF, "%d entries for %d layers", len(widths), c.Layers)
		return
	}
	sizes := make([]layerSizes, c.Layers)
	for i := range sizes {
		l := &c.Layer[i]
		if sizes[i] = usual; l.Window == 0 {
			sizes[i], l.ValueIsKey = full, valueIsKey && l.KVBack == 0
		}
		if wide && l.KVBack > 0 {
			sizes[i].ff = 2 * usual.ff
		}
		if widths != nil {
			sizes[i].ff = widths[i]
		}
	}
	c.setSizes(f, sizes)
	r.inputs(f, c, func() int { return f.opt(r.InputVocab, 1, maxVocab, c.Vocab) })
}

// widths returns the feed-forward widths of a list, or nil if there is one width for all layers.
func (r *layerRule) widths(f *fields) (widths []int) {
	if r == nil || r.FF == "" {
		return nil
	}
	v, _ := f.value(r.FF)
	list, ok := v.([]any)
	if !ok {
		return nil
	}
	if len(list) == 0 {
		f.failf(r.FF, "empty")
	}
	for _, x := range list {
		widths = append(widths, f.integer(r.FF, x, 1, maxFF))
	}
	if f.err != nil {
		return nil
	}
	return widths
}

// readGGUF reads the settings of a GGUF file, in which the numbers of KV heads and the feed-forward
// widths are one number or one for each layer. The windows of the layers are known.
func (r *layerRule) readGGUF(f *fields, c *Config, src Source, meta func(key string) (any, bool)) {
	if r == nil {
		return
	}
	local := f.opt(r.HeadDim, 1, maxHeadDim, c.HeadDim)
	if n := f.opt("attention.value_length_swa", 1, maxHeadDim, local); f.err == nil && n != local {
		f.failf("attention.value_length_swa", "%d is not the key length %d", n, local)
	}
	r.share(f, c)
	sizes := make([]layerSizes, c.Layers)
	for i := range sizes {
		l := &c.Layer[i]
		sizes[i] = layerSizes{c.HeadDim, f.entry(kvHeadsKey, meta, i, c.KVHeads, maxHeads), f.entry(ffKey, meta, i, c.FF, maxFF)}
		if l.Window > 0 {
			sizes[i].headDim = local
		}
		l.ValueIsKey = l.KVBack == 0 && !has(src, c.names.weight(V, i))
	}
	c.setSizes(f, sizes)
	r.inputs(f, c, func() int {
		if shape, ok := src.Shape(c.names.weight(InputEmbed, 0)); ok && len(shape) == 2 && shape[0] <= maxVocab {
			return int(shape[0])
		}
		return c.Vocab
	})
}

// share sets KVBack in the layers that share K and V.
func (r *layerRule) share(f *fields, c *Config) {
	n := f.opt(r.Shared, 0, maxLayers, 0)
	if f.err != nil || n == 0 {
		return
	}
	if n >= c.Layers {
		f.failf(r.Shared, "%d is not below the number of layers %d", n, c.Layers)
		return
	}
	own := c.Layers - n
	for i := own; i < c.Layers; i++ {
		from := own - 1
		for from >= 0 && (c.Layer[from].Window > 0) != (c.Layer[i].Window > 0) {
			from--
		}
		if from < 0 {
			f.failf(r.Shared, "no layer before layer %d has K and V for it", own)
			return
		}
		c.Layer[i].KVBack = i - from
	}
}

// inputs reads the sizes of LayerInputs.
func (r *layerRule) inputs(f *fields, c *Config, vocab func() int) {
	width := f.opt(r.Inputs, 0, maxWidth, 0)
	if f.err != nil || width == 0 {
		for _, role := range []Role{InputEmbed, InputProj, InputProjNorm, InputGate, InputOut, InputPostNorm} {
			c.names[role] = ""
		}
		return
	}
	if width%inputUnit != 0 {
		f.failf(r.Inputs, "%d is not a multiple of %d", width, inputUnit)
		return
	}
	c.Inputs = LayerInputs{Width: width, Vocab: vocab()}
	if f.err == nil && c.Inputs.Vocab < c.Vocab && !r.ShortInputs {
		f.failf(r.Inputs, "the embedding of inputs has %d rows for %d tokens", c.Inputs.Vocab, c.Vocab)
	}
}

// setSizes sets the sizes of the layers. Those of the first layer become the configuration's.
func (c *Config) setSizes(f *fields, sizes []layerSizes) {
	if f.err != nil {
		return
	}
	base := sizes[0]
	c.HeadDim, c.KVHeads, c.FF = base.headDim, base.kvHeads, base.ff
	other := func(n, usual int) int {
		if n == usual {
			return 0
		}
		return n
	}
	for i, s := range sizes {
		l := &c.Layer[i]
		l.HeadDim, l.KVHeads, l.FF = other(s.headDim, base.headDim), other(s.kvHeads, base.kvHeads), other(s.ff, base.ff)
		if s.headDim%2 != 0 || c.Heads%s.kvHeads != 0 {
			f.fail(&FieldError{Key: fmt.Sprintf("layer %d", i), Reason: fmt.Sprintf("%d heads of %d elements cannot share %d KV heads", c.Heads, s.headDim, s.kvHeads)})
			return
		}
		if from := &c.Layer[i-l.KVBack]; cmp.Or(from.HeadDim, base.headDim) != s.headDim || cmp.Or(from.KVHeads, base.kvHeads) != s.kvHeads {
			f.fail(&FieldError{Key: fmt.Sprintf("layer %d", i), Reason: "shares K and V with a layer that has heads of another size or number"})
			return
		}
	}
}

// ffKey is the key of the feed-forward width in GGUF files.
const ffKey = "feed_forward_length"

// entry returns the number of a layer under a key whose value is a list, or absent if it is no list.
func (f *fields) entry(key string, meta func(key string) (any, bool), layer, absent, most int) int {
	v, _ := meta(key)
	if f.err != nil || !isSlice(v) {
		return absent
	}
	list := reflect.ValueOf(v)
	if layer >= list.Len() {
		f.failf(key, "%d entries are too few", list.Len())
		return absent
	}
	return f.integer(key, list.Index(layer).Interface(), 1, most)
}

// firstOf returns the first element of a list, or a value that is no list.
func (r *layerRule) firstOf(v any) any {
	if list := reflect.ValueOf(v); r != nil && isSlice(v) && list.Len() > 0 {
		return list.Index(0).Interface()
	}
	return v
}

// sharedKV reports whether a role belongs to K and V of a layer that uses those of another one.
func (c *Config) sharedKV(r Role, layer int) bool {
	return c.Layer[layer].KVBack > 0 && (r == K || r == V || r == KNorm)
}

// inputShape returns the shape of a role of LayerInputs and of LayerScale, or nil.
func (c *Config) inputShape(r Role) []uint64 {
	width, input := uint64(c.Width), uint64(c.Inputs.Width)
	all := uint64(c.Layers) * input
	switch r {
	case InputEmbed:
		return []uint64{uint64(c.Inputs.Vocab), all}
	case InputProj:
		return []uint64{all, width}
	case InputProjNorm:
		return []uint64{input}
	case InputGate:
		return []uint64{input, width}
	case InputOut:
		return []uint64{width, input}
	case InputPostNorm:
		return []uint64{width}
	case LayerScale:
		return []uint64{1}
	}
	return nil
}

// layers adds the settings of layers whose sizes differ, and of their inputs.
func (v *conversion) layers() {
	r, c := v.form.Layers, v.Config
	if r == nil {
		return
	}
	window, shared := c.HeadDim, 0
	var kvHeads, ff []uint32
	for i := range c.Layer {
		if c.Layer[i].Window > 0 {
			window = c.HeadDimAt(i)
		}
		if c.Layer[i].KVBack > 0 {
			shared++
		}
		kvHeads = append(kvHeads, uint32(c.KVHeadsAt(i)))
		ff = append(ff, uint32(c.FFAt(i)))
	}
	v.set(kvHeadsKey, kvHeads)
	v.set(ffKey, ff)
	if r.HeadDim != "" {
		v.set(r.HeadDim, uint32(window))
		v.set("attention.value_length_swa", uint32(window))
	}
	v.set(r.Shared, uint32(shared))
	v.set(r.Inputs, uint32(c.Inputs.Width))
}
