package pianola

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/table"
)

// Options are the settings of Open and Plan. The zero value replays on a GPU if one is available,
// and otherwise on the CPU with GOMAXPROCS threads.
type Options struct {
	// Device selects the device that the model runs on. The zero value means DeviceAuto.
	Device Device
	// Mode selects how the device replays the table. The zero value selects the first of
	// DeviceInfo.Modes.
	Mode Mode
	// Threads is the number of threads of the CPU device. 0 selects GOMAXPROCS, of which
	// decode uses fewer if Open measures that this is faster. Other devices require 0.
	Threads int
	// RealTime bounds latencies at the cost of throughput; docs/LATENCY.md has figures.
	// Submissions take at most RealTimeChain unless SessionOptions selects another bound.
	// The CPU device uses one thread less if Threads is 0, binds its threads to processors
	// if the system allows it, keeps them spinning between barriers, and touches the memory
	// of sessions before they use it. RealTime changes no setting of the process, such as
	// GOMAXPROCS.
	RealTime bool

	// Parallel is the number of generations that run together, as rows of one batch: calls of
	// several sessions then share each reading of the weights, and no call waits until another
	// one's prompt is prefilled. It sets TableOptions.Sequences. 0 selects sessions that take turns.
	// docs/PARALLEL.md lists what works with it.
	Parallel int
	// Queue is the largest number of calls that wait for a place in the batch; 0 selects 16 for each
	// of Parallel. Further calls return an *OverloadError.
	Queue int
	// Spill keeps copies of KV pages that a model with Parallel has no room for any more, in the
	// host's memory and in a file. The zero value keeps none. docs/PARALLEL.md has an example.
	Spill SpillOptions

	// Table selects what is compiled. With a Roll, its fields must be zero or agree with
	// the roll; Open otherwise returns a *RollError.
	Table TableOptions
	// Roll is an encoded table to replay instead of compiling one. table.Table.Encode and
	// the command "pianola compile" make it. It must have been compiled from this model and
	// for the device's chip; Open otherwise returns a *RollError.
	Roll []byte
	// AnyChip accepts a roll that was compiled for another chip. The CPU device can replay
	// it.
	AnyChip bool

	// Metal has the settings of the Metal device.
	Metal MetalOptions
	// CUDA has the settings of the CUDA device.
	CUDA CUDAOptions

	// CheckWeights reads every tensor before the model is loaded. Open returns a
	// *weights.NotFiniteError if a weight or a scale is NaN or infinite.
	CheckWeights bool
	// Architectures adds architecture descriptors, the *.json files of its root, to the
	// built-in ones. docs/MODELS.md describes the format.
	Architectures fs.FS
	// MemoryBudget is the largest number of bytes of the device's memory that the model may
	// need with BudgetSessions sessions at full context; 0 sets no limit. Open returns a
	// *BudgetError before it reads weights if the model needs more.
	MemoryBudget uint64
	// BudgetSessions is the number of sessions that MemoryBudget is for; 0 means 1.
	BudgetSessions int

	// WeightLimit, KVLimit and ScratchLimit bound the memory of one kind of slots in bytes; 0 sets no
	// limit. Open returns a *LimitError before it reads weights if the weights, in place or copied,
	// or the scratch memory need more. KVLimit is for the KV caches of all sessions: when one needs
	// more, the caches of idle sessions are released as by Model.ReleaseIdle, those that have been
	// idle longest first, and if that is not enough, its call returns a *LimitError. On a GPU, a cache
	// that grows briefly exists twice; only the new one counts.
	WeightLimit, KVLimit, ScratchLimit uint64

	// Pressure lets the model give memory back when memory becomes scarce. nil does not watch.
	Pressure *Pressure

	// Hub lets Open accept the id of a model of the hub, such as org/name:Q4_K_M, as Resolve does; a
	// local path still takes precedence. Its Events are not used. nil selects local paths only.
	Hub *HubOptions

	// NoPrewarm makes Open return as soon as the weights are uploaded. It neither reads the pages of
	// weights that stay in the mapped file nor replays the programs once, and the CPU device does
	// not measure how many threads decode fastest. The first tokens take longer.
	NoPrewarm bool

	// Events receives the progress of Open; it may be nil. It is called from one goroutine
	// at a time, never after Open has returned, and Open waits for it.
	Events func(Event)
}

// CUDAOptions are the settings of the CUDA device. It keeps the code that the driver assembles from
// the kernels in a cache directory, so that a later Open takes a fraction of the first one's time.
type CUDAOptions struct {
	// CacheDir is the cache directory; "" selects the directory pianola/cuda of the user's cache
	// directory. A directory that cannot be read or written is not an error: Open then works as
	// with NoCache. docs/CUDA.md describes the files.
	CacheDir string
	// NoCache assembles the kernels on every Open.
	NoCache bool
	// Capability makes the device treat the GPU as one of a lower compute capability, such as 70 for 7.0,
	// 75, 80, 86 or 89, so that what older GPUs run can be tested. 0 means the GPU's own.
	Capability int
}

// RealTimeChain bounds the time of a submission with Options.RealTime. It is below the 10 ms after
// which Go's scheduler preempts a goroutine.
const RealTimeChain = 5 * time.Millisecond

// Device is a kind of device. It implements encoding.TextUnmarshaler, so that flag.TextVar and
// encoding/json accept the constants below and reject other names.
type Device string

// The devices.
const (
	DeviceAuto  Device = "auto" // a GPU if one is available, else the CPU; "" means the same
	DeviceCPU   Device = "cpu"
	DeviceMetal Device = "metal" // an Apple GPU
	DeviceCUDA  Device = "cuda"  // an NVIDIA GPU
)

// MarshalText returns the device's name.
func (d Device) MarshalText() ([]byte, error) { return []byte(d), nil }

// UnmarshalText accepts the name of a device, "auto" or "". The error is a *ValueError.
func (d *Device) UnmarshalText(text []byte) error {
	return setValue(d, text, "device", DeviceAuto, DeviceCPU, DeviceMetal, DeviceCUDA)
}

// Mode is the way in which a device replays a table. Every mode gives the same tokens.
type Mode string

// The modes. DeviceInfo.Modes lists those that a device supports.
const (
	ModeAuto Mode = "" // the first of DeviceInfo.Modes
	// ModeEncode walks the table on the host for each token.
	ModeEncode Mode = "encode"
	// ModeRecord records a chain of tokens as a CUDA graph or a Metal indirect command
	// buffer, and launches the recording again.
	ModeRecord Mode = "record"
	// ModeResident runs a persistent kernel that walks the table on the GPU.
	ModeResident Mode = "resident"
)

// MarshalText returns the mode's name.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m), nil }

// UnmarshalText accepts the name of a mode or "". The error is a *ValueError.
func (m *Mode) UnmarshalText(text []byte) error {
	return setValue(m, text, "mode", ModeEncode, ModeRecord, ModeResident)
}

// KVType is the element type of the KV cache.
type KVType string

// The element types of the KV cache.
const (
	KVF16 KVType = "f16"  // float16, the default
	KVQ8  KVType = "q8_0" // int8 with one float16 scale per 32 values, which takes 17/32 of the memory
)

// MarshalText returns the type's name.
func (k KVType) MarshalText() ([]byte, error) { return []byte(k), nil }

// UnmarshalText accepts the name of an element type or "". The error is a *ValueError.
func (k *KVType) UnmarshalText(text []byte) error { return setValue(k, text, "KV type", KVF16, KVQ8) }

// ValueError reports a Device, Mode or KVType that is not one of the constants.
type ValueError struct {
	What  string   // "device", "mode" or "KV type"
	Value string   // the invalid value
	Valid []string // the valid values
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

// TableOptions select what is compiled into a dispatch table. Open, Plan and Header.Compile take
// them. The zero value selects the default of each option.
type TableOptions struct {
	// Context is the number of positions of the context. 0 selects the smaller of 4096 and the
	// model's context. For LongRoPE models, the original context takes the place of the model's
	// context: the number of positions for which the short factors are used.
	Context int

	// Chip is the chip to compile for, such as one that chip.Decode returns. It replaces the chip
	// of the device, and the one that Header.Compile gets by its name. nil selects those.
	Chip *chip.Chip

	// NoFuse compiles one command for each operation, without fused kernels.
	NoFuse bool
	// NoRepack keeps the weights in the layout of the file.
	NoRepack bool
	// Exact makes the products of prefill as precise as those of decode on GPUs that would
	// otherwise round the activations to one float16: float weights are multiplied by the
	// sum of two float16, quantised weights by 8-bit blocks. Prefill then takes about
	// twice as long.
	Exact bool
	// Batching makes the products with a matrix use the same arithmetic for any number of rows,
	// from one row to the largest chunk. The bits of a row then depend neither on the number of
	// rows that are computed together nor on the chunks into which a prompt is divided, and
	// decode gives the bits of prefill. On a GPU decode then uses the kernels of prefill and
	// takes longer.
	Batching bool
	// Sequences compiles a table for this number of sequences, which implies Batching. Options.Parallel
	// sets it. 0 compiles a table for sessions that take turns.
	Sequences int
	// Pages is the number of KV pages of 64 positions that the sequences share, for each kind of
	// layers. 0 selects enough for all of them at full context.
	Pages int
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
	// Draft is the largest number of tokens in a draft of speculative decoding, at most
	// table.MaxDraft. GenerateOptions.Speculate requires it, except with Options.Parallel. 0 omits
	// the program "verify".
	Draft int

	// KV is the element type of the KV cache. KVQ8 requires a head size that is a multiple
	// of 32. "" selects KVF16.
	KV KVType
	// KVWindow limits layers with full attention to the last KVWindow positions and the
	// first KVSinks positions, the attention sinks. The cache keeps only these and numbers
	// them from 0, so that Context may be up to compiler.MaxEndless whatever the model's own
	// context. SessionOptions.Rollover continues beyond Context. 0 keeps all positions.
	KVWindow, KVSinks int
}

// check returns a *ValueError if the KV type is unknown, or the fault of the chip.
func (o *TableOptions) check() error {
	if err := new(KVType).UnmarshalText([]byte(o.KV)); err != nil || o.Chip == nil {
		return err
	}
	return o.Chip.Validate()
}

// compiler returns the options as package compiler takes them.
func (o *TableOptions) compiler() compiler.Options {
	return compiler.Options{
		Context: o.Context, NoFuse: o.NoFuse, NoRepack: o.NoRepack, Exact: o.Exact, Batching: o.Batching, AllLogits: o.AllLogits, Hidden: o.Hidden, LogProbs: o.LogProbs,
		Sampler: o.Sampler, Draft: o.Draft, KV: string(o.KV), KVSinks: o.KVSinks, KVWindow: o.KVWindow,
		Sequences: o.Sequences, Pages: o.Pages,
	}
}

// parallel sets the options of the table that Parallel implies.
func (o *Options) parallel() error {
	switch {
	case o.Parallel < 0 || o.Queue < 0:
		return fmt.Errorf("pianola: Parallel is %d and Queue %d", o.Parallel, o.Queue)
	case o.Parallel == 0 && o.Spill != SpillOptions{}:
		return errors.New("pianola: Spill requires Parallel")
	case o.Parallel == 0:
		return nil
	case o.RealTime:
		return &ParallelError{What: "Options.RealTime"}
	case o.Table.Sequences != 0 && o.Table.Sequences != o.Parallel:
		return fmt.Errorf("pianola: Parallel is %d and TableOptions.Sequences %d", o.Parallel, o.Table.Sequences)
	}
	o.Table.Sequences = o.Parallel
	return nil
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
		{"Exact", o.Exact, !roll.Exact, true, false},
		{"Batching", o.Batching, !roll.Batching, true, false},
		{"Sequences", o.Sequences != 0, o.Sequences != roll.Sequences, o.Sequences, roll.Sequences},
		{"Pages", o.Pages != 0, o.Pages != roll.Pages, o.Pages, roll.Pages},
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
		Context: c.Context, NoFuse: c.NoFuse, NoRepack: c.NoRepack, Exact: c.Exact, Batching: c.Batching, Sampler: c.Sampler,
		KV: KVType(c.KV), KVSinks: c.KVSinks, KVWindow: c.KVWindow, Sequences: c.Sequences, Pages: c.Pages,
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

// sameSampler reports whether two orders of the sampler's stages are the same, each given as a
// preset's name or as a list.
func sameSampler(a, b string) bool {
	x, err1 := compiler.ParseSampler(a)
	y, err2 := compiler.ParseSampler(b)
	return err1 == nil && err2 == nil && slices.Equal(x, y)
}
