// Package compiler compiles a model's configuration and its tensor directory to a dispatch table for
// a chip, in a list of passes.
//
// The first pass creates programs, which are lists of nodes. A node has a role (its function in the
// model), operands, and args (its kernel and the kernel's typed arguments). Later passes fuse and
// split nodes according to roles, operands and the types of args, place weights and activations in
// memory, and convert nodes to commands. The files are
//
//	graph*.go, experts.go, draft.go, sample.go  create the nodes of a model
//	role.go, args.go, ir.go                     define nodes
//	fuse*.go, split.go                          passes that fuse and split nodes
//	kernel_*.go                                 the args of each kernel, converted to a command
//	tensors.go, arena.go                        passes that place weights and activations
//	lower.go, passes.go                         the last passes, and the list of all passes
//
// The package reads the metadata of tensors, never their bytes, and it knows kernels only by their
// declarations. It must not depend on device code, on a kind of device (the data of a chip contain
// its preferences) or on the name of a model.
package compiler

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/recurrent"
	"github.com/pianola-engine/pianola/internal/sampler"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

// Tensors is the directory of a model's tensors. weights.Directory implements it.
type Tensors interface {
	Tensor(name string) (weights.Tensor, bool)
	Fingerprint() [32]byte
}

// Options are the compile options. Each of them changes the table.
type Options struct {
	Context   int    // positions; 0 means the smaller of 4096 and the model's context, or the short context of LongRoPE
	NoFuse    bool   // compile one command per operation
	NoRepack  bool   // keep matrices in the layout of the file
	Exact     bool   // keep the precision of decode in prefill: no activations of one float16 term
	Batching  bool   // one arithmetic for each matrix: a row's bits do not depend on the number of rows
	AllLogits bool   // add the program that computes the logits of every prompt row
	Hidden    bool   // add the program that stores the final hidden state of every prompt row
	LogProbs  bool   // add the programs that store log-probabilities of tokens
	KV        string // element type of the KV cache: "f16" or "q8_0"; "" means "f16"

	// KVSinks and KVWindow limit attention in layers without a sliding window to the first
	// KVSinks and the last KVWindow positions. The context may then be longer than the
	// model's. If KVWindow is 0, these layers attend to all positions.
	KVSinks, KVWindow int

	// Sampler is the order of the sampler's stages: the name of a preset, or a list; see
	// ParseSampler. "" selects the first preset. "none" leaves out the programs that sample.
	Sampler string

	// Draft is the largest number of tokens in a draft, at most table.MaxDraft. If it is not
	// 0, the program verify is added.
	Draft int

	// Sequences is the number of sequences of a pooled table, which decodes rows of many sequences
	// at once and implies Batching; 0 compiles a table whose sessions have a state of their own.
	// Pages is the number of pages of 64 positions of each layer's K and V. 0 means as many as all
	// sequences have with a full context. The number of recurrent states follows from both.
	Sequences, Pages int
}

// names returns the options that differ from their defaults, as text for the table's header.
func (o Options) names() string {
	var names []string
	for _, n := range []struct {
		on   bool
		name string
	}{{o.AllLogits, "all-logits"}, {o.Hidden, "hidden"}, {o.LogProbs, "log-probs"}, {o.NoFuse, "no-fuse"}, {o.NoRepack, "no-repack"}, {o.Exact, "exact"}, {o.Batching, table.OptionBatching}} {
		if n.on {
			names = append(names, n.name)
		}
	}
	if o.Sampler != "" {
		names = append(names, "sampler="+o.Sampler)
	}
	if o.Draft > 0 {
		names = append(names, fmt.Sprintf("draft=%d", o.Draft))
	}
	if kind, _ := o.kv(); kind != decl.KVF16 {
		names = append(names, "kv="+o.KV)
	}
	if o.KVWindow > 0 {
		names = append(names, fmt.Sprintf("kv-sinks=%d kv-window=%d", o.KVSinks, o.KVWindow))
	}
	return strings.Join(names, " ")
}

// header returns the words of the options for a table's header, with those of the pools, unless l is nil,
// and of the states, unless the ring is zero.
func (o Options) header(l *sequence.Layout, ring recurrent.Ring) string {
	words := o.names()
	if l != nil {
		words = strings.TrimPrefix(words+" "+l.Words(), " ")
	}
	if ring != (recurrent.Ring{}) {
		words = strings.TrimPrefix(words+" "+ring.Words(), " ")
	}
	return words
}

// kv returns the constant of package decl for the element type KV.
func (o Options) kv() (kind uint32, ok bool) {
	if o.KV == "" {
		return decl.KVF16, true
	}
	return decl.KVKind(o.KV)
}

// KVError reports that a model does not support an element type of the KV cache.
type KVError struct {
	Kind    string
	HeadDim int // size of the model's heads; 0 if the element type does not exist
}

// Error implements error.
func (e *KVError) Error() string {
	if e.HeadDim == 0 {
		return fmt.Sprintf("compiler: there is no KV cache of kind %q; the kinds are %s", e.Kind, strings.Join(decl.KVKinds(), " and "))
	}
	return fmt.Sprintf("compiler: a KV cache of kind %s has blocks of %d elements, and the model's heads have %d", e.Kind, decl.KVBlock, e.HeadDim)
}

// DefaultContext is the largest context in positions that is selected by default.
const DefaultContext = 4096

// Input is the input of the compiler. The same input gives the same table, byte for byte.
type Input struct {
	Config  *arch.Config
	Tensors Tensors
	Chip    *chip.Chip
	Options Options
}

// MaxStops is the largest number of stop ids that a session of a table can have.
const MaxStops = 64

// Compile returns the table of a model. It does not validate the table, because the device that
// loads it does. The tests of this package validate the state after every pass.
func Compile(in Input) (*table.Table, error) {
	s, err := newState(in)
	if err != nil {
		return nil, err
	}
	for _, p := range passes {
		if err := p.apply(s); err != nil {
			return nil, err
		}
	}
	return s.t, nil
}

// DumpAfter compiles up to and including a pass and writes the nodes, or the table if the pass is
// lower or a later one.
func DumpAfter(in Input, pass string, w io.Writer) error {
	s, err := newState(in)
	if err != nil {
		return err
	}
	for _, p := range passes {
		if err := p.apply(s); err != nil {
			return err
		}
		if p.name != pass {
			continue
		}
		if len(s.t.Cmds) > 0 {
			return s.t.Dump(w, table.DumpOptions{})
		}
		return s.dump(w)
	}
	return fmt.Errorf("compiler: no pass %q; the passes are %v", pass, PassNames())
}

// SinksError reports that KVSinks and KVWindow are not valid for the model.
type SinksError struct{ Sinks, Window, Max int }

// Error implements error.
func (e *SinksError) Error() string {
	return fmt.Sprintf("compiler: the first %d positions and a window of %d are not at least 0 and 1, or more than the %d that the model has", e.Sinks, e.Window, e.Max)
}

// MaxEndless is the longest context in positions of a table whose layers all have windows. RoPE
// angles, in float32, have an error of at most 0.016 up to it.
const MaxEndless = 1 << 18

// ContextError reports that a context is not valid for the model.
type ContextError struct{ Asked, Max int }

// Error implements error.
func (e *ContextError) Error() string {
	return fmt.Sprintf("compiler: a context of %d is not in 1..%d, what the model has", e.Asked, e.Max)
}

// DraftError reports that the length of drafts is not supported.
type DraftError struct{ Asked, Max int }

// Error implements error.
func (e *DraftError) Error() string {
	return fmt.Sprintf("compiler: drafts of %d tokens are not within 0 to %d, what the context has room for", e.Asked, e.Max)
}

// newState checks the options and creates the slots that every table has.
func newState(in Input) (*state, error) {
	cfg := in.Config
	ctx := in.Options.Context
	if ctx == 0 {
		ctx = cfg.DefaultContext(DefaultContext)
	}
	longest := min(cfg.Context, table.MaxContext)
	if o := in.Options; o.KVWindow != 0 || o.KVSinks != 0 {
		if o.KVSinks < 0 || o.KVWindow < 1 || o.KVSinks >= longest || o.KVWindow > longest-o.KVSinks {
			return nil, &SinksError{o.KVSinks, o.KVWindow, longest}
		}
		longest = max(longest, MaxEndless)
	}
	if ctx < 1 || ctx > longest {
		return nil, &ContextError{ctx, longest}
	}
	kind, ok := in.Options.kv()
	switch {
	case !ok:
		return nil, &KVError{Kind: in.Options.KV}
	case kind == decl.KVQ8:
		for i := range cfg.Layer {
			if d := cfg.HeadDimAt(i); d%decl.KVBlock != 0 {
				return nil, &KVError{in.Options.KV, d}
			}
		}
	}
	if most := min(table.MaxDraft, ctx-1); in.Options.Draft < 0 || in.Options.Draft > most {
		return nil, &DraftError{in.Options.Draft, most}
	}
	stages, err := ParseSampler(in.Options.Sampler)
	if err != nil {
		return nil, err
	}
	s := &state{in: in, cfg: cfg, kv: kind, byName: map[string]*weight{}}
	s.in.Options.Context = ctx
	if err := s.planPool(); err != nil {
		return nil, err
	}
	s.planStates()
	h := table.Header{
		Arch: cfg.Arch, Model: cfg.Name, Chip: in.Chip.Name, Device: in.Chip.Device,
		Vocab: uint32(cfg.Vocab), Width: uint32(cfg.Width), Layers: uint32(cfg.Layers),
		Context: uint32(ctx), Chunk: uint32(s.chunk()), MaxStops: MaxStops,
		ModelFP: Fingerprint(cfg, in.Tensors), ChipFP: in.Chip.Fingerprint(),
	}
	if in.Options.AllLogits {
		h.LogitsRows = min(uint32(in.Chip.LogitsRows), h.Chunk)
	}
	h.Options = s.in.Options.header(s.pool, s.ring)
	s.t = &table.Table{Header: h}
	return s, s.planSlots(stages)
}

// chunk returns the number of rows of a chunk of a prompt.
func (s *state) chunk() int { return min(s.in.Chip.PrefillChunk, s.in.Options.Context) }

// planSlots creates the slots that do not depend on the nodes. stages are the stages of the sampler,
// or nil without a sampler.
func (s *state) planSlots(stages []uint32) error {
	h := &s.t.Header
	ctx, vocab, width := uint64(h.Context), s.cfg.Vocab, s.cfg.Width
	each, step := uint64(1), uint64(table.StepSize)
	if s.pool != nil {
		each, step = uint64(s.pool.Sequences), s.pool.Size()
	}
	logitsRows := max(int(h.LogitsRows), 1+s.in.Options.Draft, s.chosenRows())
	s.tokens = s.slot("tokens", table.SlotTokens, table.ScopeSession, each*(ctx+1)*4)
	s.logits = s.slot("logits", table.SlotLogits, table.ScopeSession, uint64(logitsRows)*uint64(vocab)*4)
	s.logits.width, s.logits.rows = vocab, logitsRows
	s.stops = s.slot("stops", table.SlotStops, table.ScopeSession, each*uint64(1+MaxStops)*4)
	s.slot("step", table.SlotStep, table.ScopeSession, step)
	if s.in.Options.Hidden {
		s.hidden = s.slot("hidden", table.SlotHidden, table.ScopeSession, uint64(h.Chunk)*uint64(width)*4)
		s.hidden.width, s.hidden.rows = width, int(h.Chunk)
	}
	if stages != nil {
		s.stages = stages[1:] // stages[0] is the penalties
		s.sampler = s.slot("sampler", table.SlotSampler, table.ScopeSession, each*sampler.Size)
	}
	if s.in.Options.LogProbs {
		if stages == nil {
			return &SamplerError{s.in.Options.Sampler, "log-probabilities need a sampler"}
		}
		s.ranks = s.slot("ranks", table.SlotRanks, table.ScopeSession, each*sampler.RanksSize)
	}
	return nil
}

// slot adds a slot to the table and returns a value for it.
func (s *state) slot(name string, kind table.SlotKind, scope table.Scope, size uint64) *value {
	s.t.Slots = append(s.t.Slots, table.Slot{Name: name, Kind: kind, Scope: scope, Size: size})
	return &value{name: name, place: inSlot, slot: uint32(len(s.t.Slots) - 1)}
}

// Fingerprint identifies a model's tensors, by name, type and shape, and its
// configuration. A roll can be replayed with a model of the same fingerprint.
func Fingerprint(cfg *arch.Config, t Tensors) [32]byte {
	h := sha256.New()
	dir := t.Fingerprint()
	h.Write(dir[:])
	// Encoding cannot fail, because the fields of Config are plain data.
	_ = json.NewEncoder(h).Encode(cfg)
	return [32]byte(h.Sum(nil))
}
