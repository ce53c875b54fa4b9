package observe

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// Options are the settings of an observer. The zero value counts requests and writes nothing.
type Options struct {
	Version string       // of the program
	Log     *slog.Logger // nil writes no logs
	// State returns the state of the models for a page of metrics and for Ready; nil means that there are
	// none. It may be called from several goroutines at once.
	State func() State
	// Endpoint returns the name of a request's endpoint for labels, such as "/v1/completions", or ""
	// for an unknown one. It must return one of a few names, whatever the request. nil knows none.
	Endpoint func(*http.Request) string
	// Traces and Meters receive traces and metrics of OpenTelemetry; nil sends none.
	Traces trace.TracerProvider
	Meters metric.MeterProvider

	now func() time.Time
}

// State is the state of the models.
type State struct {
	MemoryBudget int64 // bytes; 0 means no limit
	Models       []ModelState
}

// ModelState is the state of a model.
type ModelState struct {
	ID       string
	State    string // "absent", "loading", "ready" or "closing"
	Bytes    int64  // memory counted in the budget
	Required bool   // the service is ready only when this model is
	Loaders  int    // requests that wait until the model is loaded
	// Load is the load of the model's scheduler, or nil if it has none. PagePositions is the number of
	// positions of a KV page.
	Load          *Load
	PagePositions int
}

// Load is the load of a model for many sequences. Its fields are those of pianola.Load, which can be
// converted.
type Load struct {
	Running, Waiting              int
	Pages, UsedPages, CachedPages int
	PromptTokens, FoundTokens     int
	DraftedTokens, AcceptedTokens int

	SavedPages, RestoredPages, LostPages, RestoredTokens int
	SpillMemory, SpillFile                               uint64
}

// Observer follows requests. Its methods may be called concurrently.
type Observer struct {
	o        Options
	started  time.Time
	registry *prometheus.Registry
	otel     telemetry

	scrape sync.Mutex // orders pages of metrics
	mu     sync.Mutex
	counts counts
	ending bool // the service is shutting down
}

// New returns an observer.
func New(o Options) (*Observer, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.State == nil {
		o.State = func() State { return State{} }
	}
	if o.Endpoint == nil {
		o.Endpoint = func(*http.Request) string { return "" }
	}
	if o.now == nil {
		o.now = time.Now
	}
	otel, err := newTelemetry(o.Traces, o.Meters)
	if err != nil {
		return nil, err
	}
	b := &Observer{o: o, started: o.now(), registry: prometheus.NewRegistry(), otel: otel, counts: newCounts()}
	return b, b.registry.Register(&collector{b})
}

// requestKey is the context key of a *Request.
type requestKey struct{}

// From returns the request of a context. It returns nil outside a request; the methods of a nil
// *Request do nothing.
func From(ctx context.Context) *Request {
	r, _ := ctx.Value(requestKey{}).(*Request)
	return r
}

// Drain makes Ready report false from now on, because the service is shutting down.
func (b *Observer) Drain() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ending = true
}
