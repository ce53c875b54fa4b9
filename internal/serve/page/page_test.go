package page

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/serve/observe"
	"github.com/pianola-engine/pianola/table"
)

// get asks a handler for a path, and returns the reply's status and text.
func get(t *testing.T, h http.Handler, method, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w.Code, w.Body.String()
}

func newHandler(t *testing.T, o Options) http.Handler {
	t.Helper()
	h, err := Handler(o)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func labelled(labels ...string) *table.Table {
	return &table.Table{
		Labels: labels, Cmds: make([]table.Cmd, len(labels)),
		Programs: []table.Program{{Name: "decode", Count: uint32(len(labels)), MaxRows: 1}},
	}
}

// TestRoutes asks for each path, for paths that do not exist, and with a wrong method.
func TestRoutes(t *testing.T) {
	tables := map[string]*table.Table{"org/a": labelled("x", "y"), "b": labelled("x")}
	h := newHandler(t, Options{Table: func(_ context.Context, id string) *table.Table { return tables[id] }})
	for _, tt := range []struct {
		method, path string
		status       int
		want         string
	}{
		{"GET", "/", 200, `<textarea id="input"`},
		{"HEAD", "/", 200, ""},
		{"POST", "/", 405, ""},
		{"GET", "/view/", 200, `id="viewer" hidden`},
		{"GET", "/view/org/a", 200, `id="viewer" hidden`},
		{"GET", "/table/org/a", 200, `"name":"org/a"`},
		{"GET", "/table/org%2Fa", 200, `"name":"org/a"`},
		{"GET", "/table/org/a?other=b", 200, `"kind":"only in A"`},
		{"GET", "/table/org/a?other=c", 404, `the model \"c\" is not loaded`},
		{"GET", "/table/", 404, "is not loaded"},
		{"GET", "/table/%3Cb%3E", 404, `\u003cb\u003e`},
		{"GET", "/status", 200, `{"memory_budget":0,"models":[]}`},
		{"POST", "/status", 405, ""},
		{"GET", "/index.html", 404, ""},
	} {
		status, text := get(t, h, tt.method, tt.path)
		if status != tt.status || !strings.Contains(text, tt.want) {
			t.Errorf("%s %s: status %d, want %d with %q in\n%.300s", tt.method, tt.path, status, tt.status, tt.want, text)
		}
	}
}

// TestProtect checks that what tells something about the models is protected, and nothing else.
func TestProtect(t *testing.T) {
	h := newHandler(t, Options{Protect: func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	}})
	for path, want := range map[string]int{"/": 200, "/view/": 200, "/view/m": 200, "/status": 401, "/table/m": 401} {
		if status, _ := get(t, h, "GET", path); status != want {
			t.Errorf("%s: status %d, want %d", path, status, want)
		}
	}
}

// TestStatus compares the whole state of a loaded and of an absent model.
func TestStatus(t *testing.T) {
	now, generated := time.Unix(1000, 0), uint64(0)
	h := newHandler(t, Options{
		State: func() observe.State {
			return observe.State{MemoryBudget: 1 << 30, Models: []observe.ModelState{
				{ID: "a", State: "ready", Bytes: 5, PagePositions: 64, Load: &observe.Load{Running: 1, Waiting: 2, Pages: 10, UsedPages: 3, CachedPages: 4, PromptTokens: 9, FoundTokens: 8}},
				{ID: "b", State: "absent", Loaders: 1},
			}}
		},
		Generated: func() map[string]uint64 { return map[string]uint64{"a": generated} },
		now:       func() time.Time { return now },
	})
	get(t, h, "GET", "/status")
	now, generated = now.Add(2*time.Second), 50
	_, text := get(t, h, "GET", "/status")
	const want = `{"memory_budget":1073741824,"models":[
		{"id":"a","state":"ready","bytes":5,"loaders":0,"load":{"running":1,"waiting":2,"pages":{"used":3,"free":3,"cached":4},
		"page_positions":64,"prompt_tokens":9,"found_tokens":8},"generated_tokens":50,"tokens_per_second":25},
		{"id":"b","state":"absent","bytes":0,"loaders":1,"load":null,"generated_tokens":0,"tokens_per_second":null}]}`
	var a, b any
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(want), &b); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(a, b) {
		t.Errorf("the state is\n%s\nwant\n%s", text, want)
	}
}

// TestMeter asks for rates at many moments, and keeps few samples.
func TestMeter(t *testing.T) {
	m, at, count := new(meter), time.Unix(1000, 0), uint64(0)
	step := func(d time.Duration, n uint64) map[string]float64 {
		at, count = at.Add(d), count+n
		return m.rates(at, map[string]uint64{"a": count})
	}
	if r := step(0, 7); len(r) != 0 {
		t.Errorf("the first question gives %v", r)
	}
	if r := step(time.Millisecond, 1); len(r) != 0 {
		t.Errorf("a millisecond later, the rates are %v", r)
	}
	for range 100 { // 100 tokens per second
		step(100*time.Millisecond, 10)
	}
	if r := step(100*time.Millisecond, 10); r["a"] < 99.99 || r["a"] > 100.01 {
		t.Errorf("the rate is %v, want 100", r["a"])
	}
	if n := len(m.samples); n > 16 {
		t.Errorf("%d samples are kept", n)
	}
	step(6*time.Second, 0)
	if r := step(6*time.Second, 0); r["a"] != 0 {
		t.Errorf("after 12 s without a token, the rate is %v", r["a"])
	}
	if r := step(time.Minute, 100); len(r) != 0 {
		t.Errorf("the first question after a minute gives %v", r)
	}
	if r := step(2*time.Second, 100); r["a"] != 50 {
		t.Errorf("2 s later, the rate is %v, want 50", r["a"])
	}
	if r := m.rates(at.Add(time.Second), map[string]uint64{"a": 3}); len(r) != 0 {
		t.Errorf("a number that went back gives %v", r)
	}
}
