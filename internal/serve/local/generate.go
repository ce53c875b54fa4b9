package local

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/serve/engine"
)

// Generate generates after a prompt, in a session of its own.
func (m *Model) Generate(ctx context.Context, g engine.Generation, yield func(engine.Token) bool) (r engine.Result, err error) {
	start := time.Now()
	ids := g.Prompt.IDs
	if ids == nil {
		if ids, err = m.Encode(g.Prompt.String, engine.EncodeOptions{AddSpecial: true}); err != nil {
			return r, &engine.RequestError{Param: "prompt", Why: err.Error()}
		}
	}
	r.Prompt = len(ids)
	if len(ids) >= m.info.Context {
		return r, engine.ErrContextFull
	}
	s, err := m.m.NewSession(pianola.SessionOptions{IgnoreStops: g.IgnoreStops, Space: space(g.User)})
	if err != nil {
		return r, failure(err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	end := ends{m: m, stop: g.Stop, dec: m.tok.NewDecoder()}
	end.find()
	r.Reason = engine.Length
	for t, failed := range s.GenerateIDs(ctx, ids, m.options(&g)) {
		if failed != nil {
			err = failure(failed)
			break
		}
		if r.Tokens++; r.Tokens == 1 {
			r.FirstToken = time.Since(start)
		}
		of := m.token(&t, &g, &end)
		more := yield(of)
		if t.Stop || end.stopped {
			r.Reason, r.StopText = engine.Stopped, end.text()
			break
		}
		if !more {
			r.Reason = engine.Left
			break
		}
	}
	st := s.Stats()
	r.Cached, r.Queue = st.Reused+st.Restored, st.Queue
	if errors.Is(err, engine.ErrContextFull) && r.Tokens > 0 {
		err = nil // the answer ends here
	}
	return r, err
}

// space returns the namespace of a user's pages. A client can choose a part of the name, of any length.
func space(user string) string {
	if len(user) <= sha256.Size {
		return user
	}
	sum := sha256.Sum256([]byte(user))
	return string(sum[:])
}

// options returns the library's options of a generation.
func (m *Model) options(g *engine.Generation) pianola.GenerateOptions {
	p := g.Sampling
	o := pianola.GenerateOptions{
		MaxTokens: g.MaxTokens, Stop: g.Stop, Whole: true, ContinueText: true,
		Sampling: pianola.Sampling{
			Temperature: p.Temperature, TopK: p.TopK, TopP: p.TopP, MinP: p.MinP, RepeatPenalty: p.RepeatPenalty,
			PresencePenalty: p.PresencePenalty, FrequencyPenalty: p.FrequencyPenalty, LogitBias: p.LogitBias, Seed: p.Seed,
		},
		Request: pianola.RequestOptions{Priority: g.Priority, Within: g.Within},
	}
	if p.LogProbs > 0 {
		o.Sampling.LogProbs = max(1, p.LogProbs-1) // the library gives a token's own with the first alternative
	}
	o.Speculate = m.drafts
	if g.CachePrompt != nil && !*g.CachePrompt {
		o.Request.Prefix = pianola.PrefixOff
	}
	return o
}

// token returns a token of the library as one of package engine.
func (m *Model) token(t *pianola.Token, g *engine.Generation, end *ends) engine.Token {
	of := engine.Token{ID: t.ID, Text: t.Text}
	end.add(t)
	if !t.Stop && !end.stopped && m.tok.Special(t.ID) {
		of.Special, _ = m.tok.Token(t.ID)
	}
	if n := g.Sampling.LogProbs; n > 0 {
		of.LogProb = t.LogProb
		for _, l := range t.Top[:min(len(t.Top), n-1)] {
			of.Top = append(of.Top, engine.LogProb(l))
		}
	}
	return of
}

// ends finds the stop text that ended a generation.
type ends struct {
	m    *Model
	stop []string
	ids  []int32 // the special tokens whose names are in stop, which have no text

	dec     *pianola.Decoder
	all     strings.Builder // the text of all tokens
	shown   int             // the length of the text that the library has returned
	stopped bool            // at a token of ids
	last    int32
}

// find finds the special tokens among the stop texts.
func (e *ends) find() {
	for _, s := range e.stop {
		if id, ok := e.m.tok.ID(s); ok && e.m.tok.Special(id) {
			e.ids = append(e.ids, id)
		}
	}
}

func (e *ends) add(t *pianola.Token) {
	e.last, e.shown, e.stopped = t.ID, e.shown+len(t.Text), slices.Contains(e.ids, t.ID)
	if len(e.stop) > 0 {
		text, _ := e.dec.Next(t.ID) // an id without a text adds none
		e.all.WriteString(text)
		if t.Stop {
			e.all.WriteString(e.dec.Flush())
		}
	}
}

// text returns the stop text at which the generation ended, or "" if it ended at a stop token.
func (e *ends) text() string {
	if slices.Contains(e.ids, e.last) {
		name, _ := e.m.tok.Token(e.last)
		return name
	}
	rest, found := e.all.String()[min(e.shown, e.all.Len()):], ""
	for _, s := range e.stop {
		if strings.HasPrefix(rest, s) && (found == "" || len(s) < len(found)) {
			found = s
		}
	}
	return found
}
