package server

import (
	"context"
	"sync"
)

// gate counts the requests in progress and stops new ones when the service is shutting down.
type gate struct {
	mu      sync.Mutex
	closed  bool
	running int
	idle    chan struct{} // closed when the gate is closed and no request is in progress
}

func newGate() *gate { return &gate{idle: make(chan struct{})} }

// enter counts a request. It reports false after close; otherwise the caller must call leave.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.running++
	return true
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
