package pianola

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pianola-engine/pianola/internal/sampler"
	"github.com/pianola-engine/pianola/internal/tokenizer"
	"github.com/pianola-engine/pianola/replay"
)

// Token is one generated token.
type Token struct {
	ID       int32
	Position int    // position in the context, from 0
	Text     string // text that the token adds; empty while a UTF-8 sequence is incomplete
	Stop     bool   // whether this is a stop token or completes a stop text, and so the last token

	// LogProb is the natural logarithm of the token's probability, and Top lists the most
	// probable tokens at its position in descending order. Sampling.LogProbs enables both.
	LogProb float32
	Top     []LogProb
}

// GenerateOptions are the settings of one generation. The zero value decodes greedily up to a stop
// token or the end of the context.
type GenerateOptions struct {
	// MaxTokens is the largest number of tokens to generate. 0 sets no limit: the generation
	// ends when the context is full, or never if SessionOptions.Rollover is set. A negative
	// number is an error.
	MaxTokens int
	// Sampling selects how tokens are chosen. The zero value is greedy.
	Sampling Sampling
	// Speculate enables speculative decoding. Without Options.Parallel it requires greedy sampling and
	// TableOptions.Draft. If the last tokens occurred earlier in the context, the tokens that followed
	// them there are the draft, and the model verifies it in one pass. The output does not
	// change; repetitive text is faster.
	Speculate bool
	// Stop lists texts that end the generation. Token.Text contains neither a stop text nor
	// anything after it. Text that may be the beginning of a stop text is withheld until the
	// next tokens decide.
	Stop []string
	// NoSpecial encodes the names of special tokens in the prompt as plain text. Set it for
	// prompts that users supply.
	NoSpecial bool
	// Whole replaces the context by the prompt instead of appending the prompt. Their common
	// prefix is kept, and only the tokens after it are prefilled.
	Whole bool
	// Request has the priority and the deadline of the call, and whether it shares KV pages.
	Request RequestOptions
	// ContinueText omits the BOS token that the model expects at the start of a context.
	ContinueText bool
}

// Generate appends a prompt to the context and streams the tokens that the model generates. If the
// loop is left early, or ctx ends during it, the context contains the tokens that the loop received.
//
// An error is the last element of the sequence: ErrNoTokenizer, ErrEmptyPrompt, ErrContextFull if
// the context is full before MaxTokens, ErrStopString, ErrSpeculateSampled, a *SamplingError, the
// cause of ctx, ErrBusy or ErrClosed; or, if the table lacks a program that the options need,
// ErrNoSampler, ErrNoLogProbs or ErrNoVerify.
func (s *Session) Generate(ctx context.Context, prompt string, o GenerateOptions) iter.Seq2[Token, error] {
	return func(yield func(Token, error) bool) {
		g := s.generation(o, yield)
		tok, err := s.m.tokenizer()
		if err != nil {
			yield(Token{}, err)
			return
		}
		g.dec = tok.NewContinuation()
		g.run(ctx, func(position int) ([]int32, error) {
			return tok.Encode(prompt, tokenizer.EncodeOptions{
				AddSpecial: (o.Whole || position == 0) && !o.ContinueText, ParseSpecial: !o.NoSpecial,
			})
		})
	}
}

// GenerateIDs is like Generate, but takes token ids as the prompt. The error may also be a
// *TokenError. If the model has no tokenizer, Token.Text is empty.
func (s *Session) GenerateIDs(ctx context.Context, ids []int32, o GenerateOptions) iter.Seq2[Token, error] {
	return func(yield func(Token, error) bool) {
		g := s.generation(o, yield)
		if tok, err := s.m.tokenizer(); err == nil {
			g.dec = tok.NewContinuation()
		}
		g.run(ctx, func(int) ([]int32, error) { return ids, nil })
	}
}

// generation is one call of Generate.
type generation struct {
	of    *Session
	s     *replay.Session // the same, held
	o     GenerateOptions
	dec   *tokenizer.Decoder
	stops *stopStrings
	yield func(Token, error) bool
	ended bool // yield has returned false
	start time.Time
	first time.Time
	limit int // tokens still wanted

	before replay.Stats // of the session, when the call began
}

func (s *Session) generation(o GenerateOptions, yield func(Token, error) bool) *generation {
	return &generation{of: s, o: o, yield: yield, start: time.Now(), limit: o.MaxTokens}
}

// run holds the session for the whole generation. prompt returns the prompt's tokens, given the
// number of positions in the context.
func (g *generation) run(ctx context.Context, prompt func(position int) ([]int32, error)) {
	err := g.of.s.Hold(func(held *replay.Session) error {
		g.s = held
		ids, err := prompt(held.Len())
		if err != nil {
			return err
		}
		return g.generate(ctx, ids)
	})
	if err != nil && !g.ended {
		g.yield(Token{}, err)
	}
}

func (g *generation) generate(ctx context.Context, ids []int32) (err error) {
	if g.o.MaxTokens < 0 {
		return fmt.Errorf("pianola: MaxTokens is %d", g.o.MaxTokens)
	}
	if g.stops, err = newStopStrings(g.o.Stop); err != nil {
		return err
	}
	if g.limit == 0 {
		g.limit = g.s.Context() // the context ends it first
		if g.of.endless {
			g.limit = math.MaxInt
		}
	}
	g.before = g.s.Stats()
	g.of.count(func(st *GenerateStats) { *st = GenerateStats{PromptTokens: len(ids)} })
	defer g.tally()
	if err := g.s.SetRequest(g.o.Request); err != nil {
		return err
	}
	// Ends the request, so that its figures are complete, and its deadline is not that of later calls.
	defer func() { _ = g.s.SetRequest(replay.RequestOptions{}) }()
	if err := g.s.SetSampling(replay.Sampling(g.o.Sampling)); err != nil {
		return err
	}
	if err := g.s.SetSpeculation(g.o.Speculate); err != nil {
		return err
	}
	prompt := g.s.Prompt
	if g.o.Whole {
		prompt = g.s.Reprompt
	}
	next, stopped, err := prompt(ctx, ids)
	if err != nil {
		return err
	}
	g.prefilled()
	if !g.emit(0, next, g.s.Len(), stopped) || stopped || g.limit == 0 {
		return nil
	}
	return g.chains(ctx)
}

// chains streams tokens, a chain at a time.
func (g *generation) chains(ctx context.Context) error {
	s := g.s
	for g.limit > 0 {
		tokens, stopped, err := s.Chain(ctx, g.limit)
		g.tally()
		base := s.Len() - len(tokens) // the position of the token before the first of them
		for i, id := range tokens {
			last := stopped && i == len(tokens)-1
			if !g.emit(i, id, base+i+1, last) {
				g.forget(base + i + 1)
				return nil
			}
			// What was decoded before ctx ended is handed over. If ctx ends while the caller handles a
			// token, those behind it are not: that might take longer than decoding them.
			if err == nil && ctx.Err() != nil && i < len(tokens)-1 {
				g.forget(base + i + 1)
				return context.Cause(ctx)
			}
		}
		if err != nil || stopped {
			return err
		}
	}
	return nil
}

// forget removes the tokens behind the first n, which the caller did not receive, from the context.
func (g *generation) forget(n int) {
	if n < g.s.Len() && g.s.Rewind(n) != nil {
		_ = g.s.Reset()
	}
}

// emit hands token i of a chain over and reports whether to go on.
func (g *generation) emit(i int, id int32, position int, stop bool) bool {
	t := Token{ID: id, Position: position, Stop: stop}
	if of, top, ok := g.s.LogProbs(i, nil); ok {
		t.LogProb = of.LogProb
		for _, l := range top {
			t.Top = append(t.Top, LogProb(l))
		}
	}
	g.limit--
	if g.dec != nil {
		if !stop {
			// An id without a text, such as the padding of a vocabulary, adds none.
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
	g.of.count(func(st *GenerateStats) { st.Tokens, st.Decode = st.Tokens+1, took })
	g.ended = !g.yield(t, nil)
	return !g.ended && (stop || !t.Stop)
}

// GenerateStats are the figures of one generation.
type GenerateStats struct {
	PromptTokens int // tokens of the prompt
	Tokens       int // generated tokens
	Prefilled    int // tokens that were prefilled, the pending token of the previous call included
	Reused       int // prompt tokens that the context already held
	Restored     int // prompt tokens that were read back from copies of pages (Options.Spill)
	Drafted      int // draft tokens that were verified
	Accepted     int // draft tokens that were accepted

	FirstToken time.Duration // time from the call to the first token
	Prefill    time.Duration // the part of FirstToken in which the device worked
	Decode     time.Duration // time from the first token to the last, the loop's body included
	Queue      time.Duration // time in which submissions waited for those of other sessions
	Device     time.Duration // time in which the device worked

	Submissions int // submissions to the device
	Waits       int // waits for the device

	Request   uint64 // with Options.Parallel, the number of the request
	BatchRows int    // with Options.Parallel, the sum over Submissions of the rows that were decoded together

	// BytesRead is the number of bytes of weights and KV cache that the commands read
	// according to their declarations. It does not include activations, and hardware caches
	// do not reduce it.
	BytesRead uint64

	// Memory is the memory of the model and all its sessions after the last chain of the
	// call.
	Memory Memory
}

// Stats returns the figures of the last generation, or the figures so far of one in progress.
func (s *Session) Stats() GenerateStats {
	s.statsMu.Lock()
	defer s.statsMu.Unlock()
	return s.stats
}

func (s *Session) count(f func(st *GenerateStats)) {
	s.statsMu.Lock()
	defer s.statsMu.Unlock()
	f(&s.stats)
}

// prefilled records the times of the first token.
func (g *generation) prefilled() {
	g.first = time.Now()
	g.tally()
	g.of.count(func(st *GenerateStats) { st.FirstToken, st.Prefill = g.first.Sub(g.start), st.Device })
}

// tally records the call's use of the device so far.
func (g *generation) tally() {
	after, before := g.s.Stats(), &g.before
	memory := g.of.m.Memory()
	g.of.count(func(st *GenerateStats) {
		st.Submissions, st.Waits = after.Submissions-before.Submissions, after.Waits-before.Waits
		st.Prefilled, st.Reused = after.Prefilled-before.Prefilled, after.Reused-before.Reused
		st.Restored = after.Restored - before.Restored
		st.Queue, st.Device = after.QueueTime-before.QueueTime, after.DeviceTime-before.DeviceTime
		st.Drafted, st.Accepted = after.Drafted-before.Drafted, after.Accepted-before.Accepted
		st.Request, st.BatchRows = after.Request, after.BatchRows-before.BatchRows
		st.BytesRead = after.BytesRead - before.BytesRead
		st.Memory = memory
	})
}

// Sampling selects how tokens are chosen. The stages are the logit bias, the penalties, the filters
// and the temperature in the order of TableOptions.Sampler, and the draw. The zero value is greedy:
// it chooses the token with the largest logit, and the lowest id among equals. docs/SAMPLING.md has
// the formulas.
type Sampling struct {
	// Temperature divides the logits. Values below 1e-6, 0 included, choose the largest logit
	// after bias and penalties.
	Temperature float64
	TopK        int     // keep the k largest logits; 0 keeps all
	TopP        float64 // keep the most probable tokens up to a total probability of p; 0 and 1 keep all
	MinP        float64 // keep tokens with at least this fraction of the largest probability; 0 keeps all

	// RepeatPenalty divides the positive and multiplies the negative logits of tokens among
	// the last RepeatLastN. 0 and 1 change nothing.
	RepeatPenalty    float64
	PresencePenalty  float64 // subtracted from the logits of tokens among the last RepeatLastN
	FrequencyPenalty float64 // subtracted from these logits for each occurrence
	// RepeatLastN is the number of tokens at the end of the context, the prompt included,
	// that penalties apply to. 0 selects DefaultRepeatLastN, and -1 the whole context.
	RepeatLastN int

	// LogitBias is added to the logits of tokens, by id, for at most MaxLogitBias tokens.
	// Minus infinity bans a token.
	LogitBias map[int32]float64

	// LogProbs is the number of tokens in Token.Top, at most MaxLogProbs; 0 returns no
	// log-probabilities. They are natural logarithms of the softmax of the model's logits
	// before bias, penalties, filters and temperature. It requires TableOptions.LogProbs.
	LogProbs int

	// Seed makes the draws reproducible. A draw depends only on the seed, the position and
	// the number of rollovers, so that a seed gives the same tokens in every mode and with
	// every chain length.
	Seed uint64
}

// Greedy reports whether the largest logit of the model is always chosen.
func (o Sampling) Greedy() bool {
	r := replay.Sampling(o)
	return r.Greedy()
}

// DefaultSampling returns the defaults of llama.cpp, with seed 0.
func DefaultSampling() Sampling { return Sampling(replay.DefaultSampling()) }

// Limits and defaults of Sampling.
const (
	DefaultRepeatLastN = replay.DefaultRepeatLastN
	MaxLogProbs        = sampler.MaxRanked
	MaxLogitBias       = sampler.MaxBias
)

// LogProb is a token with the natural logarithm of its probability, which is minus infinity for a
// token that the model excludes.
type LogProb struct {
	ID      int32
	LogProb float32
}

// SamplingError reports an invalid field of Sampling. Its fields are Field, the name of the setting
// such as "temperature", Value, and What, the reason such as "is not in 0..100".
type SamplingError = replay.SamplingError

// ErrStopString reports an element of GenerateOptions.Stop that is empty or not valid UTF-8.
var ErrStopString = errors.New("pianola: a stop text must be non-empty UTF-8")

// stopStrings ends a text before the first of several strings. It withholds text that may be the
// beginning of one.
type stopStrings struct {
	list []string
	tail string // withheld end of the text so far
}

func newStopStrings(list []string) (*stopStrings, error) {
	for _, s := range list {
		if s == "" || !utf8.ValidString(s) {
			return nil, fmt.Errorf("%w: %q", ErrStopString, s)
		}
	}
	return &stopStrings{list: list}, nil
}

// next appends text and returns the part that can be shown, and whether a stop string ends it.
func (p *stopStrings) next(text string) (show string, stop bool) {
	text = p.tail + text
	end := -1
	for _, s := range p.list {
		if i := strings.Index(text, s); i >= 0 && (end < 0 || i < end) {
			end = i
		}
	}
	if end >= 0 {
		p.tail = ""
		return text[:end], true
	}
	keep := 0
	for _, s := range p.list {
		for n := min(len(s)-1, len(text)); n > keep; n-- {
			if strings.HasSuffix(text, s[:n]) {
				keep = n
			}
		}
	}
	p.tail = text[len(text)-keep:]
	return text[:len(text)-keep], false
}

// flush returns the withheld text at the end of the generation.
func (p *stopStrings) flush() string {
	tail := p.tail
	p.tail = ""
	return tail
}
