package responses

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/pianola-engine/pianola/internal/serve/backend"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/fields"
	"github.com/pianola-engine/pianola/internal/serve/keys"
	"github.com/pianola-engine/pianola/internal/serve/turn"
)

// Options are the settings of a Handler.
type Options struct {
	Models backend.Models
	Limits backend.Limits
	Keep   Bound // of the responses in memory; the zero value keeps none
}

// Handler serves the Responses API.
type Handler struct {
	o     Options
	store *store
}

// New returns a handler.
func New(o Options) *Handler {
	o.Limits = o.Limits.Defaults()
	return &Handler{o, newStore(o.Keep)}
}

// Register adds the endpoints to a mux.
func (h *Handler) Register(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/responses", h.create)
	mux.HandleFunc("GET /v1/responses/{id}", h.get)
	mux.HandleFunc("DELETE /v1/responses/{id}", h.delete)
	mux.HandleFunc("GET /v1/responses/{id}/input_items", h.inputItems)
}

// work is a request while it is answered.
type work struct {
	request *request
	owner   string // name of the API key
	input   []Item
	turn    *turn.Request
	answer  *answer
}

// create serves POST /v1/responses.
func (h *Handler) create(w http.ResponseWriter, q *http.Request) {
	ctx, cancel, err := backend.Deadline(q, h.o.Limits)
	if err != nil {
		fail(w, q.Context(), err)
		return
	}
	defer cancel()
	job, err := h.read(w, q)
	if err != nil {
		fail(w, ctx, err)
		return
	}
	if job.request.stream {
		h.stream(w, ctx, job)
		return
	}
	job.answer.send = func(*event) error { return nil }
	if err := h.run(ctx, job); err != nil {
		fail(w, ctx, err)
		return
	}
	reply(w, job.answer.response)
}

// read reads a request, and prepares its turn.
func (h *Handler) read(w http.ResponseWriter, q *http.Request) (*work, error) {
	body, err := backend.Body(w, q, h.o.Limits)
	if err != nil {
		return nil, err
	}
	job := &work{request: newRequest(), owner: keys.Name(q.Context())}
	r := job.request
	if err := fields.Read(body, requestFields, r); err != nil {
		return nil, err
	}
	if job.input, err = r.items(func(id string) (Item, bool) { return h.store.item(job.owner, id) }); err != nil {
		return nil, err
	}
	var before []Item
	if r.previous != nil {
		chain, missing := h.store.chain(job.owner, *r.previous)
		if missing != "" {
			return nil, &fields.Error{Param: "previous_response_id", Why: fmt.Sprintf("the response %.80q is not stored: responses are kept in memory, and only for a time", missing)}
		}
		for _, one := range chain {
			before = append(append(before, one.input...), one.response.Output...)
		}
	}
	c, err := r.conversation(before, job.input)
	if err != nil {
		return nil, err
	}
	g := engine.Generation{Sampling: r.sampling(), User: job.owner}
	if r.maxTokens != nil {
		g.MaxTokens = *r.maxTokens
	}
	job.answer = &answer{response: r.response(time.Now().Unix())}
	job.turn = &turn.Request{Conversation: c, Generation: g, Choices: 1, OneCall: !job.answer.response.ParallelToolCalls}
	return job, nil
}

// stream answers a request with a stream of events.
func (h *Handler) stream(w http.ResponseWriter, ctx context.Context, job *work) {
	out := backend.NewStream(w, h.o.Limits)
	defer out.Close()
	a := job.answer
	a.send = func(e *event) error {
		b, err := backend.Marshal(e)
		if err != nil {
			return err
		}
		return out.Event(e.Type, b)
	}
	err := h.run(ctx, job)
	if err == nil {
		if err = a.finish(); err == nil {
			err = out.Event("", []byte("[DONE]"))
		}
	}
	if err == nil {
		return
	}
	e := backend.ErrorOf(err)
	e.Report(ctx)
	out.Fail(func(w http.ResponseWriter) { WriteError(w, e) }, func() error {
		if err := a.fail(Failure{Code: code(e), Message: e.Message}); err != nil {
			return err
		}
		return out.Event("", []byte("[DONE]"))
	})
}

// code returns the code of the error of a response.
func code(e *backend.Error) string {
	switch e.Kind {
	case backend.Overloaded:
		return "rate_limit_exceeded"
	case backend.Invalid:
		return "invalid_prompt"
	}
	return "server_error"
}

// run runs the turn with the request's model, and keeps the response.
func (h *Handler) run(ctx context.Context, job *work) error {
	a := job.answer
	m, id, release, err := backend.Acquire(ctx, h.o.Models, job.request.model, "chat")
	if err != nil {
		return err
	}
	defer release()
	if a.response.Model == "" {
		a.response.Model = id
	}
	if job.request.logProbs {
		a.probs = func(tokens []engine.Token) []LogProb { return logProbs(m, tokens) }
	}
	var done turn.Done
	u, err := turn.Run(ctx, m, job.turn, func(e turn.Event) error {
		if e.Done != nil {
			done = *e.Done
		}
		return a.add(e)
	})
	if err != nil {
		return err
	}
	if err := a.end(done.Result.Reason, u, time.Now().Unix()); err != nil {
		return err
	}
	if a.response.Store {
		h.store.put(job.owner, a.response, job.input)
	}
	return nil
}

// logProbs returns the log-probabilities of the tokens of a text.
func logProbs(m engine.Model, tokens []engine.Token) []LogProb {
	var all []LogProb
	for _, t := range tokens {
		if t.Special != "" {
			continue
		}
		p := LogProb{Top: Top{LogProb: float64(t.LogProb)}, Alternatives: []Top{}}
		p.Token, p.Bytes = backend.Piece(m, t.ID)
		for _, o := range t.Top {
			top := Top{LogProb: float64(o.LogProb)}
			top.Token, top.Bytes = backend.Piece(m, o.ID)
			p.Alternatives = append(p.Alternatives, top)
		}
		all = append(all, p)
	}
	return all
}
