package arch

// readParallel sets whether the blocks are parallel. The feed-forward block then has no norm of its
// own.
func (f *form) readParallel(in *fields, c *Config) {
	if c.Parallel = f.Parallel.value(in); c.Parallel {
		c.names[FFNNorm] = ""
	}
}

// temperRule lists the keys of factors of Q that grow with the position.
type temperRule struct {
	Scale string `json:"scale"`
	Span  string `json:"span"`
	// Flag is the key of a flag or number without which there are no factors; "" means that there are.
	Flag string `json:"flag"`
	// FixedScale and FixedSpan are used if Scale is "".
	FixedScale float64 `json:"fixed_scale"`
	FixedSpan  int     `json:"fixed_span"`
	// Offset is added to positions.
	Offset int `json:"offset"`
	// NoRope limits the factors to layers without RoPE.
	NoRope bool `json:"no_rope"`
}

// readHF reads the settings from config.json or the RoPE settings in it.
func (r *temperRule) readHF(f *fields, c *Config) {
	if r == nil {
		return
	}
	p := hfRopeObject(f, false)
	r.read(&fields{prefix: f.prefix, err: f.err, get: func(key string) (any, bool) {
		if v, ok := p.get(key); ok {
			return v, ok
		}
		return f.get(key)
	}}, f, c)
}

// readGGUF reads the settings of a GGUF file.
func (r *temperRule) readGGUF(f *fields, c *Config) {
	if r != nil {
		r.read(f, f, c)
	}
}

// isZero reports whether v is the number 0.
func isZero(v any) bool {
	x, ok := toFloat(v)
	return ok && x == 0
}

// reads reports whether the rule reads a key. It is nil for most families.
func (r *temperRule) reads(key string) bool {
	return r != nil && key != "" && (key == r.Scale || key == r.Span || key == r.Flag)
}

// read reads the settings from in. Errors are kept by f.
func (r *temperRule) read(in, f *fields, c *Config) {
	if v, ok := in.value(r.Flag); r.Flag != "" && (!ok || v == false || isZero(v)) {
		return
	}
	if r.Scale == "" {
		c.Temper = Temper{Scale: float32(r.FixedScale), Span: r.FixedSpan, Offset: r.Offset, NoRope: r.NoRope}
		return
	}
	if x := in.float(r.Scale, 0, maxScale, 0); x != 0 {
		c.Temper = Temper{Scale: float32(x), Span: in.need(r.Span, 1, maxContext), Offset: r.Offset, NoRope: r.NoRope}
	}
	f.fail(in.err)
}
