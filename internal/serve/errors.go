package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/pianola-engine/pianola/internal/serve/backend"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/fleet"
	"github.com/pianola-engine/pianola/internal/serve/keys"
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
	e.SetHeader(h)
	switch e.Status {
	case http.StatusRequestTimeout, http.StatusServiceUnavailable, http.StatusRequestEntityTooLarge:
		h.Set("Connection", "close")
	}
	body := map[string]any{"error": openAIError{Message: e.Message, Type: string(e.Kind), Code: nullable(e.Code)}}
	if strings.HasPrefix(r.URL.Path, "/v1/messages") {
		body = map[string]any{"type": "error", "error": map[string]string{"type": anthropicType(e.Status), "message": e.Message}}
	}
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(e.Status)
	_ = json.NewEncoder(w).Encode(body) // a failed write means that the client is gone
}

// openAIError is an error of OpenAI's API.
type openAIError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

func nullable(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func anthropicType(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable:
		return "overloaded_error"
	}
	if status >= 500 {
		return "api_error"
	}
	return "invalid_request_error"
}
