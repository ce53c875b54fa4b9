package observe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
)

// Exporters send traces and metrics by OpenTelemetry's protocol OTLP over HTTP.
type Exporters struct {
	Traces trace.TracerProvider // nil if no traces are sent
	Meters metric.MeterProvider
	close  []func(context.Context) error
}

// StartExporters starts exporters if OpenTelemetry's environment variables name an endpoint:
// OTEL_EXPORTER_OTLP_ENDPOINT, or that of one signal, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT and
// OTEL_EXPORTER_OTLP_METRICS_ENDPOINT. Otherwise nothing is sent. OTEL_SDK_DISABLED=true and
// OTEL_TRACES_EXPORTER=none turn them off again. The exporters also read the other variables of
// OpenTelemetry's specification, such as OTEL_EXPORTER_OTLP_HEADERS and OTEL_TRACES_SAMPLER.
func StartExporters(ctx context.Context, getenv func(string) string, version string, log *slog.Logger) (*Exporters, error) {
	e := new(Exporters)
	traces, metrics := selected(getenv, "TRACES"), selected(getenv, "METRICS")
	if !traces && !metrics {
		return e, nil
	}
	about, err := resource.New(ctx, resource.WithAttributes(semconv.ServiceName("pianola"), semconv.ServiceVersion(version)),
		resource.WithFromEnv(), resource.WithTelemetrySDK())
	if err != nil {
		return nil, fmt.Errorf("observe: OpenTelemetry: %w", err)
	}
	if traces {
		if err := overHTTP(getenv, "TRACES"); err != nil {
			return nil, err
		}
		x, err := otlptracehttp.New(ctx)
		if err != nil {
			return nil, fmt.Errorf("observe: OpenTelemetry's traces: %w", err)
		}
		p := sdktrace.NewTracerProvider(sdktrace.WithBatcher(loggedSpans{x, log}), sdktrace.WithResource(about))
		e.Traces, e.close = p, append(e.close, p.Shutdown)
	}
	if metrics {
		if err := overHTTP(getenv, "METRICS"); err != nil {
			return nil, errors.Join(err, e.Close(ctx))
		}
		x, err := otlpmetrichttp.New(ctx)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("observe: OpenTelemetry's metrics: %w", err), e.Close(ctx))
		}
		p := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewPeriodicReader(loggedMetrics{x, log})), sdkmetric.WithResource(about))
		e.Meters, e.close = p, append(e.close, p.Shutdown)
	}
	return e, nil
}

// Close sends what has not been sent and stops the exporters.
func (e *Exporters) Close(ctx context.Context) error {
	var errs []error
	for _, stop := range e.close {
		errs = append(errs, stop(ctx))
	}
	return errors.Join(errs...)
}

// selected reports whether a signal, TRACES or METRICS, is to be sent.
func selected(getenv func(string) string, signal string) bool {
	if strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") {
		return false
	}
	if x := getenv("OTEL_" + signal + "_EXPORTER"); x != "" && x != "otlp" {
		return false
	}
	return getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT") != ""
}

// overHTTP returns an error if the environment asks for another protocol than http/protobuf.
func overHTTP(getenv func(string) string, signal string) error {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_" + signal + "_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		switch p := getenv(name); p {
		case "":
		case "http/protobuf":
			return nil
		default:
			return fmt.Errorf("observe: OpenTelemetry: %s is %q, want http/protobuf", name, bounded(p))
		}
	}
	return nil
}

// loggedSpans writes the errors of an exporter to the log. The SDK would hand them to a global
// function.
type loggedSpans struct {
	sdktrace.SpanExporter
	log *slog.Logger
}

func (l loggedSpans) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if err := l.SpanExporter.ExportSpans(ctx, spans); err != nil {
		l.log.Warn("OpenTelemetry: traces were not sent", "spans", len(spans), "error", bounded(err.Error()))
	}
	return nil
}

// loggedMetrics does the same for metrics.
type loggedMetrics struct {
	sdkmetric.Exporter
	log *slog.Logger
}

func (l loggedMetrics) Export(ctx context.Context, m *metricdata.ResourceMetrics) error {
	if err := l.Exporter.Export(ctx, m); err != nil {
		l.log.Warn("OpenTelemetry: metrics were not sent", "error", bounded(err.Error()))
	}
	return nil
}
