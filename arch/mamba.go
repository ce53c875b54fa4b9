package arch

import (
	"fmt"
	"math"
)

// Mamba describes the selective state space of Mamba-2. Each head has a state, a matrix [HeadDim,
// State].
type Mamba struct {
	Heads, HeadDim int
	Groups, State  int // groups of heads with the same B and C, and elements of a group of B or C
	// NormGroups is the number of groups of the result that are normalised separately; 0 means no norm.
	NormGroups int `json:",omitempty"`
	// NormFirst makes the norm come before the gate.
	NormFirst bool `json:",omitempty"`
	// Step sizes are bounded to StepMin..StepMax. If StepMax is 0, they have no upper bound.
	StepMin float32 `json:",omitempty"`
	StepMax float32 `json:",omitempty"`
	// Negative: the weights of the decay are the negative rates, not their logarithms.
	Negative bool `json:",omitempty"`
}

// inner returns the number of elements of all heads.
func (m *Mamba) inner() int { return m.Heads * m.HeadDim }

// channels returns the number of elements of X, B and C, which the convolution has.
func (m *Mamba) channels() int { return m.inner() + 2*m.Groups*m.State }

// mambaRule lists the keys of the sizes of Mamba.
type mambaRule struct {
	Heads   string `json:"heads"`
	HeadDim string `json:"head_dim"` // without the key, or if its value is auto, it follows from the width
	// Inner is the key of the width of all heads. Without the key, Expand is the key of that width
	// divided by the model's.
	Inner  string `json:"inner"`
	Expand string `json:"expand"`
	Groups string `json:"groups"`
	State  string `json:"state"`
	// Norm selects the groups that are normalised separately: none, whole, or groups, which are those
	// of B and C. NormFlag is the key of a flag without which there is no norm, and NormFirst that of a
	// flag that the norm comes before the gate. In GGUF files, there is a norm if its tensor exists.
	Norm      string `json:"norm"`
	NormFlag  string `json:"norm_flag"`
	NormFirst string `json:"norm_first"`
	// Activation is the key of the activation of the convolution, which must be silu.
	Activation string `json:"activation"`
	// Limits is the key of a list of the smallest and the largest step size.
	Limits string `json:"limits"`
}

// Limits of Mamba-2.
const (
	maxMambaHeads = 1 << 10
	maxMambaDim   = 256
	// mambaUnit divides the number of elements of all heads, and of all groups of B and C.
	mambaUnit = 4
)

// The values of mambaRule.Norm.
const (
	normWhole  = "whole"
	normGroups = "groups"
)

func (r *mambaRule) keys() []string {
	if r == nil {
		return nil
	}
	return []string{r.Heads, r.HeadDim, r.Inner, r.Expand, r.Groups, r.State, r.NormFlag, r.NormFirst, r.Activation, r.Limits}
}

func (r *mambaRule) validate() error {
	if r != nil && r.Norm != "" && r.Norm != normWhole && r.Norm != normGroups {
		return fmt.Errorf("norm: %s is not %s or %s", clip(r.Norm), normWhole, normGroups)
	}
	return nil
}

// read reads the sizes.
func (r *mambaRule) read(f *fields, src Source, c *Config) {
	if r == nil {
		return
	}
	m := &c.Mamba
	m.Heads = f.need(r.Heads, 1, maxMambaHeads)
	m.Groups, m.State = f.need(r.Groups, 1, maxMambaHeads), f.need(r.State, 1, maxMambaDim)
	inner := 0
	if r.Inner != "" {
		inner = f.opt(r.Inner, 1, maxMambaHeads*maxMambaDim, 0)
	}
	if inner == 0 && r.Expand != "" {
		inner = f.need(r.Expand, 1, 16) * c.Width
	}
	if v, ok := f.value(r.HeadDim); r.HeadDim != "" && ok && v != "auto" {
		m.HeadDim = f.integer(r.HeadDim, v, 1, maxMambaDim)
	} else if f.err == nil {
		m.HeadDim = inner / m.Heads
	}
	if f.err != nil {
		return
	}
	if inner == 0 {
		inner = m.inner()
	}
	switch {
	case m.HeadDim < 1 || m.HeadDim > maxMambaDim || m.inner() != inner:
		f.failf(r.Heads, "%d heads of 1..%d elements are not %d elements", m.Heads, maxMambaDim, inner)
	case m.Heads%m.Groups != 0:
		f.failf(r.Groups, "%d do not divide %d heads", m.Groups, m.Heads)
	case inner%mambaUnit != 0 || m.Groups*m.State%mambaUnit != 0:
		f.failf(r.State, "%d heads of %d and %d groups of %d are not multiples of %d elements", m.Heads, m.HeadDim, m.Groups, m.State, mambaUnit)
	}
	if act := f.string(r.Activation, "silu"); r.Activation != "" && act != "silu" {
		f.fail(&UnsupportedValueError{Key: f.name(r.Activation), Value: clip(act), Known: []string{"silu"}})
	}
	r.readNorm(f, src, m, c)
	r.readLimits(f, m)
}

// readNorm reads the settings of the norm.
func (r *mambaRule) readNorm(f *fields, src Source, m *Mamba, c *Config) {
	there := r.Norm != ""
	if src.Kind() == kindGGUF {
		there = c.any(MambaNorm, func(layer int) bool { return has(src, c.names.weight(MambaNorm, layer)) })
		m.Negative = true
	} else if r.NormFlag != "" {
		there = f.bool(r.NormFlag, false)
	}
	switch {
	case !there:
	case r.Norm == normGroups:
		m.NormGroups = m.Groups
	default:
		m.NormGroups = 1
	}
	if r.NormFirst != "" {
		m.NormFirst = m.NormGroups > 0 && f.bool(r.NormFirst, false)
	}
}

// readLimits reads the bounds of the step size.
func (r *mambaRule) readLimits(f *fields, m *Mamba) {
	if r.Limits == "" {
		return
	}
	list := f.list(r.Limits)
	if list == nil {
		return
	}
	if len(list) != 2 {
		f.failf(r.Limits, "%d numbers, want 2", len(list))
		return
	}
	lo, ok := toFloat(list[0])
	hi, ok2 := toFloat(list[1])
	if !ok || !ok2 || !(lo >= 0 && hi > lo) {
		f.failf(r.Limits, "%s are not two numbers that bound positive step sizes", clip(list))
		return
	}
	m.StepMin = float32(lo)
	if hi < math.MaxFloat32 && hi < unboundedStep {
		m.StepMax = float32(hi)
	}
}

// unboundedStep is a bound that no step size reaches, as they grow with an element of a product.
const unboundedStep = 1e6

// mambaShape returns the shape of a role of layers with Mamba2.
func (c *Config) mambaShape(r Role) []uint64 {
	m, width := &c.Mamba, uint64(c.Width)
	heads, inner := uint64(m.Heads), uint64(m.inner())
	switch r {
	case MambaIn:
		return []uint64{inner + uint64(m.channels()) + heads, width}
	case MambaNorm:
		return []uint64{inner}
	case MambaOut:
		return []uint64{width, inner}
	}
	return []uint64{heads}
}

// columnShape returns the shape that a vector of n elements of a Mamba-2 layer has in GGUF files, where
// they are matrices, or nil if the role has no other shape there.
func (c *Config) columnShape(r Role, n uint64) []uint64 {
	if c.Mamba.Heads == 0 {
		return nil
	}
	switch r {
	case MambaRate, MambaSkip:
		return []uint64{n, 1}
	case MambaNorm:
		groups := uint64(c.Mamba.Groups)
		return []uint64{groups, n / groups}
	}
	return nil
}

// mamba adds the settings of Mamba-2.
func (v *conversion) mamba(f *fields, r *mambaRule) {
	m := &v.Config.Mamba
	if r == nil {
		return
	}
	if m.StepMin != 0 || m.StepMax != 0 {
		f.fail(fmt.Errorf("arch: %s: GGUF files have no bounds of step sizes", v.Config.Arch))
	}
	v.set(r.Heads, uint32(m.Heads))
	v.set(r.Inner, uint32(m.inner()))
	v.set(r.Groups, uint32(m.Groups))
	v.set(r.State, uint32(m.State))
}

// validate checks that a rule has what its kind needs. It is nil for families without recurrent state.
func (r *mixerRule) validate(where string) error {
	if r == nil {
		return nil
	}
	if (Mixer(r.Kind) == Mamba2) != (r.Mamba != nil) {
		return fmt.Errorf("%s.recurrent.mamba: belongs to the kind mamba2", where)
	}
	if err := r.Mamba.validate(); err != nil {
		return fmt.Errorf("%s.recurrent.mamba.%w", where, err)
	}
	return nil
}
