package observe

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"
)

// Format is a format of logs.
type Format string

// The formats.
const (
	Text Format = "text"
	JSON Format = "json"
)

// NewLogger returns a logger that writes one line for each record.
func NewLogger(w io.Writer, format Format, level slog.Leveler) (*slog.Logger, error) {
	o := &slog.HandlerOptions{Level: level}
	switch format {
	case Text:
		return slog.New(slog.NewTextHandler(w, o)), nil
	case JSON:
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return nil, fmt.Errorf("observe: the log format is %q, want text or json", string(format))
}

// log writes a record of a request that has ended. Failures of the service are errors; what clients
// do wrong is not.
func (b *Observer) log(ctx context.Context, r *Request, out *recorder) {
	level := slog.LevelInfo
	if r.outcome == Failed && (out.code() >= 500 || r.err.err != nil) {
		level = slog.LevelError
	}
	if !b.o.Log.Enabled(ctx, level) {
		return
	}
	a := []slog.Attr{
		slog.String("id", r.id), slog.String("method", r.method), slog.String("endpoint", r.endpoint), slog.Int("status", out.code()),
		slog.String("outcome", string(r.outcome)), slog.Duration("took", b.o.now().Sub(r.received).Round(time.Microsecond)), slog.Int64("bytes", out.bytes),
	}
	a = append(a, r.attributes()...)
	if s := r.span.SpanContext(); s.IsValid() {
		a = append(a, slog.String("trace_id", s.TraceID().String()), slog.String("span_id", s.SpanID().String()))
	}
	b.o.Log.LogAttrs(ctx, level, "request", a...)
}

// attributes returns what handlers have reported.
func (r *Request) attributes() []slog.Attr {
	var a []slog.Attr
	if r.key != "" {
		a = append(a, slog.String("key", bounded(r.key)))
	}
	if r.model != nil {
		a = append(a, slog.String("model", r.model.id), slog.Int("prompt_tokens", r.prompt), slog.Int("cached_tokens", r.found), slog.Int("tokens", r.tokens))
	}
	if !r.started.IsZero() {
		a = append(a, slog.Duration("queued", r.started.Sub(r.received).Round(time.Microsecond)))
	}
	if !r.first.IsZero() {
		a = append(a, slog.Duration("first_token", r.first.Sub(r.received).Round(time.Microsecond)))
	}
	if r.err.kind != "" {
		a = append(a, slog.String("failure", r.err.kind))
	}
	if r.err.err != nil {
		a = append(a, slog.String("error", bounded(r.err.err.Error())))
	}
	return a
}
