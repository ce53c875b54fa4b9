// Package local makes a model of the library a model of the service: it renders conversations with
// the model's chat template, generates in the model's batch, and computes embeddings.
//
// The package knows the library and the interface of package engine. It must not know HTTP or any
// protocol.
package local

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/chat"
	"github.com/pianola-engine/pianola/internal/pages"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/table"
)

// Options are the settings of Open.
type Options struct {
	// Library are the options of pianola.Open. Parallel must be at least 1. Open sets the options of the
	// table that the service needs: Hidden and LogProbs, and AllLogits for a model that reranks.
	Library pianola.Options
	// Speculate selects speculative decoding, for models whose tables have joint passes.
	Speculate bool
	// Template is the text of a chat template to use instead of the model's.
	Template string
	// Rerank is the text for reranking to use instead of the model's; see rerankKey.
	Rerank string
	// Now is the clock of templates that print the date; nil means time.Now.
	Now func() time.Time
}

// Model is a loaded model. It implements engine.Model.
type Model struct {
	m       *pianola.Model
	drafts  bool // answers speculate
	tok     *pianola.Tokenizer
	info    engine.Info
	now     func() time.Time
	marks   *marker
	pooling pianola.Pooling
	rerank  string   // the text for reranking, or ""
	answers [2]int32 // tokens of yes and no

	sources   chat.Sources
	talk      *template // without tools; nil if the model has no chat template
	talkTools *template // with tools
}

var _ engine.Model = (*Model)(nil)

// Open loads a model. The errors are those of pianola.Open, and errors of the model's chat template.
func Open(ctx context.Context, path string, o Options) (*Model, error) {
	lo, err := o.library(path)
	if err != nil {
		return nil, err
	}
	lib, err := pianola.Open(ctx, path, lo)
	if err != nil {
		return nil, err
	}
	m := &Model{m: lib, now: o.Now}
	m.drafts = o.Speculate && slices.ContainsFunc(lib.Table().Programs, func(p table.Program) bool { return strings.HasPrefix(p.Name, sequence.ProgramFill) })
	if err := m.prepare(o); err != nil {
		return nil, errors.Join(err, lib.Close())
	}
	return m, nil
}

// library returns the options of pianola.Open and pianola.Plan, and sets Rerank if the model has such a text.
func (o *Options) library(path string) (pianola.Options, error) {
	lo := o.Library
	if lo.Parallel < 1 {
		return lo, fmt.Errorf("local: Parallel is %d", lo.Parallel)
	}
	if o.Rerank == "" {
		h, err := pianola.OpenHeader(path, lo.Architectures)
		if err != nil {
			return lo, err
		}
		o.Rerank = rerankText(h.Directory())
	}
	lo.Table.Hidden, lo.Table.LogProbs, lo.Table.AllLogits = true, true, o.Rerank != ""
	return lo, nil
}

// Size returns the bytes of memory that a model will need. It reads no weights.
func Size(path string, o Options) (int64, error) {
	lo, err := o.library(path)
	if err != nil {
		return 0, err
	}
	p, err := pianola.Plan(path, lo)
	if err != nil {
		return 0, err
	}
	return int64(min(p.Total(1), math.MaxInt64)), nil // a session's memory is that of the pages of all
}

// prepare reads what the model's files say about texts.
func (m *Model) prepare(o Options) (err error) {
	if m.now == nil {
		m.now = time.Now
	}
	c, dir := m.m.Config(), m.m.Directory()
	m.info = engine.Info{
		Architecture: c.Arch, Context: int(m.m.Table().Header.Context), Vocabulary: c.Vocab, Width: int(m.m.Table().Header.Width),
		Parallel: o.Library.Parallel, PagePositions: pages.Size, MaxLogProbs: pianola.MaxLogProbs + 1, Embeds: true,
	}
	for _, t := range dir.Tensors() {
		n := int64(1)
		for _, d := range t.Shape {
			n *= int64(d)
		}
		m.info.Parameters += n
	}
	if m.tok, err = pianola.LoadTokenizer(dir); err != nil {
		return fmt.Errorf("%w: %w", pianola.ErrNoTokenizer, err)
	}
	m.marks = newMarker(m.tok)
	m.pooling = poolingOf(dir)
	if m.rerank = o.Rerank; m.rerank != "" {
		if err := m.prepareRerank(); err != nil {
			return err
		}
	}
	return m.prepareChat(o.Template)
}

// Info returns the model's properties.
func (m *Model) Info() engine.Info { return m.info }

// Library returns the model of the library.
func (m *Model) Library() *pianola.Model { return m.m }

// Encode returns the tokens of a text.
func (m *Model) Encode(text string, o engine.EncodeOptions) ([]int32, error) {
	return m.tok.Encode(text, pianola.EncodeOptions{AddSpecial: o.AddSpecial, ParseSpecial: o.ParseSpecial})
}

// Piece returns the bytes that a token stands for, and the name of a special token.
func (m *Model) Piece(id int32) []byte {
	name, ok := m.tok.Token(id)
	if !ok {
		return nil
	}
	if m.tok.Special(id) {
		return []byte(name)
	}
	// Some tokenizers drop a space at the beginning of a text, but none at the second token.
	once := len(m.tok.Decode([]int32{id}))
	return []byte(m.tok.Decode([]int32{id, id})[once:])
}

// Load returns the load of the model's scheduler.
func (m *Model) Load() engine.Load { return engine.Load(m.m.Load()) }

// Close closes the model. Generations in progress end with engine.ErrClosed.
func (m *Model) Close() error { return m.m.Close() }

// failure returns an error of the library as one of package engine.
func failure(err error) error {
	var busy *pianola.OverloadError
	var sampling *pianola.SamplingError
	var token *pianola.TokenError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &busy):
		return &engine.BusyError{RetryAfter: busy.Wait}
	case errors.As(err, &sampling):
		return &engine.RequestError{Param: sampling.Field, Why: fmt.Sprintf("%v %s", sampling.Value, sampling.What)}
	case errors.As(err, &token):
		return &engine.RequestError{Param: "prompt", Why: fmt.Sprintf("token %d is not in the vocabulary of %d tokens", token.ID, token.Vocab)}
	case errors.Is(err, pianola.ErrEmptyPrompt):
		return &engine.RequestError{Param: "prompt", Why: "the prompt has no tokens"}
	case errors.Is(err, pianola.ErrStopString):
		return &engine.RequestError{Param: "stop", Why: "a stop text must be non-empty UTF-8"}
	case errors.Is(err, pianola.ErrContextFull), errors.Is(err, pianola.ErrNoPages):
		return engine.ErrContextFull
	case errors.Is(err, pianola.ErrDeadline):
		return engine.ErrDeadline
	case errors.Is(err, pianola.ErrClosed):
		return engine.ErrClosed
	case errors.Is(err, pianola.ErrNoSampler), errors.Is(err, pianola.ErrNoLogProbs):
		return &engine.UnsupportedError{Why: err.Error()}
	}
	return err
}

// unit scales a vector to length 1, unless it is zero.
func unit(v []float32) {
	sum := 0.0
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	if sum == 0 {
		return
	}
	scale := 1 / math.Sqrt(sum)
	for i, x := range v {
		v[i] = float32(float64(x) * scale)
	}
}
