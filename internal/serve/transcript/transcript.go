// Package transcript tests the protocols of the service: it serves a scripted model, and compares what
// was sent with golden files.
//
// The package must not know any protocol.
package transcript

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pianola-engine/pianola/internal/serve/backend"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/enginetest"
	"github.com/pianola-engine/pianola/internal/serve/fleet"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Models is a service's only model, which has the name "m".
type Models struct{ Model engine.Model }

var _ backend.Models = Models{}

// Acquire returns the model.
func (o Models) Acquire(_ context.Context, name string) (engine.Model, string, func(), error) {
	if name != "m" {
		return nil, "", nil, fleet.ErrUnknown
	}
	return o.Model, "m", func() {}, nil
}

// List returns the model.
func (o Models) List() []backend.ModelInfo { return []backend.ModelInfo{{ID: "m", Loaded: true}} }

// Scripted returns a model that answers by a script.
func Scripted(t testing.TB, reply func(enginetest.Input) enginetest.Script) Models {
	t.Helper()
	m, err := enginetest.New(enginetest.Options{Reply: reply})
	if err != nil {
		t.Fatal(err)
	}
	return Models{m}
}

// Ask sends a request to a handler, and returns the reply.
func Ask(h http.Handler, method, path, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	return w
}

// Both returns the replies to a request of the model "m" with the given fields: whole, and streamed.
func Both(h http.Handler, path, fields string) string {
	var b strings.Builder
	for _, stream := range []string{"", `"stream":true,`} {
		w := Ask(h, http.MethodPost, path, `{"model":"m",`+stream+fields+`}`)
		fmt.Fprintf(&b, "%d %s\n%s\n", w.Code, w.Header().Get("Content-Type"), w.Body)
	}
	return b.String()
}

var (
	ids   = regexp.MustCompile(`\b([a-z]+)_[a-z0-9]{26}\b`)
	times = regexp.MustCompile(`"(created|completed)_at":\d+`)
)

// Golden compares a transcript with the file testdata/NAME.txt. Ids are replaced by numbers, and times by 1.
func Golden(t *testing.T, name, text string) {
	t.Helper()
	names := map[string]string{}
	text = ids.ReplaceAllStringFunc(text, func(id string) string {
		if names[id] == "" {
			kind, _, _ := strings.Cut(id, "_")
			names[id] = fmt.Sprintf("%s_%d", kind, len(names)+1)
		}
		return names[id]
	})
	text = times.ReplaceAllString(text, `"${1}_at":1`)
	path := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(text, "\n")); diff != "" {
		t.Errorf("%s differs (-want +got); rewrite it with -update:\n%s", path, diff)
	}
}

// watched is a model that reports the beginnings and the ends of its generations.
type watched struct {
	engine.Model
	began, ended chan bool
}

// Generate generates, and reports its beginning and its end.
func (w watched) Generate(ctx context.Context, g engine.Generation, yield func(engine.Token) bool) (engine.Result, error) {
	w.began <- true
	defer func() { w.ended <- true }()
	return w.Model.Generate(ctx, g, yield)
}

// Disconnect sends a request, whole and streamed, to a model whose answer has no end, and closes the
// connection while the model generates. It returns after the generations and the handlers have, which
// only happens if they are cancelled.
func Disconnect(t *testing.T, path, fields string, handler func(backend.Models) http.Handler) {
	t.Helper()
	endless := append(enginetest.Words("la la la"), enginetest.Step{Wait: make(chan struct{})})
	m := Scripted(t, func(enginetest.Input) enginetest.Script { return enginetest.Script{Steps: endless} })
	w := watched{m.Model, make(chan bool), make(chan bool)}
	server := httptest.NewServer(handler(Models{w}))
	defer server.Close()
	for _, stream := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		q, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+path, strings.NewReader(fmt.Sprintf(`{"model":"m","stream":%v,%s}`, stream, fields)))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if r, err := http.DefaultClient.Do(q); err == nil {
				defer r.Body.Close()
				<-ctx.Done() // does not read
			}
		}()
		<-w.began
		cancel()
		<-w.ended
	}
}
