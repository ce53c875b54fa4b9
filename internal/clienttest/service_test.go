package clienttest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	server "github.com/pianola-engine/pianola/internal/serve"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/fleet"
	"github.com/pianola-engine/pianola/internal/serve/keys"
)

const (
	model = "scripted"
	key   = "sk-test-0123456789abcdef"
)

// service is a service of the scripted model.
type service struct {
	url     string
	control string // where clients ask what the model has seen
	model   *scripted
}

// start starts a service that ends with the test.
func start(t *testing.T) *service {
	t.Helper()
	m := must[*scripted](t)(newScripted())
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte("test "+key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	of := must[*server.Server](t)(server.New(server.Options{
		Keys:   must[*keys.Keys](t)(keys.Open(path, keys.Limits{})),
		Models: []fleet.Entry{{ID: model}},
		Load:   func(context.Context, fleet.Entry) (engine.Model, error) { return m, nil },
	}))
	s := &service{model: m}
	s.url = serve(t, of.Handler())
	s.control = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.URL.Query().Get("n"))
		if err == nil {
			n, err = m.wait(r.Context(), r.URL.Query().Get("name"), n)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprint(w, n)
	}))
	return s
}

// serve serves a handler on loopback, and returns its URL.
func serve(t *testing.T, h http.Handler) string {
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections) // before Close, which waits for requests
	return server.URL
}

// saw waits until the model has seen an event n times.
func (s *service) saw(t *testing.T, name string, n int) {
	t.Helper()
	if seen, err := s.model.wait(t.Context(), name, n); err != nil {
		t.Fatalf("%s: %d times, expected %d: %v", name, seen, n, err)
	}
}

// post sends a request.
func (s *service) post(path, body string) (*http.Response, error) {
	r, err := http.NewRequest(http.MethodPost, s.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set("Content-Type", "application/json")
	return http.DefaultClient.Do(r)
}
