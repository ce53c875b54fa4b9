package observe

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// secrets are texts of requests that no log, metric or trace may have.
var secrets = []string{"sk-secret-key", "prompt-secret", "query-secret", "cookie-secret", "panic-secret", "id-secret"}

// secretive is a request with secrets in all places.
func secretive(t *testing.T, url string) *http.Request {
	t.Helper()
	r, err := http.NewRequest("POST", url+"/v1/chat/completions?api_key=query-secret", strings.NewReader(`{"prompt":"prompt-secret"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer sk-secret-key")
	r.Header.Set("X-Api-Key", "sk-secret-key")
	r.Header.Set("Cookie", "session=cookie-secret")
	r.Header.Set(requestID, "id-secret {\"a\": 1}")
	return r
}

// TestNoSecrets searches all that the observer writes for what a request had.
func TestNoSecrets(t *testing.T) {
	for _, format := range []Format{Text, JSON} {
		var logs bytes.Buffer
		log, err := NewLogger(&logs, format, slog.LevelDebug)
		if err != nil {
			t.Fatal(err)
		}
		spans, meters, sent := recorded(t)
		b := newObserver(t, Options{Log: log, Traces: spans, Meters: meters})
		mode := 0
		s := httptest.NewServer(b.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			q := From(r.Context())
			body, _ := io.ReadAll(r.Body)
			q.Key("team")
			q.Queued("gopher", "chat")
			switch mode++; mode {
			case 1:
				panic("panic-secret " + string(body))
			case 2:
				http.Error(w, "invalid: "+string(body), http.StatusBadRequest)
			default:
				q.Tokens(1)
				q.Finished("stop")
				_, _ = w.Write(body)
			}
		})))
		for range 3 {
			resp, err := http.DefaultClient.Do(secretive(t, s.URL))
			if err == nil {
				resp.Body.Close()
			}
		}
		s.Close()
		written := logs.String() + scrape(t, b) + sent()
		if n := strings.Count(logs.String(), "\n"); n != 4 { // three requests and a panic
			t.Errorf("%s: %d lines:\n%s", format, n, logs.String())
		}
		for _, secret := range secrets {
			if strings.Contains(written, secret) {
				t.Errorf("%s: %s was written:\n%s", format, secret, written)
			}
		}
	}
}

func TestLogLine(t *testing.T) {
	var logs bytes.Buffer
	log, err := NewLogger(&logs, JSON, slog.LevelInfo)
	if err != nil {
		t.Fatal(err)
	}
	c := newClock()
	b := newObserver(t, Options{Log: log, now: c.time})
	r := post("/v1/chat/completions")
	r.Header.Set(requestID, "req-1")
	serveOne(b, life(c, "gopher", "stop"), r)
	var got map[string]any
	if err := json.Unmarshal(logs.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	delete(got, "time")
	want := map[string]any{
		"level": "INFO", "msg": "request", "id": "req-1", "method": "POST", "endpoint": "/v1/chat/completions", "status": 200.0, "outcome": "done",
		"took": 220e6, "bytes": 14.0, "key": "team", "model": "gopher", "prompt_tokens": 100.0, "cached_tokens": 64.0, "tokens": 7.0, "queued": 20e6, "first_token": 70e6,
	}
	for name, v := range want {
		if got[name] != v {
			t.Errorf("%s is %v, want %v", name, got[name], v)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("the line also has %v", got)
	}
	logs.Reset()
	serveOne(b, func(_ http.ResponseWriter, r *http.Request) {
		From(r.Context()).Failed("device", errors.New("the device is lost"))
	}, post("/v1/completions"))
	if line := logs.String(); !strings.Contains(line, `"level":"ERROR"`) || !strings.Contains(line, "the device is lost") {
		t.Errorf("a failure: %s", line)
	}
	if _, err := NewLogger(io.Discard, "xml", slog.LevelInfo); err == nil {
		t.Error("the format xml was accepted")
	}
}

func TestRequestID(t *testing.T) {
	b := newObserver(t, Options{})
	for id, keep := range map[string]bool{
		"a": true, "req-1_2.3:4": true, strings.Repeat("x", maxID): true,
		"": false, strings.Repeat("x", maxID+1): false, "a b": false, "a\"b": false, "ä": false, "a\x1b[31m": false, "a,b": false, "a;b": false, "<script>": false,
	} {
		r := post("/v1/completions")
		r.Header[requestID] = []string{id}
		var inside string
		w := serveOne(b, func(_ http.ResponseWriter, r *http.Request) { inside = From(r.Context()).ID() }, r)
		got := w.Header().Get(requestID)
		if got != inside || got == "" || (got == id) != keep {
			t.Errorf("%q: the reply's id is %q, the request's %q", id, got, inside)
		}
	}
}
