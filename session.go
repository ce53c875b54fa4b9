package pianola

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/replacefile"
	"github.com/pianola-engine/pianola/replay"
)

// DefaultChainTime bounds the time of a submission by default. See SessionOptions.ChainTime.
const DefaultChainTime = replay.DefaultChainTime

// SessionOptions are the settings of a session. The zero value decodes in chains of 50 ms
// and ends a generation at the model's stop tokens.
type SessionOptions struct {
	// Chain is the number of tokens that each submission decodes. 0 lets ChainTime decide.
	Chain int
	// ChainTime bounds the time of a submission, and so the time that cancelling takes. With
	// Options.Parallel, a part of a prompt may take four times as long while nothing decodes.
	// 0 selects DefaultChainTime, or RealTimeChain with Options.RealTime.
	ChainTime time.Duration
	// IgnoreStops decodes past the model's stop tokens.
	IgnoreStops bool
	// Reserve is the number of positions whose KV cache is allocated from the start. The
	// rest is allocated between submissions as the context grows, which takes time on GPUs.
	// 0 reserves the whole context with Options.RealTime, and otherwise the device's minimum.
	Reserve int
	// Priority ranks the calls of sessions of a model with Options.Parallel; larger ones go first.
	// A level of priority is worth a second of waiting, so that every call is served.
	Priority int
	// Space is the namespace of the pages that prompts with the same beginning share in a model with
	// Options.Parallel. Sessions share pages with those of the same namespace only: the time to the first
	// token, which depends on the pages found, then tells one user nothing about the prompts of others.
	Space string
	// NoReuse prefills each whole prompt from its first token, even if the context begins
	// with the same tokens. See GenerateOptions.Whole.
	NoReuse bool
	// Rollover lets a full context continue. The zero value ends it with ErrContextFull.
	Rollover Rollover
}

// Rollover lets a generation continue when its context is full. The session then empties the
// context and prefills the first Sinks tokens and the last Window tokens; the tokens between them
// are dropped. Positions start again at 0, so that none exceeds the range that the model was
// trained for, and the first tokens remain as attention sinks. Sinks + Window must be less than the
// context. The zero value means no rollover.
type Rollover struct {
	Sinks  int // number of tokens to keep from the start of the context
	Window int // number of tokens to keep from its end
}

func (m *Model) replayOptions(o SessionOptions) replay.SessionOptions {
	ro := replay.SessionOptions{
		Chain: o.Chain, ChainTime: o.ChainTime, Reserve: o.Reserve, Priority: o.Priority, Space: o.Space, NoReuse: o.NoReuse, Rollover: replay.Rollover(o.Rollover),
	}
	if o.ChainTime == 0 && m.realTime {
		ro.ChainTime = RealTimeChain
	}
	ro.Pinned = o.Reserve > 0 || m.realTime
	if o.Reserve == 0 && m.realTime && !m.parallel() {
		ro.Reserve = int(m.t.Header.Context)
	}
	if !o.IgnoreStops {
		ro.StopIDs = m.stops
	}
	return ro
}

// parallel reports whether the model's sessions run together.
func (m *Model) parallel() bool {
	o, err := compiler.OptionsOf(m.t)
	return err == nil && o.Sequences > 0
}

// Session is one context on a model: the tokens so far and their KV cache.
//
// One call at a time uses a session. A method that is called while another one is in
// progress, or in the body of a loop over Generate, GenerateIDs, Logits or Hidden, returns
// ErrBusy and changes nothing. Close may be called at any time, except in a loop over Logits
// or Hidden; it ends the call in progress. Len, Context, ChainTime, Stats and Counters answer
// at any time.
//
// Generate and GenerateIDs are all that most programs need. Prompt, Chain, NextLogits,
// SetNext and Rewind are the level below. They take and return token ids, make at most one
// submission per call, and Chain allocates no memory.
type Session struct {
	m *Model
	s *replay.Session

	endless bool // a full context rolls over

	statsMu sync.Mutex
	stats   GenerateStats
}

// NewSession returns a session with an empty context. Close frees its memory. The error is
// ErrClosed after Model.Close, or names the invalid option.
func (m *Model) NewSession(o SessionOptions) (*Session, error) {
	s, err := m.m.NewSession(m.replayOptions(o))
	return m.session(s, o.Rollover != Rollover{}, err)
}

// session wraps a session of package replay.
func (m *Model) session(s *replay.Session, endless bool, err error) (*Session, error) {
	if err != nil {
		return nil, err
	}
	return &Session{m: m, s: s, endless: endless}, nil
}

// Close frees the session's memory. A call in progress ends with ErrClosed. Closing twice is
// harmless.
func (s *Session) Close() error { return s.s.Close() }

// Reset empties the context. The error is ErrBusy or ErrClosed.
func (s *Session) Reset() error { return s.s.Reset() }

// Len returns the number of positions in the context. During a call it is the number at the
// end of the last submission.
func (s *Session) Len() int { return s.s.Len() }

// Context returns the number of positions that the context can hold.
func (s *Session) Context() int { return s.s.Context() }

// ChainTime returns the bound on the time of a submission, or 0 if SessionOptions.Chain fixes the
// number of its tokens.
func (s *Session) ChainTime() time.Duration { return s.s.ChainTime() }

// Prompt appends ids to the context, prefills them in one submission, and returns the next
// token. That token is pending: it is not part of the context yet, and the next Chain or
// Prompt begins with it. stopped reports whether it is a stop token.
//
// An error leaves the context unchanged, or empty if the caches of sliding-window layers have
// already overwritten rows that it needs. The error is ErrEmptyPrompt, ErrContextFull, a
// *TokenError, the cause of ctx, ErrBusy or ErrClosed.
func (s *Session) Prompt(ctx context.Context, ids []int32) (next int32, stopped bool, err error) {
	return s.s.Prompt(ctx, ids)
}

// Chain decodes up to limit tokens in one submission and returns them; the slice is valid
// until the next call. It returns fewer than limit tokens at the end of a chain, at the end of the
// context, when ctx ends, and after a stop token, which is then the last token and sets stopped.
// Chain allocates no memory if ctx cannot be cancelled. The error is ErrNothingPending before the
// first prompt, or an error of Prompt.
func (s *Session) Chain(ctx context.Context, limit int) (tokens []int32, stopped bool, err error) {
	return s.s.Chain(ctx, limit)
}

// NextLogits copies the logits from which the pending token was chosen to dst. dst must have one
// element for each token of the vocabulary. The error is ErrNothingPending before the first prompt,
// ErrBusy or ErrClosed, or reports a wrong length of dst.
func (s *Session) NextLogits(dst []float32) error { return s.s.Logits(dst) }

// SetNext replaces the pending token, for callers that choose one from NextLogits themselves. The
// error is ErrNothingPending before the first prompt, a *TokenError, ErrBusy or ErrClosed.
func (s *Session) SetNext(id int32) error { return s.s.SetNext(id) }

// SetSampling selects how Prompt and Chain choose tokens from now on. Generate sets it too. The
// error is a *SamplingError, ErrNoSampler, ErrNoLogProbs, ErrBusy or ErrClosed.
func (s *Session) SetSampling(o Sampling) error { return s.s.SetSampling(replay.Sampling(o)) }

// SetRequest selects the priority, the deadline and the use of shared pages of the following calls of
// Prompt and Chain. Generate has its own and sets them to their zero values. The error is ErrBusy or ErrClosed, or names the invalid
// field.
func (s *Session) SetRequest(o RequestOptions) error { return s.s.SetRequest(o) }

// Rewind shortens the context to its first n positions. The token at position n becomes the
// pending token. A model with sliding-window layers can rewind at most to one prefill chunk of its
// table before the last position that was ever written. The error is ErrBusy or ErrClosed, or
// reports that the session cannot rewind to n.
func (s *Session) Rewind(n int) error { return s.s.Rewind(n) }

// Profile decodes one token with a barrier after each command, and adds the time of each
// command to times. times has one element for each command of the program "decode", or of
// "sample" after SetSampling with a sampler. The error is ErrNothingPending, ErrContextFull, the
// cause of ctx, ErrBusy or ErrClosed, or reports a wrong length of times.
func (s *Session) Profile(ctx context.Context, times []time.Duration) error {
	return s.s.Profile(ctx, times)
}

// ProfilePrompt appends ids to the context as Prompt does, with a barrier after each command.
// It adds the times of the commands that prefill, over all chunks, to prefill, and the times of the
// commands of the program "head", or of "sample_head" after SetSampling with a sampler, to head.
// prefill has one element for each command of the program that table.Table.Prefill returns for
// len(ids): "prefill", or "prefill_few" or "prefill_fewest" for few tokens. The errors are those of
// Prompt, or report a wrong length.
func (s *Session) ProfilePrompt(ctx context.Context, ids []int32, prefill, head []time.Duration) error {
	return s.s.ProfilePrompt(ctx, ids, prefill, head)
}

// Dry replays n tokens of the program "decode" with the stop flag set, so that no kernel does any
// work, and returns the time that this takes: the overhead of replaying. The context does not
// change. The error is ErrBusy or ErrClosed.
func (s *Session) Dry(n int) (time.Duration, error) { return s.s.Dry(n) }

// Counters are a session's totals since it was created.
type Counters struct {
	Submissions int           // submissions to the device
	Waits       int           // waits for the device
	WaitTime    time.Duration // time in which the caller waited for submissions
	QueueTime   time.Duration // the part of WaitTime behind submissions of other sessions
	DeviceTime  time.Duration // time in which the device worked
	BytesRead   uint64        // bytes of weights and KV caches that the commands read, as they declare
	Calls       uint64        // calls of the GPU's driver by all sessions, or 0 if not counted

	Prefilled int // prompt tokens that were prefilled
	Reused    int // prompt tokens that the context already held
	Drafted   int // draft tokens that were verified
	Accepted  int // draft tokens that were accepted

	Request   uint64 // number of the last request to a model with Options.Parallel
	BatchRows int    // sum over its submissions of the rows that were decoded together
	Restored  int    // prompt tokens that were read back from copies of pages (Options.Spill)
}

// Counters returns the session's totals. They include complete submissions only.
func (s *Session) Counters() Counters { return Counters(s.s.Stats()) }

// Errors of Model.Restore.
var (
	ErrNotSnapshot     = replay.ErrNotSnapshot     // the data is not a snapshot
	ErrSnapshotVersion = replay.ErrSnapshotVersion // the snapshot's format has another version
	ErrSnapshotModel   = replay.ErrSnapshotModel   // the snapshot's model has other tensors or another configuration
	ErrSnapshotTable   = replay.ErrSnapshotTable   // the snapshot's table was compiled with other options or for another chip
	ErrSnapshotDamaged = replay.ErrSnapshotDamaged // the snapshot is truncated or its checksum is wrong
)

// Fork returns a new session with the same context and options. Both sessions continue
// independently, as if each had been given the whole context. The device copies the part of
// the KV cache that is in use. The error is ErrBusy or ErrClosed, or reports that the device has no
// memory for another session.
func (s *Session) Fork() (*Session, error) {
	f, err := s.s.Fork()
	return s.m.session(f, s.endless, err)
}

// Snapshot writes the context to w for Model.Restore. A snapshot contains the tokens, unencrypted,
// the logits of the pending token, the rows of the KV cache that are in use, the fingerprints of
// model and table, and a checksum. With Options.Parallel it contains only the tokens, the fingerprints
// and the checksum, and the first call of the restored session prefills the tokens. The error is an error of w, ErrBusy or ErrClosed.
func (s *Session) Snapshot(w io.Writer) error { return s.s.Snapshot(w) }

// SnapshotFile writes a snapshot to a file that only its owner can read. The file is replaced when
// the snapshot is complete; an error leaves the previous file unchanged.
func (s *Session) SnapshotFile(path string) error {
	if err := replacefile.Write(path, 0o600, s.Snapshot); err != nil {
		return fmt.Errorf("pianola: snapshot %s: %w", path, err)
	}
	return nil
}

// Restore returns a session with the context of a snapshot. The snapshot must come from this model
// and from a table with the same options and chip; another device may have replayed the table. The
// model's fingerprint covers its configuration and the names and shapes of its tensors, but not
// the values of its weights. Restore reads no bytes after the snapshot. The error is one of
// ErrNotSnapshot, ErrSnapshotVersion, ErrSnapshotModel, ErrSnapshotTable and ErrSnapshotDamaged, an
// error of r, or ErrClosed.
func (m *Model) Restore(r io.Reader, o SessionOptions) (*Session, error) {
	s, err := m.m.Restore(r, m.replayOptions(o))
	return m.session(s, o.Rollover != Rollover{}, err)
}

// RestoreFile is like Restore, but reads a file. The error names the file and wraps the errors of
// Restore.
func (m *Model) RestoreFile(path string, o SessionOptions) (*Session, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("pianola: restore: %w", err)
	}
	defer f.Close()
	s, err := m.Restore(bufio.NewReaderSize(f, 1<<18), o)
	if err != nil {
		return nil, fmt.Errorf("pianola: restore %s: %w", path, err)
	}
	return s, nil
}
