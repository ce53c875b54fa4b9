package backend

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/fields"
	"github.com/pianola-engine/pianola/internal/serve/fleet"
	"github.com/pianola-engine/pianola/internal/serve/keys"
	"github.com/pianola-engine/pianola/internal/serve/observe"
)

// Kind is the kind of an error, which each protocol names in its own way. Its text is OpenAI's.
type Kind string

// The kinds of errors.
const (
	Invalid        Kind = "invalid_request_error"
	Authentication Kind = "authentication_error"
	Permission     Kind = "permission_error"
	Overloaded     Kind = "rate_limit_error"
	Server         Kind = "server_error"
	Timeout        Kind = "timeout_error"
)

// StatusCancelled is the status of a request whose client has gone away. It is never sent.
const StatusCancelled = 499

// Error is an error with its HTTP status.
type Error struct {
	Status     int
	Kind       Kind
	Code       string // a short name for programs, such as "model_not_found", or ""
	Param      string // the field at fault, or ""
	Message    string // for the client
	RetryAfter time.Duration
	Err        error // for the log; nil if its text may have parts of the request
}

// Error implements error.
func (e *Error) Error() string {
	if e.Param == "" {
		return e.Message
	}
	return fmt.Sprintf("%s: %s", e.Param, e.Message)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// known are the errors without data of their own.
var known = []struct {
	err error
	as  Error
}{
	{engine.ErrContextFull, Error{Status: 400, Kind: Invalid, Code: "context_length_exceeded", Message: "the prompt does not fit in the model's context"}},
	{engine.ErrUnsupported, Error{Status: 400, Kind: Invalid, Code: "unsupported", Param: "model", Message: "the model does not support this request"}},
	{engine.ErrDeadline, Error{Status: 504, Kind: Timeout, Code: "deadline_exceeded", Message: "the request's deadline has passed or cannot be met"}},
	{engine.ErrClosed, Error{Status: 503, Kind: Server, Code: "model_closed", Message: "the model is being closed", RetryAfter: time.Second}},
	{fleet.ErrClosed, Error{Status: 503, Kind: Server, Code: "shutting_down", Message: "the service is shutting down", RetryAfter: 5 * time.Second}},
	{fleet.ErrUnknown, Error{Status: 404, Kind: Invalid, Code: "model_not_found", Param: "model", Message: "there is no such model; GET /v1/models lists the models"}},
	{context.DeadlineExceeded, Error{Status: 504, Kind: Timeout, Code: "deadline_exceeded", Message: "the request's deadline has passed"}},
	{context.Canceled, Error{Status: StatusCancelled, Kind: Invalid, Code: "cancelled", Message: "the client has closed the request"}},
	{errSlow, Error{Status: StatusCancelled, Kind: Invalid, Code: "cancelled", Message: "the client does not read the reply"}},
}

// ErrorOf returns an error with its status. Errors that it does not know are failures of the service,
// whose text the client does not see.
func ErrorOf(err error) *Error {
	var own *Error
	var field *fields.Error
	var request *engine.RequestError
	var unsupported *engine.UnsupportedError
	var busy *engine.BusyError
	var body *http.MaxBytesError
	var large *fleet.TooLargeError
	var refusal *keys.Refusal
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &field):
		return &Error{Status: http.StatusBadRequest, Kind: Invalid, Param: field.Param, Message: field.Why}
	case errors.As(err, &request):
		return &Error{Status: http.StatusBadRequest, Kind: Invalid, Param: request.Param, Message: request.Why}
	case errors.As(err, &unsupported):
		return &Error{Status: http.StatusBadRequest, Kind: Invalid, Code: "unsupported", Param: "model", Message: unsupported.Error()}
	case errors.As(err, &busy):
		return &Error{Status: http.StatusTooManyRequests, Kind: Overloaded, Code: "rate_limit_exceeded", Message: busy.Error(), RetryAfter: max(busy.RetryAfter, time.Second)}
	case errors.As(err, &body):
		return &Error{Status: http.StatusRequestEntityTooLarge, Kind: Invalid, Code: "request_too_large", Message: fmt.Sprintf("the request's body is larger than %d bytes", body.Limit)}
	case errors.As(err, &large):
		return &Error{Status: http.StatusServiceUnavailable, Kind: Server, Code: "model_too_large", Param: "model", Message: "the model does not fit in the service's memory", Err: err}
	case errors.As(err, &refusal):
		return refused(refusal)
	}
	for _, k := range known {
		if errors.Is(err, k.err) {
			e := k.as
			return &e
		}
	}
	return &Error{Status: http.StatusInternalServerError, Kind: Server, Code: "internal_error", Message: "the service failed; its log has the reason", Err: err}
}

// refused returns the error of a request that is not admitted.
func refused(r *keys.Refusal) *Error {
	e := &Error{Status: r.Status(), Kind: Overloaded, Code: "rate_limit_exceeded", Message: r.Error(), RetryAfter: r.RetryAfter}
	if e.Status == http.StatusUnauthorized {
		e.Kind, e.Code = Authentication, "invalid_api_key"
	}
	return e
}

// SetHeader sets the header fields that belong to the error.
func (e *Error) SetHeader(h http.Header) {
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int((e.RetryAfter+time.Second-1)/time.Second)))
	}
	if e.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
}

// Report reports the end of a request by an error to the request's observer.
func (e *Error) Report(ctx context.Context) {
	watch := observe.From(ctx)
	if e.Status == StatusCancelled {
		watch.Cancelled()
		return
	}
	kind := e.Code
	if kind == "" {
		kind = "invalid_request"
	}
	watch.Failed(kind, e.Err)
}
