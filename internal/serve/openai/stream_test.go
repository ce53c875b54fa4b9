package openai

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pianola-engine/pianola/internal/serve/backend"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/enginetest"
	"github.com/pianola-engine/pianola/internal/serve/observe"
)

// open sends a request and returns the reply when its header has come.
func (s *service) open(ctx context.Context, t *testing.T, path, body string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	reply, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reply.Body.Close() })
	return reply
}

// TestQueued checks that the header of a stream comes while the request waits, with comments after it.
func TestQueued(t *testing.T) {
	turn := make(chan struct{})
	s := start(t, enginetest.Options{Reply: func(enginetest.Input) enginetest.Script {
		return enginetest.Script{Steps: []enginetest.Step{{Wait: turn}, {Text: "Hi"}}}
	}}, backend.Limits{Grace: time.Millisecond, KeepAlive: time.Millisecond})
	reply := s.open(context.Background(), t, chatPath, `{`+hi+`,"stream":true}`)
	in := bufio.NewReader(reply.Body)
	if line, err := in.ReadString('\n'); err != nil || !strings.HasPrefix(line, ":") {
		t.Fatalf("%q, %v", line, err)
	}
	close(turn)
	rest, err := io.ReadAll(in)
	if err != nil || !strings.Contains(string(rest), `"content":"Hi"`) || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf("%s, %v", rest, err)
	}
	if kind := reply.Header.Get("Content-Type"); kind != "text/event-stream; charset=utf-8" {
		t.Error(kind)
	}
}

// TestGone checks that a client that goes away ends its request at once, with all choices.
func TestGone(t *testing.T) {
	ended, begun := make(chan error, 8), make(chan struct{}, 8)
	never := make(chan struct{})
	s := start(t, enginetest.Options{
		Ended: func(err error) { ended <- err },
		Reply: func(enginetest.Input) enginetest.Script {
			begun <- struct{}{}
			return enginetest.Script{Steps: []enginetest.Step{{Text: "Hi"}, {Wait: never}}}
		},
	}, backend.Limits{Grace: time.Millisecond})
	for path, body := range map[string]string{chatPath: `{` + hi + `,"n":2,"stream":true}`, completionPath: `{"prompt":["a","b"],"stream":true}`} {
		ctx, cancel := context.WithCancel(context.Background())
		reply := s.open(ctx, t, path, body)
		if _, err := bufio.NewReader(reply.Body).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		cancel()
		for range 2 {
			<-begun
			if err := <-ended; err != nil && !errors.Is(err, context.Canceled) { // nil if it ended within a token
				t.Errorf("%s: the generation ended with %v", path, err)
			}
		}
	}
	// A whole reply is cancelled too.
	ctx, cancel := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+chatPath, strings.NewReader(`{`+hi+`}`))
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan error)
	go func() {
		_, err := s.Client().Do(r) //nolint:bodyclose // there is no reply
		sent <- err
	}()
	<-begun
	cancel()
	if err := <-sent; !errors.Is(err, context.Canceled) {
		t.Errorf("the client: %v", err)
	}
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("the generation ended with %v", err)
	}
}

// TestDeadline checks requests whose deadline passes before and within the answer.
func TestDeadline(t *testing.T) {
	never := make(chan struct{})
	s := start(t, enginetest.Options{Reply: func(in enginetest.Input) enginetest.Script {
		steps := []enginetest.Step{{Wait: never}}
		if in.Generation.Sampling.Seed == 1 {
			steps = append([]enginetest.Step{{Text: "Hi"}}, steps...)
		}
		return enginetest.Script{Steps: steps}
	}}, backend.Limits{Deadline: 10 * time.Millisecond})
	status, text := s.do(t, http.MethodPost, chatPath, `{`+hi+`}`)
	if f := checkFailure(t, text); status != http.StatusGatewayTimeout || *f.Code != "deadline_exceeded" {
		t.Errorf("%d, %s", status, text)
	}
	status, text = s.do(t, http.MethodPost, chatPath, `{`+hi+`,"seed":1,"stream":true}`)
	lines := strings.Split(strings.TrimSpace(text), "\n\n")
	last, ok := strings.CutPrefix(lines[len(lines)-1], "data: ")
	if f := checkFailure(t, last); !ok || status != http.StatusOK || *f.Code != "deadline_exceeded" {
		t.Errorf("%d, %s", status, text)
	}
}

// TestGeneration checks what the model gets of a request.
func TestGeneration(t *testing.T) {
	inputs := make(chan enginetest.Input, 1)
	s := start(t, enginetest.Options{Reply: func(in enginetest.Input) enginetest.Script {
		inputs <- in
		return enginetest.Script{}
	}}, backend.Limits{})
	for _, c := range []struct {
		path, body string
		want       engine.Generation
	}{
		{completionPath, `{"prompt":"Hi","seed":3}`, engine.Generation{MaxTokens: 16, Sampling: engine.Sampling{Temperature: 1, TopP: 1, Seed: 3}}},
		{completionPath, `{"prompt":"Hi","seed":-1,"max_tokens":5,"temperature":0,"top_p":0.5,"top_k":40,"min_p":0.1,"repetition_penalty":1.2,"presence_penalty":1,"frequency_penalty":-1,"logprobs":3,"logit_bias":{"5":-100},"stop":["a","b"],"ignore_eos":true,"priority":2,"cache_prompt":false,"cache_salt":"s"}`,
			engine.Generation{MaxTokens: 5, Stop: []string{"a", "b"}, IgnoreStops: true, Priority: 2, CachePrompt: new(bool), User: "\x00s", Sampling: engine.Sampling{
				TopP: 0.5, TopK: 40, MinP: 0.1, RepeatPenalty: 1.2, PresencePenalty: 1, FrequencyPenalty: -1, LogProbs: 4, LogitBias: map[int32]float64{5: -100}, Seed: 1<<64 - 1,
			}}},
		{chatPath, `{` + hi + `,"seed":3,"max_tokens":9,"max_completion_tokens":7,"logprobs":true}`, engine.Generation{MaxTokens: 7, Stop: []string{"<|im_end|>"}, Sampling: engine.Sampling{Temperature: 1, TopP: 1, Seed: 3, LogProbs: 1}}},
	} {
		if status, text := s.do(t, http.MethodPost, c.path, c.body); status != 200 {
			t.Fatalf("%s: %d, %s", c.body, status, text)
		}
		got := <-inputs
		got.Generation.Prompt = engine.Text{}
		if diff := cmp.Diff(c.want, got.Generation); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.body, diff)
		}
	}
	if status, text := s.do(t, http.MethodPost, chatPath, `{"messages":[{"role":"developer","content":"S"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},{"role":"assistant","content":"c"}],"continue_final_message":true,"reasoning_effort":"none"}`); status != 200 {
		t.Fatal(status, text)
	}
	if want := "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\nc<|im_end|>\n"; want != (<-inputs).Prompt {
		t.Errorf("the prompt is not %q", want)
	}
}

// TestMany runs many streams at the same time. Each must have its own text, and none may be left.
func TestMany(t *testing.T) {
	s := start(t, enginetest.Options{Reply: func(in enginetest.Input) enginetest.Script {
		return enginetest.Script{Steps: enginetest.Words("You said " + in.Prompt + ".")}
	}}, backend.Limits{})
	var running sync.WaitGroup
	for i := range 100 {
		running.Go(func() {
			said := fmt.Sprintf("word%d and more", i)
			_, text := s.do(t, http.MethodPost, completionPath, fmt.Sprintf(`{"prompt":%q,"stream":true,"max_tokens":100}`, said))
			got := ""
			for line := range strings.SplitSeq(text, "\n") {
				var chunk completionReply
				if data, ok := strings.CutPrefix(line, "data: {"); ok && json.Unmarshal([]byte("{"+data), &chunk) == nil {
					got += chunk.Choices[0].Text
				}
			}
			if want := "You said " + said + "."; got != want {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
	running.Wait()
	if s.models.acquired != 0 {
		t.Errorf("%d models have not been released", s.models.acquired)
	}
}

// TestObserved checks what the observer is told of requests.
func TestObserved(t *testing.T) {
	o, err := observe.New(observe.Options{Endpoint: func(r *http.Request) string { return r.URL.Path }})
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, enginetest.Options{Reply: answers}, backend.Limits{})
	s.Config.Handler = o.Middleware(s.Config.Handler)
	for path, bodies := range map[string][]string{
		chatPath:         {`{` + hi + `}`, `{` + hi + `,"stream":true,"n":2}`, `{"messages":[{"role":"user","content":"break"}],"stream":true}`, `{`},
		"/v1/embeddings": {`{"input":"a"}`},
	} {
		for _, body := range bodies {
			s.handle(path, body)
		}
	}
	w := httptest.NewRecorder()
	o.Metrics().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	page := strings.Split(w.Body.String(), "\n")
	for _, want := range []string{
		`vllm:generation_tokens_total{engine="0",model_name="org/scripted"} 14`, // 4 and 2 times 4, and 2 before the failure
		`vllm:prompt_tokens_total{engine="0",model_name="org/scripted"} 67`,     // 21 and 21, 24, and 1
		`vllm:num_requests_running{engine="0",model_name="org/scripted"} 0`,
		`vllm:num_requests_waiting{engine="0",model_name="org/scripted"} 0`,
	} {
		if !slices.Contains(page, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if t.Failed() {
		for _, line := range page {
			if !strings.HasPrefix(line, "#") && !strings.Contains(line, "bucket") {
				t.Log(line)
			}
		}
	}
}
