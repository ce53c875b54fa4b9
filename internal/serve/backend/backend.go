// Package backend has what the protocols of the service share: how handlers get models, read
// requests, write replies and streams of events, and turn errors into statuses.
//
// The package knows HTTP. It must not know the form of any protocol's requests and replies.
package backend

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/fields"
	"github.com/pianola-engine/pianola/internal/serve/observe"
)

// Models gives handlers the models of the service.
type Models interface {
	// Acquire returns the model with a name and the model's ID. It may wait until the model is loaded.
	// The caller must call release once. Errors are those of package fleet.
	Acquire(ctx context.Context, name string) (m engine.Model, id string, release func(), err error)
	// List returns the models that Acquire knows, in a fixed order.
	List() []ModelInfo
}

// ModelInfo describes a model of the service, which need not be loaded.
type ModelInfo struct {
	ID      string
	Aliases []string
	Created time.Time // of the model's file; the zero time if it is not known
	Loaded  bool
	Context int // positions; 0 if the model is not loaded
}

// Names reports whether a model has a name.
func (m *ModelInfo) Names(name string) bool {
	if m.ID == name {
		return true
	}
	for _, alias := range m.Aliases {
		if alias == name {
			return true
		}
	}
	return false
}

// Limits bound what requests may use. A zero field has the default.
type Limits struct {
	Body      int64         // bytes of a request; 32 MiB
	Choices   int           // answers of a request; 16
	Grace     time.Duration // time after which a stream's header is sent, whatever the model does; 50 ms
	KeepAlive time.Duration // time without an event after which a stream has a comment; 10 s
	Write     time.Duration // time for which a client may not read; 30 s
	Deadline  time.Duration // time for a request without a header of its own; 0 means no limit
}

// Defaults returns the limits with defaults for the zero fields.
func (l Limits) Defaults() Limits {
	if l.Body == 0 {
		l.Body = 32 << 20
	}
	if l.Choices == 0 {
		l.Choices = 16
	}
	for of, d := range map[*time.Duration]time.Duration{&l.Grace: 50 * time.Millisecond, &l.KeepAlive: 10 * time.Second, &l.Write: 30 * time.Second} {
		if *of == 0 {
			*of = d
		}
	}
	return l
}

// Body reads and checks the JSON body of a request.
func Body(w http.ResponseWriter, r *http.Request, limits Limits) (fields.Value, error) {
	kind := r.Header.Get("Content-Type")
	media, _, err := mime.ParseMediaType(kind)
	if kind != "" && (err != nil || media != "application/json" && !strings.HasSuffix(media, "+json")) {
		return fields.Value{}, &Error{Status: http.StatusUnsupportedMediaType, Kind: Invalid, Message: "the request's Content-Type must be application/json"}
	}
	if coding := r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return fields.Value{}, &Error{Status: http.StatusUnsupportedMediaType, Kind: Invalid, Message: "a request with a Content-Encoding is not supported"}
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limits.Body))
	if err != nil {
		return fields.Value{}, bodyError(r, err)
	}
	return fields.Parse(text)
}

// bodyError returns the error of a body that cannot be read.
func bodyError(r *http.Request, err error) error {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return large
	case r.Context().Err() != nil:
		return context.Cause(r.Context())
	}
	return &Error{Status: http.StatusBadRequest, Kind: Invalid, Message: "the request's body ended early"}
}

// TimeoutHeader is the header field with the seconds that a request may take.
const TimeoutHeader = "X-Request-Timeout"

// maxTimeout bounds TimeoutHeader.
const maxTimeout = 24 * time.Hour

// Deadline returns the context of a request that ends at the request's deadline, with the cause
// engine.ErrDeadline.
func Deadline(r *http.Request, limits Limits) (context.Context, context.CancelFunc, error) {
	within := limits.Deadline
	if text := r.Header.Get(TimeoutHeader); text != "" {
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil || !(seconds > 0) {
			return nil, nil, &fields.Error{Why: "the header field " + TimeoutHeader + " must be a positive number of seconds"}
		}
		asked := time.Duration(min(seconds, maxTimeout.Seconds()) * float64(time.Second))
		if within == 0 || asked < within {
			within = asked
		}
	}
	if within == 0 {
		ctx, cancel := context.WithCancel(r.Context())
		return ctx, cancel, nil
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), within, engine.ErrDeadline)
	return ctx, cancel, nil
}

// Acquire returns the model with a name, and reports to the observer that the request waits for it. If the
// name is "", it is that of the only model of the service. The caller must call release once.
func Acquire(ctx context.Context, models Models, name, operation string) (m engine.Model, id string, release func(), err error) {
	list := models.List()
	if name == "" && len(list) == 1 {
		name = list[0].ID
	}
	if name == "" {
		return nil, "", nil, &fields.Error{Param: "model", Why: "a model is required: GET /v1/models lists the models"}
	}
	for i := range list {
		if list[i].Names(name) {
			observe.From(ctx).Queued(list[i].ID, operation)
		}
	}
	return models.Acquire(ctx, name)
}

// Piece returns the text and the bytes of a token.
func Piece(m engine.Model, id int32) (text string, bytes []int) {
	b := m.Piece(id)
	bytes = make([]int, len(b))
	for i, c := range b {
		bytes[i] = int(c)
	}
	return strings.ToValidUTF8(string(b), "\uFFFD"), bytes
}
