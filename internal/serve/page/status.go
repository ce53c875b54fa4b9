package page

import (
	"encoding/json"
	"net/http"
	"slices"
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

// The meter compares the numbers of tokens with those of an earlier question, span ago or somewhat
// more. Until there is one, a younger one of at least minSpan is enough. Older ones than maxSpan are
// forgotten: their rates would tell nothing about now.
const (
	minSpan = time.Second
	span    = 3 * time.Second
	maxSpan = 15 * time.Second
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

// rates returns the tokens per second of the models, lately. A model that is not in an
// earlier map had generated nothing.
func (m *meter) rates(now time.Time, generated map[string]uint64) map[string]float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.samples = slices.DeleteFunc(m.samples, func(s sample) bool { return now.Sub(s.at) > maxSpan })
	rates := map[string]float64{}
	for i := len(m.samples) - 1; i >= 0; i-- {
		s := m.samples[i]
		took := now.Sub(s.at)
		if took < minSpan || took < span && i > 0 {
			continue
		}
		for id, count := range generated {
			if before := s.generated[id]; count >= before {
				rates[id] = float64(count-before) / took.Seconds()
			}
		}
		break
	}
	if n := len(m.samples); n == 0 || now.Sub(m.samples[n-1].at) >= minSpan {
		m.samples = append(m.samples, sample{now, generated})
	}
	return rates
}
