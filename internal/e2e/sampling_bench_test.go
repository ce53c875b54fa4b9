package e2e_test

import (
	"context"
	"flag"
	"slices"
	"testing"
	"time"

	"github.com/pianola-engine/pianola"
)

var samplingModel = flag.String("sampling-model", gopher, "the model of BenchmarkSampling; wide is a small one with a large vocabulary and flat logits")

// BenchmarkSampling compares the median times of sampled and greedy chains, which it runs
// alternately.
func BenchmarkSampling(b *testing.B) {
	const chain, depth = 32, 64
	path := *samplingModel
	if path == "wide" {
		path = wideModel(b)
	}
	m := open(b, path, pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: 512}})
	ids := make([]int32, depth)
	for i := range ids {
		ids[i] = int32(100 + i)
	}
	cases := []struct {
		name string
		o    pianola.Sampling
	}{
		{"greedy", pianola.Sampling{}}, {"default", pianola.DefaultSampling()}, {"temperature", pianola.Sampling{Temperature: 1}},
		{"top-p", pianola.Sampling{Temperature: 1, TopP: 0.95}}, {"min-p", pianola.Sampling{Temperature: 1, MinP: 0.05}},
		{"top-k", pianola.Sampling{Temperature: 1, TopK: 40}}, {"penalty", pianola.Sampling{RepeatPenalty: 1.1}},
	}
	times := make([][]time.Duration, len(cases))
	s := newSession(b, m, pianola.SessionOptions{Chain: chain, IgnoreStops: true})
	for b.Loop() {
		for i, c := range cases {
			c.o.Seed = uint64(len(times[i]))
			if err := s.Reset(); err != nil {
				b.Fatal(err)
			}
			if err := s.SetSampling(c.o); err != nil {
				b.Fatal(err)
			}
			if _, _, err := s.Prompt(context.Background(), ids); err != nil {
				b.Fatal(err)
			}
			start := time.Now()
			if _, _, err := s.Chain(context.Background(), chain); err != nil {
				b.Fatal(err)
			}
			times[i] = append(times[i], time.Since(start)/chain)
		}
	}
	median := func(t []time.Duration) float64 {
		slices.Sort(t)
		return float64(t[len(t)/2])
	}
	greedy := median(times[0])
	b.ReportMetric(greedy/1e3, "us/greedy-token")
	for i, c := range cases[1:] {
		b.ReportMetric(100*(median(times[i+1])/greedy-1), "%/"+c.name)
	}
}
