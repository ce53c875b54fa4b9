package observe

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestHealth(t *testing.T) {
	state := State{}
	b := newObserver(t, Options{State: func() State { return state }})
	check := func(name string, handler http.HandlerFunc, status int, want string) {
		t.Helper()
		w := httptest.NewRecorder()
		handler(w, httptest.NewRequest("GET", "/", nil))
		if got := strings.TrimSpace(w.Body.String()); w.Code != status || got != want {
			t.Errorf("%s: %d %s, want %d %s", name, w.Code, got, status, want)
		}
	}
	check("no model", b.Readyz, 200, `{"status":"ready"}`)
	state.Models = []ModelState{{ID: "a", State: "loading", Required: true}, {ID: "b", State: "absent"}, {ID: "c", State: "ready", Required: true}}
	check("loading", b.Readyz, 503, `{"status":"loading","waiting":["a"]}`)
	check("alive", b.Healthz, 200, `{"status":"ok"}`)
	state.Models[0].State = "ready"
	check("warm", b.Readyz, 200, `{"status":"ready"}`)
	if !b.Ready() {
		t.Error("Ready reports false")
	}
	b.Drain()
	check("shutdown", b.Readyz, 503, `{"status":"shutting down"}`)
	check("alive during shutdown", b.Healthz, 200, `{"status":"ok"}`)
}

func TestProfiles(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":0", "256.0.0.1:1", "localhost"} {
		if l, err := ListenProfiles(address); err == nil {
			l.Close()
			t.Errorf("%s was accepted", address)
		}
	}
	l, err := ListenProfiles("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := ProfileServer()
	go s.Serve(l)
	defer s.Close()
	url := "http://" + l.Addr().String()
	for _, c := range []struct {
		path, host string
		status     int
	}{{"/debug/pprof/", "", 200}, {"/debug/pprof/goroutine?debug=1", "localhost", 200}, {"/debug/pprof/", "evil.example", 403}, {"/", "", 404}} {
		r, err := http.NewRequest("GET", url+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = c.host
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("%s of host %q: status %d, want %d", c.path, c.host, resp.StatusCode, c.status)
		}
	}
}
