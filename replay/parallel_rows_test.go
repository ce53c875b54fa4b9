package replay_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/replay"
)

// rowsScript reads values of rows in every way that a session has, and returns all of them.
func rowsScript(ctx context.Context, s *replay.Session, vocab int, seed uint64) (all []float32, err error) {
	defer func() { err = errors.Join(err, s.Close()) }()
	r := rand.New(rand.NewPCG(seed, 9))
	next := 0
	visit := func(row int, values []float32) error {
		if row != next {
			return fmt.Errorf("row %d comes after row %d", row, next-1)
		}
		next++
		all = append(all, values...)
		return nil
	}
	ids := prompt(10 + r.IntN(90))
	ids[r.IntN(len(ids))] = 3
	next = r.IntN(len(ids))
	if err := s.RepromptLogits(ctx, ids, next, visit); err != nil {
		return nil, err
	}
	if next != len(ids) || s.Len() != len(ids) {
		return nil, fmt.Errorf("%d of %d rows, a context of %d", next, len(ids), s.Len())
	}
	if seed%3 == 0 {
		if err := s.SetSampling(replay.Sampling{Temperature: 0.8, Seed: seed, RepeatPenalty: 1.3, RepeatLastN: 20}); err != nil {
			return nil, err
		}
	}
	if _, _, err := s.Prompt(ctx, prompt(3)); err != nil {
		return nil, err
	}
	if _, _, err := s.Chain(ctx, 1); err != nil {
		return nil, err
	}
	logits := make([]float32, vocab)
	for range 2 { // the context goes on as if the logits had not been read
		if err := s.Logits(logits); err != nil {
			return nil, err
		}
		all = append(all, logits...)
		tokens, _, err := s.Chain(ctx, 1)
		if err != nil {
			return nil, err
		}
		all = append(all, float32(tokens[0]))
	}
	ids = append(ids[:len(ids)/2], prompt(20)...)
	next = r.IntN(len(ids))
	if err := s.RepromptHidden(ctx, ids, next, visit); err != nil {
		return nil, err
	}
	enough := errors.New("enough")
	if err := s.RepromptLogits(ctx, prompt(30), 2, func(int, []float32) error { return enough }); !errors.Is(err, enough) || s.Len() > 2 {
		return nil, fmt.Errorf("a visit that ends early: %w, %d positions", err, s.Len())
	}
	if err := s.Reset(); err != nil {
		return nil, err
	}
	next = 0
	if err := s.AllLogits(ctx, ids, visit); err != nil {
		return nil, err
	}
	tokens, _, err := s.Chain(ctx, 1)
	if err != nil {
		return nil, err
	}
	return append(all, float32(tokens[0])), nil
}

// TestParallelRows reads logits and hidden states in many sessions at once, on the CPU.
func TestParallelRows(t *testing.T) {
	for _, name := range []string{"llama", "gemma3_text"} {
		t.Run(name, func(t *testing.T) {
			testParallelRows(t, 12, func(o compiler.Options) *replay.Model { return parallelModel(t, name, o, replay.LoadOptions{}) })
		})
	}
}

// testParallelRows reads logits and hidden states in n sessions at once, with few pages. Each gets the values
// that it gets alone from a model for batching.
func testParallelRows(t *testing.T, n uint64, load func(o compiler.Options) *replay.Model) {
	o := compiler.Options{Context: 128, Batching: true, AllLogits: true, Hidden: true}
	alone := load(o)
	o.Sequences, o.Pages = 3, 6
	m := load(o)
	var all sync.WaitGroup
	for i := range n {
		want, err := rowsScript(t.Context(), session(t, alone, replay.SessionOptions{}), int(m.Table().Header.Vocab), i)
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			s, err := m.NewSession(replay.SessionOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			got, err := rowsScript(t.Context(), s, int(m.Table().Header.Vocab), i)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("script %d: %v, %d values, want %d, %s", i, err, len(got), len(want), differences(got, want))
			}
		})
	}
	all.Wait()
	if o := m.Occupancy(); o.Running+o.Waiting+o.UsedPages > 0 {
		t.Errorf("%+v", o)
	}
}

// differences describes where two slices differ.
func differences(got, want []float32) string {
	first, last, count := -1, -1, 0
	for i := range min(len(got), len(want)) {
		if got[i] == want[i] {
			continue
		}
		if count == 0 {
			first = i
		}
		last, count = i, count+1
	}
	if count == 0 {
		return "equal as far as both go"
	}
	return fmt.Sprintf("%d differ between %d (%g, want %g) and %d (%g, want %g)", count, first, got[first], want[first], last, got[last], want[last])
}

// TestParallelLogitsTwice reads the logits of contexts of which the cache of the layers with a window has
// lost pages, so that each reading prefills the whole context again. The program head, which computes the
// logits, writes a token to the ring: it must not replace one of the context's.
func TestParallelLogitsTwice(t *testing.T) {
	o := compiler.Options{Context: 128, Batching: true}
	alone := loadedOnCPU(t, "gemma3_text", 48, o)
	o.Sequences = 2
	m := parallelModel(t, "gemma3_text", o, replay.LoadOptions{})
	want, got := make([]float32, m.Table().Header.Vocab), make([]float32, m.Table().Header.Vocab)
	for n := 60; n < 100; n++ {
		ref, s := session(t, alone, replay.SessionOptions{}), session(t, m, replay.SessionOptions{})
		if err := s.SetRequest(replay.RequestOptions{Prefix: replay.PrefixOff}); err != nil {
			t.Fatal(err)
		}
		for _, s := range []*replay.Session{ref, s} {
			if _, _, err := s.Prompt(t.Context(), prompt(n)); err != nil {
				t.Fatal(err)
			}
		}
		if err := ref.Logits(want); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := s.Logits(got); err != nil || !slices.Equal(got, want) {
				t.Fatalf("a context of %d: %v, %s", n, err, differences(got, want))
			}
		}
	}
}

// counted is a cost that counts its calls.
type counted struct{ decode, prefill atomic.Int64 }

func (c *counted) Decode(rows, depth int) time.Duration {
	c.decode.Add(1)
	return time.Millisecond
}

func (c *counted) Prefill(position, rows int) time.Duration {
	c.prefill.Add(1)
	return time.Duration(rows) * 10 * time.Microsecond
}

// TestLoadCost checks that the scheduler plans with LoadOptions.Cost.
func TestLoadCost(t *testing.T) {
	c := &counted{}
	m := parallelModel(t, "llama", compiler.Options{Context: 128, Sequences: 2}, replay.LoadOptions{Cost: c})
	s := session(t, m, replay.SessionOptions{})
	if _, _, err := s.Prompt(t.Context(), prompt(96)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Chain(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	if c.prefill.Load() == 0 || c.decode.Load() == 0 {
		t.Errorf("predictions of %d prompts and %d rows were asked for", c.prefill.Load(), c.decode.Load())
	}
}
