package observe

import (
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// counts are all numbers of an observer that only requests change.
type counts struct {
	endpoints map[string]*endpointCounts
	models    map[string]*modelCounts
	loads     map[loadEvent]*loads
}

// endpointCounts are the numbers of an endpoint.
type endpointCounts struct {
	received uint64
	finished map[ending]uint64
}

// ending is how a request has ended, and its HTTP status.
type ending struct {
	outcome Outcome
	status  int
}

// modelCounts are the numbers of a model.
type modelCounts struct {
	id                                string
	waiting, running                  int
	prompt, generated                 uint64
	success                           map[string]uint64 // by reason
	firstToken, between, whole, queue *histogram
	queries, hits                     uint64 // of prefix caches that were evicted with their models
	lastQueries, lastHits             uint64 // at the last page of metrics
}

// loadEvent is a model and what has happened to it.
type loadEvent struct{ model, kind string }

type loads struct {
	n    uint64
	took time.Duration
}

func newCounts() counts {
	return counts{map[string]*endpointCounts{}, map[string]*modelCounts{}, map[loadEvent]*loads{}}
}

func (c *counts) endpoint(name string) *endpointCounts {
	e := c.endpoints[name]
	if e == nil {
		e = &endpointCounts{finished: map[ending]uint64{}}
		c.endpoints[name] = e
	}
	return e
}

// maxModels bounds the number of models with metrics of their own.
const maxModels = 10_000

// other is the name of models and endpoints that have no metrics of their own.
const other = "other"

func (c *counts) model(id string) *modelCounts {
	if id = strings.ToValidUTF8(id, "?"); c.models[id] == nil && len(c.models) >= maxModels {
		id = other
	}
	m := c.models[id]
	if m == nil {
		m = &modelCounts{
			id: id, success: map[string]uint64{"stop": 0, "length": 0, "abort": 0, "error": 0}, firstToken: newHistogram(firstTokenBounds),
			between: newHistogram(betweenBounds), whole: newHistogram(requestBounds), queue: newHistogram(requestBounds),
		}
		c.models[id] = m
	}
	return m
}

// prefix counts what a model's prefix cache reports. The numbers of a model that was loaded again begin
// at zero.
func (m *modelCounts) prefix(l *Load) {
	queries, hits := uint64(max(0, l.PromptTokens)), uint64(max(0, l.FoundTokens))
	if queries < m.lastQueries || hits < m.lastHits {
		m.queries, m.hits = m.queries+m.lastQueries, m.hits+m.lastHits
	}
	m.lastQueries, m.lastHits = queries, hits
}

// ModelEvent counts a change of a model: kind is "loaded", "failed" or "evicted". It does not call
// Options.State.
func (b *Observer) ModelEvent(id, kind string, took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.counts.loads[loadEvent{id, kind}]
	if e == nil {
		e = new(loads)
		b.counts.loads[loadEvent{id, kind}] = e
	}
	e.n++
	e.took += took
}

// Labels of metrics. vLLM numbers the engines of a process; a model here has one.
var (
	ofModel  = []string{"model_name", "engine"}
	ofModel2 = []string{"model_name"}
)

const engine = "0"

// The metrics. Routers and dashboards know the names that begin with vllm.
var (
	runningDesc    = prometheus.NewDesc("vllm:num_requests_running", "Requests that the model is computing.", ofModel, nil)
	waitingDesc    = prometheus.NewDesc("vllm:num_requests_waiting", "Requests that wait for the model, or for a place in its batch.", ofModel, nil)
	kvDesc         = prometheus.NewDesc("vllm:kv_cache_usage_perc", "Fraction of the KV pages that contexts use, from 0 to 1.", ofModel, nil)
	queriesDesc    = prometheus.NewDesc("vllm:prefix_cache_queries_total", "Prompt tokens that were looked up in the prefix cache.", ofModel, nil)
	hitsDesc       = prometheus.NewDesc("vllm:prefix_cache_hits_total", "Prompt tokens that were found in the prefix cache.", ofModel, nil)
	draftedDesc    = prometheus.NewDesc("vllm:spec_decode_num_draft_tokens_total", "Tokens of drafts that were verified.", ofModel, nil)
	acceptedDesc   = prometheus.NewDesc("vllm:spec_decode_num_accepted_tokens_total", "Tokens of drafts that were accepted.", ofModel, nil)
	promptDesc     = prometheus.NewDesc("vllm:prompt_tokens_total", "Tokens of prompts.", ofModel, nil)
	generatedDesc  = prometheus.NewDesc("vllm:generation_tokens_total", "Generated tokens.", ofModel, nil)
	successDesc    = prometheus.NewDesc("vllm:request_success_total", "Generations that have ended, by reason.", []string{"model_name", "engine", "finished_reason"}, nil)
	firstTokenDesc = prometheus.NewDesc("vllm:time_to_first_token_seconds", "Time from a request's arrival to its first token.", ofModel, nil)
	betweenDesc    = prometheus.NewDesc("vllm:inter_token_latency_seconds", "Time from a token of a request to the next one.", ofModel, nil)
	wholeDesc      = prometheus.NewDesc("vllm:e2e_request_latency_seconds", "Time from a request's arrival to its end, of requests that were done.", ofModel, nil)
	queueDesc      = prometheus.NewDesc("vllm:request_queue_time_seconds", "Time from a request's arrival until the model got it.", ofModel, nil)
	cacheDesc      = prometheus.NewDesc("vllm:cache_config_info", "Layout of the KV cache.", []string{"model_name", "engine", "block_size", "num_gpu_blocks", "enable_prefix_caching"}, nil)

	buildDesc      = prometheus.NewDesc("pianola_build_info", "Version of the program.", []string{"version", "goversion", "goos", "goarch"}, nil)
	startDesc      = prometheus.NewDesc("pianola_start_time_seconds", "Time of the service's start, in seconds since 1970.", nil, nil)
	receivedDesc   = prometheus.NewDesc("pianola_requests_received_total", "Requests received.", []string{"endpoint"}, nil)
	finishedDesc   = prometheus.NewDesc("pianola_requests_finished_total", "Requests that have ended, by outcome (done, cancelled or failed) and HTTP status.", []string{"endpoint", "outcome", "status"}, nil)
	progressDesc   = prometheus.NewDesc("pianola_requests_in_progress", "Requests received and not ended.", []string{"endpoint"}, nil)
	budgetDesc     = prometheus.NewDesc("pianola_memory_budget_bytes", "Memory that loaded models may use together; 0 means no limit.", nil, nil)
	memoryDesc     = prometheus.NewDesc("pianola_model_memory_bytes", "Memory of a model, as counted in the budget.", ofModel2, nil)
	loadedDesc     = prometheus.NewDesc("pianola_model_loaded", "1 if the model is loaded, otherwise 0.", ofModel2, nil)
	loadersDesc    = prometheus.NewDesc("pianola_model_load_waiters", "Requests that wait until the model is loaded.", ofModel2, nil)
	pagesDesc      = prometheus.NewDesc("pianola_kv_pages", "KV pages by state: free, used by contexts, or cached for prompts with the same beginning.", []string{"model_name", "state"}, nil)
	spillDesc      = prometheus.NewDesc("pianola_spill_bytes", "Bytes of copies of KV pages that the model has no room for, by place: memory or file.", []string{"model_name", "place"}, nil)
	spilledDesc    = prometheus.NewDesc("pianola_spill_pages_total", "KV pages that were saved, restored, or lost because of the file.", []string{"model_name", "event"}, nil)
	restoredDesc   = prometheus.NewDesc("pianola_restored_tokens_total", "Prompt tokens that were read back from copies of KV pages.", ofModel2, nil)
	eventsDesc     = prometheus.NewDesc("pianola_model_events_total", "Loads, failed loads and evictions of a model.", []string{"model_name", "event"}, nil)
	loadTimeDesc   = prometheus.NewDesc("pianola_model_load_seconds_total", "Time of all loads of a model, with the waiting for memory.", ofModel2, nil)
	goroutinesDesc = prometheus.NewDesc("pianola_goroutines", "Goroutines of the process.", nil, nil)
)

// collector makes pages of metrics.
type collector struct{ b *Observer }

// Describe sends nothing, because the metrics depend on the models. The registry then checks each page.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends all metrics, as of one moment.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	for _, m := range c.b.metrics() {
		out <- m
	}
}

// page is a page of metrics that is being made.
type page []prometheus.Metric

func (p *page) gauge(d *prometheus.Desc, v float64, labels ...string) {
	*p = append(*p, prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...))
}

func (p *page) counter(d *prometheus.Desc, v float64, labels ...string) {
	*p = append(*p, prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...))
}

// metrics returns all metrics. Options.State is called before the lock of the counters is taken,
// because it may take locks under which counters change.
func (b *Observer) metrics() page {
	b.scrape.Lock()
	defer b.scrape.Unlock()
	state := b.o.State()
	var p page
	p.gauge(buildDesc, 1, b.o.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	p.gauge(startDesc, float64(b.started.UnixMilli())/1000)
	p.gauge(goroutinesDesc, float64(runtime.NumGoroutine()))
	p.gauge(budgetDesc, float64(state.MemoryBudget))
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, e := range b.counts.endpoints {
		p.endpoint(name, e)
	}
	loads := map[string]*Load{}
	for _, m := range state.Models {
		m.ID = strings.ToValidUTF8(m.ID, "?")
		loads[m.ID] = m.Load
		p.state(m)
		if one := b.counts.model(m.ID); m.Load != nil { // its series exist from the beginning
			one.prefix(m.Load)
		}
	}
	for id, m := range b.counts.models {
		p.model(id, m, loads[id])
	}
	for of, e := range b.counts.loads {
		p.counter(eventsDesc, float64(e.n), of.model, of.kind)
		if of.kind == "loaded" {
			p.counter(loadTimeDesc, e.took.Seconds(), of.model)
		}
	}
	return p
}

// endpoint adds the metrics of an endpoint.
func (p *page) endpoint(name string, e *endpointCounts) {
	progress := e.received
	for end, n := range e.finished {
		p.counter(finishedDesc, float64(n), name, string(end.outcome), strconv.Itoa(end.status))
		progress -= n
	}
	p.counter(receivedDesc, float64(e.received), name)
	p.gauge(progressDesc, float64(progress), name)
}

// state adds what is known of a model without its requests.
func (p *page) state(m ModelState) {
	loaded := 0.0
	if m.State == "ready" {
		loaded = 1
	}
	p.gauge(loadedDesc, loaded, m.ID)
	p.gauge(memoryDesc, float64(m.Bytes), m.ID)
	p.gauge(loadersDesc, float64(m.Loaders), m.ID)
	if l := m.Load; l != nil && l.Pages > 0 {
		p.gauge(kvDesc, float64(l.UsedPages)/float64(l.Pages), m.ID, engine)
		p.gauge(cacheDesc, 1, m.ID, engine, strconv.Itoa(m.PagePositions), strconv.Itoa(l.Pages), "True")
		p.gauge(pagesDesc, float64(l.UsedPages), m.ID, "used")
		p.gauge(pagesDesc, float64(l.CachedPages), m.ID, "cached")
		p.gauge(pagesDesc, float64(max(0, l.Pages-l.UsedPages-l.CachedPages)), m.ID, "free")
		p.spill(m.ID, l)
		if l.DraftedTokens > 0 {
			p.counter(draftedDesc, float64(l.DraftedTokens), m.ID, engine)
			p.counter(acceptedDesc, float64(l.AcceptedTokens), m.ID, engine)
		}
	} else {
		p.gauge(kvDesc, 0, m.ID, engine)
	}
}

// spill adds the metrics of copies of KV pages, if there were any.
func (p *page) spill(id string, l *Load) {
	if l.SavedPages == 0 {
		return
	}
	p.gauge(spillDesc, float64(l.SpillMemory), id, "memory")
	p.gauge(spillDesc, float64(l.SpillFile), id, "file")
	p.counter(spilledDesc, float64(l.SavedPages), id, "saved")
	p.counter(spilledDesc, float64(l.RestoredPages), id, "restored")
	p.counter(spilledDesc, float64(l.LostPages), id, "lost")
	p.counter(restoredDesc, float64(l.RestoredTokens), id)
}

// model adds the metrics of a model's requests. A model with a scheduler knows which of the requests
// that it was given are in the batch, and which wait.
func (p *page) model(id string, m *modelCounts, l *Load) {
	running, waiting := m.running, m.waiting
	if l != nil {
		running, waiting = l.Running, m.waiting+l.Waiting
	}
	p.gauge(runningDesc, float64(running), id, engine)
	p.gauge(waitingDesc, float64(waiting), id, engine)
	p.counter(queriesDesc, float64(m.queries+m.lastQueries), id, engine)
	p.counter(hitsDesc, float64(m.hits+m.lastHits), id, engine)
	p.counter(promptDesc, float64(m.prompt), id, engine)
	p.counter(generatedDesc, float64(m.generated), id, engine)
	for reason, n := range m.success {
		p.counter(successDesc, float64(n), id, engine, reason)
	}
	*p = append(*p, m.firstToken.metric(firstTokenDesc, id, engine), m.between.metric(betweenDesc, id, engine),
		m.whole.metric(wholeDesc, id, engine), m.queue.metric(queueDesc, id, engine))
}
