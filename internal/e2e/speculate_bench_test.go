package e2e_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pianola-engine/pianola"
)

var (
	speculateModel   = flag.String("speculate-model", gopher, "the model of BenchmarkSpeculation")
	speculateDraft   = flag.Int("speculate-draft", 7, "the draft length of BenchmarkSpeculation")
	speculateThreads = flag.Int("speculate-threads", 0, "the threads of BenchmarkSpeculation; 0 means all")
	speculateMany    = flag.Int("speculate-parallel", 0, "the number of generations that BenchmarkSpeculation runs together, in a model for many sequences")
	speculateDevice  = flag.String("speculate-device", "cpu", "the device of BenchmarkSpeculation")
)

// BenchmarkSpeculation compares the median times of plain and speculative generation of 300
// tokens, which it runs alternately. The contexts are 64 tokens from several places of a text
// with the 300 tokens that the model generated after them, the beginning of the text, and
// parts of the text followed by a repetition. In some contexts the model does not repeat
// anything; they show the cost of speculation.
func BenchmarkSpeculation(b *testing.B) {
	const tokens = 300
	o := pianola.Options{Device: pianola.Device(*speculateDevice), Threads: *speculateThreads, Table: pianola.TableOptions{Context: 2048}}
	if o.Parallel = *speculateMany; o.Parallel == 0 {
		o.Table.Draft = *speculateDraft
	}
	m := open(b, *speculateModel, o)
	text, err := os.ReadFile("testdata/gopher/heldout.txt")
	if err != nil {
		b.Fatal(err)
	}
	tok, err := m.Tokenizer()
	if err != nil {
		b.Fatal(err)
	}
	ids, err := tok.Encode(string(text), pianola.EncodeOptions{})
	if err != nil {
		b.Fatal(err)
	}
	one := func(s *pianola.Session, prompt []int32, speculate bool) (out []int32, st pianola.GenerateStats) {
		for tok, err := range s.GenerateIDs(b.Context(), prompt, pianola.GenerateOptions{MaxTokens: tokens, Whole: true, Speculate: speculate}) {
			if err != nil {
				b.Error(err)
				return nil, st
			}
			out = append(out, tok.ID)
		}
		return out, s.Stats()
	}
	sessions := make([]*pianola.Session, max(1, *speculateMany))
	for i := range sessions {
		sessions[i] = newSession(b, m, pianola.SessionOptions{IgnoreStops: true})
	}
	// Of several sessions, each leaves out a different number of tokens at the beginning of the prompt.
	generate := func(prompt []int32, speculate bool) (out []int32, st pianola.GenerateStats) {
		var all sync.WaitGroup
		var mu sync.Mutex
		for i, s := range sessions {
			all.Go(func() {
				some, of := one(s, prompt[i:], speculate)
				mu.Lock()
				defer mu.Unlock()
				if i == 0 {
					out = some
				}
				st.Decode = max(st.Decode, of.Decode)
				st.Drafted, st.Accepted = st.Drafted+of.Drafted, st.Accepted+of.Accepted
			})
		}
		all.Wait()
		return out, st
	}
	type place struct {
		name   string
		prompt []int32
	}
	places := []place{
		{"again", append(slices.Clone(ids[:400]), ids[:200]...)}, {"twice", append(slices.Clone(ids[5000:5500]), ids[5000:5200]...)}, {"begun", ids[:700]},
		{"other.1", ids[30_000:30_064]}, {"other.2", ids[:1500]}, {"other.3", ids[len(ids)/2-1500 : len(ids)/2]},
	}
	for _, at := range []int{10_000, 15_000, 20_000, 30_000, 40_000} {
		prompt := ids[at : at+64 : at+64]
		follow, _ := generate(prompt, false)
		places = append(places, place{fmt.Sprint(at), append(prompt, follow...)})
	}
	for _, p := range places {
		b.Run(p.name, func(b *testing.B) {
			var times [2][]time.Duration
			_, st := generate(p.prompt, false) // so that the prompt is in the context
			for b.Loop() {
				for i := range times {
					_, st = generate(p.prompt, i == 1)
					times[i] = append(times[i], st.Decode)
				}
			}
			for i := range times {
				slices.Sort(times[i])
			}
			plain, fast := times[0][len(times[0])/2], times[1][len(times[1])/2]
			b.ReportMetric(float64(plain.Microseconds())/1e3, "ms/plain")
			b.ReportMetric(float64(plain)/float64(fast), "x")
			b.ReportMetric(float64(st.Accepted), "accepted")
			b.ReportMetric(float64(st.Drafted), "drafted")
		})
	}
}
