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
	Position int    // in the context
	Text     string // the text that it adds, in whole UTF-8 sequences, so that it may be empty
	Stop     bool   // it is a stop token or completes a stop text; no token follows

	// LogProb is the natural logarithm of the token's probability, and Top has those of the
	// likeliest tokens at its position, the likeliest first. They are set with
	// Sampling.LogProbs.
	LogProb float32
	Top     []LogProb
}

// GenerateOptions are the settings of one generation. The zero value decodes greedily to the
// end of the context.
type GenerateOptions struct {
	// MaxTokens is the largest number of tokens. 0 continues to the end of the context, or
	// without end if the session rolls over.
	MaxTokens int
	// Sampling selects how tokens are chosen. The zero value is greedy.
	Sampling Sampling
	// Speculate enables speculative decoding, which requires TableOptions.Draft. It drafts
	// the tokens that followed the last ones earlier in the context, and verifies several
	// at once. The tokens are the same as without; text that repeats itself comes faster.
	// Sampling must be greedy.
	Speculate bool
	// Stop are texts that end the generation. The texts of the tokens contain neither a stop
	// text nor what follows it. A possible beginning of one is withheld until the tokens
	// after it decide.
	Stop []string
	// NoSpecial reads the names of special tokens in the prompt as plain text.
	NoSpecial bool
	// Whole makes the prompt the whole context instead of appending it. The tokens that both
	// have in common from the start stay, and only the others are prefilled. A chat can so
	// give its whole conversation for each turn.
	Whole bool
	// ContinueText leaves out the BOS token that the model asks for at the start of a
	// context.
	ContinueText bool
}

// Generate appends a prompt to the context and streams the tokens that follow. An error is
// the last element of the sequence: ErrNoTokenizer, ErrEmptyPrompt, ErrContextFull if the
// context ends before MaxTokens, ErrStopString, ErrNoSampler, ErrNoLogProbs, ErrNoVerify or
// ErrSpeculateSampled for options that the table or each other exclude, a *SamplingError, the
// cause of ctx, ErrBusy or ErrClosed. After a break, the context has the tokens that the loop
// received.
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

// GenerateIDs is Generate for a prompt of token ids, and may return a *TokenError. The texts of
// the tokens are empty if the model has no tokenizer.
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

// run holds the session for the whole generation. prompt returns the tokens to begin with, for
// a context of so many positions.
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
	if err := g.s.SetSampling(replay.Sampling(g.o.Sampling)); err != nil {
		return err
	}
	if g.o.Speculate && !g.o.Sampling.Greedy() {
		return ErrSpeculateSampled
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
			if g.emit(i, id, base+i+1, last) {
				continue
			}
			if i < len(tokens)-1 {
				// What the caller did not see is not part of the context.
				if err := s.Rewind(base + i + 1); err != nil {
					_ = s.Reset()
				}
			}
			return nil
		}
		if err != nil || stopped {
			return err
		}
	}
	return nil
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
	g.of.count(func(st *GenerateStats) { st.Tokens, st.Decode = st.Tokens+1, took })
	g.ended = !g.yield(t, nil)
	return !g.ended && (stop || !t.Stop)
}

// GenerateStats are the figures of one generation.
type GenerateStats struct {
	PromptTokens int // tokens of the prompt
	Tokens       int // generated tokens
	Prefilled    int // tokens that were prefilled, with the pending one of the call before
	Reused       int // tokens of the prompt that the context already held
	Drafted      int // tokens of drafts that were verified
	Accepted     int // tokens of drafts that were accepted

	FirstToken time.Duration // from the call to the first token
	Prefill    time.Duration // the part of FirstToken that the device worked
	Decode     time.Duration // from the first token to the last, with the time that the caller took
	Queue      time.Duration // time that submissions waited for those of other sessions
	Device     time.Duration // time that the device worked for the call

	Submissions int // to the device
	Waits       int // for the device

	// BytesRead is the number of bytes of weights and KV cache that the commands read by
	// their declarations. Activations are not counted, nor are savings by the hardware's
	// caches subtracted.
	BytesRead uint64

	// Memory is what all sessions of the model held on the device when the call ended, or
	// after its last chain.
	Memory Memory
}

// Stats returns the figures of the last generation, or those so far of one in progress.
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

// prefilled notes the times of the first token.
func (g *generation) prefilled() {
	g.first = time.Now()
	g.tally()
	g.of.count(func(st *GenerateStats) { st.FirstToken, st.Prefill = g.first.Sub(g.start), st.Device })
}

// tally notes what the call has asked of the device so far.
func (g *generation) tally() {
	after, before := g.s.Stats(), &g.before
	memory := g.of.m.Memory()
	g.of.count(func(st *GenerateStats) {
		st.Submissions, st.Waits = after.Submissions-before.Submissions, after.Waits-before.Waits
		st.Prefilled, st.Reused = after.Prefilled-before.Prefilled, after.Reused-before.Reused
		st.Queue, st.Device = after.QueueTime-before.QueueTime, after.DeviceTime-before.DeviceTime
		st.Drafted, st.Accepted = after.Drafted-before.Drafted, after.Accepted-before.Accepted
		st.BytesRead = after.BytesRead - before.BytesRead
		st.Memory = memory
	})
}

// Sampling selects how tokens are chosen. LogitBias comes first, then the penalties, then the
// filters and the temperature in the order of TableOptions.Sampler, then the draw. The zero
// value is greedy: the largest logit, the first of equals. docs/SAMPLING.md has the formulas.
type Sampling struct {
	// Temperature divides the logits. 0 and values below 10^-6 choose the largest logit
	// after bias and penalties.
	Temperature float64
	TopK        int     // keeps the k largest logits; 0 keeps all
	TopP        float64 // keeps the likeliest tokens whose probabilities reach p together; 0 and 1 keep all
	MinP        float64 // keeps tokens with at least this share of the likeliest token's probability; 0 keeps all

	// RepeatPenalty divides the positive and multiplies the negative logits of tokens among
	// the last RepeatLastN. 0 and 1 change nothing.
	RepeatPenalty    float64
	PresencePenalty  float64 // is subtracted from the logits of those tokens
	FrequencyPenalty float64 // is subtracted once for each time that they occur
	// RepeatLastN is the number of last tokens that the penalties look at, the prompt
	// included. 0 selects DefaultRepeatLastN, -1 the whole context.
	RepeatLastN int

	// LogitBias is added to the logits of tokens, by id. Minus infinity bans a token. At most
	// MaxLogitBias tokens have one.
	LogitBias map[int32]float64

	// LogProbs is the number of likeliest tokens, at most MaxLogProbs, whose log-probability
	// comes with each token and its own: natural logarithms of the softmax of the model's
	// logits, before bias, penalties, filters and temperature. 0 returns none. It requires
	// TableOptions.LogProbs.
	LogProbs int

	// Seed fixes the draws. A draw depends on the seed, the position and the number of
	// rollovers only, so that the same seed gives the same tokens in every mode and with
	// every chain length.
	Seed uint64
}

// Greedy reports whether Sampling chooses the largest logit of the model.
func (o Sampling) Greedy() bool {
	r := replay.Sampling(o)
	return r.Greedy()
}

// DefaultSampling returns llama.cpp's defaults, with seed 0.
func DefaultSampling() Sampling { return Sampling(replay.DefaultSampling()) }

// Limits and defaults of Sampling.
const (
	DefaultRepeatLastN = replay.DefaultRepeatLastN
	MaxLogProbs        = sampler.MaxRanked
	MaxLogitBias       = sampler.MaxBias
)

// LogProb is a token with the natural logarithm of its probability, minus infinity for a token
// that the model excludes.
type LogProb struct {
	ID      int32
	LogProb float32
}

// SamplingError reports a field of Sampling that cannot be used.
type SamplingError = replay.SamplingError

// ErrStopString is the error of a text of GenerateOptions.Stop that is empty or not UTF-8.
var ErrStopString = errors.New("pianola: a stop text must be non-empty UTF-8")

// stopStrings ends a text before the first of some strings. What may become one
// is withheld until it is known.
type stopStrings struct {
	list []string
	tail string // the beginning of one, at the end of the text so far
}

func newStopStrings(list []string) (*stopStrings, error) {
	for _, s := range list {
		if s == "" || !utf8.ValidString(s) {
			return nil, fmt.Errorf("%w: %q", ErrStopString, s)
		}
	}
	return &stopStrings{list: list}, nil
}

// next returns what can be shown of a text that follows, and whether a stop string
// ends it there.
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

// flush returns what was withheld, at the end of the text.
func (p *stopStrings) flush() string {
	tail := p.tail
	p.tail = ""
	return tail
}
