package observe

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// Outcome is how a request has ended.
type Outcome string

// The outcomes.
const (
	Done      Outcome = "done"
	Cancelled Outcome = "cancelled" // the client has gone away
	Failed    Outcome = "failed"
)

// Request is a request in progress. Its methods may be called concurrently; those of nil do nothing.
// A request with several generations reports the events of all of them.
type Request struct {
	b        *Observer
	id       string
	method   string
	endpoint string
	received time.Time
	span     trace.Span

	// The other fields belong to the observer's lock.
	stage     stage
	operation string
	key       string
	model     *modelCounts // nil until the model is known
	started   time.Time
	first     time.Time // of the first token
	last      time.Time // of the latest token
	prompt    int
	found     int
	tokens    int
	reasons   []string
	outcome   Outcome // "" until a handler or the middleware knows it
	err       failure
	ended     bool
}

// stage is the part of its life that a request is in.
type stage int

const (
	arrived stage = iota // no model is known
	waiting              // for the model
	running
)

// failure describes why a request has failed.
type failure struct {
	kind string // one of a few names, for labels
	err  error  // nil if the client is at fault: its text may have parts of the request
}

// ID returns the request's id, which the client may have chosen.
func (r *Request) ID() string {
	if r == nil {
		return ""
	}
	return r.id
}

// Key reports the name of the API key with which the request was admitted, not the key.
func (r *Request) Key(name string) {
	r.update(func() { r.key = name })
}

// Queued reports that the request is for a model of the service, by its id. It waits for the model
// from now on. The operation is one of the names of gen_ai.operation.name, such as "chat".
func (r *Request) Queued(model, operation string) {
	r.update(func() {
		r.unstage()
		r.model, r.operation, r.stage = r.b.counts.model(model), operation, waiting
		r.model.waiting++
	})
}

// Started reports that the request was given to the model, after Queued.
func (r *Request) Started() {
	r.update(func() {
		if r.stage != waiting {
			return
		}
		r.unstage()
		r.stage, r.started = running, r.b.o.now()
		r.model.running++
		r.model.queue.add(r.started.Sub(r.received).Seconds(), 1)
	})
}

// Prompt reports the tokens of a prompt, and how many of them a cache had.
func (r *Request) Prompt(tokens, found int) {
	r.update(func() {
		r.prompt += tokens
		r.found += found
		if r.model != nil {
			r.model.prompt += uint64(tokens)
		}
	})
}

// Tokens reports n generated tokens that have come at the same time.
func (r *Request) Tokens(n int) {
	r.update(func() {
		if n <= 0 || r.model == nil {
			return
		}
		now := r.b.o.now()
		if r.first.IsZero() {
			r.first = now
			r.model.firstToken.add(now.Sub(r.received).Seconds(), 1)
			if n > 1 {
				r.model.between.add(0, n-1)
			}
		} else {
			r.model.between.add(now.Sub(r.last).Seconds()/float64(n), n)
		}
		r.last = now
		r.tokens += n
		r.model.generated += uint64(n)
	})
}

// Finished reports that the model has finished a generation, and OpenAI's reason, such as "stop" or
// "length".
func (r *Request) Finished(reason string) {
	r.update(func() {
		r.reasons = append(r.reasons, reason)
		if r.outcome == "" {
			r.outcome = Done
		}
	})
}

// Failed reports that the request has failed, although its status may say otherwise. The kind is a
// short constant name for labels. err goes to the log; it must be nil if its text may have parts of
// the request.
func (r *Request) Failed(kind string, err error) {
	r.update(func() { r.outcome, r.err = Failed, failure{kind, err} })
}

// Cancelled reports that the client has gone away before the request's end.
func (r *Request) Cancelled() {
	r.update(func() { r.outcome = Cancelled })
}

// update calls f under the observer's lock while the request is in progress.
func (r *Request) update(f func()) {
	if r == nil {
		return
	}
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	if !r.ended {
		f()
	}
}

// unstage takes the request out of the count of its stage.
func (r *Request) unstage() {
	switch r.stage {
	case waiting:
		r.model.waiting--
	case running:
		r.model.running--
	}
}

// receive begins a request.
func (b *Observer) receive(ctx context.Context, id, method, endpoint string) (context.Context, *Request) {
	r := &Request{b: b, id: id, method: method, endpoint: endpoint, received: b.o.now()}
	ctx, r.span = b.otel.start(ctx, method, endpoint)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counts.endpoint(endpoint).received++
	return context.WithValue(ctx, requestKey{}, r), r
}

// end ends a request with what the handler reported. Otherwise a status of 400 and above is a failure;
// gone reports that the client went away.
func (b *Observer) end(ctx context.Context, r *Request, status int, gone bool) {
	b.mu.Lock()
	r.ended = true
	now := b.o.now()
	switch {
	case r.outcome != "":
	case gone:
		r.outcome = Cancelled
	case status >= 400:
		r.outcome = Failed
	default:
		r.outcome = Done
	}
	if r.outcome == Failed && r.err.kind == "" {
		r.err.kind = statusKind(status)
	}
	r.unstage()
	b.counts.endpoint(r.endpoint).finished[ending{r.outcome, status}]++
	if m := r.model; m != nil {
		switch r.outcome {
		case Done:
			m.whole.add(now.Sub(r.received).Seconds(), 1)
			for _, reason := range r.reasons {
				m.success[successReason(reason)]++
			}
		case Cancelled:
			m.success["abort"]++
		case Failed:
			m.success["error"]++
		}
	}
	b.mu.Unlock()
	b.otel.end(ctx, r, status, now) // nothing changes r any more
}

// successReason returns vLLM's name of a reason.
func successReason(reason string) string {
	if reason == "length" {
		return reason
	}
	return "stop"
}

// statusKind returns the kind of a failure that only has an HTTP status.
func statusKind(status int) string {
	switch {
	case status == 401 || status == 403:
		return "authentication"
	case status == 404:
		return "not_found"
	case status == 429:
		return "overloaded"
	case status >= 500:
		return "server_error"
	}
	return "invalid_request"
}
