package pianola

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/table"
)

// Device names a kind of device. Its text form is the string itself, so that flag.TextVar
// and encoding/json read it and refuse unknown names.
type Device string

// The devices.
const (
	DeviceAuto  Device = "auto" // a GPU that can be used, else the CPU; also ""
	DeviceCPU   Device = "cpu"
	DeviceMetal Device = "metal" // an Apple GPU
	DeviceCUDA  Device = "cuda"  // an NVIDIA GPU
)

// MarshalText returns the device's name.
func (d Device) MarshalText() ([]byte, error) { return []byte(d), nil }

// UnmarshalText accepts the name of a device, "auto" or "". The error of another name lists
// those.
func (d *Device) UnmarshalText(text []byte) error {
	return setValue(d, text, "device", DeviceAuto, DeviceCPU, DeviceMetal, DeviceCUDA)
}

// Mode is the way in which a device replays a table. Every mode gives the same tokens.
type Mode string

// The modes. A device has some of them: see Devices.
const (
	ModeAuto     Mode = ""         // the device's fastest
	ModeEncode   Mode = "encode"   // walks the table for each token
	ModeRecord   Mode = "record"   // records a chain once, as a CUDA graph or a Metal indirect command buffer, and launches it again
	ModeResident Mode = "resident" // one persistent kernel walks the table on the GPU
)

// MarshalText returns the mode's name.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m), nil }

// UnmarshalText accepts the name of a mode or "". The error of another name lists the
// modes.
func (m *Mode) UnmarshalText(text []byte) error {
	return setValue(m, text, "mode", ModeEncode, ModeRecord, ModeResident)
}

// KVType is the element type of the KV cache.
type KVType string

// The element types of the KV cache.
const (
	KVF16 KVType = "f16"  // float16, the default
	KVQ8  KVType = "q8_0" // int8 with a float16 scale for each 32, which takes 17/32 of the memory
)

// MarshalText returns the type's name.
func (k KVType) MarshalText() ([]byte, error) { return []byte(k), nil }

// UnmarshalText accepts the name of an element type or "". The error of another name lists
// the types.
func (k *KVType) UnmarshalText(text []byte) error { return setValue(k, text, "KV type", KVF16, KVQ8) }

// ValueError reports a device, a mode or a KV type that does not exist.
type ValueError struct {
	What  string // "device", "mode" or "KV type"
	Value string
	Valid []string
}

// Error implements error.
func (e *ValueError) Error() string {
	return fmt.Sprintf("pianola: unknown %s %.40q (valid: %s)", e.What, e.Value, strings.Join(e.Valid, ", "))
}

// setValue sets to to one of the valid values or to "".
func setValue[T ~string](to *T, text []byte, what string, valid ...T) error {
	if v := T(text); v == "" || slices.Contains(valid, v) {
		*to = v
		return nil
	}
	e := &ValueError{What: what, Value: string(text)}
	for _, v := range valid {
		e.Valid = append(e.Valid, string(v))
	}
	return e
}

// TableOptions select what is compiled into a dispatch table. Open, Plan and
// Header.Compile take them. The zero value is the default of each.
type TableOptions struct {
	// Context is the number of positions. 0 selects the model's context, at most 4096, and
	// for LongRoPE the length up to which the short factors hold.
	Context int

	// NoFuse compiles one command for each operation, without fused kernels.
	NoFuse bool
	// NoRepack keeps the weights in the layout of the file.
	NoRepack bool
	// AllLogits adds the program that Session.Logits and Session.Classify need.
	AllLogits bool
	// Hidden adds the program that Session.Hidden and Session.Embed need.
	Hidden bool
	// LogProbs adds the programs that Sampling.LogProbs needs.
	LogProbs bool

	// Sampler is the order of the sampler's stages: a preset, "llama.cpp" (the default),
	// "mlx" or "edgerunner", or a list such as "penalties,top_k,top_p,min_p,temperature".
	// "none" leaves out the programs that sample.
	Sampler string
	// Draft is the number of tokens of a draft in speculative decoding
	// (GenerateOptions.Speculate), at most table.MaxDraft. 0 compiles no program for it.
	Draft int

	// KV is the element type of the KV cache. KVQ8 requires a head size that is a multiple
	// of 32. "" selects KVF16.
	KV KVType
	// KVWindow limits layers with full attention to the last KVWindow positions and to the
	// first KVSinks, the attention sinks. The cache keeps only these, at their distances
	// within the cache, so that the context may have up to compiler.MaxEndless positions,
	// whatever the model's context. 0 keeps all positions. A session with
	// SessionOptions.Rollover goes on beyond that.
	KVWindow, KVSinks int
}

// check returns the error of a value that is not one of a list.
func (o *TableOptions) check() error { return new(KVType).UnmarshalText([]byte(o.KV)) }

// compiler returns the options as package compiler takes them.
func (o *TableOptions) compiler() compiler.Options {
	return compiler.Options{
		Context: o.Context, NoFuse: o.NoFuse, NoRepack: o.NoRepack, AllLogits: o.AllLogits, Hidden: o.Hidden, LogProbs: o.LogProbs,
		Sampler: o.Sampler, Draft: o.Draft, KV: string(o.KV), KVSinks: o.KVSinks, KVWindow: o.KVWindow,
	}
}

// agreesWith returns a *RollError for the first option that is set and contradicts a roll.
func (o *TableOptions) agreesWith(t *table.Table) error {
	roll, err := rollOptions(t)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name        string
		set, differ bool
		asked, roll any
	}{
		{"Context", o.Context != 0, o.Context != roll.Context, o.Context, roll.Context},
		{"NoFuse", o.NoFuse, !roll.NoFuse, true, false},
		{"NoRepack", o.NoRepack, !roll.NoRepack, true, false},
		{"AllLogits", o.AllLogits, !roll.AllLogits, true, false},
		{"Hidden", o.Hidden, !roll.Hidden, true, false},
		{"LogProbs", o.LogProbs, !roll.LogProbs, true, false},
		{"Sampler", o.Sampler != "", !sameSampler(o.Sampler, roll.Sampler), o.Sampler, roll.Sampler},
		{"Draft", o.Draft != 0, o.Draft != roll.Draft, o.Draft, roll.Draft},
		{"KV", o.KV != "", o.KV != roll.KV, o.KV, roll.KV},
		{"KVWindow", o.KVWindow != 0, o.KVWindow != roll.KVWindow, o.KVWindow, roll.KVWindow},
		{"KVSinks", o.KVSinks != 0, o.KVSinks != roll.KVSinks, o.KVSinks, roll.KVSinks},
	} {
		if f.set && f.differ {
			return &RollError{Option: f.name, Why: fmt.Sprintf("it was compiled with %s %v, not %v", f.name, f.roll, f.asked)}
		}
	}
	return nil
}

// rollOptions returns the options that a roll was compiled with.
func rollOptions(t *table.Table) (TableOptions, error) {
	c, err := compiler.OptionsOf(t)
	if err != nil {
		return TableOptions{}, err
	}
	o := TableOptions{
		Context: c.Context, NoFuse: c.NoFuse, NoRepack: c.NoRepack, Sampler: c.Sampler,
		KV: KVType(c.KV), KVSinks: c.KVSinks, KVWindow: c.KVWindow,
	}
	// The programs decide, whatever the header records.
	o.AllLogits = t.Header.LogitsRows > 0
	_, _, o.Hidden = t.Program(table.ProgramHidden)
	_, _, o.LogProbs = t.Program(table.ProgramRanked)
	if p, _, ok := t.Program(table.ProgramVerify); ok {
		o.Draft = int(p.MaxRows) - 1
	}
	if o.Sampler == "" {
		o.Sampler = compiler.SamplerPresets()[0]
	}
	if o.KV == "" {
		o.KV = KVF16
	}
	return o, nil
}

// sameSampler reports whether two orders of the sampler's stages are the same: presets
// have names and lists.
func sameSampler(a, b string) bool {
	x, err1 := compiler.ParseSampler(a)
	y, err2 := compiler.ParseSampler(b)
	return err1 == nil && err2 == nil && slices.Equal(x, y)
}
