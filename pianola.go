// Package pianola generates text with transformer language models.
//
// Open reads a model file and compiles the model's forward pass, once, into a dispatch table: a
// list of kernel calls with all their arguments. A Session replays the table on a CPU, an Apple GPU
// or an NVIDIA GPU. One submission decodes many tokens, and the device chooses each token itself,
// so that the program does no work between tokens. The package needs no cgo on Linux and Windows.
//
// # Generating text
//
// Open accepts a .gguf file, a .safetensors file or a Hugging Face directory:
//
//	m, err := pianola.Open(ctx, "model.gguf", pianola.Options{})
//	if err != nil {
//		return err
//	}
//	defer m.Close()
//	s, err := m.NewSession(pianola.SessionOptions{})
//	if err != nil {
//		return err
//	}
//	for tok, err := range s.Generate(ctx, "func main() {", pianola.GenerateOptions{MaxTokens: 64}) {
//		if err != nil {
//			return err
//		}
//		fmt.Print(tok.Text)
//	}
//
// Leaving the loop ends the generation, and the context keeps the tokens that the loop received.
// The next Generate continues that context. When ctx ends, the generation ends after the submission
// in progress, within 50 ms unless SessionOptions.ChainTime selects another bound.
//
// # Devices and modes
//
// Options.Device selects the device; the zero value selects a GPU if one is available and the CPU
// otherwise. Devices lists the devices of the machine and the reason why one is unavailable.
// Options.Mode selects how the device replays the table: encode walks the table for each
// submission, record launches a recorded CUDA graph or Metal indirect command buffer again, and
// resident runs one persistent kernel that walks the table on the GPU. All modes give the same
// tokens, and the zero value selects the first of DeviceInfo.Modes.
//
// TableOptions select what the compiler puts into the table. Several features need programs that
// are not compiled by default:
//
//	Session.Logits, Session.Classify    TableOptions.AllLogits
//	Session.Hidden, Session.Embed       TableOptions.Hidden
//	Sampling.LogProbs                   TableOptions.LogProbs
//	GenerateOptions.Speculate           TableOptions.Draft
//
// # Sessions and concurrency
//
// Several goroutines may use a Model at once, with as many sessions as memory allows. A Session
// is one context, and one call at a time uses it; a second call returns ErrBusy. To decode several
// texts at once, use one session and one goroutine for each. Their submissions take turns on the
// device.
//
// Session.Fork copies a context, so that texts with a common beginning prefill it once.
// Session.Snapshot writes a context to a file that Model.Restore reads again, also in another
// process. A full context ends a generation with ErrContextFull, unless SessionOptions.Rollover
// lets it continue without its middle part.
//
// # Sampling
//
// The zero value of Sampling is greedy decoding. DefaultSampling returns a common choice of
// temperature, top-k, top-p and min-p. The same seed gives the same tokens in every mode.
//
//	sampling := pianola.DefaultSampling()
//	sampling.Seed = 42
//	s.Generate(ctx, prompt, pianola.GenerateOptions{Sampling: sampling})
//
// # Chat
//
// Session.NewChat starts a conversation that is rendered by the model's own chat template.
// Chat.Send streams an answer and adds it to Chat.Messages, with tool calls and reasoning separated
// from its text:
//
//	c, err := s.NewChat(pianola.ChatOptions{}, pianola.ChatMessage{Role: "system", Content: "Be brief."})
//	...
//	for tok, err := range c.Send(ctx, pianola.GenerateOptions{}, pianola.ChatMessage{Role: "user", Content: "Hi!"}) {
//
// # Errors
//
// An error is the last element of a sequence, or the last result of a call. Compare it with
// errors.Is to a variable of this package, such as ErrContextFull, or use errors.As to find a type
// such as *DeviceError, *BudgetError or *SamplingError. When ctx ends, the error is its cause.
// Files are not trusted: a damaged or hostile one gives an error.
//
// # Memory
//
// Weights stay in the mapped file where the device can use them there. Plan returns the memory that
// a model and each of its sessions need, without reading weights. Options.MemoryBudget lets Open
// refuse a model that needs more, and Model.Memory returns what is in use. A session's KV cache
// grows with its context; TableOptions.KV and TableOptions.KVWindow make it smaller. Close releases
// the memory of a session or a model. There are no finalizers.
//
// # Where to read on
//
// docs/LIBRARY.md is a guide to this package, docs/ARCHITECTURE.md explains the way from a file to
// a token, and docs/MODELS.md lists the supported models. Header.Compile compiles a table without
// weights, and Model.Table returns the table in use. Package [table] describes and prints tables,
// package [compiler] compiles them, and package [replay] is the layer below sessions.
package pianola

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/tokenizer"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

// Errors that callers test for with errors.Is.
var (
	ErrContextFull    = replay.ErrContextFull    // the tokens do not fit in the context
	ErrEmptyPrompt    = replay.ErrEmptyPrompt    // a prompt has no tokens
	ErrNothingPending = replay.ErrNothingPending // the call requires a prompt first
	ErrBusy           = replay.ErrBusy           // another call is using the session
	ErrClosed         = replay.ErrClosed         // the session or its model is closed

	// Each of these errors reports that the table lacks a program. Open the model with the option
	// in the comment to compile the program.
	ErrNoLogitsProgram = replay.ErrNoLogitsProgram // TableOptions.AllLogits
	ErrNoHiddenProgram = replay.ErrNoHiddenProgram // TableOptions.Hidden
	ErrNoLogProbs      = replay.ErrNoLogProbs      // TableOptions.LogProbs
	ErrNoSampler       = replay.ErrNoSampler       // TableOptions.Sampler other than "none"
	ErrNoVerify        = replay.ErrNoVerify        // TableOptions.Draft

	ErrNoPages  = replay.ErrNoPages  // the context needs more KV pages than Options.Parallel's model has
	ErrDeadline = replay.ErrDeadline // the first token cannot come within RequestOptions.Within

	ErrSpeculateSampled = replay.ErrSpeculateSampled // speculative decoding requires greedy sampling

	// ErrNoTokenizer reports that the model's files contain no usable tokenizer. The error
	// that wraps it has the reason.
	ErrNoTokenizer = errors.New("pianola: the model has no tokenizer")
)

// TokenError reports a token id that is not in the vocabulary. Its fields are Index, the index of
// the token in the prompt, ID, and Vocab, the size of the vocabulary.
type TokenError = replay.TokenError

// OverloadError reports that too many calls wait for a model with Options.Parallel. Its fields are
// Waiting and Limit, numbers of calls, and Wait, the predicted time until their prompts are prefilled.
type OverloadError = replay.OverloadError

// ParallelError reports what a model with Options.Parallel does not support, in its field What.
type ParallelError = replay.ParallelError

// RequestOptions are the settings of a call of a model with Options.Parallel. Its fields are Priority,
// which is added to SessionOptions.Priority; Within, the time within which the first token must
// come, for which other models return an error; and Prefix, which other models support too.
type RequestOptions = replay.RequestOptions

// PrefixCache selects which KV pages a call shares with other prompts.
type PrefixCache = replay.PrefixCache

// The uses of shared pages.
const (
	PrefixOn     = replay.PrefixOn     // use the pages of a known beginning, and share those of the prompt; "" means the same
	PrefixOff    = replay.PrefixOff    // prefill the whole prompt, and share nothing
	PrefixPinned = replay.PrefixPinned // keep the prompt's pages until the session pins another prompt or is closed
)

// SpillOptions select where a model with Options.Parallel keeps copies of KV pages that would be
// evicted: in Memory bytes of the host's memory, and in a file of at most File bytes in the directory
// Dir. A later prompt with the same beginning reads them back if that is predicted to take less time
// than prefilling it.
type SpillOptions = replay.SpillOptions

// Load is the load of a model with Options.Parallel.
type Load = replay.Occupancy

// LoadTimes are the durations of the parts of Open:
//
//   - Header: reading the headers of the files
//   - Tokenizer: reading the tokenizer
//   - Touch: reading the pages of weights that stay in the mapped file
//   - Compile: compiling the table, or decoding a roll
//   - Kernels: loading the kernels, and on a GPU the rest of creating its context
//   - Upload: converting weights and copying them to the device
//   - Warm: replaying each program once, on GPUs
//   - Total: the whole of Open
type LoadTimes struct {
	Header, Tokenizer, Touch, Compile, Kernels, Upload, Warm, Total time.Duration
}

// Model is a model that is loaded on a device. Its methods may be called from several goroutines
// at once.
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

	device   Device
	realTime bool
	together int // Options.Parallel
	life     *lifecycle
	watch    *watcher // of Options.Pressure, or nil
}

// Open maps a model's files, compiles its table and loads it on a device. path is a .gguf file, a
// .safetensors file or a Hugging Face directory, and with Options.Hub also the id of a model of
// the hub. If ctx ends before the model is ready, Open releases everything and returns the cause.
//
// The error is the cause of ctx, a *DeviceError, *ValueError, *RollError, *BudgetError,
// *TokenizerSizeError or *weights.NotFiniteError, or ErrNoPlan if the device does not support
// Options.MemoryBudget. Other errors describe what is wrong with a file, or name an invalid option.
func Open(ctx context.Context, path string, o Options) (*Model, error) {
	start := time.Now()
	life := newLifecycle(o.Events)
	if o.Hub != nil {
		local, err := o.Hub.resolve(ctx, life, path)
		if err != nil {
			return nil, err
		}
		path = local
	}
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
		return nil, life.fail(errors.Join(err, m.release()))
	}
	m.times.Total = time.Since(start)
	return m, nil
}

func (m *Model) open(ctx context.Context, o Options) error {
	if err := o.parallel(); err != nil {
		return err
	}
	m.together = o.Parallel
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
	m.dev, m.device, m.mode, m.realTime = on.dev, on.device, on.mode, o.RealTime
	if d, ok := on.dev.(interface{ Prepare() }); ok {
		d.Prepare() // while the tokenizer and the table are made
	}

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
	if on.stays && !o.NoPrewarm {
		touched, err := m.mapped.TouchTensors(ctx, m.stays(), runtime.GOMAXPROCS(0), m.life.stage(StageTouch))
		if err != nil {
			return err
		}
		if touched.Skipped {
			m.life.untouched(touched.Reason)
		}
	}
	m.times.Touch = time.Since(start)

	if err := m.load(ctx, on, o); err != nil {
		return err
	}
	if err := m.watchPressure(o.Pressure); err != nil {
		return err
	}
	if o.NoPrewarm {
		return context.Cause(ctx)
	}
	return m.life.enter(ctx, StateReady, "")
}

// load loads the table on the device and measures the parts of loading.
func (m *Model) load(ctx context.Context, on *target, o Options) (err error) {
	start, uploads := time.Now(), false
	lap := func(to *time.Duration) {
		*to = time.Since(start)
		start = start.Add(*to)
	}
	show := m.life.stage(StageUpload)
	lo := replay.LoadOptions{
		Queue: o.Queue, Spill: o.Spill, KVLimit: o.KVLimit, NoWarm: o.NoPrewarm,
		Progress: func(done, total uint64) {
			if !uploads { // the first call reports the beginning
				uploads = true
				lap(&m.times.Kernels)
			}
			if show != nil {
				show(done, total)
			}
		},
		Loaded: func() error {
			lap(&m.times.Upload)
			if o.NoPrewarm {
				return m.life.enter(ctx, StateLoaded, "")
			}
			return m.life.enter(ctx, StateLoaded, StageWarm)
		},
	}
	if steps := m.steps(on); steps != nil {
		lo.Cost = steps
	}
	m.m, err = replay.Load(ctx, m.dev, m.t, m.mapped, lo)
	lap(&m.times.Warm)
	return err
}

// stays returns a function that reports whether the device uses a tensor in the mapped file. Other
// tensors are read when they are uploaded.
func (m *Model) stays() func(name string) bool {
	names := map[string]bool{}
	for i, stays := range m.t.InPlace() {
		if stays {
			names[m.t.Uploads[i].Tensor] = true
		}
	}
	return func(name string) bool { return names[name] }
}

// stopIDs returns the ids that end a generation: those in the files, and the end-of-turn tokens of
// the model's family that are in the vocabulary.
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

// Close closes the model's sessions, frees its memory on the device and unmaps the files.
// Generations in progress end with ErrClosed, and Close waits for them. Closing twice is harmless.
func (m *Model) Close() error {
	err := m.release()
	m.life.close()
	return err
}

// release frees what the model has.
func (m *Model) release() error {
	m.watch.stop()
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

// Directory returns the model's tensor directory: the metadata, and the names, types and shapes of
// the tensors.
func (m *Model) Directory() *weights.Directory { return m.h.dir }

// Table returns the dispatch table that sessions replay. It must not be changed.
func (m *Model) Table() *table.Table { return m.t }

// Device describes the device that the model runs on.
func (m *Model) Device() DeviceInfo { return deviceInfo(m.dev.Info()) }

// Mode returns the replay mode, which is never ModeAuto.
func (m *Model) Mode() Mode { return m.mode }

// RealTime reports whether the model was opened with Options.RealTime.
func (m *Model) RealTime() bool { return m.realTime }

// State returns the state of the model: StateReady, StateLoaded if it was opened with
// Options.NoPrewarm, or StateClosed. Options.Events receives the states before.
func (m *Model) State() State {
	if m.life == nil {
		return ""
	}
	return m.life.now.Load().(State)
}

// Load returns the load of a model with Options.Parallel, for those who distribute calls among models.
// It is zero for other models.
func (m *Model) Load() Load { return m.m.Occupancy() }

// ProfileBatch makes a model with Options.Parallel execute the programs of its batches one at a time, with
// a barrier after each command, and decode one token in a submission. Tokens of prompts join the rows
// that decode, as many as a pass has room for, where the table has programs for that: the programs do
// not depend on measured times. After each program it calls f with the program's name, the number of
// rows, and the time of each command. f must not keep times or call the model. A nil f ends profiling.
// The error reports a model without Options.Parallel.
func (m *Model) ProfileBatch(f func(program string, rows int, times []time.Duration)) error {
	return m.m.ProfileBatch(f)
}

// Threads returns the number of threads of the CPU device, and 0 on other devices.
func (m *Model) Threads() int {
	if d, ok := m.dev.(interface{ Threads() int }); ok {
		return d.Threads()
	}
	return 0
}

// Memory returns the memory that the model and its sessions use on the device.
func (m *Model) Memory() Memory { return memoryOf(m.dev.Memory()) }

// ResetPeaks sets MemoryUse.Peak of each kind of slots to what is in use now.
func (m *Model) ResetPeaks() { m.m.ResetPeaks() }

// ReleaseIdle gives back memory that is not needed, and returns the number of bytes of KV caches. It
// releases the caches of sessions that no call has used for at least the given time; the next call
// that needs the context prefills it again, which takes time and, on a GPU, may round differently
// than decoding did. Other sessions give back rows that their context does not use. Sessions in use,
// with SessionOptions.Reserve, or with Options.RealTime are left alone. With Options.Parallel, it empties the cache of
// prefixes, and with Options.Spill it gives up the copies in memory that the file does not have.
func (m *Model) ReleaseIdle(idle time.Duration) (uint64, error) { return m.m.ReleaseIdle(idle) }

// LoadTimes returns the durations of the parts of Open.
func (m *Model) LoadTimes() LoadTimes { return m.times }

// StopIDs returns the token ids that end a generation, in ascending order.
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

// TokenizerSizeError reports a tokenizer that does not belong to the model: the embedding has no
// rows for some of its tokens, or more than twice as many rows as the tokenizer has tokens.
type TokenizerSizeError struct {
	Tokens int // number of token ids of the tokenizer
	Rows   int // number of rows of the embedding
}

// Error implements error.
func (e *TokenizerSizeError) Error() string {
	return fmt.Sprintf("pianola: the tokenizer has %d tokens, which does not match the %d rows of the embedding", e.Tokens, e.Rows)
}

// checkTokenizer returns a *TokenizerSizeError for the tokenizer of another model. Embeddings may
// be padded, and special tokens that a text model does not use may be past their end.
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

// checkWeights reads all weights if Options.CheckWeights is set.
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

// State is a step in the life of a model.
type State string

// The states, in the order in which a model goes through them. Open ends in StateReady and returns a
// model, or ends in StateFailed from any other state. With Options.NoPrewarm it ends in StateLoaded.
const (
	// StateDownloading finds a model of the hub in the cache or downloads it, with Options.Hub.
	StateDownloading State = "downloading"

	StateOpening State = "opening" // reading the headers of the files
	StateLoading State = "loading" // reading the tokenizer, compiling the table, uploading weights
	StateLoaded  State = "loaded"  // the weights are where the device uses them
	StateReady   State = "ready"   // kernels are compiled and warm: the first token is as fast as later ones
	StateFailed  State = "failed"  // an error ended Open, and everything was released
	StateClosed  State = "closed"  // Close has released everything; only Model.State returns it
)

// Stage is a part of StateDownloading, StateLoading or StateLoaded.
type Stage string

// The stages, in order. StageDownload belongs to StateDownloading, StageWarm to StateLoaded, the
// others to StateLoading. StageDownload, StageCheck, StageTouch and StageUpload report progress in
// bytes, with an event every few megabytes; the others have one event when they begin.
const (
	StageDownload  Stage = "download"  // downloads the files that the cache lacks; Done includes what earlier runs downloaded
	StageTokenizer Stage = "tokenizer" // reads the tokenizer
	StageCompile   Stage = "compile"   // compiles the table, or decodes a roll
	StageCheck     Stage = "check"     // checks all tensors, if Options.CheckWeights is set
	StageTouch     Stage = "touch"     // reads the pages of weights that stay in the mapped file
	StageUpload    Stage = "upload"    // copies and repacks the other weights
	StageWarm      Stage = "warm"      // replays every program once, on GPUs
)

// Event reports the progress of Open.
type Event struct {
	State State
	Stage Stage         // "" at the beginning of a state
	After time.Duration // since Open began

	Done, Total uint64 // bytes of the stage, or 0 and 0 if it does not count bytes

	// Note is set in StateReady if the weights were not read into memory, because they are
	// larger than the free memory, and in StageDownload if the call waits for another process
	// or uses the cache because the hub cannot be reached.
	Note string
	Err  error // in StateFailed, the error that Open returns
}

// lifecycle keeps the state of one model, and sends its events to tell unless that is nil. A nil
// lifecycle does neither.
type lifecycle struct {
	tell  func(Event)
	start time.Time
	now   atomic.Value // a State
	note  string
}

func newLifecycle(tell func(Event)) *lifecycle {
	l := &lifecycle{tell: tell, start: time.Now()}
	l.now.Store(StateOpening)
	return l
}

func (l *lifecycle) event(e Event) {
	if l.tell != nil {
		e.State, e.After = l.now.Load().(State), time.Since(l.start)
		l.tell(e)
	}
}

// enter begins a state, and its first stage unless that is "". It returns the cause if the context
// has ended, also if the receiver of the event ended it. A cancelled model never becomes ready.
func (l *lifecycle) enter(ctx context.Context, s State, first Stage) error {
	if err := context.Cause(ctx); l == nil || err != nil {
		return err
	}
	l.now.Store(s)
	e := Event{}
	if s == StateReady {
		e.Note = l.note
	}
	if l.event(e); first == "" {
		return context.Cause(ctx)
	}
	return l.begin(ctx, first)
}

// begin begins a stage that does not count bytes.
func (l *lifecycle) begin(ctx context.Context, s Stage) error {
	if err := context.Cause(ctx); l == nil || err != nil {
		return err
	}
	l.event(Event{Stage: s})
	return context.Cause(ctx)
}

// stage returns a progress function for a stage, or nil if there is no receiver of events.
func (l *lifecycle) stage(s Stage) func(done, total uint64) {
	if l == nil || l.tell == nil {
		return nil
	}
	return func(done, total uint64) { l.event(Event{Stage: s, Done: done, Total: total}) }
}

// untouched records why the pages of weights were not read.
func (l *lifecycle) untouched(why string) {
	if l != nil {
		l.note = "weights were not touched: " + why
	}
}

// fail enters StateFailed and returns err.
func (l *lifecycle) fail(err error) error {
	if l != nil {
		l.now.Store(StateFailed)
		l.event(Event{Err: err})
	}
	return err
}

// close enters StateClosed, without an event: Open returned long ago.
func (l *lifecycle) close() {
	if l != nil {
		l.now.Store(StateClosed)
	}
}
