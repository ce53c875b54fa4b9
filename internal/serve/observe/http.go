package observe

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// requestID is the header field with the id of a request, in requests and replies.
const requestID = "X-Request-Id"

// maxID bounds the length of an id that a client chooses.
const maxID = 128

// idOf returns the id that the client has chosen if it has no unusual characters, or a new one.
func idOf(h http.Header) string {
	id := h.Get(requestID)
	unusual := func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("._:-", c)
	}
	if id == "" || len(id) > maxID || strings.ContainsFunc(id, unusual) {
		return rand.Text()
	}
	return id
}

var methods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodOptions, http.MethodPut, http.MethodPatch, http.MethodDelete}

// methodOf returns the method of a request, or "other" for an unusual one.
func methodOf(r *http.Request) string {
	if slices.Contains(methods, r.Method) {
		return r.Method
	}
	return other
}

// Metrics returns the handler of /metrics.
func (b *Observer) Metrics() http.Handler {
	return promhttp.HandlerFor(b.registry, promhttp.HandlerOpts{
		ErrorLog: errorLog{b.o.Log}, MaxRequestsInFlight: 4,
	})
}

// errorLog writes the errors of pages of metrics to the log.
type errorLog struct{ log *slog.Logger }

// Println implements promhttp.Logger.
func (e errorLog) Println(v ...any) { e.log.Error("metrics", "error", fmt.Sprint(v...)) }

// Middleware returns a handler that observes the requests of another one. Each reply has the request's
// id. A panic of the handler is logged and ends the connection.
func (b *Observer) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		endpoint := b.o.Endpoint(r)
		if endpoint == "" {
			endpoint = other
		}
		id := idOf(r.Header)
		w.Header().Set(requestID, id)
		ctx, q := b.receive(b.otel.extract(r.Context(), r.Header), id, methodOf(r), endpoint)
		out := &recorder{ResponseWriter: w}
		defer func() {
			p := recover()
			if p != nil {
				b.panicked(ctx, q, p)
				out.status = max(out.status, http.StatusInternalServerError)
			}
			b.end(ctx, q, out.code(), errors.Is(r.Context().Err(), context.Canceled))
			b.log(ctx, q, out)
			if p != nil {
				panic(http.ErrAbortHandler) // has been logged
			}
		}()
		next.ServeHTTP(out, r.WithContext(ctx))
	})
}

// panicked makes a panic of a handler the request's failure.
func (b *Observer) panicked(ctx context.Context, q *Request, p any) {
	if p == http.ErrAbortHandler { //nolint:errorlint // net/http compares it too
		q.Failed("aborted", nil)
		return
	}
	q.Failed("panic", errors.New("the handler panicked"))
	// Only the runtime's own errors certainly have no text of the request.
	value := fmt.Sprintf("%T", p)
	if err, ok := p.(runtime.Error); ok {
		value = err.Error()
	}
	b.o.Log.ErrorContext(ctx, "panic", "id", q.id, "value", value, "stack", string(debug.Stack()))
}

// bounded returns at most the first 500 bytes of a text.
func bounded(s string) string {
	if len(s) > 500 {
		return s[:500] + "..."
	}
	return s
}

// recorder remembers the status and the length of a reply.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
}

// Unwrap gives http.ResponseController the original.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Flush implements http.Flusher.
func (w *recorder) Flush() {
	_ = http.NewResponseController(w.ResponseWriter).Flush() // an interface without an error
}

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err
}

// code returns the status of the reply.
func (w *recorder) code() int {
	if w.status == 0 {
		return http.StatusOK
	}
	return w.status
}
