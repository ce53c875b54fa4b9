package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/keys"
	"github.com/pianola-engine/pianola/internal/serve/observe"
)

// The causes for which the contexts of requests end. They wrap errors of package engine, which handlers
// answer as those of a model.
var (
	errTimeout  = fmt.Errorf("%w: the service's limit of the time of a request is reached", engine.ErrDeadline)
	errShutdown = fmt.Errorf("%w: the service is shutting down", engine.ErrClosed)
)

// httpError is an error of a request that no handler has seen.
type httpError struct {
	status int
	code   string
	why    string
	retry  time.Duration
}

func (e *httpError) Error() string { return e.why }

// refused answers a request that has not been admitted.
func (s *Server) refused(w http.ResponseWriter, r *http.Request, refusal *keys.Refusal) {
	code := map[keys.Reason]string{keys.Missing: "missing_api_key", keys.Unknown: "invalid_api_key"}[refusal.Reason]
	if code == "" {
		code = "rate_limit_exceeded"
	}
	observe.From(r.Context()).Failed(string(refusal.Reason), nil)
	s.fail(w, r, &httpError{status: refusal.Status(), code: code, why: refusal.Error()})
}

// fail answers a request with an error, in the form of the API that the path belongs to.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	e := &httpError{status: http.StatusInternalServerError, why: "the request failed"}
	errors.As(err, &e)
	h := w.Header()
	if e.retry > 0 {
		h.Set("Retry-After", strconv.Itoa(int((e.retry+time.Second-1)/time.Second)))
	}
	if e.status == http.StatusRequestTimeout || e.status == http.StatusServiceUnavailable || e.status == http.StatusRequestEntityTooLarge {
		h.Set("Connection", "close")
	}
	body := map[string]any{"error": openAIError{Message: e.why, Type: openAIType(e.status), Code: nullable(e.code)}}
	if strings.HasPrefix(r.URL.Path, "/v1/messages") {
		body = map[string]any{"type": "error", "error": map[string]string{"type": anthropicType(e.status), "message": e.why}}
	}
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(e.status)
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

func openAIType(status int) string {
	switch {
	case status == http.StatusUnauthorized:
		return "authentication_error"
	case status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case status >= 500:
		return "server_error"
	}
	return "invalid_request_error"
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
