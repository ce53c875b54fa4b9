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
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

// Errors that a caller may act on. Returned errors may wrap them.
var (
	ErrContextFull    = replay.ErrContextFull    // the context has no room for what was asked
	ErrEmptyPrompt    = replay.ErrEmptyPrompt    // a prompt has no tokens
	ErrNothingPending = replay.ErrNothingPending // decoding was asked for before a prompt
	ErrBusy           = replay.ErrBusy           // another call uses the session
	ErrClosed         = replay.ErrClosed         // the session or its model is closed

	// The table has no programs for what was asked. A field of TableOptions adds them.
	ErrNoLogitsProgram = replay.ErrNoLogitsProgram // TableOptions.AllLogits
	ErrNoHiddenProgram = replay.ErrNoHiddenProgram // TableOptions.Hidden
	ErrNoLogProbs      = replay.ErrNoLogProbs      // TableOptions.LogProbs
	ErrNoSampler       = replay.ErrNoSampler       // TableOptions.Sampler is "none"
	ErrNoVerify        = replay.ErrNoVerify        // TableOptions.Draft

	ErrSpeculateSampled = replay.ErrSpeculateSampled // speculative decoding is for greedy decoding
	ErrNoTokenizer      = errors.New("pianola: the model has no tokenizer")
)

// TokenError reports a token id that is not in the vocabulary.
type TokenError = replay.TokenError

// Options are the settings of Open and Plan. The zero value replays on a GPU that can be
// used, else on the CPU with all the threads that Go may use.
type Options struct {
	// Device is where the model runs. The zero value is DeviceAuto.
	Device Device
	// Mode is how the device replays the table. The zero value is the device's fastest.
	Mode Mode
	// Threads is the number of threads of the CPU device, which other devices refuse.
	// 0 uses all that Go may use.
	Threads int
	// RealTime keeps latencies at the cost of throughput; docs/LATENCY.md has figures.
	// Sessions have chains of RealTimeChain unless SessionOptions asks for others. The CPU
	// device uses one thread less if Threads is 0, binds its threads to processors where
	// the system allows it, keeps them running between barriers, and touches the memory of
	// sessions before they use it. RealTime changes no setting of the process.
	RealTime bool

	// Table selects what is compiled. With a Roll, its fields must be zero or agree with
	// the roll; Open otherwise returns a *RollError.
	Table TableOptions
	// Roll is an encoded table, as Header.Compile and table.Table.Encode make it, to replay
	// instead of compiling one. It must be of this model and of the device's chip; Open
	// otherwise returns a *RollError.
	Roll []byte
	// AnyChip accepts a roll of another chip. The CPU device can replay it.
	AnyChip bool

	// Metal has settings of the Metal device.
	Metal MetalOptions

	// CheckWeights reads every tensor before the model is loaded. Open returns a
	// *weights.NotFiniteError if a weight or a scale is NaN or infinite.
	CheckWeights bool
	// Architectures adds architecture descriptors, the *.json files of its root, to the
	// built-in ones. docs/MODELS.md describes the format.
	Architectures fs.FS
	// MemoryBudget is the number of bytes of the device's memory that the model may take
	// with BudgetSessions sessions at full context; 0 sets no limit. Open returns a
	// *BudgetError before it reads weights if the model needs more.
	MemoryBudget uint64
	// BudgetSessions is the number of sessions that MemoryBudget is for; 0 means 1.
	BudgetSessions int

	// Events receives the progress of Open; it may be nil. It is called from one goroutine
	// at a time, never after Open has returned, and Open waits for it.
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
	h      *Header
	mapped *weights.Mapped
	tok    *tokenizer.Tokenizer
	tokErr error
	t      *table.Table
	dev    replay.Device
	m      *replay.Model
	stops  []int32
	times  LoadTimes
	mode   Mode

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
	m := &Model{h: h, life: life}
	m.times.Header = time.Since(start)
	if err := m.open(ctx, o); err != nil {
		return nil, life.fail(errors.Join(err, m.Close()))
	}
	m.times.Total = time.Since(start)
	return m, nil
}

func (m *Model) open(ctx context.Context, o Options) error {
	if err := o.Table.check(); err != nil {
		return err
	}
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
	m.tok, m.tokErr = loadTokenizer(m.h.dir)
	m.times.Tokenizer = time.Since(start)
	if m.tokErr == nil {
		if err := checkTokenizer(m.tok, m.h.cfg.Vocab); err != nil {
			return err
		}
	}
	m.stops = stopIDs(m.h.cfg, m.tok)

	if err := m.life.begin(ctx, StageCompile); err != nil {
		return err
	}
	start = time.Now()
	if m.t, err = m.h.tableFor(on, o); err != nil {
		return err
	}
	if err := m.withinBudget(on, o); err != nil {
		return err
	}
	m.times.Compile = time.Since(start)

	if m.mapped, err = m.h.dir.Map(); err != nil {
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
func (m *Model) Config() *arch.Config { return m.h.cfg }

// Directory returns the model's tensor directory.
func (m *Model) Directory() *weights.Directory { return m.h.dir }

// Table returns the table that sessions replay. It must not be changed.
func (m *Model) Table() *table.Table { return m.t }

// Device describes the device that the model runs on.
func (m *Model) Device() DeviceInfo { return deviceInfo(m.dev.Info()) }

// Mode returns the replay mode.
func (m *Model) Mode() Mode { return m.mode }

// RealTime reports whether the model was opened with Options.RealTime.
func (m *Model) RealTime() bool { return m.realTime }

// Threads returns how many threads of this process replay: those of the CPU
// device, 0 on others.
func (m *Model) Threads() int {
	if d, ok := m.dev.(interface{ Threads() int }); ok {
		return d.Threads()
	}
	return 0
}

// Memory returns the memory that the model and its sessions take on the device.
func (m *Model) Memory() Memory { return memoryOf(m.dev.Memory()) }

// LoadTimes returns the times of the parts of Open.
func (m *Model) LoadTimes() LoadTimes { return m.times }

// StopIDs returns the token ids that end a generation.
func (m *Model) StopIDs() []int32 { return slices.Clone(m.stops) }

// Tokenizer returns the model's tokenizer, or an error that wraps ErrNoTokenizer.
func (m *Model) Tokenizer() (*Tokenizer, error) {
	t, err := m.tokenizer()
	if err != nil {
		return nil, err
	}
	return &Tokenizer{t}, nil
}

func (m *Model) tokenizer() (*tokenizer.Tokenizer, error) {
	if m.tok == nil {
		return nil, fmt.Errorf("%w: %w", ErrNoTokenizer, m.tokErr)
	}
	return m.tok, nil
}

// TokenizerSizeError says that a model's tokenizer is another model's: it has tokens
// that the embedding has no rows for, or not half as many as that has rows.
type TokenizerSizeError struct {
	Tokens int // ids of the tokenizer
	Rows   int // of the embedding
}

// Error implements error.
func (e *TokenizerSizeError) Error() string {
	return fmt.Sprintf("pianola: the tokenizer has %d tokens, and the embedding %d rows", e.Tokens, e.Rows)
}

// checkTokenizer returns an error for a tokenizer of another model. Embeddings are
// padded, and special tokens of what a text model has no use for may be past them.
func checkTokenizer(tok *tokenizer.Tokenizer, rows int) error {
	if 2*tok.Size() < rows {
		return &TokenizerSizeError{tok.Size(), rows}
	}
	for id := rows; id < tok.Size(); id++ {
		if _, there := tok.Token(int32(id)); there && !tok.Special(int32(id)) {
			return &TokenizerSizeError{tok.Size(), rows}
		}
	}
	return nil
}

// checkWeights reads all weights, where that was asked for.
func (m *Model) checkWeights(ctx context.Context, o Options) error {
	if !o.CheckWeights {
		return nil
	}
	bad, err := m.mapped.Check(ctx, 0, m.life.stage(StageCheck))
	if err == nil && len(bad) > 0 {
		err = &weights.NotFiniteError{Path: m.h.dir.Path(), Tensors: bad}
	}
	return err
}
