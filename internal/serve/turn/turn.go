// Package turn runs one request on a model: it renders the conversation, generates the choices at
// the same time, and turns tokens into the events that every protocol of the service needs. It
// reports the request's progress to package observe.
//
// The package knows no protocol. Those who call it translate requests and events.
package turn

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/observe"
)

// Request is a request for one or more answers.
type Request struct {
	// Conversation is what a chat template renders; with nil, the prompt of Generation is used as it is.
	Conversation *engine.Conversation
	Generation   engine.Generation
	// Choices is the number of answers, at least 1. Answer i is drawn with the seed Generation.Sampling.Seed+i.
	Choices int
	// Whole asks for no events before a choice ends: events of the same kind are joined.
	Whole bool
	// OneCall ends an answer after its first call of a tool.
	OneCall bool
}

// Event is a piece of an answer.
type Event struct {
	Choice int
	Delta  engine.Delta // empty in the last event of a choice
	// Tokens are the tokens that have come since the choice's last event, for log-probabilities. The
	// token that ended the generation is not among them if it stands for no text.
	Tokens []engine.Token
	// Done is set in the last event of a choice.
	Done *Done
}

// Done is the end of a choice.
type Done struct {
	Result engine.Result
	Calls  int // number of tool calls
}

// Reason returns the reason for which a choice ended, as OpenAI's protocol names it: "stop", "length"
// or "tool_calls".
func (d *Done) Reason() string {
	switch {
	case d.Result.Reason == engine.Length:
		return "length"
	case d.Calls > 0:
		return "tool_calls"
	}
	return "stop"
}

// Usage are the tokens of a request. The prompt counts once, however many choices it has.
type Usage struct {
	Prompt, Cached, Generated int
	Reasoning                 int // generated tokens before the answer proper
}

// Run runs a request and calls emit with its events, from one goroutine at a time. An error of emit,
// as of a client that is gone, ends all choices and is returned. Other errors are those of
// engine.Model; an error of one choice ends the others. The usage is valid after an error too.
//
// Run reports the start, the tokens and the ends of generations to observe.From(ctx). The caller
// reports that the request is queued, that it failed, and that it was cancelled.
func Run(ctx context.Context, m engine.Model, r *Request, emit func(Event) error) (Usage, error) {
	g := r.Generation
	parse := func() engine.Answer { return plain{} }
	if c := r.Conversation; c != nil {
		p, err := m.Chat(ctx, *c)
		if err != nil {
			return Usage{}, err
		}
		g.Prompt, g.Stop, parse = engine.Text{IDs: p.IDs}, slices.Concat(g.Stop, p.Stop), p.Answer
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	observe.From(ctx).Started()

	events := make(chan Event)
	choices := make([]choice, max(1, r.Choices))
	var running sync.WaitGroup
	for i := range choices {
		c := &choices[i]
		*c = choice{index: i, whole: r.Whole, one: r.OneCall, answer: parse(), events: events}
		running.Go(func() {
			defer func() {
				if c.panicked = recover(); c.panicked != nil {
					cancel(context.Canceled)
				}
			}()
			of := g
			of.Sampling.Seed += uint64(i)
			if c.run(ctx, m, of); c.err != nil {
				cancel(c.err) // the others end with this cause
			}
		})
	}
	go func() { running.Wait(); close(events) }()
	var gone error
	for e := range events {
		if gone != nil {
			continue
		}
		if gone = emit(e); gone != nil {
			cancel(gone)
		}
	}
	return finish(ctx, choices, gone)
}

// finish returns the usage and the error of a request whose choices have ended.
func finish(ctx context.Context, choices []choice, gone error) (Usage, error) {
	var u Usage
	err := gone
	for i := range choices {
		c := &choices[i]
		if c.panicked != nil {
			panic(c.panicked) // in the goroutine of the caller, who may recover
		}
		u.Generated += c.result.Tokens
		u.Reasoning += c.reasoning
		if i == 0 || c.result.Prompt > 0 && c.result.Cached < u.Cached { // later choices find the first one's prompt
			u.Cached = c.result.Cached
		}
		u.Prompt = max(u.Prompt, c.result.Prompt)
		if err == nil && c.err != nil {
			err = context.Cause(ctx) // the first error
		}
	}
	observe.From(ctx).Prompt(u.Prompt, u.Cached)
	return u, err
}

// choice is one answer while it is generated.
type choice struct {
	index  int
	whole  bool
	one    bool // see Request.OneCall
	answer engine.Answer
	events chan<- Event

	tokens    []engine.Token // since the last event
	unplaced  int            // tokens since the last delta, of a kind that is not known yet
	thinking  bool           // the last delta was reasoning
	calls     int
	full      bool // has its only call
	joined    joined
	result    engine.Result
	reasoning int
	err       error
	panicked  any
}

// run generates the answer.
func (c *choice) run(ctx context.Context, m engine.Model, g engine.Generation) {
	watch := observe.From(ctx)
	c.result, c.err = m.Generate(ctx, g, func(t engine.Token) bool {
		watch.Tokens(1)
		c.tokens = append(c.tokens, t)
		c.unplaced++
		return c.send(ctx, c.answer.Add(t))
	})
	rest := c.answer.End()
	if c.err == nil && ctx.Err() != nil {
		c.err = context.Cause(ctx)
	}
	if c.err != nil {
		return
	}
	c.dropStop()
	open := c.send(ctx, rest) || c.full
	if c.whole {
		open = c.flush(ctx)
	}
	if c.thinking {
		c.reasoning += c.unplaced
	}
	done := &Done{c.result, c.calls}
	if !open || !c.put(ctx, Event{Choice: c.index, Done: done}) {
		c.err = context.Cause(ctx)
		return
	}
	watch.Finished(done.Reason())
}

// dropStop removes the stop token from the tokens of the next event.
func (c *choice) dropStop() {
	n := len(c.tokens) - 1
	if n < 0 || c.result.Reason != engine.Stopped {
		return
	}
	if last := &c.tokens[n]; last.Text == "" && last.Special == "" {
		c.tokens = c.tokens[:n]
	}
}

// send sends deltas, or joins them if the answer is wanted whole.
func (c *choice) send(ctx context.Context, deltas []engine.Delta) bool {
	for _, d := range deltas {
		if c.thinking = d.Reasoning != ""; c.thinking {
			c.reasoning += c.unplaced
		}
		c.unplaced = 0
		if d.Call != nil && d.Call.Index > 0 && c.one {
			c.full = true
		}
		if c.full {
			return false
		}
		if d.Call != nil {
			c.calls = max(c.calls, d.Call.Index+1)
		}
		if c.whole {
			c.joined.add(d)
		} else if !c.put(ctx, Event{Choice: c.index, Delta: d}) {
			return false
		}
	}
	return ctx.Err() == nil
}

// flush sends the joined deltas.
func (c *choice) flush(ctx context.Context) bool {
	for _, d := range c.joined.deltas() {
		if !c.put(ctx, Event{Choice: c.index, Delta: d}) {
			return false
		}
	}
	return true
}

// put sends an event with the tokens that have come. It reports false when the request has ended.
func (c *choice) put(ctx context.Context, e Event) bool {
	e.Tokens, c.tokens = c.tokens, nil
	select {
	case c.events <- e:
		return true
	case <-ctx.Done():
		return false
	}
}

// plain is the parser of answers that have no parts.
type plain struct{}

func (plain) Add(t engine.Token) []engine.Delta {
	if t.Text == "" {
		return nil
	}
	return []engine.Delta{{Content: t.Text}}
}

func (plain) End() []engine.Delta { return nil }

// joined collects the deltas of an answer.
type joined struct {
	reasoning, content strings.Builder
	calls              []engine.CallDelta
	arguments          []*strings.Builder
}

func (j *joined) add(d engine.Delta) {
	j.reasoning.WriteString(d.Reasoning)
	j.content.WriteString(d.Content)
	if d.Call == nil {
		return
	}
	for len(j.calls) <= d.Call.Index {
		j.calls = append(j.calls, engine.CallDelta{Index: len(j.calls)})
		j.arguments = append(j.arguments, &strings.Builder{})
	}
	of := &j.calls[d.Call.Index]
	of.ID += d.Call.ID
	of.Name += d.Call.Name
	j.arguments[d.Call.Index].WriteString(d.Call.Arguments)
}

// deltas returns one delta for each kind and for each call.
func (j *joined) deltas() (list []engine.Delta) {
	if j.reasoning.Len() > 0 {
		list = append(list, engine.Delta{Reasoning: j.reasoning.String()})
	}
	if j.content.Len() > 0 {
		list = append(list, engine.Delta{Content: j.content.String()})
	}
	for i := range j.calls {
		j.calls[i].Arguments = j.arguments[i].String()
		list = append(list, engine.Delta{Call: &j.calls[i]})
	}
	return list
}
