package observe

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// The upper bounds of the buckets in seconds. Dashboards of vLLM work with any.
var (
	firstTokenBounds = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	betweenBounds    = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	requestBounds    = []float64{0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
)

// histogram counts values in buckets.
type histogram struct {
	bounds []float64
	counts []uint64 // one more than bounds
	sum    float64
}

func newHistogram(bounds []float64) *histogram {
	return &histogram{bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

// add counts a value n times.
func (h *histogram) add(v float64, n int) {
	i, _ := slices.BinarySearch(h.bounds, v) // a bound belongs to its bucket
	h.counts[i] += uint64(n)
	h.sum += v * float64(n)
}

// metric returns the histogram as it is now.
func (h *histogram) metric(d *prometheus.Desc, labels ...string) prometheus.Metric {
	buckets := make(map[float64]uint64, len(h.bounds))
	total := uint64(0)
	for i, bound := range h.bounds {
		total += h.counts[i]
		buckets[bound] = total
	}
	return prometheus.MustNewConstHistogram(d, total+h.counts[len(h.bounds)], h.sum, buckets, labels...)
}
