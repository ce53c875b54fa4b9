package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/enginetest"
	"github.com/pianola-engine/pianola/internal/serve/fleet"
	"github.com/pianola-engine/pianola/internal/serve/keys"
)

// scripted starts a service of a model that answers by the prompt: "busy" with a full queue, "broken" with a
// failure of the device, "wait" with two words between which it waits for the channel, and others with "ok".
func scripted(t *testing.T, o Options, wait <-chan struct{}) *service {
	t.Helper()
	o.Load = func(context.Context, fleet.Entry) (engine.Model, error) {
		return enginetest.New(enginetest.Options{Reply: func(in enginetest.Input) enginetest.Script {
			switch {
			case strings.Contains(in.Prompt, "busy"):
				return enginetest.Script{Steps: []enginetest.Step{{Err: &engine.BusyError{RetryAfter: 3 * time.Second}}}}
			case strings.Contains(in.Prompt, "broken"):
				return enginetest.Script{Steps: []enginetest.Step{{Err: errors.New("the device failed")}}}
			case strings.Contains(in.Prompt, "wait"):
				return enginetest.Script{Steps: []enginetest.Step{{Text: "first "}, {Wait: wait, Text: "second"}}}
			}
			return enginetest.Script{Steps: []enginetest.Step{{Text: "o"}, {Text: "k"}}}
		}})
	}
	s := start(t, o, nil)
	if err := s.Preload(context.Background()); err != nil {
		t.Fatal(err)
	}
	return s
}

// chat returns the body of a chat completion.
func chat(content, more string) string {
	return fmt.Sprintf(`{"model":"one","messages":[{"role":"user","content":%q}]%s}`, content, more)
}

var inJSON = []string{"Content-Type", "application/json"}

// TestProtocols sends requests of every protocol through the whole service, and compares the metrics.
func TestProtocols(t *testing.T) {
	wait := make(chan struct{})
	s := scripted(t, Options{}, wait)
	const chats, messages = "/v1/chat/completions", "/v1/messages"
	s.want(t, 200, `"content":"ok"`, "POST", chats, chat("x", ""), inJSON...)
	s.want(t, 200, `data: [DONE]`, "POST", chats, chat("x", `,"stream":true`), inJSON...)
	s.want(t, 200, `"text":"ok"`, "POST", "/v1/responses", `{"model":"one","input":"x"}`, inJSON...)
	s.want(t, 200, `"text":"ok"`, "POST", messages, chat("x", `,"max_tokens":5`), inJSON...)
	s.want(t, 200, `"embedding"`, "POST", "/v1/embeddings", `{"model":"one","input":"x"}`, inJSON...)
	s.want(t, 200, `"one"`, "GET", "/v1/models", "")
	s.want(t, 404, "model_not_found", "POST", chats, strings.Replace(chat("x", ""), "one", "../../etc/passwd", 1), inJSON...)
	s.want(t, 404, "not_found_error", "POST", messages, strings.Replace(chat("x", `,"max_tokens":5`), "one", "none", 1), inJSON...)
	s.want(t, 400, "invalid_request_error", "POST", chats, "{", inJSON...)
	s.want(t, 400, "", "POST", chats, strings.Repeat("[", 1<<20), inJSON...)
	s.want(t, 415, "", "POST", chats, chat("x", ""), "Content-Type", "text/plain")
	if status, reply, h := s.request(t, "POST", chats, chat("busy", ""), inJSON...); status != 429 || h.Get("Retry-After") != "3" {
		t.Errorf("busy: status %d, Retry-After %q: %s", status, h.Get("Retry-After"), reply)
	}
	s.want(t, 500, "server_error", "POST", chats, chat("broken", ""), inJSON...)

	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	r, err := http.NewRequestWithContext(ctx, "POST", s.url+chats, strings.NewReader(chat("wait", `,"stream":true`)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(resp.Body); lines.Scan() && !strings.Contains(lines.Text(), "first "); {
	}
	leave() // while the model waits
	resp.Body.Close()
	var received, ended, running float64
	var page string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		_, page, _ = s.request(t, "GET", "/metrics", "")
		if received, ended, running = counters(t, page); running == 0 {
			break
		}
	}
	if received != 14 || ended != received || running != 0 {
		t.Errorf("%v requests received, %v ended, %v in progress", received, ended, running)
	}
	for _, want := range []string{
		`outcome="cancelled"`, `outcome="failed",status="500"} 1`, `outcome="failed",status="429"} 1`,
		`vllm:request_success_total{engine="0",finished_reason="stop",model_name="one"} 5`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if log := s.log.String(); strings.Contains(log, "passwd") || strings.Contains(log, `"x"`) || strings.Contains(log, "user") || !strings.Contains(log, "the device failed") {
		t.Errorf("the log has text of a request: %s", log)
	}
}

// TestAnswerLimit bounds the tokens of answers.
func TestAnswerLimit(t *testing.T) {
	s := scripted(t, Options{MaxTokens: 1}, nil)
	s.want(t, 200, `"finish_reason":"length"`, "POST", "/v1/chat/completions", chat("x", ""), inJSON...)
	s.want(t, 200, `"finish_reason":"length"`, "POST", "/v1/chat/completions", chat("x", `,"max_tokens":2`), inJSON...)
}

// TestQueuedHeader checks that the header of a stream comes while its model still waits.
func TestQueuedHeader(t *testing.T) {
	hold := make(chan struct{})
	s := start(t, Options{
		Models: []fleet.Entry{{ID: "one"}},
		Load: func(context.Context, fleet.Entry) (engine.Model, error) {
			<-hold
			return enginetest.New(enginetest.Options{Reply: enginetest.Say("ok")})
		},
	}, nil)
	resp, err := http.Post(s.url+"/v1/chat/completions", "application/json", strings.NewReader(chat("x", `,"stream":true`)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		t.Errorf("status %d, %v", resp.StatusCode, resp.Header)
	}
	close(hold)
	text := ""
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		text += lines.Text() + "\n"
	}
	if !strings.Contains(text, "[DONE]") {
		t.Errorf("%s", text)
	}
}

// TestProtocolShutdown ends the service during streams of each protocol. Each gets a last event with an error.
func TestProtocolShutdown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte("alice sk-0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := keys.Open(file, keys.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	s := scripted(t, Options{Keys: k}, make(chan struct{}))
	var begun, ended sync.WaitGroup
	for path, c := range map[string]struct{ body, last string }{
		"/v1/chat/completions": {chat("wait", `,"stream":true`), `data: {"error":{`},
		"/v1/completions":      {`{"model":"one","prompt":"wait","stream":true}`, `data: {"error":{`},
		"/v1/responses":        {`{"model":"one","input":"wait","stream":true}`, `"type":"response.failed"`},
		"/v1/messages":         {chat("wait", `,"stream":true,"max_tokens":9`), `"type":"error"`},
	} {
		begun.Add(1)
		ended.Go(func() {
			r, _ := http.NewRequest("POST", s.url+path, strings.NewReader(c.body))
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Authorization", "Bearer sk-0123456789abcdef")
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				begun.Done()
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			said, text := sync.OnceFunc(begun.Done), ""
			for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
				if text += lines.Text() + "\n"; strings.Contains(text, "first ") {
					said()
				}
			}
			said()
			last := strings.Split(strings.TrimSuffix(strings.TrimSpace(text), "\n\ndata: [DONE]"), "\n\n")
			if got := last[len(last)-1]; !strings.Contains(got, c.last) || !strings.Contains(got, "shutting down") {
				t.Errorf("%s: the last event is %q", path, got)
			}
		})
	}
	begun.Wait()
	if err := s.Shutdown(context.Background(), 0); err != nil {
		t.Error(err)
	}
	ended.Wait()
}
