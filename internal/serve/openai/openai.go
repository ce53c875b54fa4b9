// Package openai serves OpenAI's API for chat completions, completions, embeddings and models, and the
// endpoints that other services have beside it: rerank, tokenize and detokenize.
//
// The package knows models by the interfaces of packages backend and engine alone.
package openai

import (
	"context"
	"crypto/rand"
	"net/http"
	"time"

	"github.com/pianola-engine/pianola/internal/serve/backend"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/fields"
	"github.com/pianola-engine/pianola/internal/serve/observe"
)

// Options are the settings of a Handler.
type Options struct {
	Models backend.Models
	Limits backend.Limits
	// Now and NewID are the clock and the source of identifiers of replies. nil means time.Now and random
	// texts.
	Now   func() time.Time
	NewID func() string
}

// Handler serves the API.
type Handler struct{ o Options }

// New returns a handler.
func New(o Options) *Handler {
	o.Limits = o.Limits.Defaults()
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.NewID == nil {
		o.NewID = rand.Text
	}
	return &Handler{o}
}

// Register adds the endpoints to a mux.
func (h *Handler) Register(mux *http.ServeMux) {
	for pattern, serve := range map[string]func(*call) error{
		"POST /v1/chat/completions": (*call).chat,
		"POST /v1/completions":      (*call).completions,
		"POST /v1/embeddings":       (*call).embeddings,
		"POST /v1/rerank":           (*call).rerank,
		"POST /rerank":              (*call).rerank,
		"POST /tokenize":            (*call).tokenize,
		"POST /detokenize":          (*call).detokenize,
		"GET /v1/models":            (*call).models,
		"GET /v1/models/{id...}":    (*call).model,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel, err := backend.Deadline(r, h.o.Limits)
			if err != nil {
				fail(w, r.Context(), err)
				return
			}
			defer cancel()
			if err := serve(&call{o: &h.o, ctx: ctx, w: w, r: r}); err != nil {
				fail(w, ctx, err)
			}
		})
	}
}

// call is a request in progress.
type call struct {
	o   *Options
	ctx context.Context // with the request's deadline
	w   http.ResponseWriter
	r   *http.Request
}

// read reads the body by a table.
func read[T any](c *call, table []fields.Field[T], into *T) error {
	body, err := backend.Body(c.w, c.r, c.o.Limits)
	if err != nil {
		return err
	}
	return fields.Read(body, table, into)
}

// acquire returns the model with a name. Without a name it is the only model of the service. The operation
// is for the observer.
func (c *call) acquire(name, operation string) (m engine.Model, id string, release func(), err error) {
	return backend.Acquire(c.ctx, c.o.Models, name, operation)
}

// failure is an error in the form of OpenAI.
type failure struct {
	Error failureBody `json:"error"`
}

type failureBody struct {
	Message string       `json:"message"`
	Type    backend.Kind `json:"type"`
	Param   *string      `json:"param"`
	Code    *string      `json:"code"`
}

// failureOf returns an error in the form of OpenAI.
func failureOf(e *backend.Error) failure {
	f := failureBody{Message: e.Message, Type: e.Kind}
	if e.Param != "" {
		f.Param = &e.Param
	}
	if e.Code != "" {
		f.Code = &e.Code
	}
	return failure{f}
}

// fail answers a request by an error.
func fail(w http.ResponseWriter, ctx context.Context, err error) {
	e := backend.ErrorOf(err)
	e.Report(ctx)
	write(w, e)
}

// write writes an error.
func write(w http.ResponseWriter, e *backend.Error) {
	e.SetHeader(w.Header())
	text, err := backend.Marshal(failureOf(e))
	if err == nil {
		send(w, e.Status, text)
	}
}

// send writes a reply. A failed write means that the client is gone.
func send(w http.ResponseWriter, status int, text []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n'))
}

// reply writes a whole reply.
func (c *call) reply(v any) error {
	text, err := backend.Marshal(v)
	if err != nil {
		return err
	}
	// A client that does not read must not keep the request for ever. Not every writer has deadlines.
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(c.o.Limits.Write + time.Minute))
	send(c.w, http.StatusOK, text)
	return nil
}

// computed reports to the observer that the model has done a request that generates nothing.
func (c *call) computed(tokens int) {
	watch := observe.From(c.ctx)
	watch.Prompt(tokens, 0)
	watch.Finished("stop")
}
