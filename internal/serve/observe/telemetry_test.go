package observe

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// recorded returns providers that keep everything, and a function that returns it as text.
func recorded(t *testing.T) (trace.TracerProvider, metric.MeterProvider, func() string) {
	t.Helper()
	x := tracetest.NewInMemoryExporter()
	reader := sdkmetric.NewManualReader()
	return sdktrace.NewTracerProvider(sdktrace.WithSyncer(x)), sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), func() string {
		var m metricdata.ResourceMetrics
		if err := reader.Collect(t.Context(), &m); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal([]any{x.GetSpans(), m})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}

func TestSpans(t *testing.T) {
	c := newClock()
	x := tracetest.NewInMemoryExporter()
	b := newObserver(t, Options{now: c.time, Traces: sdktrace.NewTracerProvider(sdktrace.WithSyncer(x))})
	r := post("/v1/chat/completions")
	r.Header.Set(requestID, "req-1")
	r.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	serveOne(b, life(c, "gopher", "stop"), r)
	serveOne(b, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }, post("/v1/completions"))
	spans := x.GetSpans()
	if len(spans) != 2 {
		t.Fatalf("%d spans", len(spans))
	}
	s := spans[0]
	if s.Name != "chat gopher" || s.SpanKind != trace.SpanKindServer || s.SpanContext.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" || s.Parent.SpanID().String() != "b7ad6b7169203331" || s.Status.Code != codes.Unset {
		t.Errorf("the span is %+v", s)
	}
	got := map[string]any{}
	for _, a := range s.Attributes {
		got[string(a.Key)] = a.Value.AsInterface()
	}
	want := map[string]any{
		"http.request.method": "POST", "http.route": "/v1/chat/completions", "http.response.status_code": int64(200), "pianola.request.id": "req-1",
		"gen_ai.operation.name": "chat", "gen_ai.provider.name": "pianola", "gen_ai.request.model": "gopher", "gen_ai.response.model": "gopher",
		"gen_ai.response.id": "req-1", "gen_ai.response.finish_reasons": []string{"stop"}, "gen_ai.usage.input_tokens": int64(100),
		"gen_ai.usage.output_tokens": int64(7), "gen_ai.usage.cache_read.input_tokens": int64(64),
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("attributes (-want +got):\n%s", d)
	}
	if s := spans[1]; s.Name != "POST /v1/completions" || s.Status.Code != codes.Error {
		t.Errorf("a failure: %+v", s)
	}
}

func TestOTelMetrics(t *testing.T) {
	c := newClock()
	reader := sdkmetric.NewManualReader()
	b := newObserver(t, Options{now: c.time, Meters: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	serveOne(b, life(c, "gopher", "stop"), post("/v1/chat/completions"))
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, m := range all.ScopeMetrics[0].Metrics {
		got[m.Name] = m.Data.(metricdata.Histogram[float64]).DataPoints[0].Sum
	}
	want := map[string]float64{"gen_ai.server.request.duration": 0.22, "gen_ai.server.time_to_first_token": 0.07, "gen_ai.server.time_per_output_token": 0.02}
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 })); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestExporters sends to a collector, and checks that nothing is sent unless the environment names one.
func TestExporters(t *testing.T) {
	var mu sync.Mutex
	paths := map[string]int{}
	status := http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		paths[r.URL.Path] += len(body)
		w.WriteHeader(status)
	}))
	defer s.Close()
	for _, c := range []struct {
		name, env       string
		traces, metrics bool
		err             string
	}{
		{name: "nothing"},
		{"both", "OTEL_EXPORTER_OTLP_ENDPOINT=URL", true, true, ""},
		{"traces", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=URL/v1/traces", true, false, ""},
		{"no metrics", "OTEL_EXPORTER_OTLP_ENDPOINT=URL OTEL_METRICS_EXPORTER=none", true, false, ""},
		{"disabled", "OTEL_EXPORTER_OTLP_ENDPOINT=URL OTEL_SDK_DISABLED=true", false, false, ""},
		{"gRPC", "OTEL_EXPORTER_OTLP_ENDPOINT=URL OTEL_EXPORTER_OTLP_PROTOCOL=grpc", false, false, "want http/protobuf"},
	} {
		t.Run(c.name, func(t *testing.T) {
			clear(paths)
			env := map[string]string{}
			for _, one := range strings.Fields(strings.ReplaceAll(c.env, "URL", s.URL)) {
				name, value, _ := strings.Cut(one, "=")
				env[name] = value
				t.Setenv(name, value) // the exporters read it
			}
			x, err := StartExporters(t.Context(), func(name string) string { return env[name] }, "v1", slog.New(slog.DiscardHandler))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("the error is %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			b := newObserver(t, Options{Traces: x.Traces, Meters: x.Meters})
			serveOne(b, life(newClock(), "gopher", "stop"), post("/v1/chat/completions"))
			if err := x.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if sent := paths["/v1/traces"] > 0; sent != c.traces {
				t.Errorf("traces were sent: %v", sent)
			}
			if sent := paths["/v1/metrics"] > 0; sent != c.metrics {
				t.Errorf("metrics were sent: %v", sent)
			}
		})
	}
}

// TestExporterFails sends to a collector that refuses, which is a line of the log.
func TestExporterFails(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	defer s.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", s.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=sk-secret-key")
	var logs bytes.Buffer
	log, err := NewLogger(&logs, Text, slog.LevelInfo)
	if err != nil {
		t.Fatal(err)
	}
	x, err := StartExporters(t.Context(), func(name string) string {
		return map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": s.URL}[name]
	}, "v1", log)
	if err != nil {
		t.Fatal(err)
	}
	b := newObserver(t, Options{Traces: x.Traces, Meters: x.Meters})
	serveOne(b, life(newClock(), "gopher", "stop"), post("/v1/chat/completions"))
	if err := x.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
	if out := logs.String(); !strings.Contains(out, "traces were not sent") || !strings.Contains(out, "metrics were not sent") || strings.Contains(out, "sk-secret-key") {
		t.Errorf("the log is:\n%s", out)
	}
}
