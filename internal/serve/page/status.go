package page

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// statusJSON is the state of the models.
type statusJSON struct {
	MemoryBudget int64         `json:"memory_budget"` // bytes; 0 means no limit
	Models       []modelStatus `json:"models"`
}

type modelStatus struct {
	ID      string `json:"id"`
	State   string `json:"state"` // "absent", "loading", "ready" or "closing"
	Bytes   int64  `json:"bytes"`
	Loaders int    `json:"loaders"` // requests that wait until the model is loaded

	Load            *loadStatus `json:"load"`              // null without a scheduler
	Generated       uint64      `json:"generated_tokens"`  // since the service's start
	TokensPerSecond *float64    `json:"tokens_per_second"` // lately; null while it is unknown
}

type loadStatus struct {
	Running       int       `json:"running"`
	Waiting       int       `json:"waiting"`
	Pages         pagesJSON `json:"pages"`
	PagePositions int       `json:"page_positions"` // positions of a page
	PromptTokens  int       `json:"prompt_tokens"`  // of all prompts
	FoundTokens   int       `json:"found_tokens"`   // of these, found in the prefix cache
}

type pagesJSON struct {
	Used   int `json:"used"` // by contexts
	Free   int `json:"free"`
	Cached int `json:"cached"` // for prompts with the same beginning
}

// status serves the state of the models.
type status struct {
	o     Options
	meter *meter
}

func (s *status) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	state, generated := s.o.State(), s.o.Generated()
	rates := s.meter.rates(s.o.now(), generated)
	out := statusJSON{state.MemoryBudget, []modelStatus{}}
	for _, m := range state.Models {
		one := modelStatus{ID: m.ID, State: m.State, Bytes: m.Bytes, Loaders: m.Loaders, Generated: generated[m.ID]}
		if rate, ok := rates[m.ID]; ok {
			one.TokensPerSecond = &rate
		}
		if l := m.Load; l != nil {
			free := max(0, l.Pages-l.UsedPages-l.CachedPages)
			one.Load = &loadStatus{l.Running, l.Waiting, pagesJSON{l.UsedPages, free, l.CachedPages}, m.PagePositions, l.PromptTokens, l.FoundTokens}
		}
		out.Models = append(out.Models, one)
	}
	b, err := json.Marshal(out)
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	send(w, http.StatusOK, b)
}

// The meter compares the numbers of tokens with those of a moment that is at least minSpan and, as
// long as somebody asks, not much more than maxSpan ago.
const (
	minSpan = time.Second
	maxSpan = 5 * time.Second
)

// meter computes rates from numbers of tokens. Nothing runs between two questions.
type meter struct {
	mu      sync.Mutex
	samples []sample // in the order of time, minSpan or more apart
}

type sample struct {
	at        time.Time
	generated map[string]uint64
}

// rates returns the tokens per second of the models, lately. A model without an earlier number has none.
func (m *meter) rates(now time.Time, generated map[string]uint64) map[string]float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	// The latest sample that is older than maxSpan stays, so that the span reaches that far.
	for len(m.samples) > 1 && now.Sub(m.samples[1].at) >= maxSpan {
		m.samples = m.samples[1:]
	}
	rates := map[string]float64{}
	if n := len(m.samples); n > 0 {
		if span := now.Sub(m.samples[0].at); span >= minSpan {
			for id, count := range generated {
				if before, ok := m.samples[0].generated[id]; ok && count >= before {
					rates[id] = float64(count-before) / span.Seconds()
				}
			}
		}
		if now.Sub(m.samples[n-1].at) < minSpan {
			return rates
		}
	}
	m.samples = append(m.samples, sample{now, generated})
	return rates
}
