package anthropic

import (
	"context"
	mathrand "math/rand/v2"
	"net/http"
	"slices"
	"strings"

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
}

// Handler serves the Messages API.
type Handler struct{ o Options }

// New returns a handler.
func New(o Options) *Handler {
	o.Limits = o.Limits.Defaults()
	return &Handler{o}
}

// Register adds the endpoints to a mux.
func (h *Handler) Register(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/messages", func(w http.ResponseWriter, q *http.Request) { h.serve(w, q, false) })
	mux.HandleFunc("POST /v1/messages/count_tokens", func(w http.ResponseWriter, q *http.Request) { h.serve(w, q, true) })
}

// versions are the versions of the API, which clients send in the header field anthropic-version. What the
// service sends has the form of both.
var versions = []string{"2023-06-01", "2026-10-21"}

// read reads a request.
func (h *Handler) read(w http.ResponseWriter, q *http.Request, count bool) (*request, *engine.Conversation, error) {
	if v := q.Header.Get("Anthropic-Version"); v != "" && !slices.Contains(versions, v) {
		return nil, nil, &fields.Error{Why: "the header field anthropic-version must be one of " + strings.Join(versions, ", ")}
	}
	body, err := backend.Body(w, q, h.o.Limits)
	if err != nil {
		return nil, nil, err
	}
	r := newRequest()
	if err := fields.Read(body, requestFields, r); err != nil {
		return nil, nil, err
	}
	if err := r.check(count); err != nil {
		return nil, nil, err
	}
	c, err := r.conversation()
	return r, c, err
}

// serve serves both endpoints. count asks for the number of the prompt's tokens alone.
func (h *Handler) serve(w http.ResponseWriter, q *http.Request, count bool) {
	ctx, cancel, err := backend.Deadline(q, h.o.Limits)
	if err != nil {
		fail(w, q.Context(), err)
		return
	}
	defer cancel()
	if err := h.answer(w, q.WithContext(ctx), count); err != nil {
		fail(w, ctx, err)
	}
}

// tokens is the reply to a request to count tokens.
type tokens struct {
	InputTokens int `json:"input_tokens"`
}

// answer answers a request. An error has not been sent.
func (h *Handler) answer(w http.ResponseWriter, q *http.Request, count bool) error {
	ctx := q.Context()
	r, c, err := h.read(w, q, count)
	if err != nil {
		return err
	}
	if count {
		m, _, release, err := backend.Acquire(ctx, h.o.Models, r.model, "count_tokens")
		if err != nil {
			return err
		}
		defer release()
		p, err := m.Chat(ctx, *c)
		if err != nil {
			return err
		}
		return backend.Send(w, http.StatusOK, tokens{len(p.IDs)})
	}
	a := &answer{
		message: &Message{ID: backend.NewID("msg"), Type: "message", Role: "assistant", Model: r.model, Content: []Block{}},
		thinks:  r.thinks, stops: r.stops,
	}
	t := &turn.Request{Conversation: c, Choices: 1, OneCall: r.oneCall, Generation: engine.Generation{
		MaxTokens: r.maxTokens, Stop: r.stops, User: keys.Name(ctx), Sampling: engine.Sampling{
			Seed: mathrand.Uint64(), Temperature: r.temperature, TopP: r.topP, TopK: r.topK,
		},
	}}
	if r.stream {
		h.stream(w, ctx, t, a)
		return nil
	}
	a.send = func(*event) error { return nil }
	if err := h.run(ctx, t, a); err != nil {
		return err
	}
	return backend.Send(w, http.StatusOK, a.message)
}

// rendered is a model with a conversation that is rendered already.
type rendered struct {
	engine.Model
	prompt *engine.Prompt
}

// Chat returns the rendered conversation.
func (r rendered) Chat(context.Context, engine.Conversation) (*engine.Prompt, error) {
	return r.prompt, nil
}

// stream answers a request with a stream of events.
func (h *Handler) stream(w http.ResponseWriter, ctx context.Context, t *turn.Request, a *answer) {
	out := backend.NewStream(w, h.o.Limits)
	defer out.Close()
	a.send = func(e *event) error {
		b, err := backend.Marshal(e)
		if err != nil {
			return err
		}
		return out.Event(e.Type, b)
	}
	err := h.run(ctx, t, a)
	if err == nil {
		return
	}
	e := backend.ErrorOf(err)
	e.Report(ctx)
	out.Fail(func(w http.ResponseWriter) { WriteError(w, e) }, func() error {
		return a.send(&event{Type: "error", Error: &fault{kind(e.Status), e.Error()}})
	})
}

// run runs a turn with the message's model.
func (h *Handler) run(ctx context.Context, t *turn.Request, a *answer) error {
	m, id, release, err := backend.Acquire(ctx, h.o.Models, a.message.Model, "chat")
	if err != nil {
		return err
	}
	defer release()
	p, err := m.Chat(ctx, *t.Conversation)
	if err != nil {
		return err
	}
	if a.message.Model == "" {
		a.message.Model = id
	}
	a.message.Usage.InputTokens = len(p.IDs)
	var done turn.Done
	u, err := turn.Run(ctx, rendered{m, p}, t, func(e turn.Event) error {
		if e.Done != nil {
			done = *e.Done
		}
		return a.add(e)
	})
	if err != nil {
		return err
	}
	return a.end(done.Result, u, t.Generation.MaxTokens)
}

// fault is an error in Anthropic's form.
type fault struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

// kind returns Anthropic's type of an error with an HTTP status.
func kind(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusGatewayTimeout:
		return "timeout_error"
	case http.StatusServiceUnavailable:
		return "overloaded_error"
	}
	if status >= 500 {
		return "api_error"
	}
	return "invalid_request_error"
}

// fail answers a request with an error, and reports it.
func fail(w http.ResponseWriter, ctx context.Context, err error) {
	e := backend.ErrorOf(err)
	e.Report(ctx)
	WriteError(w, e)
}

// WriteError writes an error in Anthropic's form.
func WriteError(w http.ResponseWriter, e *backend.Error) {
	e.SetHeader(w.Header())
	_ = backend.Send(w, e.Status, event{Type: "error", Error: &fault{kind(e.Status), e.Error()}}) // it has a JSON form
}
