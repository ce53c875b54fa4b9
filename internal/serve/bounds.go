package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/pianola-engine/pianola/internal/serve/backend"
)

// bounds returns a handler that reads the body of a request before next sees it, within the bounds of the
// options, and bounds the time of the request and of each write to the client.
func (s *Server) bounds(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		if s.o.RequestTimeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, s.o.RequestTimeout, errTimeout)
			defer cancel()
		}
		out := &patient{ResponseWriter: w, c: http.NewResponseController(w), limit: s.o.WriteTimeout}
		if r.Body != nil && r.Body != http.NoBody {
			body, err := s.readBody(w, r)
			defer s.bodies.Add(-int64(cap(body)))
			if err != nil {
				s.fail(out, r, backend.ErrorOf(err))
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		next.ServeHTTP(out, r.WithContext(ctx))
	})
}

// readBody reads the body of a request. Its memory counts in s.bodies from the beginning, also after an
// error.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) (body []byte, err error) {
	tooLong := refusal(http.StatusRequestEntityTooLarge, "", fmt.Sprintf("the body has more than %d bytes", s.o.MaxBody))
	if r.ContentLength > s.o.MaxBody {
		return nil, tooLong
	}
	c := http.NewResponseController(w)
	if err := c.SetReadDeadline(time.Now().Add(s.o.ReadTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return nil, err
	}
	in := http.MaxBytesReader(w, r.Body, s.o.MaxBody)
	for {
		if len(body) == cap(body) {
			larger, err := grow(body, max(r.ContentLength+1, 4096), s.o.MaxBody+1, &s.bodies, s.o.MaxBodies)
			if err != nil {
				return body, err
			}
			body = larger
		}
		n, err := in.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case err == nil:
			continue
		case errors.Is(err, io.EOF):
			// The connection has no deadline while the answer is computed.
			if err := c.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
				return body, err
			}
			return body, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return body, refusal(http.StatusRequestTimeout, "", fmt.Sprintf("the body did not arrive within %v", s.o.ReadTimeout))
		case errors.As(err, new(*http.MaxBytesError)):
			return body, tooLong
		}
		return body, refusal(http.StatusBadRequest, "", "the body cannot be read")
	}
}

// grow returns a copy of a body with more capacity, which it adds to total.
func grow(body []byte, first, most int64, total *atomic.Int64, bound int64) ([]byte, error) {
	size := min(max(2*int64(cap(body)), min(first, 64<<10)), most)
	more := size - int64(cap(body))
	if total.Add(more) > bound {
		total.Add(-more)
		return nil, refusal(http.StatusServiceUnavailable, "", "the bodies of other requests take all the memory for bodies")
	}
	return append(make([]byte, 0, size), body...), nil
}

// patient bounds the time of each write to a client that reads slowly.
type patient struct {
	http.ResponseWriter
	c     *http.ResponseController
	limit time.Duration
}

// Unwrap gives http.ResponseController the original.
func (p *patient) Unwrap() http.ResponseWriter { return p.ResponseWriter }

func (p *patient) Write(b []byte) (int, error) {
	p.more()
	return p.ResponseWriter.Write(b)
}

// Flush implements http.Flusher.
func (p *patient) Flush() { _ = p.FlushError() } // an interface without an error

// FlushError is what http.ResponseController calls.
func (p *patient) FlushError() error {
	p.more()
	return p.c.Flush()
}

// more gives the next write its time.
func (p *patient) more() {
	_ = p.c.SetWriteDeadline(time.Now().Add(p.limit)) // a writer without deadlines is one of a test
}
