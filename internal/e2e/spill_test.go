package e2e

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pianola-engine/pianola"
)

// spillPrompt returns the n-th of prompts of about 1,600 tokens of gopher with nothing in common.
func spillPrompt(n int) string {
	return strings.Repeat(fmt.Sprintf("%d func f%d() { return %d }\n", n, 7*n+1, n*n), 160)
}

// spillModel opens a model with pages for little more than one prompt of gopher.
func spillModel(t testing.TB, o pianola.Options, path string) *pianola.Model {
	t.Helper()
	o.Parallel, o.Table = 4, pianola.TableOptions{Context: 2048, Pages: 40}
	m, err := pianola.Open(context.Background(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// spillTokens generates after a prompt in a session of its own.
func spillTokens(t testing.TB, m *pianola.Model, prompt string) (ids []int32, st pianola.GenerateStats) {
	t.Helper()
	s, err := m.NewSession(pianola.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for token, err := range s.Generate(context.Background(), prompt, pianola.GenerateOptions{MaxTokens: 8}) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, token.ID)
	}
	return ids, s.Stats()
}

// evicted generates after a prompt whose pages were evicted. settle is called when the model is idle.
func evicted(t testing.TB, m *pianola.Model, settle func()) (first, ids []int32, st pianola.GenerateStats) {
	t.Helper()
	first, _ = spillTokens(t, m, spillPrompt(0))
	for i := range 2 {
		spillTokens(t, m, spillPrompt(i+1))
		settle() // an idle model saves what is about to be evicted
	}
	ids, st = spillTokens(t, m, spillPrompt(0))
	return first, ids, st
}

// settled waits until an idle model saves no more pages.
func settled(m *pianola.Model) {
	for saved := -1; saved != m.Load().SavedPages; time.Sleep(50 * time.Millisecond) {
		saved = m.Load().SavedPages
	}
}

// TestSpill evicts a prompt and reads its pages back, from memory and from a file.
func TestSpill(t *testing.T) {
	for name, o := range map[string]pianola.SpillOptions{
		"none": {}, "memory": {Memory: 256 << 20}, "file": {Memory: 8 << 20, Dir: t.TempDir(), File: 256 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			m := spillModel(t, pianola.Options{Device: pianola.DeviceCPU, Threads: min(2, runtime.GOMAXPROCS(0)), Spill: o}, "testdata/gopher-q8_0.gguf")
			first, ids, st := evicted(t, m, func() { settled(m) })
			if !slices.Equal(first, ids) {
				t.Errorf("%v, want %v", ids, first)
			}
			l := m.Load()
			if on := name != "none"; st.Restored > 0 != on || l.RestoredTokens > 0 != on || l.SavedPages > 0 != on || l.SpillFile > 0 != (name == "file") {
				t.Errorf("%d of %d tokens restored, %+v", st.Restored, st.PromptTokens, l)
			}
			t.Logf("%d of %d tokens restored, first token after %v", st.Restored, st.PromptTokens, st.FirstToken)
		})
	}
}

// TestSpillBudget counts the memory of copies on a device that shares the host's memory.
func TestSpillBudget(t *testing.T) {
	path := "testdata/gopher-q8_0.gguf"
	o := pianola.Options{Device: pianola.DeviceCPU, Parallel: 4}
	without, err := pianola.Plan(path, o)
	if err != nil {
		t.Fatal(err)
	}
	o.Spill.Memory = 1 << 30
	with, err := pianola.Plan(path, o)
	if err != nil || with.Spill != 1<<30 || with.Total(1) != without.Total(1)+1<<30 {
		t.Errorf("%d and %d bytes, %v", without.Total(1), with.Total(1), err)
	}
	if _, err := pianola.Plan(path, pianola.Options{Device: pianola.DeviceCPU, Spill: o.Spill}); err == nil || !strings.Contains(err.Error(), "Spill requires Parallel") {
		t.Errorf("without Parallel: %v", err)
	}
}

// BenchmarkSpill measures the first token after a prompt whose pages were evicted.
func BenchmarkSpill(b *testing.B) {
	for _, c := range []struct {
		name string
		o    pianola.SpillOptions
	}{{"prefilled", pianola.SpillOptions{}}, {"memory", pianola.SpillOptions{Memory: 256 << 20}}, {"file", pianola.SpillOptions{Memory: 8 << 20, Dir: b.TempDir(), File: 256 << 20}}} {
		b.Run(c.name, func(b *testing.B) {
			m := spillModel(b, pianola.Options{Device: pianola.DeviceCPU, Threads: min(2, runtime.GOMAXPROCS(0)), Spill: c.o}, "testdata/gopher-q8_0.gguf")
			var sum time.Duration
			restored := 0
			for b.Loop() {
				_, _, st := evicted(b, m, func() { settled(m) })
				sum, restored = sum+st.FirstToken, restored+st.Restored
			}
			b.ReportMetric(float64(sum.Microseconds())/1000/float64(b.N), "first-ms")
			b.ReportMetric(float64(restored)/float64(b.N), "restored/op")
		})
	}
}
