package pianola

import (
	"context"
	"fmt"
	"iter"
	"math"
	"sync"
	"time"

	"github.com/pianola-engine/pianola/internal/tokenizer"
	"github.com/pianola-engine/pianola/replay"
)

// SessionOptions are a session's settings.
type SessionOptions struct {
	// Chain is the number of tokens of a submission, kept exactly; 0 lets
	// ChainTime decide.
	Chain int
	// ChainTime bounds the time of a submission, and so how long cancelling
	// takes; 0 is replay.DefaultChainTime, or RealTimeChain in real time.
	ChainTime time.Duration
	// IgnoreStops decodes past the model's stop ids.
	IgnoreStops bool
	// Reserve is how many positions have memory from the start; 0: as few as the device
	// gives, or all in real time and in mode record, whose recordings would be made
	// anew. Others get it between submissions, as the context grows, which takes time
	// on GPUs.
	Reserve int
	// NoReuse prefills whole prompts (GenerateOptions.Whole) from their first token,
	// whatever the context has in common with them.
	NoReuse bool
	// Rollover lets a full context go on with its first tokens and its last ones,
	// so that a generation may be endless. The zero value ends it with
	// ErrContextFull.
	Rollover replay.Rollover
}

func (m *Model) replayOptions(o SessionOptions) replay.SessionOptions {
	ro := replay.SessionOptions{Chain: o.Chain, ChainTime: o.ChainTime, Reserve: o.Reserve, Rollover: o.Rollover}
	if o.ChainTime == 0 && m.realTime {
		ro.ChainTime = RealTimeChain
	}
	if o.Reserve == 0 && (m.realTime || m.mode == "record") {
		ro.Reserve = int(m.t.Header.Context)
	}
	if !o.IgnoreStops {
		ro.StopIDs = m.stops
	}
	return ro
}

// Session is one context on a model. One call at a time may use it; another
// gets ErrBusy. Close may be called at any time.
type Session struct {
	m  *Model
	s  *replay.Session
	mu sync.Mutex // held by the call in progress

	reuse   bool
	endless bool // a full context rolls over

	statsMu sync.Mutex
	stats   GenerateStats
}

// NewSession makes a session with an empty context. Close frees its memory.
func (m *Model) NewSession(o SessionOptions) (*Session, error) {
	s, err := m.m.NewSession(m.replayOptions(o))
	if err != nil {
		return nil, err
	}
	return &Session{m: m, s: s, reuse: !o.NoReuse, endless: o.Rollover != replay.Rollover{}}, nil
}

// Replay returns the session of package replay below this one: prompts and
// chains by token id. It must not be used while a call of this session is in
// progress.
func (s *Session) Replay() *replay.Session { return s.s }

// Close frees the session's memory; a call in progress ends early. Twice is
// harmless.
func (s *Session) Close() error { return s.s.Close() }

// Reset empties the context.
func (s *Session) Reset() error { return s.s.Reset() }

// Len returns how many positions the context holds.
func (s *Session) Len() int { return s.s.Len() }

// Token is one generated token.
type Token struct {
	ID       int32
	Position int    // in the context; where that has rolled over, in the new one
	Text     string // what it adds to the text; whole UTF-8 sequences, so that it may be empty
	Stop     bool   // it is a stop id, or ends a stop string; no token follows

	// LogProb is the natural logarithm of its probability, Top those of the likeliest
	// tokens in its place, the likeliest first; where Sampling.LogProbs asks for them.
	LogProb float32
	Top     []LogProb
}

// GenerateOptions say how to generate.
type GenerateOptions struct {
	// MaxTokens bounds the tokens; 0 goes on to the end of the context, without
	// end if it rolls over.
	MaxTokens int
	// Sampling chooses tokens; the zero value is greedy.
	Sampling Sampling
	// Speculate drafts tokens by looking in the context for what followed the last ones
	// before, and verifies several at once (Options.Draft). The tokens are the same;
	// text that repeats itself comes faster. It is for greedy decoding: the error is
	// ErrSpeculateSampled for any other, and ErrNoVerify without drafts.
	Speculate bool
	// Stop are texts that end the generation. Neither they nor what follows is in
	// Text; a text that may become one is withheld until it is known, so that a
	// token's Text may be that of tokens before it.
	Stop []string
	// NoSpecial takes special tokens' names in the prompt as plain text.
	NoSpecial bool
	// Whole takes the prompt as the whole context and not as what follows it: what
	// both have in common from the start is kept, all else is taken back, and only the
	// rest of the prompt is prefilled. So each turn of a chat can be given in whole.
	Whole bool
	// ContinueText does not begin an empty context with the BOS that the model
	// asks for.
	ContinueText bool
}

// Generate appends a prompt to the context and streams what follows. The
// sequence ends with the last token, or with an error as its last element: that
// of ctx if it was cancelled, ErrContextFull if the context ended it before
// MaxTokens did. Breaking out of the loop leaves in the context what was
// received.
func (s *Session) Generate(ctx context.Context, prompt string, o GenerateOptions) iter.Seq2[Token, error] {
	return func(yield func(Token, error) bool) {
		start := time.Now()
		tok, err := s.m.Tokenizer()
		if err != nil {
			yield(Token{}, err)
			return
		}
		ids, err := tok.Encode(prompt, tokenizer.EncodeOptions{
			AddSpecial: (o.Whole || s.s.Len() == 0) && !o.ContinueText, ParseSpecial: !o.NoSpecial,
		})
		if err != nil {
			yield(Token{}, err)
			return
		}
		s.generate(ctx, ids, tok.NewContinuation(), o, start, yield)
	}
}

// GenerateIDs is Generate for a prompt of token ids; Text is empty if the model
// has no tokenizer.
func (s *Session) GenerateIDs(ctx context.Context, ids []int32, o GenerateOptions) iter.Seq2[Token, error] {
	return func(yield func(Token, error) bool) {
		start := time.Now()
		var dec *tokenizer.Decoder
		if tok, err := s.m.Tokenizer(); err == nil {
			dec = tok.NewContinuation()
		}
		s.generate(ctx, ids, dec, o, start, yield)
	}
}

// generation is one call of Generate.
type generation struct {
	s     *Session
	dec   *tokenizer.Decoder
	stops *stopStrings
	yield func(Token, error) bool
	start time.Time
	first time.Time
	limit int // tokens still wanted

	before replay.Stats // of the session, when the call began
}

func (s *Session) generate(ctx context.Context, ids []int32, dec *tokenizer.Decoder, o GenerateOptions, start time.Time, yield func(Token, error) bool) {
	if !s.mu.TryLock() {
		yield(Token{}, ErrBusy)
		return
	}
	defer s.mu.Unlock()
	if o.MaxTokens < 0 {
		yield(Token{}, fmt.Errorf("pianola: %d tokens", o.MaxTokens))
		return
	}
	stops, err := newStopStrings(o.Stop)
	if err != nil {
		yield(Token{}, err)
		return
	}
	g := &generation{s: s, dec: dec, stops: stops, yield: yield, start: start, limit: o.MaxTokens}
	if g.limit == 0 {
		g.limit = s.s.Context() // the context ends it first
		if s.endless {
			g.limit = math.MaxInt
		}
	}
	g.before = s.s.Stats()
	s.count(func(st *GenerateStats) { *st = GenerateStats{PromptTokens: len(ids)} })
	defer g.tally()
	if err := s.s.SetSampling(o.Sampling); err != nil {
		yield(Token{}, err)
		return
	}
	if o.Speculate && !o.Sampling.Greedy() {
		yield(Token{}, ErrSpeculateSampled)
		return
	}
	if err := s.s.SetSpeculation(o.Speculate); err != nil {
		yield(Token{}, err)
		return
	}
	next, stopped, err := s.prompt(ctx, ids, o.Whole)
	if err != nil {
		yield(Token{}, err)
		return
	}
	g.prefilled()
	if !g.emit(0, next, s.s.Len(), stopped) || stopped || g.limit == 0 {
		return
	}
	g.chains(ctx)
}

// prompt gives a prompt to the context, or makes it the context.
func (s *Session) prompt(ctx context.Context, ids []int32, whole bool) (next int32, stopped bool, err error) {
	switch {
	case !whole:
		return s.s.Prompt(ctx, ids)
	case !s.reuse:
		if err := s.s.Reset(); err != nil {
			return 0, false, err
		}
	}
	return s.s.Reprompt(ctx, ids)
}

// chains streams tokens, a chain at a time.
func (g *generation) chains(ctx context.Context) {
	s := g.s.s
	for g.limit > 0 {
		tokens, stopped, err := s.Chain(ctx, g.limit)
		g.tally()
		base := s.Len() - len(tokens) // the position of the token before the first of them
		for i, id := range tokens {
			last := stopped && i == len(tokens)-1
			if !g.emit(i, id, base+i+1, last) {
				if i < len(tokens)-1 {
					// What the caller did not see is not part of the context.
					if err := s.Rewind(base + i + 1); err != nil {
						_ = s.Reset()
					}
				}
				return
			}
		}
		if err != nil {
			g.yield(Token{}, err)
			return
		}
		if stopped {
			return
		}
	}
}

// emit hands token i of a chain over and reports whether to go on.
func (g *generation) emit(i int, id int32, position int, stop bool) bool {
	t := Token{ID: id, Position: position, Stop: stop}
	if of, top, ok := g.s.s.LogProbs(i, nil); ok {
		t.LogProb, t.Top = of.LogProb, top
	}
	g.limit--
	if g.dec != nil {
		if !stop {
			// An id without a text (the padding of a vocabulary) adds none.
			t.Text, _ = g.dec.Next(id)
		}
		if stop || g.limit == 0 {
			t.Text += g.dec.Flush()
		}
		var ends bool
		if t.Text, ends = g.stops.next(t.Text); ends {
			t.Stop = true
		} else if stop || g.limit == 0 {
			t.Text += g.stops.flush()
		}
	}
	took := time.Since(g.first)
	g.s.count(func(st *GenerateStats) { st.Tokens, st.Decode = st.Tokens+1, took })
	return g.yield(t, nil) && (stop || !t.Stop)
}
