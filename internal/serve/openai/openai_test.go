package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/serve/backend"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/enginetest"
	"github.com/pianola-engine/pianola/internal/serve/fleet"
)

var update = flag.Bool("update", false, "rewrite the transcripts in testdata")

// loaded are models that are always loaded.
type loaded struct {
	models   map[string]engine.Model
	order    []string
	mu       sync.Mutex
	acquired int // and not released
}

func (l *loaded) Acquire(_ context.Context, name string) (engine.Model, string, func(), error) {
	m, ok := l.models[name]
	if !ok {
		return nil, "", nil, fleet.ErrUnknown
	}
	l.count(1)
	return m, name, func() { l.count(-1) }, nil
}

func (l *loaded) count(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acquired += n
}

func (l *loaded) List() (list []backend.ModelInfo) {
	for _, name := range l.order {
		list = append(list, backend.ModelInfo{ID: name, Created: time.Unix(1700000000, 0), Loaded: true, Context: l.models[name].Info().Context})
	}
	return list
}

// service is a service of scripted models.
type service struct {
	*httptest.Server
	models *loaded
}

// start starts a service with one model. The identifiers of replies are numbers. Without
// limits.Grace, an error before the first event has its own status, however long it takes.
func start(t testing.TB, o enginetest.Options, limits backend.Limits) *service {
	t.Helper()
	if limits.Grace == 0 {
		limits.Grace = time.Hour
	}
	m, err := enginetest.New(o)
	if err != nil {
		t.Fatal(err)
	}
	s := &service{models: &loaded{models: map[string]engine.Model{"org/scripted": m}, order: []string{"org/scripted"}}}
	n := 0
	var mu sync.Mutex
	mux := http.NewServeMux()
	New(Options{Models: s.models, Limits: limits, Now: func() time.Time { return time.Unix(1700000000, 0) }, NewID: func() string {
		mu.Lock()
		defer mu.Unlock()
		n++
		return fmt.Sprintf("%05d", n)
	}}).Register(mux)
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// do sends a request, and returns the status and the body of the reply.
func (s *service) do(t testing.TB, method, path, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequest(method, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	reply, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply.StatusCode, string(text)
}

// handle gives a request to the handler, and returns the status and the body of the reply.
func (s *service) handle(path, body string) (int, string) {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	w := httptest.NewRecorder()
	s.Config.Handler.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// answers is the script of the tests: what the model says depends on the conversation.
func answers(in enginetest.Input) enginetest.Script {
	text := "Hello there, friend."
	switch {
	case strings.Contains(in.Prompt, "think"):
		text = "<think>\nThey greet.\n</think>\n\nHi, **you**!"
	case strings.Contains(in.Prompt, "weather") && strings.Contains(in.Prompt, "What"):
		text = "<think>\nA call.\n</think>\n\nLet me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln\"}}\n</tool_call>\n<tool_call>{\"name\": \"now\"}</tool_call>"
	case strings.Contains(in.Prompt, "bytes"):
		return enginetest.Script{Steps: []enginetest.Step{{Text: "\xe6\x97"}, {Text: "\xa5!"}}, Cached: 3}
	case strings.Contains(in.Prompt, "break"):
		return enginetest.Script{Steps: append(enginetest.Words("Well, so"), enginetest.Step{Err: fmt.Errorf("the device is gone: secret")})}
	case strings.Contains(in.Prompt, "busy"):
		return enginetest.Script{Steps: []enginetest.Step{{Err: &engine.BusyError{RetryAfter: 2 * time.Second}}}}
	case in.Generation.Sampling.Seed == 8:
		text = "Another one."
	}
	return enginetest.Script{Steps: enginetest.Words(text)}
}

const weatherTool = `"tools":[{"type":"function","function":{"name":"weather","description":"d","parameters":{"type":"object"}}},{"type":"function","function":{"name":"now"}}]`

// transcripts are requests whose replies are in testdata.
var transcripts = []struct{ name, path, body string }{
	{"chat", "/v1/chat/completions", `{"model":"org/scripted","messages":[{"role":"user","content":"Hi"}]}`},
	{"chat-stream", "/v1/chat/completions", `{"messages":[{"role":"developer","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"H"},{"type":"text","text":"i"}]}],"stream":true}`},
	{"chat-usage-stream", "/v1/chat/completions", `{"messages":[{"role":"user","content":"Hi"}],"stream":true,"stream_options":{"include_usage":true},"max_tokens":2}`},
	{"chat-think", "/v1/chat/completions", `{"messages":[{"role":"user","content":"think"}]}`},
	{"chat-think-stream", "/v1/chat/completions", `{"messages":[{"role":"user","content":"think"}],"stream":true,"stream_options":{"include_usage":true}}`},
	{"chat-tools", "/v1/chat/completions", `{"messages":[{"role":"user","content":"What is the weather?"}],` + weatherTool + `}`},
	{"chat-tools-stream", "/v1/chat/completions", `{"messages":[{"role":"user","content":"What is the weather?"}],"stream":true,` + weatherTool + `}`},
	{"chat-tools-one-stream", "/v1/chat/completions", `{"messages":[{"role":"user","content":"What is the weather?"}],"stream":true,"parallel_tool_calls":false,` + weatherTool + `}`},
	{"chat-tools-cut", "/v1/chat/completions", `{"messages":[{"role":"user","content":"What is the weather?"}],"max_tokens":15,` + weatherTool + `}`},
	{"chat-tools-none", "/v1/chat/completions", `{"messages":[{"role":"user","content":"What is the weather?"}],"tool_choice":"none",` + weatherTool + `}`},
	{"chat-tools-answered", "/v1/chat/completions", `{"messages":[{"role":"user","content":"Is it warm?"},{"role":"assistant","content":null,"tool_calls":[{"id":"call00001","type":"function","function":{"name":"weather","arguments":"{}"}}]},{"role":"tool","tool_call_id":"call00001","content":"warm"}],` + weatherTool + `}`},
	{"chat-choices", "/v1/chat/completions", `{"messages":[{"role":"user","content":"Hi"}],"n":2,"seed":7,"stop":["riend"]}`},
	{"chat-logprobs", "/v1/chat/completions", `{"messages":[{"role":"user","content":"bytes"}],"logprobs":true,"top_logprobs":2}`},
	{"chat-logprobs-stream", "/v1/chat/completions", `{"messages":[{"role":"user","content":"bytes"}],"logprobs":true,"stream":true}`},
	{"chat-break-stream", "/v1/chat/completions", `{"messages":[{"role":"user","content":"break"}],"stream":true}`},
	{"chat-break", "/v1/chat/completions", `{"messages":[{"role":"user","content":"break"}]}`},
	{"chat-busy-stream", "/v1/chat/completions", `{"messages":[{"role":"user","content":"busy"}],"stream":true}`},
	{"completion", "/v1/completions", `{"prompt":"Hi","stop":"end."}`},
	{"completion-stream", "/v1/completions", `{"prompt":"Hi","stream":true,"stream_options":{"include_usage":true},"max_tokens":3}`},
	{"completion-prompts", "/v1/completions", `{"prompt":["Hi",[72,105]],"n":2,"seed":7}`},
	{"completion-logprobs", "/v1/completions", `{"prompt":"bytes","logprobs":2}`},
	{"embeddings", "/v1/embeddings", `{"input":["a","b"],"encoding_format":"float"}`},
	{"embeddings-base64", "/v1/embeddings", `{"input":[[97],[98]],"encoding_format":"base64"}`},
	{"rerank", "/v1/rerank", `{"query":"a b","documents":["c","a",{"text":"a b"}],"top_n":2,"return_documents":true}`},
	{"tokenize", "/tokenize", `{"content":"H<|im_end|>","parse_special":true,"with_pieces":true,"return_token_strs":true}`},
	{"tokenize-chat", "/tokenize", `{"messages":[{"role":"user","content":"Hi"}]}`},
	{"detokenize", "/detokenize", `{"tokens":[72,105,256]}`},
}

// TestTranscripts compares replies with those in testdata.
func TestTranscripts(t *testing.T) {
	for _, c := range transcripts {
		s := start(t, enginetest.Options{Reply: answers}, backend.Limits{})
		status, text := s.do(t, http.MethodPost, c.path, c.body)
		got := fmt.Sprintf("POST %s\n%s\n\n%d\n%s", c.path, c.body, status, text)
		path := filepath.Join("testdata", c.name+".txt")
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil || string(want) != got {
			t.Errorf("%s: %v\n%s\nwant\n%s", c.name, err, got, want)
		}
		if s.models.acquired != 0 {
			t.Errorf("%s: the model has not been released", c.name)
		}
	}
}

// TestModels lists models.
func TestModels(t *testing.T) {
	s := start(t, enginetest.Options{}, backend.Limits{})
	for path, want := range map[string]string{
		"/v1/models":              `{"data":[{"id":"org/scripted","object":"model","created":1700000000,"owned_by":"pianola","loaded":true,"max_model_len":4096}],"object":"list"}`,
		"/v1/models/org/scripted": `{"id":"org/scripted","object":"model","created":1700000000,"owned_by":"pianola","loaded":true,"max_model_len":4096}`,
		"/v1/models/other":        `{"error":{"message":"there is no such model; GET /v1/models lists the models","type":"invalid_request_error","param":"model","code":"model_not_found"}}`,
	} {
		if _, got := s.do(t, http.MethodGet, path, ""); strings.TrimSpace(got) != want {
			t.Errorf("%s: %s", path, got)
		}
	}
}

// checkFailure checks the form of an error.
func checkFailure(t testing.TB, text string) failureBody {
	t.Helper()
	var f failure
	dec := json.NewDecoder(bytes.NewReader([]byte(text)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&f); err != nil || f.Error.Message == "" || f.Error.Type == "" {
		t.Fatalf("%s is no error of OpenAI: %v", text, err)
	}
	return f.Error
}
