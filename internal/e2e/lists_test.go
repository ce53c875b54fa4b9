package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola"
)

// TestLists scores and embeds lists of texts, with and without Options.Parallel. The results are those of one
// session of a model for batching, bit for bit.
func TestLists(t *testing.T) {
	table := pianola.TableOptions{Context: 96, Batching: true, AllLogits: true, Hidden: true}
	options := func(parallel int) pianola.Options {
		return pianola.Options{Device: pianola.DeviceCPU, Threads: teamThreads, Parallel: parallel, Table: table}
	}
	var prompts []string
	for i := range 9 {
		prompts = append(prompts, fmt.Sprintf("func add%d(a, b int) int {%s return", i%5, strings.Repeat("\n\ta++", i)))
	}
	labels := []string{" a", " a + b", "\n"}
	alone := open(t, "testdata/gopher-q8_0.gguf", options(0))
	s := newSession(t, alone, pianola.SessionOptions{NoReuse: true})
	scores, err := s.Classify(t.Context(), prompts, labels)
	if err != nil {
		t.Fatal(err)
	}
	vectors, err := s.Embed(t.Context(), prompts, pianola.EmbedOptions{Normalize: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, parallel := range []int{0, 1, 4} {
		m := alone
		if parallel > 0 {
			m = open(t, "testdata/gopher-q8_0.gguf", options(parallel))
		}
		got, err := m.Classify(t.Context(), prompts, labels)
		if err != nil || !slices.EqualFunc(got, scores, slices.Equal[[]pianola.LabelScore]) {
			t.Errorf("parallel %d: %v, scores %v, want %v", parallel, err, got, scores)
		}
		v, err := m.Embed(t.Context(), prompts, pianola.EmbedOptions{Normalize: true})
		if err != nil || !slices.EqualFunc(v, vectors, slices.Equal[[]float32]) {
			t.Errorf("parallel %d: %v, or other vectors", parallel, err)
		}
		checkListErrors(t, m, prompts)
		if l := m.Load(); l.Running+l.Waiting+l.UsedPages > 0 {
			t.Errorf("parallel %d: %+v", parallel, l)
		}
	}
}

// checkListErrors checks the errors of lists.
func checkListErrors(t *testing.T, m *pianola.Model, prompts []string) {
	t.Helper()
	long := slices.Insert(slices.Clone(prompts), 2, strings.Repeat("a b c d ", 100))
	if _, err := m.Classify(t.Context(), long, []string{" x"}); !errors.Is(err, pianola.ErrContextFull) || !strings.Contains(err.Error(), "prompt 2") {
		t.Errorf("a prompt that is too long: %v", err)
	}
	if _, err := m.Embed(t.Context(), long, pianola.EmbedOptions{}); !errors.Is(err, pianola.ErrContextFull) || !strings.Contains(err.Error(), "text 2") {
		t.Errorf("a text that is too long: %v", err)
	}
	if _, err := m.Embed(t.Context(), prompts, pianola.EmbedOptions{Pooling: "sum"}); err == nil {
		t.Error("an unknown pooling is accepted")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("no longer wanted")
	cancel(cause)
	if _, err := m.Classify(ctx, prompts, []string{" x"}); !errors.Is(err, cause) {
		t.Errorf("a list of a context that has ended: %v", err)
	}
	if got, err := m.Embed(t.Context(), nil, pianola.EmbedOptions{}); err != nil || len(got) != 0 {
		t.Errorf("an empty list: %v %v", got, err)
	}
}
