package arch

// ggufWindow describes which layers of a family's GGUF files have a sliding window of
// attention.sliding_window positions. Without this rule all layers do.
type ggufWindow struct {
	// Of each Period layers all but the last have a window. attention.sliding_window_pattern may
	// override it with another period, or a flag per layer.
	Period int `json:"period"`
	// Theta is RoPE's base in layers with a window, unless rope.freq_base_swa is set; their
	// frequencies are then not scaled. If it is 0, they have the settings of the other layers.
	Theta float64 `json:"rope_theta"`
	// Unscaled makes the frequencies of layers with a window those of the base, without scaling.
	Unscaled bool `json:"unscaled"`
	// Chunked makes windows chunks of positions.
	Chunked bool `json:"chunked"`
	// Flags makes a converted file have a flag per layer in any case.
	Flags bool `json:"flags"`
}

// readWindows sets c.Layer and c.Ropes. full is the RoPE setting of layers without a window.
func (g *ggufForm) readWindows(f *fields, src Source, c *Config, full ropeSpec) {
	size := f.opt("attention.sliding_window", 0, maxContext, 0)
	slides := func(layer int) bool { return true }
	local := full
	if w := g.Window; w != nil && size > 0 {
		slides = w.slides(f, c.Layers)
		switch {
		case w.Theta != 0:
			local = ropeSpec{kind: ropeDefault, dim: full.dim, base: w.Theta, attnFactor: 1}
		case w.Unscaled:
			local = ropeSpec{kind: ropeDefault, dim: full.dim, base: full.base, attnFactor: 1}
		}
		local.dim = f.opt("rope.dimension_count_swa", 2, maxHeadDim, local.dim)
		local.base = f.float("rope.freq_base_swa", minBase, maxBase, local.base)
	}
	if f.err != nil {
		return
	}
	for i := range c.Layer {
		spec := full
		if size > 0 && slides(i) {
			c.Layer[i].Window, c.Layer[i].Chunked, spec = size, g.Window != nil && g.Window.Chunked, local
		}
		c.Ropes, c.Layer[i].Rope = addRope(c.Ropes, spec.rope())
	}
	g.NoRope.markFull(c, size)
}

// slides returns a function that reports whether a layer has a window.
func (w *ggufWindow) slides(f *fields, layers int) func(layer int) bool {
	const key = "attention.sliding_window_pattern"
	period := w.Period
	if v, ok := f.value(key); ok {
		if flags, ok := v.([]bool); ok {
			if len(flags) != layers {
				f.failf(key, "%d entries for %d layers", len(flags), layers)
				return nil
			}
			return func(layer int) bool { return flags[layer] }
		}
		period = f.integer(key, v, 0, maxLayers)
	}
	return func(layer int) bool { return period == 0 || (layer+1)%period != 0 }
}
