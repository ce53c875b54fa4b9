package openai

import (
	"context"
	"math"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/pianola-engine/pianola/internal/serve/backend"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/turn"
)

// answer makes a reply of the events of a request.
type answer interface {
	// add takes the next event, from one goroutine at a time.
	add(turn.Event) error
	// end takes the usage of the request, whose choices have all ended.
	end(turn.Usage) error
}

// begin returns the answer to a request, and the turns that the model runs for it. out is nil if the
// reply is wanted whole. The choices of the turns are numbered one turn after the other.
type begin func(m engine.Model, id string, out *backend.Stream) (answer, []*turn.Request, error)

// generate serves a request for generated text, whole or as a stream.
func (c *call) generate(q *common, operation string, b begin) error {
	if !q.stream {
		return c.run(q, operation, nil, b)
	}
	out := backend.NewStream(c.w, c.o.Limits)
	defer out.Close()
	err := c.run(q, operation, out, b)
	if err == nil {
		return nil
	}
	e := backend.ErrorOf(err)
	e.Report(c.ctx)
	out.Fail(func(w http.ResponseWriter) { write(w, e) }, func() error {
		text, err := backend.Marshal(failureOf(e))
		if err != nil {
			return err
		}
		return out.Event("", text)
	})
	return nil
}

// run runs a request.
func (c *call) run(q *common, operation string, out *backend.Stream, b begin) error {
	m, id, release, err := c.acquire(q.model, operation)
	if err != nil {
		return err
	}
	defer release()
	if err := q.prepare(c, m); err != nil {
		return err
	}
	a, turns, err := b(m, id, out)
	if err != nil {
		return err
	}
	u, err := runTurns(c.ctx, m, turns, a.add)
	if err != nil {
		return err
	}
	return a.end(u)
}

// runTurns runs turns, as many at a time as the model generates together. An error ends all of them.
func runTurns(ctx context.Context, m engine.Model, turns []*turn.Request, add func(turn.Event) error) (turn.Usage, error) {
	if len(turns) == 1 {
		return turn.Run(ctx, m, turns[0], add)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var mu sync.Mutex // guards add, u and failed
	var u turn.Usage
	var failed error
	var running sync.WaitGroup
	for range min(len(turns), max(1, m.Info().Parallel)) {
		running.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(turns) || ctx.Err() != nil {
					return
				}
				one, err := turn.Run(ctx, m, turns[i], func(e turn.Event) error {
					mu.Lock()
					defer mu.Unlock()
					e.Choice += i * turns[i].Choices
					return add(e)
				})
				mu.Lock()
				u.Prompt, u.Cached, u.Generated = u.Prompt+one.Prompt, u.Cached+one.Cached, u.Generated+one.Generated
				if err != nil && failed == nil {
					failed = err
					cancel(err)
				}
				mu.Unlock()
			}
		})
	}
	running.Wait()
	if failed == nil {
		failed = context.Cause(ctx) // it may have ended between two turns
	}
	return u, failed
}

// usage is the usage of a request in the form of OpenAI.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails struct {
		Reasoning int `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

func usageOf(u turn.Usage) *usage {
	of := &usage{Prompt: u.Prompt, Completion: u.Generated, Total: u.Prompt + u.Generated}
	of.Details.Cached, of.CompletionDetails.Reasoning = u.Cached, u.Reasoning
	return of
}

// least is the log-probability of what cannot be. JSON has no infinity.
const least = -9999

// logProb returns a log-probability as a number of JSON.
func logProb(p float32) float64 {
	if math.IsNaN(float64(p)) {
		return least
	}
	return max(float64(p), least)
}
