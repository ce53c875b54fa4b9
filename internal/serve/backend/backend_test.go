package backend

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/fleet"
	"github.com/pianola-engine/pianola/internal/serve/keys"
)

// TestBody checks which bodies are refused, and with which status.
func TestBody(t *testing.T) {
	for _, c := range []struct {
		kind, coding, body string
		status             int
	}{
		{"application/json", "", "{}", 0},
		{"application/json; charset=utf-8", "identity", "{}", 0},
		{"", "", "{}", 0},
		{"application/merge-patch+json", "", "{}", 0},
		{"text/plain", "", "{}", 415},
		{"application/x-www-form-urlencoded", "", "a=1", 415},
		{";", "", "{}", 415},
		{"application/json", "gzip", "{}", 415},
		{"application/json", "", "{", 400},
		{"application/json", "", strings.Repeat(" ", 100) + "{}", 413},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(c.body))
		r.Header.Set("Content-Type", c.kind)
		r.Header.Set("Content-Encoding", c.coding)
		_, err := Body(httptest.NewRecorder(), r, Limits{Body: 99})
		status := 0
		if err != nil {
			status = ErrorOf(err).Status
		}
		if status != c.status {
			t.Errorf("%q %q %.20q: %v, want status %d", c.kind, c.coding, c.body, err, c.status)
		}
	}
}

// TestDeadline checks the header field of the deadline.
func TestDeadline(t *testing.T) {
	for _, c := range []struct {
		header  string
		limit   time.Duration
		within  time.Duration // 0 means none
		refused bool
	}{
		{"", 0, 0, false}, {"", time.Hour, time.Hour, false}, {"2.5", time.Hour, 2500 * time.Millisecond, false}, {"7200", time.Hour, time.Hour, false},
		{"1e300", 0, 24 * time.Hour, false}, {"0", 0, 0, true}, {"-1", 0, 0, true}, {"NaN", 0, 0, true}, {"x", 0, 0, true},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set(TimeoutHeader, c.header)
		ctx, cancel, err := Deadline(r, Limits{Deadline: c.limit})
		if c.refused {
			if err == nil {
				t.Errorf("%q is accepted", c.header)
			}
			continue
		}
		if err != nil {
			t.Fatal(c.header, err)
		}
		end, ok := ctx.Deadline()
		if ok != (c.within > 0) || ok && (time.Until(end) > c.within || time.Until(end) < c.within-time.Minute) {
			t.Errorf("%q: the deadline is in %v, want %v", c.header, time.Until(end), c.within)
		}
		cancel()
	}
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header.Set(TimeoutHeader, "0.001")
	ctx, cancel, err := Deadline(r, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	defer cancel()
	<-ctx.Done()
	if !errors.Is(context.Cause(ctx), engine.ErrDeadline) {
		t.Errorf("the cause is %v", context.Cause(ctx))
	}
}

// TestErrorOf checks the statuses of errors.
func TestErrorOf(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		code   string
		retry  string
	}{
		{&engine.RequestError{Param: "messages", Why: "x"}, 400, "", ""},
		{fmt.Errorf("x: %w", engine.ErrContextFull), 400, "context_length_exceeded", ""},
		{engine.ErrUnsupported, 400, "unsupported", ""},
		{fmt.Errorf("x: %w", &engine.UnsupportedError{Why: "it has no chat template"}), 400, "unsupported", ""},
		{&keys.Refusal{Reason: keys.Missing}, 401, "invalid_api_key", ""},
		{fleet.ErrUnknown, 404, "model_not_found", ""},
		{&http.MaxBytesError{Limit: 5}, 413, "request_too_large", ""},
		{&engine.BusyError{}, 429, "rate_limit_exceeded", "1"},
		{&engine.BusyError{RetryAfter: 1500 * time.Millisecond}, 429, "rate_limit_exceeded", "2"},
		{&keys.Refusal{Reason: keys.Rate, RetryAfter: 3 * time.Second}, 429, "rate_limit_exceeded", "3"},
		{context.Canceled, 499, "cancelled", ""},
		{errors.New("secret"), 500, "internal_error", ""},
		{engine.ErrClosed, 503, "model_closed", "1"},
		{&fleet.TooLargeError{ID: "x"}, 503, "model_too_large", ""},
		{engine.ErrDeadline, 504, "deadline_exceeded", ""},
	} {
		e, h := ErrorOf(c.err), http.Header{}
		e.SetHeader(h)
		if e.Status != c.status || e.Code != c.code || h.Get("Retry-After") != c.retry || e.Message == "" || strings.Contains(e.Error(), "secret") {
			t.Errorf("%v: %+v, header %v", c.err, e, h)
		}
	}
}

// TestErrorOfReason checks that the client learns why a model does not support its request.
func TestErrorOfReason(t *testing.T) {
	e := ErrorOf(fmt.Errorf("x: %w", &engine.UnsupportedError{Why: "it has no chat template"}))
	if want := "model: the model does not support this request: it has no chat template"; e.Error() != want {
		t.Errorf("%q, want %q", e.Error(), want)
	}
}

// TestStream reads streams: the header comes before the first event, comments follow, and errors have
// their own status as long as nothing has been sent.
func TestStream(t *testing.T) {
	next := make(chan struct{})
	limits := Limits{Grace: time.Millisecond, KeepAlive: time.Millisecond}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		of := limits
		if r.URL.Path == "/early" {
			of.Grace = time.Hour
		}
		s := NewStream(w, of)
		defer s.Close()
		if r.URL.Path == "/late" {
			<-next
			if err := s.Event("x", []byte(`{"a":1}`)); err != nil {
				t.Error(err)
			}
		}
		s.Fail(func(w http.ResponseWriter) { w.WriteHeader(http.StatusTooManyRequests) }, func() error { return s.Event("", []byte("failed")) })
	}))
	defer server.Close()
	early, err := http.Get(server.URL + "/early")
	if err != nil {
		t.Fatal(err)
	}
	early.Body.Close()
	if early.StatusCode != http.StatusTooManyRequests {
		t.Errorf("early: %s", early.Status)
	}
	late, err := http.Get(server.URL + "/late") // returns with the header
	if err != nil {
		t.Fatal(err)
	}
	defer late.Body.Close()
	in := bufio.NewReader(late.Body)
	if line, err := in.ReadString('\n'); err != nil || line != ": keep-alive\n" {
		t.Fatalf("%q, %v", line, err)
	}
	close(next)
	rest, err := io.ReadAll(in)
	events := strings.ReplaceAll(strings.TrimLeft(string(rest), "\n"), ": keep-alive\n\n", "")
	if err != nil || events != "event: x\ndata: {\"a\":1}\n\ndata: failed\n\n" || late.Header.Get("Content-Type") != "text/event-stream; charset=utf-8" {
		t.Errorf("%q, %v, %v", events, err, late.Header)
	}
}

// TestSlowReader checks that a client that does not read ends a stream.
func TestSlowReader(t *testing.T) {
	ended := make(chan error)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s := NewStream(w, Limits{Write: 10 * time.Millisecond})
		defer s.Close()
		for {
			if err := s.Event("", []byte(strings.Repeat("x", 1<<16))); err != nil {
				ended <- err
				return
			}
		}
	}))
	defer server.Close()
	reply, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	if e := ErrorOf(<-ended); e.Status != StatusCancelled {
		t.Errorf("%+v", e)
	}
}
