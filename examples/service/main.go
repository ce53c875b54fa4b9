// Service embeds the engine in an HTTP server. Sessions of one model process requests from a
// queue, and each request ends at its deadline, wherever it is. Answers are lines of JSON:
//
//	curl -d '{"prompt": "func main() {", "max_tokens": 40, "deadline_ms": 500}' localhost:8080
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	"github.com/pianola-engine/pianola"
)

const chainTime = 20 * time.Millisecond // bounds a submission, and so the overrun of a deadline

type request struct {
	Prompt     string `json:"prompt"`
	MaxTokens  int    `json:"max_tokens"`
	DeadlineMS int    `json:"deadline_ms"` // counted from the request's arrival
}

type answer struct {
	Text string `json:"text,omitempty"`
	End  string `json:"end,omitempty"` // in the last line: "done", or the reason why the answer ended
}

type server struct {
	room chan struct{}         // has one element for each request that waits or runs
	free chan *pianola.Session // unused sessions
}

func newServer(m *pianola.Model, sessions, queue int) (*server, error) {
	s := &server{make(chan struct{}, sessions+queue), make(chan *pianola.Session, sessions)}
	for range sessions { // m.Close closes the sessions
		one, err := m.NewSession(pianola.SessionOptions{ChainTime: chainTime})
		if err != nil {
			return nil, err
		}
		s.free <- one
	}
	return s, nil
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q, last := request{MaxTokens: 64, DeadlineMS: 1000}, answer{End: "done"}
	if json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&q) != nil || q.MaxTokens < 1 || q.DeadlineMS < 1 || q.DeadlineMS > 60_000 {
		http.Error(w, "want a prompt, max_tokens and deadline_ms", http.StatusBadRequest)
		return
	}
	limit, out, lines := time.Duration(q.DeadlineMS)*time.Millisecond, http.NewResponseController(w), json.NewEncoder(w)
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	_ = out.SetWriteDeadline(time.Now().Add(limit + time.Second)) // for clients that do not read
	select {
	case s.room <- struct{}{}:
		defer func() { <-s.room }()
	default:
		http.Error(w, "the queue is full", http.StatusServiceUnavailable)
		return
	}
	var session *pianola.Session
	select {
	case session = <-s.free:
		defer func() { s.free <- session }()
	case <-ctx.Done():
		http.Error(w, "no session was free in time", http.StatusServiceUnavailable)
		return
	}
	for tok, err := range session.Generate(ctx, q.Prompt, pianola.GenerateOptions{MaxTokens: q.MaxTokens, Whole: true}) {
		if err != nil {
			last.End = err.Error()
		} else if lines.Encode(answer{Text: tok.Text}) != nil || out.Flush() != nil {
			return // the client has gone away
		}
	}
	_ = lines.Encode(last)
}

func main() {
	model, addr := flag.String("model", "testdata/gopher-q8_0.gguf", "the model file"), flag.String("addr", "localhost:8080", "the address to listen on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	m, err := pianola.Open(ctx, *model, pianola.Options{})
	if err != nil {
		log.Fatal(err)
	}
	s, err := newServer(m, 4, 32)
	if err != nil {
		log.Fatal(err)
	}
	h := &http.Server{Addr: *addr, Handler: s, ReadTimeout: 5 * time.Second, WriteTimeout: 2 * time.Minute}
	go func() { log.Print(h.ListenAndServe()); stop() }()
	<-ctx.Done()
	log.Println("closed:", h.Shutdown(context.Background()), m.Close()) // Shutdown waits for answers in progress
}
