package backend

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// errSlow is the error of a stream whose client does not read it.
var errSlow = errors.New("the client does not read the stream, or is gone")

// Stream writes server-sent events. Its header is sent with the first event, or after Limits.Grace
// while the request still waits; until then an error can have its own status. Comments keep an idle
// connection open.
type Stream struct {
	limits Limits
	w      http.ResponseWriter
	rc     *http.ResponseController
	done   chan struct{} // closed by Close
	ended  chan struct{} // closed when the goroutine of comments has ended

	mu      sync.Mutex
	started bool
	wrote   time.Time
	err     error
}

// NewStream returns a stream. The caller must call Close before its handler returns.
func NewStream(w http.ResponseWriter, limits Limits) *Stream {
	s := &Stream{limits: limits.Defaults(), w: w, rc: http.NewResponseController(w), done: make(chan struct{}), ended: make(chan struct{})}
	go s.keepAlive()
	return s
}

// keepAlive sends the header in time, and comments while there are no events.
func (s *Stream) keepAlive() {
	defer close(s.ended)
	timer := time.NewTimer(s.limits.Grace)
	defer timer.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-timer.C:
		}
		timer.Reset(s.beat())
	}
}

// beat sends what is due, and returns the time until the next beat.
func (s *Stream) beat() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rest := s.limits.KeepAlive - time.Since(s.wrote); s.started && rest > 0 {
		return rest
	}
	if s.started {
		_ = s.write([]byte(": keep-alive\n\n")) // the next event has the error
	} else {
		s.start()
		_ = s.write(nil)
	}
	return s.limits.KeepAlive
}

// start sets the header.
func (s *Stream) start() {
	s.started = true
	h := s.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no") // nginx would collect the events
	s.w.WriteHeader(http.StatusOK)
}

// write writes and flushes.
func (s *Stream) write(text []byte) error {
	if s.err != nil {
		return s.err
	}
	s.wrote = time.Now()
	if err := s.rc.SetWriteDeadline(s.wrote.Add(s.limits.Write)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		s.err = fmt.Errorf("%w: %w", errSlow, err)
		return s.err
	}
	_, err := s.w.Write(text)
	if err == nil {
		if err = s.rc.Flush(); errors.Is(err, http.ErrNotSupported) {
			err = nil
		}
	}
	if err != nil {
		s.err = fmt.Errorf("%w: %w", errSlow, err)
	}
	return s.err
}

// Event writes an event. The name may be "". The data must be one line.
func (s *Stream) Event(name string, data []byte) error {
	var b bytes.Buffer
	if name != "" {
		fmt.Fprintf(&b, "event: %s\n", name)
	}
	fmt.Fprintf(&b, "data: %s\n\n", data)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		s.start()
	}
	return s.write(b.Bytes())
}

// Fail ends a stream by an error. If nothing has been sent, plain writes a reply without a stream;
// otherwise event writes the last event. The stream must not be used by others meanwhile.
func (s *Stream) Fail(plain func(http.ResponseWriter), event func() error) {
	s.Close()
	if s.started {
		_ = event() // the client may be gone
		return
	}
	plain(s.w)
}

// Close ends the comments. Events may still be written. Calling it again has no effect.
func (s *Stream) Close() {
	s.mu.Lock()
	select {
	case <-s.done:
	default:
		close(s.done)
	}
	s.mu.Unlock()
	<-s.ended
}
