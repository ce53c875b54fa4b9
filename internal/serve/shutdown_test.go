package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/serve/fleet"
	"github.com/pianola-engine/pianola/internal/serve/observe"
)

// counters reads the counters of requests from a page of metrics.
func counters(t *testing.T, page string) (received, ended, running float64) {
	t.Helper()
	for _, m := range regexp.MustCompile(`(?m)^pianola_requests_(received_total|finished_total|in_progress)(\{.*\})? (\S+)$`).FindAllStringSubmatch(page, -1) {
		n, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			t.Fatal(err)
		}
		switch m[1] {
		case "received_total":
			received += n
		case "finished_total":
			ended += n
		default:
			running += n
		}
	}
	return received, ended, running
}

// TestShutdown ends the service during many streams. Some end within the time, the others get a last event
// and are counted. New requests are refused.
func TestShutdown(t *testing.T) {
	const streams = 100
	finish := make(chan struct{})
	var started, ended sync.WaitGroup
	s := start(t, Options{}, map[string]http.HandlerFunc{"GET /v1/stream": func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "begin ")
		w.(http.Flusher).Flush()
		started.Done()
		done := finish
		if r.URL.Query().Get("long") != "" {
			done = nil
		}
		select {
		case <-done:
			fmt.Fprint(w, "complete")
		case <-r.Context().Done():
			if !errors.Is(context.Cause(r.Context()), fleet.ErrClosed) {
				t.Error(context.Cause(r.Context()))
			}
			observe.From(r.Context()).Failed("shutdown", nil)
			fmt.Fprint(w, "final event")
		}
	}})
	if err := s.Preload(context.Background()); err != nil {
		t.Fatal(err)
	}
	texts := make([]string, streams)
	started.Add(streams)
	for i := range streams {
		ended.Go(func() {
			path := "/v1/stream"
			if i%2 == 1 {
				path += "?long=1"
			}
			resp, err := http.Get(s.url + path)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Error(err)
			}
			texts[i] = string(b)
		})
	}
	started.Wait()
	down := make(chan error, 1)
	ctx, endDrain := context.WithCancel(context.Background())
	go func() { down <- s.Shutdown(ctx, time.Hour) }()
	for s.Ready() {
		time.Sleep(time.Millisecond) // until Shutdown has begun
	}
	s.want(t, 503, "shutting down", "GET", "/readyz", "")
	s.want(t, 200, "ok", "GET", "/healthz", "")
	for s.gate.enter() == nil { // Shutdown closes the gate next
		s.gate.leave()
	}
	s.want(t, 503, "shutting_down", "GET", "/v1/stream", "")
	close(finish)
	for {
		s.gate.mu.Lock()
		n := s.gate.running
		s.gate.mu.Unlock()
		if n == streams/2 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	endDrain() // as if the time had passed
	ended.Wait()
	if err := <-down; err != nil {
		t.Error(err)
	}
	for i, text := range texts {
		if want := []string{"begin complete", "begin final event"}[i%2]; text != want {
			t.Errorf("stream %d: %q, want %q", i, text, want)
		}
	}
	page := &recorder{header: http.Header{}}
	r, _ := http.NewRequest("GET", "/metrics", nil)
	s.OperatorHandler().ServeHTTP(page, r)
	received, all, running := counters(t, page.b.String())
	if received != streams+1 || all != received || running != 0 {
		t.Errorf("%v requests received, %v ended, %v in progress: %s", received, all, running, page.b.String())
	}
	if _, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://")); err == nil {
		t.Error("the service still listens")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(l); err == nil {
		t.Error("served after the end")
	}
}

// recorder keeps a reply.
type recorder struct {
	header http.Header
	b      strings.Builder
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) Write(b []byte) (int, error) { return r.b.Write(b) }
func (r *recorder) WriteHeader(int)             {}
