// Package server joins the parts of the service: models, protocols, API keys, metrics and pages, behind
// one HTTP server that is safe to leave to strangers.
//
// The package knows models by the interface of package engine, so that it is tested with scripted ones.
// It must not know the library, command lines or signals.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/fleet"
	"github.com/pianola-engine/pianola/internal/serve/keys"
	"github.com/pianola-engine/pianola/internal/serve/observe"
	"github.com/pianola-engine/pianola/internal/webpage"
	"github.com/pianola-engine/pianola/table"
)

// Options are the settings of a service. Zero selects the default of a bound.
type Options struct {
	Version string
	Log     *slog.Logger // nil writes no logs

	// Models are the models that clients can name. Preload loads those that are pinned.
	Models       []fleet.Entry
	Load         func(context.Context, fleet.Entry) (engine.Model, error)
	Size         func(context.Context, fleet.Entry) (int64, error) // needed with a MemoryBudget
	Created      func(fleet.Entry) time.Time                       // time of a model's file; nil if it is not known
	MemoryBudget int64                                             // bytes of all loaded models; 0 means no limit
	Keep         time.Duration                                     // as in fleet.Options

	// Table returns the dispatch table of a model that Load has returned, for the table viewer; nil has none.
	Table func(engine.Model) *table.Table

	// Keys admits requests. nil admits everybody, within Limits for all requests together.
	Keys   *keys.Keys
	Limits keys.Limits
	// Origins are the origins, such as https://example.org, whose pages may use the API, or "*".
	Origins []string
	// MetricsApart leaves /metrics out of the service's handler, because OperatorHandler is served on an
	// address of its own.
	MetricsApart bool

	MaxBody        int64         // bytes of a body; 0 means 16 MiB
	MaxBodies      int64         // bytes of all bodies together; 0 means 16 times MaxBody
	MaxTokens      int           // tokens of an answer; 0 means no limit but the context
	MaxConnections int           // 0 means 4096
	MaxRequests    int           // in progress; 0 means 4096
	ReadTimeout    time.Duration // until a request's header has arrived, and again until its body has; 0 means 30 s
	WriteTimeout   time.Duration // of one write to a client; 0 means 30 s
	IdleTimeout    time.Duration // of a connection between requests; 0 means 2 min
	RequestTimeout time.Duration // of a request; 0 means no limit

	Traces trace.TracerProvider // nil sends none
	Meters metric.MeterProvider
}

// maxHeader bounds the bytes of a request's header.
const maxHeader = 64 << 10

// Server is a service. Its methods may be called concurrently.
type Server struct {
	o        Options
	log      *slog.Logger
	keys     *keys.Keys
	models   *fleet.Fleet[engine.Model]
	observer *observe.Observer
	api      *http.ServeMux // endpoints that need a key
	open     *http.ServeMux // the others
	handler  http.Handler
	operator http.Handler

	gate   *gate
	conns  *conns
	bodies atomic.Int64 // bytes of the bodies in memory

	ctx    context.Context // the parent of all requests
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	servers []*http.Server
	ended   bool
}

// New returns a service that has loaded no model yet.
func New(o Options) (*Server, error) {
	if o.Load == nil || len(o.Models) == 0 {
		return nil, errors.New("serve: there are no models")
	}
	if err := checkOrigins(o.Origins); err != nil {
		return nil, err
	}
	o.setDefaults()
	s := &Server{o: o, log: o.Log, keys: o.Keys, gate: newGate(o.MaxRequests), conns: newConns(o.MaxConnections)}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.keys == nil {
		s.keys = keys.Anyone(o.Limits)
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	var err error
	if s.observer, err = observe.New(observe.Options{
		Version: o.Version, Log: o.Log, State: s.state, Endpoint: s.endpoint, Traces: o.Traces, Meters: o.Meters,
	}); err != nil {
		return nil, err
	}
	if err := s.newFleet(); err != nil {
		return nil, err
	}
	return s, s.route()
}

// setDefaults replaces zeros by the defaults.
func (o *Options) setDefaults() {
	def := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&o.ReadTimeout, 30*time.Second)
	def(&o.WriteTimeout, 30*time.Second)
	def(&o.IdleTimeout, 2*time.Minute)
	if o.MaxBody <= 0 {
		o.MaxBody = 16 << 20
	}
	if o.MaxBodies <= 0 {
		o.MaxBodies = 16 * o.MaxBody
	}
	if o.MaxConnections <= 0 {
		o.MaxConnections = 4096
	}
	if o.MaxRequests <= 0 {
		o.MaxRequests = 4096
	}
}

// Handler returns the handler of the service, without the protection of a listener's address.
func (s *Server) Handler() http.Handler { return s.handler }

// OperatorHandler returns the handler of the metrics and health checks alone.
func (s *Server) OperatorHandler() http.Handler { return s.operator }

// Ready reports whether the service is ready.
func (s *Server) Ready() bool { return s.observer.Ready() }

// Serve serves the service on a listener until Shutdown, after which it returns nil. Without API keys, a
// listener on a loopback address answers only requests for this machine.
func (s *Server) Serve(l net.Listener) error { return s.serve(l, s.handler, s.o.Keys == nil) }

// ServeOperator serves OperatorHandler on a listener until Shutdown. A listener on a loopback address answers
// only requests for this machine.
func (s *Server) ServeOperator(l net.Listener) error { return s.serve(l, s.operator, true) }

// serve serves a handler. guard protects it from pages that reach a loopback address under another name.
func (s *Server) serve(l net.Listener, h http.Handler, guard bool) error {
	if guard && Loopback(l.Addr()) {
		h = webpage.Loopback(h)
	}
	one := &http.Server{
		Handler: h, ReadHeaderTimeout: s.o.ReadTimeout, IdleTimeout: s.o.IdleTimeout, MaxHeaderBytes: maxHeader,
		ConnState: s.conns.change, BaseContext: func(net.Listener) context.Context { return s.ctx },
		ErrorLog: slog.NewLogLogger(connectionLog{s.log.Handler()}, slog.LevelDebug),
	}
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return errors.Join(errShutdown, l.Close())
	}
	s.servers = append(s.servers, one)
	s.mu.Unlock()
	if err := one.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// Loopback reports whether an address is a loopback address.
func Loopback(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && t.IP.IsLoopback()
}

// finalTime is the time for the last event of each stream after the time of Shutdown has passed.
const finalTime = 5 * time.Second

// Shutdown ends the service: it is no longer ready, refuses new requests, and waits until the requests in
// progress have ended. After the time drain, or when ctx ends, it ends them, so that each stream gets an
// error as its last event. It then closes the models.
func (s *Server) Shutdown(ctx context.Context, drain time.Duration) error {
	s.observer.Drain()
	s.gate.close()
	s.mu.Lock()
	began := len(s.servers) > 0
	s.mu.Unlock()
	if began {
		s.log.Info("shutting down", "drain", drain.String())
	}
	patience, cancel := context.WithTimeout(ctx, drain)
	done := s.gate.wait(patience)
	cancel()
	s.cancel(errShutdown)
	final, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalTime)
	defer cancel()
	if !done {
		s.log.Warn("ending the requests in progress")
		done = s.gate.wait(final)
	}
	s.mu.Lock()
	s.ended = true
	servers := s.servers
	s.mu.Unlock()
	var errs []error
	for _, one := range servers {
		if !done || one.Shutdown(final) != nil {
			errs = append(errs, one.Close())
		}
	}
	errs = append(errs, s.models.Close(final))
	if began {
		s.log.Info("stopped", "complete", done)
	}
	return errors.Join(errs...)
}
