package server

import (
	"context"
	"net/http"
	"sync"

	"github.com/pianola-engine/pianola/internal/serve/backend"
)

// The reasons for which a gate lets no request in.
var (
	errClosed = refusal(http.StatusServiceUnavailable, "shutting_down", "the service is shutting down")
	errFull   = refusal(http.StatusServiceUnavailable, "too_many_requests", "the service has too many requests in progress")
)

// gate bounds the requests in progress and stops new ones when the service is shutting down.
type gate struct {
	most int

	mu      sync.Mutex
	closed  bool
	running int
	idle    chan struct{} // closed when the gate is closed and no request is in progress
}

func newGate(most int) *gate { return &gate{most: most, idle: make(chan struct{})} }

// enter counts a request. It returns errClosed after close, and errFull; otherwise the caller must call leave.
func (g *gate) enter() *backend.Error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return errClosed
	case g.running >= g.most:
		return errFull
	}
	g.running++
	return nil
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running--; g.closed && g.running == 0 {
		close(g.idle)
	}
}

// close stops new requests. Closing again has no effect.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		if g.closed = true; g.running == 0 {
			close(g.idle)
		}
	}
}

// wait waits until no request is in progress, and reports whether it is so. It ends with ctx.
func (g *gate) wait(ctx context.Context) bool {
	select {
	case <-g.idle:
		return true
	case <-ctx.Done():
		return false
	}
}
