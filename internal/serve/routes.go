package server

import (
	"context"
	"log/slog"
	"net/http"
	"strings"

	"github.com/pianola-engine/pianola/internal/serve/anthropic"
	"github.com/pianola-engine/pianola/internal/serve/keys"
	"github.com/pianola-engine/pianola/internal/serve/observe"
	"github.com/pianola-engine/pianola/internal/serve/openai"
	"github.com/pianola-engine/pianola/internal/serve/page"
	"github.com/pianola-engine/pianola/internal/serve/responses"
)

// connectionLog lowers the level of net/http's messages about single connections, such as failed
// handshakes, which any client can cause.
type connectionLog struct{ slog.Handler }

// Handle implements slog.Handler.
func (c connectionLog) Handle(ctx context.Context, r slog.Record) error {
	r.Message = "connection: " + strings.TrimSpace(r.Message)
	return c.Handler.Handle(ctx, r)
}

// route builds the handlers.
func (s *Server) route() error {
	s.api = http.NewServeMux()
	s.open = http.NewServeMux()
	if err := s.register(); err != nil {
		return err
	}
	operator, here := http.NewServeMux(), http.NewServeMux()
	for _, mux := range []*http.ServeMux{operator, here} {
		mux.HandleFunc("GET /healthz", s.observer.Healthz)
		mux.HandleFunc("GET /readyz", s.observer.Readyz)
	}
	operator.Handle("GET /metrics", s.observer.Metrics())
	if !s.o.MetricsApart {
		here.Handle("GET /metrics", s.protect(s.observer.Metrics()))
	}
	pages, err := page.Handler(page.Options{State: s.state, Generated: s.observer.Generated, Table: s.table, Protect: s.protect})
	if err != nil {
		return err
	}
	here.Handle("GET /status", pages) // the page asks every few seconds; no request that anybody counts
	for _, pattern := range []string{"GET /{$}", "GET /view/{model...}", "GET /table/{model...}"} {
		s.open.Handle(pattern, pages)
	}
	s.operator = operator
	api := s.keys.Middleware(s.refused)(s.named(s.bounds(s.api)))
	observed := s.observer.Middleware(s.gated(s.browsers(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case s.knows(s.api, r):
			api.ServeHTTP(w, r)
		case s.knows(s.open, r):
			s.bounds(s.open).ServeHTTP(w, r)
		default:
			s.unknown(w, r)
		}
	}))))
	s.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.knows(here, r) {
			here.ServeHTTP(w, r)
			return
		}
		observed.ServeHTTP(w, r)
	})
	return nil
}

// kept bounds the responses in memory to which later requests refer.
var kept = responses.Bound{Responses: 10_000, Bytes: 128 << 20}

// register adds the endpoints.
func (s *Server) register() error {
	models, limits := catalog{s}, s.limits()
	openai.New(openai.Options{Models: models, Limits: limits}).Register(s.api)
	responses.New(responses.Options{Models: models, Limits: limits, Keep: kept}).Register(s.api)
	anthropic.New(anthropic.Options{Models: models, Limits: limits}).Register(s.api)
	return nil
}

// knows reports whether a mux has a handler for a request.
func (s *Server) knows(mux *http.ServeMux, r *http.Request) bool {
	_, pattern := mux.Handler(r)
	return pattern != ""
}

// endpoint returns the name of a request's endpoint, which is the path of its pattern.
func (s *Server) endpoint(r *http.Request) string {
	for _, mux := range []*http.ServeMux{s.api, s.open} {
		if _, pattern := mux.Handler(r); pattern != "" {
			_, path, _ := strings.Cut(pattern, " ")
			return path
		}
	}
	return ""
}

// gated refuses requests while the service is shutting down, and counts the others.
func (s *Server) gated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.gate.enter(); err != nil {
			s.fail(w, r, err)
			return
		}
		defer s.gate.leave()
		next.ServeHTTP(w, r)
	})
}

// named tells the observer the name of the request's key.
func (s *Server) named(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		observe.From(r.Context()).Key(keys.Name(r.Context()))
		next.ServeHTTP(w, r)
	})
}

// protect returns a handler that asks for an API key, and counts nothing in the key's limits.
func (s *Server) protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refusal := s.keys.Check(keys.Presented(r.Header)); refusal != nil {
			refusal.SetHeader(w.Header())
			s.refused(w, r, refusal)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// unknown answers a request that no endpoint is for.
func (s *Server) unknown(w http.ResponseWriter, r *http.Request) {
	for _, mux := range []*http.ServeMux{s.api, s.open} {
		h, _ := mux.Handler(r)
		if probe := (&probe{header: http.Header{}}); probe.status(h, r) == http.StatusMethodNotAllowed {
			w.Header().Set("Allow", probe.header.Get("Allow"))
			s.fail(w, r, refusal(http.StatusMethodNotAllowed, "", "the endpoint does not support this method"))
			return
		}
	}
	s.fail(w, r, refusal(http.StatusNotFound, "unknown_endpoint", "there is no such endpoint"))
}

// probe is a http.ResponseWriter that keeps the status and the header only.
type probe struct {
	header http.Header
	code   int
}

// status returns the status with which a handler of net/http refuses a request.
func (p *probe) status(h http.Handler, r *http.Request) int {
	h.ServeHTTP(p, r)
	return p.code
}

func (p *probe) Header() http.Header         { return p.header }
func (p *probe) Write(b []byte) (int, error) { return len(b), nil }
func (p *probe) WriteHeader(code int)        { p.code = code }
