package observe

import (
	"bytes"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// clock is a clock that tests set.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Unix(1_800_000_000, 0)} }

func (c *clock) time() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// path is an Options.Endpoint for tests.
func path(r *http.Request) string {
	if strings.HasPrefix(r.URL.Path, "/v1/") {
		return r.URL.Path
	}
	return ""
}

func newObserver(t *testing.T, o Options) *Observer {
	t.Helper()
	if o.Endpoint == nil {
		o.Endpoint = path
	}
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// scrape returns the page of metrics.
func scrape(t *testing.T, b *Observer) string {
	t.Helper()
	w := httptest.NewRecorder()
	b.Metrics().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// families parses a page of metrics.
func families(t *testing.T, page string) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	all, err := parser.TextToMetricFamilies(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// serveOne serves one request.
func serveOne(b *Observer, handler http.HandlerFunc, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	b.Middleware(handler).ServeHTTP(w, r)
	return w
}

func post(endpoint string) *http.Request {
	return httptest.NewRequest("POST", endpoint, strings.NewReader(`{}`))
}

// life is a handler that generates tokens.
func life(c *clock, model string, reason string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q := From(r.Context())
		q.Key("team")
		q.Queued(model, "chat")
		c.pass(20 * time.Millisecond)
		q.Started()
		q.Prompt(100, 64)
		c.pass(50 * time.Millisecond)
		q.Tokens(1)
		for range 3 {
			c.pass(40 * time.Millisecond)
			q.Tokens(2)
		}
		q.Finished(reason)
		c.pass(30 * time.Millisecond)
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	}
}

// scripted returns an observer after requests of all kinds.
func scripted(t *testing.T, o Options) *Observer {
	c := newClock()
	o.now, o.Version = c.time, "v1.2.3"
	o.State = func() State {
		return State{MemoryBudget: 1 << 30, Models: []ModelState{
			{ID: "gopher", State: "ready", Bytes: 8 << 20, PagePositions: 64,
				Load: &Load{Running: 3, Waiting: 1, Pages: 100, UsedPages: 25, CachedPages: 15, PromptTokens: 400, FoundTokens: 256, DraftedTokens: 30, AcceptedTokens: 21,
					SavedPages: 40, RestoredPages: 12, LostPages: 1, RestoredTokens: 640, SpillMemory: 3 << 20, SpillFile: 5 << 20}},
			{ID: "org/big", State: "absent", Loaders: 2},
		}}
	}
	b := newObserver(t, o)
	b.ModelEvent("gopher", "loaded", 1500*time.Millisecond)
	b.ModelEvent("org/big", "failed", time.Second)
	serveOne(b, life(c, "gopher", "stop"), post("/v1/chat/completions"))
	serveOne(b, life(c, "gopher", "length"), post("/v1/chat/completions"))
	serveOne(b, func(w http.ResponseWriter, r *http.Request) {
		From(r.Context()).Queued("gopher", "chat")
		From(r.Context()).Cancelled()
	}, post("/v1/chat/completions"))
	serveOne(b, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }, post("/v1/completions"))
	serveOne(b, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }, post("/../../etc/passwd"))
	open, wait := make(chan bool), make(chan bool)
	go serveOne(b, func(_ http.ResponseWriter, r *http.Request) {
		From(r.Context()).Queued("org/big", "chat")
		close(open)
		<-wait
	}, post("/v1/chat/completions"))
	<-open
	t.Cleanup(func() { close(wait) })
	return b
}

// machine matches what depends on the machine.
var machine = regexp.MustCompile(`(?m)goversion="[^"]*"|goos="[^"]*"|goarch="[^"]*"|^pianola_goroutines \d+$`)

func TestMetricsPage(t *testing.T) {
	page := scrape(t, scripted(t, Options{}))
	got := machine.ReplaceAllStringFunc(page, func(s string) string {
		return strings.FieldsFunc(s, func(r rune) bool { return r == '=' || r == ' ' })[0] + " *"
	})
	const golden = "testdata/metrics.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); d != "" {
		t.Errorf("the page differs from %s (-want +got; -update rewrites it):\n%s", golden, d)
	}
}

// TestLint checks the page as Prometheus's own linter does. The names that routers know have colons,
// which the linter wants only in recording rules.
func TestLint(t *testing.T) {
	page := scrape(t, scripted(t, Options{}))
	problems, err := promlint.New(strings.NewReader(page)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "vllm:") && strings.Contains(p.Text, "':'") {
			continue
		}
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestNames checks that the names that routers read are there, with the types that they expect.
func TestNames(t *testing.T) {
	all := families(t, scrape(t, scripted(t, Options{})))
	for name, kind := range map[string]dto.MetricType{
		"vllm:num_requests_running": dto.MetricType_GAUGE, "vllm:num_requests_waiting": dto.MetricType_GAUGE,
		"vllm:kv_cache_usage_perc": dto.MetricType_GAUGE, "vllm:cache_config_info": dto.MetricType_GAUGE,
		"vllm:prefix_cache_hits_total": dto.MetricType_COUNTER, "vllm:prefix_cache_queries_total": dto.MetricType_COUNTER,
		"vllm:spec_decode_num_draft_tokens_total": dto.MetricType_COUNTER, "vllm:spec_decode_num_accepted_tokens_total": dto.MetricType_COUNTER,
		"vllm:prompt_tokens_total": dto.MetricType_COUNTER, "vllm:generation_tokens_total": dto.MetricType_COUNTER,
		"vllm:request_success_total": dto.MetricType_COUNTER, "vllm:time_to_first_token_seconds": dto.MetricType_HISTOGRAM,
		"vllm:inter_token_latency_seconds": dto.MetricType_HISTOGRAM, "vllm:e2e_request_latency_seconds": dto.MetricType_HISTOGRAM,
		"pianola_build_info": dto.MetricType_GAUGE, "pianola_requests_received_total": dto.MetricType_COUNTER,
	} {
		if f := all[name]; f == nil || f.GetType() != kind {
			t.Errorf("%s: %v, want a %v", name, f, kind)
		}
	}
	sum := all["vllm:inter_token_latency_seconds"].Metric[0].Histogram
	if sum.GetSampleCount() != 12 || sum.GetSampleSum() < 0.2399 || sum.GetSampleSum() > 0.2401 {
		t.Errorf("between tokens: %d values with the sum %v, want 12 and 0.24", sum.GetSampleCount(), sum.GetSampleSum())
	}
}

// TestPrefixReset loads a model again, whose own counters then begin at zero.
func TestPrefixReset(t *testing.T) {
	load := &Load{}
	b := newObserver(t, Options{State: func() State { return State{Models: []ModelState{{ID: "m", State: "ready", Load: load}}} }})
	for _, c := range []struct{ queries, hits, wantQueries, wantHits int }{{100, 50, 100, 50}, {120, 60, 120, 60}, {10, 0, 130, 60}, {30, 5, 150, 65}} {
		load = &Load{PromptTokens: c.queries, FoundTokens: c.hits}
		all := families(t, scrape(t, b))
		queries, hits := all["vllm:prefix_cache_queries_total"].Metric[0].Counter.GetValue(), all["vllm:prefix_cache_hits_total"].Metric[0].Counter.GetValue()
		if int(queries) != c.wantQueries || int(hits) != c.wantHits {
			t.Errorf("%+v: %v queries, %v hits", c, queries, hits)
		}
	}
}

// TestConsistent scrapes during many requests: on each page, the requests received are the requests
// done, cancelled, failed and in progress.
func TestConsistent(t *testing.T) {
	b := newObserver(t, Options{})
	const clients, each = 16, 60
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			for j := range each {
				serveOne(b, func(w http.ResponseWriter, r *http.Request) {
					q := From(r.Context())
					q.Queued([]string{"a", "b"}[j%2], "chat")
					switch (i + j) % 4 {
					case 0:
						q.Started()
						q.Tokens(1)
						q.Finished("stop")
					case 1:
						q.Started()
						q.Cancelled()
					case 2:
						w.WriteHeader(500)
					}
				}, post("/v1/completions"))
			}
		})
	}
	done := make(chan bool)
	go func() { all.Wait(); close(done) }()
	for scrapes := 0; ; scrapes++ {
		f := families(t, scrape(t, b))
		received, rest := total(f["pianola_requests_received_total"]), total(f["pianola_requests_finished_total"])+total(f["pianola_requests_in_progress"])
		if received != rest {
			t.Fatalf("%v requests received, but %v ended or in progress", received, rest)
		}
		select {
		case <-done:
			if received == clients*each && total(f["pianola_requests_in_progress"]) == 0 && total(f["vllm:num_requests_running"])+total(f["vllm:num_requests_waiting"]) == 0 {
				return
			}
			if scrapes > 100_000 {
				t.Fatalf("%v of %d requests:\n%s", received, clients*each, scrape(t, b))
			}
		default:
		}
	}
}

// total returns the sum of a family's values.
func total(f *dto.MetricFamily) (sum float64) {
	for _, m := range f.GetMetric() {
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	return sum
}

func TestOutcomes(t *testing.T) {
	for _, c := range []struct {
		name, want string
		handler    http.HandlerFunc
	}{
		{"nothing", "done 200", func(http.ResponseWriter, *http.Request) {}},
		{"refused", "failed 429", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) }},
		{"done", "done 200", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(200); From(r.Context()).Finished("stop") }},
		{"failed in a stream", "failed 200", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(200)
			From(r.Context()).Failed("device", nil)
		}},
		{"one of two generations failed", "failed 200", func(_ http.ResponseWriter, r *http.Request) {
			From(r.Context()).Failed("device", nil)
			From(r.Context()).Finished("stop")
		}},
		{"early hints", "done 204", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(103); w.WriteHeader(204) }},
		{"panic", "failed 500", func(http.ResponseWriter, *http.Request) { panic("x") }},
		{"abort", "failed 500", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
	} {
		b := newObserver(t, Options{})
		func() {
			defer func() {
				if p := recover(); p != nil && p != http.ErrAbortHandler { //nolint:errorlint // it is compared by net/http too
					t.Errorf("%s: panic %v", c.name, p)
				}
			}()
			serveOne(b, c.handler, post("/v1/completions"))
		}()
		m := families(t, scrape(t, b))["pianola_requests_finished_total"].GetMetric()
		if len(m) != 1 || m[0].Counter.GetValue() != 1 {
			t.Errorf("%s: %v", c.name, m)
			continue
		}
		got := m[0].Label[1].GetValue() + " " + m[0].Label[2].GetValue()
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// TestGone cancels a request as net/http does when a client goes away.
func TestGone(t *testing.T) {
	b := newObserver(t, Options{})
	started := make(chan bool)
	s := httptest.NewServer(b.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		From(r.Context()).Queued("m", "chat")
		close(started)
		<-r.Context().Done()
	})))
	go func() {
		<-started
		s.CloseClientConnections()
	}()
	if resp, err := http.Post(s.URL+"/v1/completions", "application/json", bytes.NewReader(nil)); err == nil {
		resp.Body.Close()
		t.Error("the request succeeded")
	}
	s.Close()
	page := scrape(t, b)
	for _, want := range []string{`pianola_requests_finished_total{endpoint="/v1/completions",outcome="cancelled",status="200"} 1`, `finished_reason="abort",model_name="m"} 1`, `vllm:num_requests_waiting{engine="0",model_name="m"} 0`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %s", want)
		}
	}
}

// TestNilRequest calls the methods outside a request, and after its end.
func TestNilRequest(t *testing.T) {
	b := newObserver(t, Options{})
	var late *Request
	serveOne(b, func(_ http.ResponseWriter, r *http.Request) {
		late = From(r.Context())
		late.Queued("m", "chat")
		late.Queued("m", "chat") // changes nothing
	}, post("/v1/completions"))
	before := scrape(t, b)
	for _, q := range []*Request{nil, late} {
		q.Queued("m", "chat")
		q.Started()
		q.Prompt(1, 0)
		q.Tokens(1)
		q.Finished("stop")
		q.Failed("x", nil)
		q.Cancelled()
		q.Key("k")
	}
	if d := cmp.Diff(machine.ReplaceAllString(before, ""), machine.ReplaceAllString(scrape(t, b), "")); d != "" {
		t.Error(d)
	}
}

// TestGenerated compares the numbers of tokens with those of the page of metrics.
func TestGenerated(t *testing.T) {
	b := scripted(t, Options{})
	for _, m := range families(t, scrape(t, b))["vllm:generation_tokens_total"].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() != "model_name" {
				continue
			}
			if got := b.Generated()[l.GetValue()]; float64(got) != m.GetCounter().GetValue() {
				t.Errorf("%s has generated %d tokens, the metrics say %v", l.GetValue(), got, m.GetCounter().GetValue())
			}
		}
	}
	if len(b.Generated()) == 0 {
		t.Error("no model has generated tokens")
	}
}
