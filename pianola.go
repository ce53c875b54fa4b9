// Package pianola decodes text with transformer models by replaying
// precompiled dispatch tables.
//
// Open compiles a model's forward pass into a table, once; a Session replays it,
// many tokens in one submission, the next token chosen on the device.
//
//	m, err := pianola.Open(ctx, "model.gguf", pianola.Options{})
//	...
//	s, err := m.NewSession(pianola.SessionOptions{})
//	...
//	for tok, err := range s.Generate(ctx, "func main() {", pianola.GenerateOptions{MaxTokens: 64}) {
//		...
//		fmt.Print(tok.Text)
//	}
//
// The package joins files, tokenizer, compiler and device. What a device does
// with a table is package replay's business.
package pianola

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"time"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/tokenizer"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/cpu"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

// Errors of package replay that callers of this one meet.
var (
	ErrContextFull = replay.ErrContextFull
	ErrEmptyPrompt = replay.ErrEmptyPrompt
	ErrBusy        = replay.ErrBusy
	ErrClosed      = replay.ErrClosed

	ErrNoVerify         = replay.ErrNoVerify
	ErrSpeculateSampled = replay.ErrSpeculateSampled
)

// ErrNoTokenizer says that text was asked of a model that has no tokenizer.
var ErrNoTokenizer = errors.New("pianola: the model has no tokenizer")

// Options say how a model is opened. The zero value decodes on the GPU if there
// is one that can be used, else on the CPU with every thread there is.
type Options struct {
	Device  string // "auto" or "", "cpu", "metal", "cuda"
	Mode    string // "encode", "record", "resident"; "": the device's fastest
	Threads int    // of the CPU device; 0: all that Go may use
	Context int    // positions; 0: the smaller of 4096 and the model's, or LongRoPE's short one

	NoFuse    bool // one command for each operation
	NoRepack  bool // read weights as the file has them
	AllLogits bool // make Session.Logits and Classify possible
	Hidden    bool // make Session.Embed possible
	LogProbs  bool // make Sampling.LogProbs possible
	// Sampler is the order of the sampler's stages: a preset, "llama.cpp" (also
	// ""), "mlx" or "edgerunner", or a list such as
	// "penalties,top_k,top_p,min_p,temperature". "none" leaves sampling out.
	Sampler string
	// Draft is how many tokens are drafted at a time where a generation speculates
	// (GenerateOptions.Speculate), at most table.MaxDraft; 0 leaves that out.
	Draft int

	// RealTime is the setting for latencies that must be kept, which
	// docs/LATENCY.md describes with what it gives and costs. Sessions have chains
	// of RealTimeChain unless they ask for others. The CPU device has one thread
	// less if Threads is 0; its threads are bound to processors where the system
	// can, wait for one another without giving up theirs, and find the memory of
	// sessions touched. Nothing is changed beyond the model.
	RealTime bool

	// KV is what the KV cache has: "f16" or "", or "q8_0", int8 with a float16
	// scale for each 32, which is 17/32 of the memory. It needs heads whose size is a
	// multiple of 32.
	KV string
	// With KVWindow, layers that see all positions see, and keep, the first KVSinks
	// and the last KVWindow alone, at the distances that they have in the cache. The
	// context may then be up to compiler.MaxEndless, whatever the model's is, in the
	// memory of the window. A session with a Rollover goes on past that too.
	KVSinks, KVWindow int

	// Roll is a compiled table (see Compile) to replay instead of compiling
	// one. It must be of this model and this chip. Context, NoFuse, AllLogits, Hidden,
	// LogProbs, Sampler, Draft, KV, KVSinks and KVWindow are then the roll's.
	Roll []byte
	// AnyChip accepts a roll of another chip, which the CPU device can replay.
	AnyChip bool

	Metal MetalOptions // of the Metal device alone

	// CheckWeights reads every tensor of the files before the model is loaded, and
	// refuses one with NaN or infinities, scales included, with a
	// *weights.NotFiniteError that names the tensors.
	CheckWeights bool

	// Architectures adds architecture descriptors, *.json, to the built-in
	// ones.
	Architectures fs.FS
	// MemoryBudget bounds the bytes of the device's memory that the model may take with
	// BudgetSessions sessions, each with its whole context; 0: no bound. Open refuses a
	// model that takes more with a *BudgetError before it reads weights; see Plan.
	MemoryBudget   uint64
	BudgetSessions int // 0: 1

	// Events is told how far opening is; may be nil. It is called from one goroutine
	// at a time, not after Open has returned, and opening waits for it.
	Events func(Event)
}

// RealTimeChain bounds a submission where RealTime is set and nothing else is
// asked for. It is below the 10 ms after which Go's scheduler preempts.
const RealTimeChain = 5 * time.Millisecond

// LoadTimes are the times of the parts of Open.
type LoadTimes struct {
	Header, Tokenizer, Touch, Compile, Upload, Total time.Duration
}

// Model is an opened model. Its methods may be called from several goroutines.
type Model struct {
	dir    *weights.Directory
	mapped *weights.Mapped
	cfg    *arch.Config
	tok    *tokenizer.Tokenizer
	tokErr error
	t      *table.Table
	dev    replay.Device
	m      *replay.Model
	stops  []int32
	times  LoadTimes
	mode   string

	realTime bool
	life     *lifecycle
}

// Open maps a model, compiles its table and loads it on a device. path is a
// .gguf file, a .safetensors file or a Hugging Face directory. A context that ends
// before the model is ready ends Open with its cause, and leaves nothing.
func Open(ctx context.Context, path string, o Options) (*Model, error) {
	start := time.Now()
	life := newLifecycle(o.Events)
	if err := life.enter(ctx, StateOpening, ""); err != nil {
		return nil, life.fail(err)
	}
	h, err := OpenHeader(path, o.Architectures)
	if err != nil {
		return nil, life.fail(err)
	}
	m := &Model{dir: h.dir, cfg: h.cfg, life: life}
	m.times.Header = time.Since(start)
	if err := m.open(ctx, o); err != nil {
		return nil, life.fail(errors.Join(err, m.Close()))
	}
	m.times.Total = time.Since(start)
	return m, nil
}

func (m *Model) open(ctx context.Context, o Options) error {
	on, err := newDevice(o)
	if err != nil {
		return err
	}
	return m.openOn(ctx, on, o)
}

// openOn compiles the model's table for a device and loads it there.
func (m *Model) openOn(ctx context.Context, on *target, o Options) (err error) {
	m.dev, m.mode, m.realTime = on.dev, on.mode, o.RealTime

	if err := m.life.enter(ctx, StateLoading, StageTokenizer); err != nil {
		return err
	}
	start := time.Now()
	m.tok, m.tokErr = LoadTokenizer(m.dir)
	m.times.Tokenizer = time.Since(start)
	if m.tokErr == nil {
		if err := checkTokenizer(m.tok, m.cfg.Vocab); err != nil {
			return err
		}
	}
	m.stops = stopIDs(m.cfg, m.tok)

	if err := m.life.begin(ctx, StageCompile); err != nil {
		return err
	}
	start = time.Now()
	if m.t, err = tableFor(m.cfg, m.dir, on, o); err != nil {
		return err
	}
	if err := m.withinBudget(on, o); err != nil {
		return err
	}
	m.times.Compile = time.Since(start)

	if m.mapped, err = m.dir.Map(); err != nil {
		return err
	}
	if err := m.checkWeights(ctx, o); err != nil {
		return err
	}
	start = time.Now()
	if on.stays {
		touched, err := m.mapped.TouchTensors(ctx, m.stays(), runtime.GOMAXPROCS(0), m.life.stage(StageTouch))
		if err != nil {
			return err
		}
		if touched.Skipped {
			m.life.untouched(touched.Reason)
		}
	}
	m.times.Touch = time.Since(start)

	start = time.Now()
	m.m, err = replay.Load(ctx, m.dev, m.t, m.mapped, replay.LoadOptions{
		Progress: m.life.stage(StageUpload),
		Loaded:   func() error { return m.life.enter(ctx, StateLoaded, StageWarm) },
	})
	m.times.Upload = time.Since(start)
	if err != nil {
		return err
	}
	return m.life.enter(ctx, StateReady, "")
}

// stays returns which tensors a device may use where the file has them; the
// others are read when they are uploaded.
func (m *Model) stays() func(name string) bool {
	names := map[string]bool{}
	for i, stays := range m.t.InPlace() {
		if stays {
			names[m.t.Uploads[i].Tensor] = true
		}
	}
	return func(name string) bool { return names[name] }
}

// stopIDs returns the ids that end a generation: what the files say, and the
// family's end-of-turn tokens where the vocabulary has them.
func stopIDs(cfg *arch.Config, tok *tokenizer.Tokenizer) []int32 {
	ids := slices.Clone(cfg.StopIDs)
	if tok != nil {
		ids = append(ids, tok.StopIDs()...)
		for _, text := range cfg.StopTokens {
			if id, ok := tok.ID(text); ok {
				ids = append(ids, id)
			}
		}
	}
	ids = slices.DeleteFunc(ids, func(id int32) bool { return id < 0 || int(id) >= cfg.Vocab })
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Close ends the model's sessions, frees the device's memory and unmaps the files.
// Generations in progress end with ErrClosed, and Close waits for them. Twice is
// harmless.
func (m *Model) Close() error {
	var errs []error
	switch {
	case m.m != nil:
		errs = append(errs, m.m.Close())
	case m.dev != nil:
		errs = append(errs, m.dev.Close())
	}
	if m.mapped != nil {
		errs = append(errs, m.mapped.Close())
	}
	return errors.Join(errs...)
}

// Config returns the model's architecture. It must not be changed.
func (m *Model) Config() *arch.Config { return m.cfg }

// Directory returns the model's tensor directory.
func (m *Model) Directory() *weights.Directory { return m.dir }

// Table returns the table that sessions replay. It must not be changed.
func (m *Model) Table() *table.Table { return m.t }

// Device says what the model runs on.
func (m *Model) Device() replay.Info { return m.dev.Info() }

// Mode returns the replay mode.
func (m *Model) Mode() string { return m.mode }

// RealTime reports whether the model was opened with Options.RealTime.
func (m *Model) RealTime() bool { return m.realTime }

// Threads returns how many threads of this process replay: those of the CPU
// device, 0 on others.
func (m *Model) Threads() int {
	if d, ok := m.dev.(*cpu.Device); ok {
		return d.Threads()
	}
	return 0
}

// Memory says what the device holds.
func (m *Model) Memory() replay.Memory { return m.dev.Memory() }

// LoadTimes returns the times of the parts of Open.
func (m *Model) LoadTimes() LoadTimes { return m.times }

// StopIDs returns the token ids that end a generation.
func (m *Model) StopIDs() []int32 { return slices.Clone(m.stops) }

// Tokenizer returns the model's tokenizer, or ErrNoTokenizer with the reason.
func (m *Model) Tokenizer() (*tokenizer.Tokenizer, error) {
	if m.tok == nil {
		return nil, fmt.Errorf("%w: %w", ErrNoTokenizer, m.tokErr)
	}
	return m.tok, nil
}
