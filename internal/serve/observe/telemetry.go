package observe

import (
	"context"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/semconv/v1.41.0/genaiconv"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// scope is the name of the instrumentation, as OpenTelemetry calls it.
const scope = "github.com/pianola-engine/pianola/internal/serve/observe"

// provider is the value of gen_ai.provider.name.
const provider = genaiconv.ProviderNameAttr("pianola")

// telemetry makes the traces and metrics of OpenTelemetry, with the conventions for generative AI.
type telemetry struct {
	tracer     trace.Tracer
	duration   genaiconv.ServerRequestDuration
	firstToken genaiconv.ServerTimeToFirstToken
	perToken   genaiconv.ServerTimePerOutputToken
}

// The bounds that the conventions advise.
var (
	durationBounds  = metric.WithExplicitBucketBoundaries(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
	otelFirstBounds = metric.WithExplicitBucketBoundaries(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
	perTokenBounds  = metric.WithExplicitBucketBoundaries(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
)

func newTelemetry(traces trace.TracerProvider, meters metric.MeterProvider) (t telemetry, err error) {
	if traces == nil {
		traces = noop.NewTracerProvider()
	}
	if meters == nil {
		meters = metricnoop.NewMeterProvider()
	}
	t.tracer = traces.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL))
	meter := meters.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL))
	if t.duration, err = genaiconv.NewServerRequestDuration(meter, durationBounds); err != nil {
		return t, err
	}
	if t.firstToken, err = genaiconv.NewServerTimeToFirstToken(meter, otelFirstBounds); err != nil {
		return t, err
	}
	t.perToken, err = genaiconv.NewServerTimePerOutputToken(meter, perTokenBounds)
	return t, err
}

// extract returns a context with the trace that a client's header fields continue.
func (t telemetry) extract(ctx context.Context, h http.Header) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(h))
}

// start begins the span of a request.
func (t telemetry) start(ctx context.Context, method, endpoint string) (context.Context, trace.Span) {
	return t.tracer.Start(ctx, method+" "+endpoint, trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(semconv.HTTPRequestMethodKey.String(method), semconv.HTTPRoute(endpoint)))
}

// end ends the span of a request and records its metrics. Only requests for a model have those.
func (t telemetry) end(ctx context.Context, r *Request, status int, now time.Time) {
	defer r.span.End()
	r.span.SetAttributes(attribute.String("pianola.request.id", r.id), semconv.HTTPResponseStatusCode(status))
	var failed []attribute.KeyValue
	switch r.outcome {
	case Failed:
		failed = append(failed, semconv.ErrorTypeKey.String(r.err.kind))
	case Cancelled:
		failed = append(failed, semconv.ErrorTypeKey.String("cancelled"))
	case Done:
	}
	if failed != nil {
		r.span.SetAttributes(failed...)
		r.span.SetStatus(codes.Error, string(r.outcome))
	}
	if r.model == nil {
		return
	}
	model := r.model.id
	r.span.SetName(r.operation + " " + model)
	r.span.SetAttributes(
		semconv.GenAIOperationNameKey.String(r.operation), semconv.GenAIProviderNameKey.String(string(provider)),
		semconv.GenAIRequestModel(model), semconv.GenAIResponseModel(model), semconv.GenAIResponseID(r.id),
		semconv.GenAIUsageInputTokens(r.prompt), semconv.GenAIUsageOutputTokens(r.tokens), semconv.GenAIUsageCacheReadInputTokens(r.found),
	)
	if len(r.reasons) > 0 {
		r.span.SetAttributes(semconv.GenAIResponseFinishReasons(r.reasons...))
	}
	if !r.started.IsZero() {
		r.span.AddEvent("started", trace.WithTimestamp(r.started))
	}
	if !r.first.IsZero() {
		r.span.AddEvent("first token", trace.WithTimestamp(r.first))
	}
	operation := genaiconv.OperationNameAttr(r.operation)
	attrs := []attribute.KeyValue{semconv.GenAIRequestModel(model), semconv.GenAIResponseModel(model)}
	t.duration.Record(ctx, now.Sub(r.received).Seconds(), operation, provider, append(failed, attrs...)...)
	if r.outcome != Done || r.first.IsZero() {
		return
	}
	t.firstToken.Record(ctx, r.first.Sub(r.received).Seconds(), operation, provider, attrs...)
	if r.tokens > 1 {
		t.perToken.Record(ctx, r.last.Sub(r.first).Seconds()/float64(r.tokens-1), operation, provider, attrs...)
	}
}
