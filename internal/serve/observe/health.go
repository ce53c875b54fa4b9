package observe

import (
	"encoding/json"
	"net/http"
)

// Healthz answers that the process serves requests.
func (b *Observer) Healthz(w http.ResponseWriter, _ *http.Request) {
	writeHealth(w, health{Status: "ok"})
}

// Readyz answers 200 when all models that are required are ready, and 503 before and during shutdown.
func (b *Observer) Readyz(w http.ResponseWriter, _ *http.Request) { writeHealth(w, b.health()) }

// Ready reports whether all models that are required are ready, and the service is not shutting down.
func (b *Observer) Ready() bool { return b.health().Status == "ready" }

// health is the reply of a health check.
type health struct {
	Status  string   `json:"status"`
	Waiting []string `json:"waiting,omitempty"` // models that are not ready
}

func (b *Observer) health() health {
	b.mu.Lock()
	ending := b.ending
	b.mu.Unlock()
	if ending {
		return health{Status: "shutting down"}
	}
	h := health{Status: "ready"}
	for _, m := range b.o.State().Models {
		if m.Required && m.State != "ready" {
			h.Status = "loading"
			h.Waiting = append(h.Waiting, m.ID)
		}
	}
	return h
}

func writeHealth(w http.ResponseWriter, h health) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if h.Status != "ok" && h.Status != "ready" {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(h) // a failed write means that the client is gone
}
