package arch

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// scaleRule lists the keys of settings that multiply activations; "" means none.
type scaleRule struct {
	Embed    string `json:"embed"`    // multiplies the embedding
	Attn     string `json:"attn"`     // multiplies Q·K instead of 1/sqrt(head size)
	Residual string `json:"residual"` // multiplies a block's output before it is added to the residual stream
	Logits   string `json:"logits"`   // divides the logits
	// LogitFactor multiplies the logits.
	LogitFactor string `json:"logit_factor"`

	Key     string `json:"key"`      // multiplies K
	AttnIn  string `json:"attn_in"`  // multiplies the input of Q, K and V
	AttnOut string `json:"attn_out"` // multiplies the result of attention
	FF      string `json:"ff"`       // a list: multiply the gate of the feed-forward block, and its result
	// MambaIn multiplies the input of Mamba-2, and the list MambaParts its products z, X, B, C and the
	// step sizes. MambaOut multiplies its result.
	MambaIn    string `json:"mamba_in"`
	MambaParts string `json:"mamba_parts"`
	MambaOut   string `json:"mamba_out"`
}

func (r *scaleRule) reads(key string) bool {
	return r != nil && key != "" && slices.Contains([]string{
		r.Embed, r.Attn, r.Residual, r.Logits, r.LogitFactor, r.Key, r.AttnIn, r.AttnOut, r.FF, r.MambaIn, r.MambaParts, r.MambaOut,
	}, key)
}

// readScales sets c's factors of activations.
func (c *Config) readScales(f *fields, r *scaleRule) {
	if r == nil {
		return
	}
	if x := f.scale(r.Embed, 1); x != 1 {
		c.EmbedScale = float32(x)
	}
	c.AttnScale = float32(f.scale(r.Attn, float64(c.AttnScale)))
	if x := f.scale(r.Residual, 1); x != 1 {
		c.ResidualScale = float32(x)
	}
	if x := f.scale(r.Logits, 1); x != 1 {
		c.LogitScale = float32(1 / x)
	}
	if x := f.scale(r.LogitFactor, 1); x != 1 {
		c.LogitScale = float32(x)
	}
	c.readFactors(f, r)
}

// readFactors sets the factors of blocks' parts. A factor of the input of attention is one of Q, K and V.
func (c *Config) readFactors(f *fields, r *scaleRule) {
	in := f.scale(r.AttnIn, 1)
	if x := in * in * f.scale(r.Key, 1); x != 1 {
		c.AttnScale = float32(x * cmp.Or(float64(c.AttnScale), float64(invRoot(float64(c.HeadDim)))))
	}
	of := &c.Factors
	set := func(to *float32, x float64) {
		if x != 1 {
			*to = float32(x)
		}
	}
	set(&of.Attn, in*f.scale(r.AttnOut, 1))
	ff := f.scales(r.FF, 2)
	set(&of.Gate, ff[0])
	set(&of.Down, ff[1])
	set(&of.Mamba, f.scale(r.MambaOut, 1))
	in = f.scale(r.MambaIn, 1)
	parts, any := f.scales(r.MambaParts, len(of.MambaIn)), false
	for i := range parts {
		parts[i] *= in
		any = any || parts[i] != 1
	}
	if any {
		for i, x := range parts {
			of.MambaIn[i] = float32(x)
		}
	}
}

// scales returns a list of n factors, which are 1 if the key is missing.
func (f *fields) scales(key string, n int) []float64 {
	out := slices.Repeat([]float64{1}, n)
	list := f.list(key)
	if key == "" || list == nil {
		return out
	}
	if len(list) != n {
		f.failf(key, "%d factors, want %d", len(list), n)
		return out
	}
	for i, v := range list {
		x, ok := toFloat(v)
		if out[i] = math.Abs(x); !ok || out[i] < minScale || out[i] > maxScale {
			f.failf(key, "%s is not a factor", clip(v))
			return out
		}
		out[i] = x
	}
	return out
}

// scale returns a factor, or absent if the key is missing; in GGUF files 0 counts as missing.
func (f *fields) scale(key string, absent float64) float64 {
	if key == "" {
		return absent
	}
	x := f.float(key, 0, maxScale, absent)
	switch {
	case f.err != nil || x == 0:
		return absent
	case x < minScale:
		f.failf(key, "%v is not in %v..%v", x, minScale, maxScale)
		return absent
	}
	return x
}

// noRopeRule describes which layers do not rotate Q and K: the layers whose entry in a list is 0,
// or, if there is no list, the last of every n layers, where n is the interval. With Full, it is
// the layers without a window in models with windows.
type noRopeRule struct {
	Layers   string `json:"layers"`   // the key of a list: 1 for layers with RoPE, 0 for those without
	Interval string `json:"interval"` // the key of the interval
	Every    int    `json:"every"`    // or the interval itself
	Full     bool   `json:"full"`     // if some layers have a window, the others do not rotate
	// Kind is the key of the kind of position embeddings: with nope, no layer rotates, and with rope all
	// do. Flag is the key of a flag; if its value is false, no layer rotates.
	Kind string `json:"kind"`
	Flag string `json:"flag"`
}

// none reports whether Kind or Flag say that no layer rotates.
func (r *noRopeRule) none(f *fields) bool {
	if r.Flag != "" && !f.bool(r.Flag, true) {
		return true
	}
	if r.Kind == "" {
		return false
	}
	kind := f.string(r.Kind, "rope")
	if kind != "rope" && kind != "nope" {
		f.fail(&UnsupportedValueError{Key: f.name(r.Kind), Value: clip(kind), Known: []string{"rope", "nope"}})
	}
	return kind == "nope"
}

func (r *noRopeRule) reads(key string) bool {
	return r != nil && key != "" && (key == r.Layers || key == r.Interval || key == r.Kind || key == r.Flag)
}

func (r *noRopeRule) validate(where string) error {
	if r != nil && (r.Every < 0 || r.Full && (r.Every != 0 || r.Interval != "" || r.Layers != "") || r.Interval != "" && r.Every != 0) {
		return fmt.Errorf("%s.no_rope: %d layers and the key %q", where, r.Every, r.Interval)
	}
	return nil
}

// markFull sets NoRope in the layers without a window, if the model has windows. The size is that of
// the windows, or 0.
func (r *noRopeRule) markFull(c *Config, size int) {
	for i := range c.Layer {
		if r != nil && r.Full && size > 0 {
			c.Layer[i].NoRope = c.Layer[i].Window == 0
		}
	}
}

// mark sets NoRope in the layers according to the list or the interval.
func (r *noRopeRule) mark(f *fields, c *Config) {
	if r == nil || r.Full || f.err != nil {
		return
	}
	var list []any
	if r.Layers != "" {
		if list = f.list(r.Layers); len(list) == 0 {
			list = nil
		}
		if list != nil && len(list) < c.Layers {
			f.failf(r.Layers, "%d entries for %d layers", len(list), c.Layers)
			return
		}
	}
	every := r.Every
	if list == nil && r.Interval != "" {
		every = f.opt(r.Interval, 1, maxLayers, 0)
	}
	none := r.none(f)
	for i := range c.Layer {
		if list == nil {
			c.Layer[i].NoRope = none || every > 0 && (i+1)%every == 0
			continue
		}
		n, ok := toInt(list[i])
		if !ok || n < 0 || n > 1 {
			f.failf(r.Layers, "%s is not 0 or 1", clip(list[i]))
			return
		}
		c.Layer[i].NoRope = n == 0
	}
}

// noRope adds the flag that no layer rotates.
func (v *conversion) noRope() {
	if r := v.form.NoRope; r != nil && r.Flag != "" {
		v.set(r.Flag, slices.ContainsFunc(v.Config.Layer, func(l Layer) bool { return !l.NoRope }))
	}
}
