package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/fleet"
	"github.com/pianola-engine/pianola/internal/serve/keys"
)

// model is a model that generates its name, for ever or until a limit.
type model struct {
	engine.Model
	name   string
	closed chan struct{}
}

func (m *model) Info() engine.Info {
	return engine.Info{Context: 1 << 20, PagePositions: 64, Parallel: 4, Chat: true}
}
func (m *model) Load() engine.Load { return engine.Load{Pages: 8, UsedPages: 2} }
func (m *model) Close() error      { close(m.closed); return nil }

func (m *model) Generate(ctx context.Context, g engine.Generation, yield func(engine.Token) bool) (r engine.Result, err error) {
	for r.Reason = engine.Length; g.MaxTokens == 0 || r.Tokens < g.MaxTokens; {
		if err := context.Cause(ctx); err != nil {
			return r, err
		}
		if r.Tokens++; !yield(engine.Token{ID: 1, Text: m.name}) {
			r.Reason = engine.Left
			break
		}
	}
	return r, nil
}

// service is a service on loopback, with the output of its log.
type service struct {
	*Server
	url string
	log *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start starts a service of the model "one", and of those in o. Its handlers are those of the service, and
// the given ones.
func start(t *testing.T, o Options, handlers map[string]http.HandlerFunc) *service {
	t.Helper()
	if o.Models == nil {
		o.Models = []fleet.Entry{{ID: "one", Path: "secret/path", Pinned: true}}
	}
	if o.Load == nil {
		o.Load = func(_ context.Context, e fleet.Entry) (engine.Model, error) {
			return &model{name: e.ID, closed: make(chan struct{})}, nil
		}
	}
	log := &lockedBuffer{}
	o.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	for pattern, h := range handlers {
		s.api.HandleFunc(pattern, h)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Shutdown(context.Background(), 0); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return &service{s, "http://" + l.Addr().String(), log}
}

// request sends a request and returns the status and the body of the reply. header has pairs.
func (s *service) request(t *testing.T, method, path, body string, header ...string) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b), resp.Header
}

// want sends a request and checks the status, and that the body of the reply contains a text.
func (s *service) want(t *testing.T, status int, contains, method, path, body string, header ...string) {
	t.Helper()
	got, reply, h := s.request(t, method, path, body, header...)
	if got != status || !strings.Contains(reply, contains) {
		t.Errorf("%s %s: status %d: %.300s; want %d with %q", method, path, got, reply, status, contains)
	}
	if status >= 400 && status != http.StatusMisdirectedRequest && path != "/readyz" {
		var e struct {
			Error struct{ Message, Type string }
		}
		if json.Unmarshal([]byte(reply), &e) != nil || e.Error.Message == "" || e.Error.Type == "" || h.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: the error is %q", method, path, reply)
		}
	}
}

func echo(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }

// TestEndpoints asks for health, metrics and the page, and for what is not there.
func TestEndpoints(t *testing.T) {
	loading := make(chan struct{})
	s := start(t, Options{Load: func(_ context.Context, e fleet.Entry) (engine.Model, error) {
		<-loading
		return &model{name: e.ID, closed: make(chan struct{})}, nil
	}}, map[string]http.HandlerFunc{"POST /v1/echo": echo})
	s.want(t, 200, "ok", "GET", "/healthz", "")
	s.want(t, 503, "loading", "GET", "/readyz", "")
	close(loading)
	if err := s.Preload(context.Background()); err != nil {
		t.Fatal(err)
	}
	s.want(t, 200, "ready", "GET", "/readyz", "")
	s.want(t, 200, "<title>", "GET", "/", "")
	s.want(t, 200, `"one"`, "GET", "/status", "")
	s.want(t, 200, "hello", "POST", "/v1/echo", "hello")
	s.want(t, 404, "no such endpoint", "GET", "/v1/none", "")
	s.want(t, 404, "no such endpoint", "GET", "/..%2f..%2fetc/passwd", "")
	s.want(t, 405, "method", "GET", "/v1/echo", "")
	s.want(t, 405, "method", "POST", "/", "")
	for _, name := range []string{
		"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:cache_config_info", "pianola_",
	} {
		s.want(t, 200, name, "GET", "/metrics", "")
	}
	if info, ok := s.Info("one"); !ok || !info.Chat {
		t.Errorf("%+v, %v", info, ok)
	}
	for _, o := range []Options{{}, {Models: []fleet.Entry{{ID: "x"}}}, {Models: []fleet.Entry{{ID: "../x"}}, Load: s.o.Load}, {Models: s.o.Models, Load: s.o.Load, Origins: []string{"example.org"}}} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}

// TestKeys sends requests with and without a key, and more than the key's limits allow.
func TestKeys(t *testing.T) {
	const key = "sk-0123456789abcdef"
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte("alice "+key+" rate=1/h burst=2\nbob sk-bob-0123456789 concurrent=1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := keys.Open(file, keys.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	hold, held := make(chan struct{}), make(chan struct{})
	s := start(t, Options{Keys: k}, map[string]http.HandlerFunc{
		"POST /v1/echo": echo,
		"POST /v1/hold": func(http.ResponseWriter, *http.Request) { close(held); <-hold },
	})
	s.want(t, 401, "API key is required", "POST", "/v1/echo", "")
	s.want(t, 401, "invalid_api_key", "POST", "/v1/echo", "", "Authorization", "Bearer sk-wrong-0123456789")
	s.want(t, 401, `"type":"error"`, "POST", "/v1/messages", "")
	for _, open := range []string{"/healthz", "/"} {
		s.want(t, 200, "", "GET", open, "")
	}
	for _, closed := range []string{"/metrics", "/status", "/table/one"} {
		s.want(t, 401, "API key is required", "GET", closed, "")
	}
	bearer := []string{"Authorization", "Bearer " + key}
	for range 5 {
		s.want(t, 200, "one", "GET", "/status", "", bearer...)
		s.want(t, 200, "vllm:", "GET", "/metrics", "", bearer...)
	}
	s.want(t, 200, "x", "POST", "/v1/echo", "x", bearer...)
	s.want(t, 200, "x", "POST", "/v1/echo", "x", "X-Api-Key", key)
	status, reply, h := s.request(t, "POST", "/v1/echo", "x", bearer...)
	if status != 429 || h.Get("Retry-After") == "" || !strings.Contains(reply, "rate_limit") {
		t.Errorf("status %d, Retry-After %q: %s", status, h.Get("Retry-After"), reply)
	}
	bob := []string{"Authorization", "Bearer sk-bob-0123456789"}
	var wg sync.WaitGroup
	wg.Go(func() { s.want(t, 200, "", "POST", "/v1/hold", "", bob...) })
	<-held
	s.want(t, 429, "rate_limit_exceeded", "POST", "/v1/echo", "x", bob...)
	close(hold)
	wg.Wait()
	s.want(t, 200, "x", "POST", "/v1/echo", "x", bob...)
	if log := s.log.String(); strings.Contains(log, key) || strings.Contains(log, "sk-") || !strings.Contains(log, "alice") {
		t.Errorf("the log has a key, or not its name: %s", log)
	}
}

// TestBodies sends bodies that are too long, too slow and too many.
func TestBodies(t *testing.T) {
	hold := make(chan struct{})
	s := start(t, Options{MaxBody: 1000, MaxBodies: 5000, ReadTimeout: 200 * time.Millisecond}, map[string]http.HandlerFunc{
		"POST /v1/echo": echo, "POST /v1/hold": func(w http.ResponseWriter, r *http.Request) { w.(http.Flusher).Flush(); <-hold },
	})
	fill := strings.Repeat("x", 1000)
	s.want(t, 200, fill, "POST", "/v1/echo", fill)
	s.want(t, 413, "more than 1000 bytes", "POST", "/v1/echo", fill+"x")
	s.raw(t, 413, "POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n")
	chunk := "3e8\r\n" + fill + "\r\n"
	s.raw(t, 413, "POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"+chunk+chunk)
	s.raw(t, 408, "POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\nabc")
	s.raw(t, 431, "POST /v1/echo HTTP/1.1\r\nHost: localhost\r\n"+strings.Repeat("X-Y: "+fill+"\r\n", 200)+"\r\n")
	s.raw(t, 400, "POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n")
	s.raw(t, 400, "\x16\x03\x01\r\n\r\n")
	if n := s.bodies.Load(); n != 0 {
		t.Errorf("%d bytes of bodies are left", n)
	}
	// A request whose header is never complete ends.
	c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "POST /v1/echo HTTP/1.1\r\nX: ")
	if _, err := io.ReadAll(c); err != nil && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") {
		t.Error(err)
	}
	var wg sync.WaitGroup
	for range 5 {
		wg.Add(1)
		go func() {
			resp, err := http.Post(s.url+"/v1/hold", "", strings.NewReader(fill))
			wg.Done() // after the header of the reply
			if err == nil {
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}()
	}
	wg.Wait()
	s.want(t, 503, "memory for bodies", "POST", "/v1/echo", fill)
	close(hold)
}

// raw sends the bytes of a request and checks the status of the reply.
func (s *service) raw(t *testing.T, status int, request string) {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go io.WriteString(c, request) // the server may close the connection before it has read everything
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Errorf("%.80q: %v", request, err)
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode != status {
		b, _ := io.ReadAll(resp.Body)
		t.Errorf("%.80q: status %d: %s; want %d", request, resp.StatusCode, b, status)
	}
}

// TestSlowReader lets a client read nothing of a long reply. The handler's write ends.
func TestSlowReader(t *testing.T) {
	ended := make(chan error, 1)
	s := start(t, Options{WriteTimeout: 100 * time.Millisecond}, map[string]http.HandlerFunc{
		"GET /v1/long": func(w http.ResponseWriter, r *http.Request) {
			for {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					ended <- err
					return
				}
			}
		},
	})
	c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "GET /v1/long HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the write ended with %v", err)
	}
}

// TestTimeouts checks that a long stream outlives the timeouts of reading, and that a request ends at the
// limit of its own.
func TestTimeouts(t *testing.T) {
	wait := func(d time.Duration) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-time.After(d):
				fmt.Fprint(w, "done")
			case <-r.Context().Done():
				fmt.Fprint(w, context.Cause(r.Context()))
			}
		}
	}
	for limit := 50 * time.Millisecond; ; limit *= 4 { // on a busy machine the request itself may take longer than the first limits
		s := start(t, Options{ReadTimeout: limit}, map[string]http.HandlerFunc{"POST /v1/wait": wait(2 * limit)})
		var reply []byte
		resp, err := http.Post(s.url+"/v1/wait", "text/plain", strings.NewReader("body"))
		if err == nil {
			reply, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		if err == nil && string(reply) == "done" {
			break
		}
		if limit > 10*time.Second {
			t.Fatalf("a reply after twice the limit of reading, %v: %q, %v", limit, reply, err)
		}
	}
	s := start(t, Options{RequestTimeout: 50 * time.Millisecond}, map[string]http.HandlerFunc{"POST /v1/wait": wait(time.Hour)})
	s.want(t, 200, engine.ErrDeadline.Error(), "POST", "/v1/wait", "body")
}

// TestConnections opens many more idle connections than the bound. Others still get replies.
func TestConnections(t *testing.T) {
	hold, held := make(chan struct{}), make(chan struct{})
	s := start(t, Options{MaxConnections: 50}, map[string]http.HandlerFunc{
		"POST /v1/echo": echo, "POST /v1/hold": func(w http.ResponseWriter, _ *http.Request) { close(held); <-hold; fmt.Fprint(w, "held") },
	})
	var wg sync.WaitGroup
	wg.Go(func() { s.want(t, 200, "held", "POST", "/v1/hold", "") })
	<-held
	for i := range 1000 {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i%100 == 0 {
			s.want(t, 200, "x", "POST", "/v1/echo", "x")
		}
	}
	s.want(t, 200, "x", "POST", "/v1/echo", "x")
	if n := s.conns.len(); n > 51 { // one can be closed while its request begins, and counts until that has failed
		t.Errorf("%d connections", n)
	}
	close(hold) // a connection with a request in progress is not closed
	wg.Wait()
}

// TestConnectionsCount checks that a closed connection counts no longer, though its goroutine has not
// reported so: the states come as on a machine that runs only the goroutine that accepts.
func TestConnectionsCount(t *testing.T) {
	c := newConns(3)
	var all []net.Conn
	for range 10 {
		conn, _ := net.Pipe()
		c.change(conn, http.StateNew)
		all = append(all, conn)
		if c.len() > 3 {
			t.Fatalf("%d connections", c.len())
		}
	}
	c.change(all[9], http.StateActive)
	for _, conn := range all[:9] {
		c.change(conn, http.StateClosed)
	}
	if _, err := all[6].Write(nil); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("the connection that rested longest: %v", err)
	}
	if c.len() != 1 {
		t.Errorf("%d connections, want the one with a request", c.len())
	}
}

// TestMaxRequests refuses a request while others are in progress.
func TestMaxRequests(t *testing.T) {
	hold, held := make(chan struct{}), make(chan struct{})
	s := start(t, Options{MaxRequests: 1}, map[string]http.HandlerFunc{
		"POST /v1/echo": echo, "POST /v1/hold": func(http.ResponseWriter, *http.Request) { close(held); <-hold },
	})
	var wg sync.WaitGroup
	wg.Go(func() { s.want(t, 200, "", "POST", "/v1/hold", "") })
	<-held
	s.want(t, 503, "too_many_requests", "POST", "/v1/echo", "x")
	s.want(t, 200, "ok", "GET", "/healthz", "")
	close(hold)
	wg.Wait()
	s.want(t, 200, "x", "POST", "/v1/echo", "x")
}

// TestBrowsers sends requests as the browsers of people do who visit other sites.
func TestBrowsers(t *testing.T) {
	h := map[string]http.HandlerFunc{"POST /v1/echo": echo}
	s := start(t, Options{}, h)
	s.want(t, 421, "", "POST", "/v1/echo", "x", "Host", "evil.example")
	s.want(t, 421, "", "GET", "/metrics", "", "Host", "evil.example")
	s.want(t, 403, "cors-origin", "POST", "/v1/echo", "x", "Origin", "https://evil.example")
	s.want(t, 403, "cors-origin", "POST", "/v1/echo", "x", "Sec-Fetch-Site", "cross-site")
	s.want(t, 200, "x", "POST", "/v1/echo", "x", "Origin", s.url, "Sec-Fetch-Site", "same-origin")
	if _, _, header := s.request(t, "OPTIONS", "/v1/echo", "", "Origin", "https://a.example", "Access-Control-Request-Method", "POST"); header.Get("Access-Control-Allow-Origin") != "" {
		t.Error("CORS is on by default")
	}
	s = start(t, Options{Origins: []string{"https://a.example"}}, h)
	status, _, header := s.request(t, "OPTIONS", "/v1/echo", "", "Origin", "https://a.example", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,x-other")
	if status != 204 || header.Get("Access-Control-Allow-Origin") != "https://a.example" || header.Get("Access-Control-Allow-Headers") != "authorization,x-other" {
		t.Errorf("status %d, %v", status, header)
	}
	if _, _, header := s.request(t, "POST", "/v1/echo", "x", "Origin", "https://a.example"); header.Get("Access-Control-Allow-Origin") != "https://a.example" || header.Get("Vary") != "Origin" {
		t.Errorf("%v", header)
	}
	s.want(t, 403, "cors-origin", "POST", "/v1/echo", "x", "Origin", "https://b.example")
	s = start(t, Options{Origins: []string{"*"}}, h)
	s.want(t, 200, "x", "POST", "/v1/echo", "x", "Origin", "https://b.example")
}

// TestEviction serves two models in the memory of one, loaded on demand.
func TestEviction(t *testing.T) {
	var mu sync.Mutex
	loaded := map[string]*model{}
	var s *service
	s = start(t, Options{
		Models:       []fleet.Entry{{ID: "one"}, {ID: "two"}},
		MemoryBudget: 100, Keep: time.Hour, MaxTokens: 3,
		Size: func(context.Context, fleet.Entry) (int64, error) { return 70, nil },
		Load: func(_ context.Context, e fleet.Entry) (engine.Model, error) {
			mu.Lock()
			defer mu.Unlock()
			loaded[e.ID] = &model{name: e.ID, closed: make(chan struct{})}
			return loaded[e.ID], nil
		},
	}, map[string]http.HandlerFunc{"POST /v1/say": func(w http.ResponseWriter, r *http.Request) {
		name, _ := io.ReadAll(r.Body)
		lease, err := s.models.Acquire(r.Context(), string(name))
		if err != nil {
			fmt.Fprint(w, err)
			return
		}
		defer lease.Release()
		lease.Model().Generate(r.Context(), engine.Generation{}, func(t engine.Token) bool { fmt.Fprint(w, t.Text); return true })
	}})
	if err := s.Preload(context.Background()); err != nil || !s.Ready() {
		t.Fatal(err)
	}
	for range 3 {
		s.want(t, 200, "oneoneone", "POST", "/v1/say", "one")
		mu.Lock()
		one := loaded["one"]
		mu.Unlock()
		s.want(t, 200, "twotwotwo", "POST", "/v1/say", "two")
		<-one.closed // the memory was needed
	}
	for _, name := range []string{"../one", "/etc/passwd", "one\x00"} {
		s.want(t, 200, "no such model", "POST", "/v1/say", name)
	}
	s.want(t, 200, `evicted`, "GET", "/metrics", "")
}
