// Package page serves the HTML pages of the service: the page on which people chat with its models,
// and the table viewer for the dispatch tables of loaded models. The pages are self-contained, and
// use the service's API as any other client.
//
// The package knows the models' state and tables by functions. It knows neither models nor the API.
package page

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/pianola-engine/pianola/internal/serve/observe"
	"github.com/pianola-engine/pianola/internal/view"
	"github.com/pianola-engine/pianola/internal/webpage"
	"github.com/pianola-engine/pianola/table"
)

// The chat page.
var (
	//go:embed chat.html
	chatBody string
	//go:embed chat.css
	chatStyle string
	//go:embed client.js
	client string
	//go:embed markdown.js
	markdown string
	//go:embed answer.js
	answer string
	//go:embed chat.js
	chat string
)

// The parts that the service adds to the table viewer.
var (
	//go:embed tables.html
	tablesBody string
	//go:embed tables.css
	tablesStyle string
	//go:embed tables.js
	tables string
)

// Options are what the pages show.
type Options struct {
	// State returns the state of the models; nil means that there are none.
	State func() observe.State
	// Generated returns the number of tokens that each model has generated since the service's
	// start, by the model's id; nil means that nobody counts them.
	Generated func() map[string]uint64
	// Table returns the dispatch table of a loaded model, or nil if there is none. nil has no tables.
	Table func(ctx context.Context, model string) *table.Table
	// Protect wraps the handlers that tell something about the models, so that they ask for an API
	// key. The page asks for the state every few seconds, which no rate limit should count. nil
	// protects nothing.
	Protect func(http.Handler) http.Handler

	now func() time.Time
}

// Handler returns the handler of the pages and of their data:
//
//	/                the chat page
//	/view/           the table viewer: the list of loaded models
//	/view/{model}    the table viewer for a model; ?other={model} compares it with another one
//	/status          the state of the models, as JSON
//	/table/{model}   what the table viewer shows, as JSON; ?other={model} too
//
// The first three are the same for every service; Options.Protect wraps the last two. Other paths are
// answered with status 404.
func Handler(o Options) (http.Handler, error) {
	if o.State == nil {
		o.State = func() observe.State { return observe.State{} }
	}
	if o.Generated == nil {
		o.Generated = func() map[string]uint64 { return nil }
	}
	if o.Table == nil {
		o.Table = func(context.Context, string) *table.Table { return nil }
	}
	if o.Protect == nil {
		o.Protect = func(h http.Handler) http.Handler { return h }
	}
	if o.now == nil {
		o.now = time.Now
	}
	chatPage, err := (&webpage.Page{
		Title: "Pianola", Body: chatBody, Style: chatStyle, Script: client + markdown + answer + chat, Calls: true,
	}).Assemble()
	if err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	viewer, err := view.Shell(tablesBody, tablesStyle, client+tables)
	if err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", chatPage)
	mux.Handle("GET /view/{model...}", viewer)
	mux.Handle("GET /status", o.Protect(&status{o: o, meter: new(meter)}))
	mux.Handle("GET /table/{model...}", o.Protect(http.HandlerFunc(o.serveTable)))
	return mux, nil
}

// serveTable sends the table of a model, or of two models side by side.
func (o *Options) serveTable(w http.ResponseWriter, r *http.Request) {
	names := []string{r.PathValue("model")}
	if other := r.URL.Query().Get("other"); other != "" {
		names = append(names, other)
	}
	var sources []view.Source
	for _, name := range names {
		t := o.Table(r.Context(), name)
		if t == nil {
			fail(w, http.StatusNotFound, fmt.Sprintf("the model %q is not loaded, or has no table", name))
			return
		}
		sources = append(sources, view.Source{Name: name, Table: t})
	}
	data, err := view.Data(sources...)
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	send(w, http.StatusOK, data)
}

// fail sends an error in the form of OpenAI's API, which the page reads everywhere.
func fail(w http.ResponseWriter, code int, message string) {
	kind := "invalid_request_error"
	if code >= 500 {
		kind = "server_error"
	}
	b, err := json.Marshal(map[string]any{"error": map[string]any{"message": message, "type": kind, "param": nil, "code": nil}})
	if err != nil {
		b = []byte("{}") // never: the values are strings
	}
	send(w, code, b)
}

func send(w http.ResponseWriter, code int, b []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	w.Write(b) // the connection's error is the client's
}
