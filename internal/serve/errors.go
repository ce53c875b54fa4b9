package server

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/pianola-engine/pianola/internal/serve/anthropic"
	"github.com/pianola-engine/pianola/internal/serve/backend"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/fleet"
	"github.com/pianola-engine/pianola/internal/serve/keys"
	"github.com/pianola-engine/pianola/internal/serve/responses"
)

// The causes for which the contexts of requests end. Handlers answer them as they answer a model's.
var (
	errTimeout  = fmt.Errorf("%w: the service's limit of the time of a request is reached", engine.ErrDeadline)
	errShutdown = fleet.ErrClosed
)

// refusal returns the error of a request that no handler has seen.
func refusal(status int, code, why string) *backend.Error {
	e := &backend.Error{Status: status, Kind: backend.Invalid, Code: code, Message: why}
	switch {
	case status == http.StatusForbidden:
		e.Kind = backend.Permission
	case status >= 500:
		e.Kind, e.RetryAfter = backend.Server, time.Second
	}
	return e
}

// refused answers a request that has not been admitted.
func (s *Server) refused(w http.ResponseWriter, r *http.Request, why *keys.Refusal) {
	s.fail(w, r, backend.ErrorOf(why))
}

// fail answers a request with an error, in the form of the API that the path belongs to.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, e *backend.Error) {
	e.Report(r.Context())
	h := w.Header()
	switch e.Status {
	case http.StatusRequestTimeout, http.StatusServiceUnavailable, http.StatusRequestEntityTooLarge:
		h.Set("Connection", "close")
	}
	h.Set("X-Content-Type-Options", "nosniff")
	if strings.HasPrefix(r.URL.Path, "/v1/messages") {
		anthropic.WriteError(w, e)
		return
	}
	responses.WriteError(w, e)
}
