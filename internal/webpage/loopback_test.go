package webpage

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestLoopback sends requests with Host headers that name this machine and others.
func TestLoopback(t *testing.T) {
	h := Loopback(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for host, want := range map[string]int{
		"localhost": 200, "localhost:8080": 200, "127.0.0.1:8080": 200, "127.9.9.9": 200, "[::1]:8080": 200, "[::1]": 200,
		"example.org": 421, "example.org:8080": 421, "localhost.example.org": 421, "127.0.0.1.example.org": 421,
		"10.0.0.1:8080": 421, "[fe80::1]:80": 421, "": 421, "[": 421, "[]": 421, ":80": 421, "0.0.0.0": 421,
	} {
		r := httptest.NewRequest("GET", "http://127.0.0.1/", nil)
		r.Host = host
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("host %q: status %d, want %d", host, w.Code, want)
		}
	}
}
