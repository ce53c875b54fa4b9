package pagetest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/pianola-engine/pianola/internal/serve/observe"
	"github.com/pianola-engine/pianola/internal/serve/page"
	"github.com/pianola-engine/pianola/table"
)

// service is a service with the page and a scripted API. Each request for an answer takes the next
// script.
type service struct {
	http.Handler

	mu       sync.Mutex
	key      string // requests need it, if it is not ""
	scripts  []func(*stream)
	tables   map[string]*table.Table // of loaded models
	requests []request
}

// request is what the service remembers of a request.
type request struct {
	Model    string
	Messages []struct{ Role, Content string }
	Stream   bool
	Options  struct {
		Usage bool `json:"include_usage"`
	} `json:"stream_options"`
	Temperature, Seed *float64
	TopLogprobs       *int `json:"top_logprobs"`
	all               map[string]any
}

// stream writes the events of an answer.
type stream struct {
	t    *testing.T
	w    http.ResponseWriter
	r    *http.Request
	body request
}

func newService(t *testing.T, scripts ...func(*stream)) *service {
	t.Helper()
	s := &service{scripts: scripts}
	pages, err := page.Handler(page.Options{
		Table: func(_ context.Context, id string) *table.Table { return s.tables[id] },
		State: func() observe.State {
			if s.tables != nil {
				return observe.State{Models: []observe.ModelState{{ID: "gopher", State: "ready"}, {ID: "org/plain", State: "ready"}, {ID: "other", State: "absent"}}}
			}
			return observe.State{MemoryBudget: 8 << 30, Models: []observe.ModelState{
				{ID: "gopher", State: "ready", Bytes: 3 << 20, PagePositions: 64, Load: &observe.Load{Running: 2, Waiting: 1, Pages: 256, UsedPages: 96, CachedPages: 40}},
				{ID: "org/other", State: "absent"},
			}}
		},
		Protect: s.protect,
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", pages)
	mux.Handle("GET /v1/models", s.protect(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"object":"list","data":[{"id":"gopher","object":"model"},{"id":"org/other","object":"model"}]}`)
	})))
	mux.Handle("POST /v1/chat/completions", s.protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.chat(t, w, r) })))
	s.Handler = mux
	return s
}

// refuse answers with an error of the API.
func refuse(w http.ResponseWriter, status int, param, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": message, "type": "error", "param": param}}); err != nil {
		panic(err)
	}
}

func (s *service) protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		key := s.key
		s.mu.Unlock()
		if key != "" && r.Header.Get("Authorization") != "Bearer "+key {
			refuse(w, http.StatusUnauthorized, "", "an API key is required")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *service) chat(t *testing.T, w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return // the page has gone away
	}
	var q request
	if err := json.Unmarshal(b, &q); err != nil {
		t.Errorf("the body of a request: %v", err)
	}
	if err := json.Unmarshal(b, &q.all); err != nil {
		t.Errorf("the body of a request: %v", err)
	}
	s.mu.Lock()
	if len(s.scripts) == 0 {
		s.mu.Unlock()
		t.Error("the page asks for one more answer")
		return
	}
	script := s.scripts[0]
	s.scripts = s.scripts[1:]
	s.requests = append(s.requests, q)
	s.mu.Unlock()
	script(&stream{t, w, r, q})
}

// last returns the latest request and the number of requests.
func (s *service) last() (request, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.requests) == 0 {
		return request{}, 0
	}
	return s.requests[len(s.requests)-1], len(s.requests)
}

func (s *stream) event(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		s.t.Error(err)
		return
	}
	s.w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(s.w, "data: %s\n\n", b)
	s.w.(http.Flusher).Flush()
}

func (s *stream) delta(field, text string, logprobs any) {
	choice := map[string]any{"index": 0, "delta": map[string]any{field: text}, "finish_reason": nil}
	if logprobs != nil {
		choice["logprobs"] = map[string]any{"content": logprobs}
	}
	s.event(map[string]any{"object": "chat.completion.chunk", "choices": []any{choice}})
}

// words sends a text, a token for each word. Its probability falls with the word's length.
func (s *stream) words(field, text string) {
	for _, word := range strings.SplitAfter(strings.TrimRight(text, " "), " ") {
		s.token(field, word, math.Pow(.8, float64(len(word)-1)))
	}
}

func (s *stream) token(field, text string, p float64) {
	type entry struct {
		Token   string  `json:"token"`
		Logprob float64 `json:"logprob"`
		Top     []entry `json:"top_logprobs,omitempty"`
	}
	e := entry{Token: text, Logprob: math.Log(p)}
	e.Top = []entry{{Token: text, Logprob: e.Logprob}, {Token: " another", Logprob: math.Log(1.001 - p)}}
	s.delta(field, text, []entry{e})
}

// end sends the reason and the usage, and ends the stream.
func (s *stream) end(reason string) {
	s.event(map[string]any{"choices": []any{map[string]any{"index": 0, "delta": struct{}{}, "finish_reason": reason}}})
	s.event(map[string]any{"choices": []any{}, "usage": map[string]any{
		"prompt_tokens": 31, "completion_tokens": 57, "prompt_tokens_details": map[string]any{"cached_tokens": 16},
		"completion_tokens_details": map[string]any{"reasoning_tokens": 8},
	}})
	fmt.Fprint(s.w, "data: [DONE]\n\n")
}

// says returns a script that answers with a text.
func says(text string) func(*stream) {
	return func(s *stream) {
		s.words("content", text)
		s.end("stop")
	}
}

// hold waits until the page has gone away, or the test goes on.
func (s *stream) hold(on <-chan struct{}) {
	select {
	case <-on:
	case <-s.r.Context().Done():
	}
}
