package e2e_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/packed"
)

// recurrentDirs returns the directories of models with layers with recurrent state, by name.
func recurrentDirs(t *testing.T) map[string]string {
	t.Helper()
	dirs := map[string]string{}
	add := func(name string, m interface{ Write(dir string) error }) {
		dirs[name] = t.TempDir()
		if err := m.Write(dirs[name]); err != nil {
			t.Fatal(err)
		}
	}
	for name, m := range packed.Convs() {
		add("conv "+name, m)
	}
	for name, m := range packed.Deltas() {
		add("delta "+name, m)
	}
	for _, name := range []string{"one group", "two groups"} {
		add("granite "+name, packed.Granites()[name])
	}
	add("falcon_h1", packed.FalconH1s()["no norm"])
	add("nemotron_h", packed.NemotronHs()["bounded"])
	return dirs
}

// TestRecurrentSessions checks that chains, prompts in pieces, rewinds, forks, snapshots and speculation
// of models with recurrent state give the tokens of one prompt and one chain.
func TestRecurrentSessions(t *testing.T) {
	const n = 40
	ids := latentPrompt(150)
	for name, dir := range recurrentDirs(t) {
		t.Run(name, func(t *testing.T) {
			m := open(t, dir, pianola.Options{Device: "cpu", Threads: otherThreads, Table: pianola.TableOptions{Draft: 4}})
			_, want := greedy(t, m, 64, ids, n)
			for _, chain := range []int{1, 7} {
				if _, got := greedy(t, m, chain, ids, n); !slices.Equal(got, want) {
					t.Errorf("chains of %d: %v, want %v", chain, got, want)
				}
			}
			checkSessions(t, m, ids, want)
			got := greedyIDs(t, newSession(t, m, pianola.SessionOptions{IgnoreStops: true}), ids, pianola.GenerateOptions{MaxTokens: n, Speculate: true})
			if !slices.Equal(got, want) {
				t.Errorf("speculative: %v, want %v", got, want)
			}
		})
	}
}

// TestRecurrentProperty performs random calls of sessions of models with recurrent state, and compares
// the logits after each with those of a new session with the same tokens.
func TestRecurrentProperty(t *testing.T) {
	for name, dir := range recurrentDirs(t) {
		t.Run(name, func(t *testing.T) {
			m := open(t, dir, pianola.Options{Device: "cpu", Threads: 1, Table: pianola.TableOptions{Batching: true}})
			r := rand.New(rand.NewPCG(1, 19))
			for range exhaustive.Pick(120, 30) {
				recurrentCalls(t, m, r, 12)
			}
		})
	}
}

// recurrentCalls performs n random calls.
func recurrentCalls(t *testing.T, m *pianola.Model, r *rand.Rand, n int) {
	t.Helper()
	s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true, Chain: 1 + r.IntN(20)})
	vocab := m.Config().Vocab
	var all []int32 // the context and the pending token
	replace := func(other *pianola.Session, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = other
	}
	for i := range n {
		call := r.IntN(8)
		if len(all) == 0 {
			call = 0
		}
		switch call {
		case 0, 1: // a prompt, which may be cancelled
			ids := make([]int32, 1+r.IntN(150))
			for i := range ids {
				ids[i] = int32(r.IntN(vocab))
			}
			if len(all)+len(ids) >= s.Context() {
				continue
			}
			ctx, stop := t.Context(), context.CancelFunc(func() {})
			if call == 1 {
				ctx, stop = context.WithTimeout(ctx, time.Duration(r.IntN(3000))*time.Microsecond)
			}
			next, _, err := s.Prompt(ctx, ids)
			stop()
			if err != nil && ctx.Err() == nil {
				t.Fatal(err)
			}
			if err == nil {
				all = append(append(all, ids...), next)
			}
		case 2: // a rewind, and perhaps another token
			at := r.IntN(len(all))
			if err := s.Rewind(at); err != nil {
				t.Fatal(err)
			}
			if all = all[:at+1]; r.IntN(2) == 0 {
				all[at] = int32(r.IntN(vocab))
				if err := s.SetNext(all[at]); err != nil {
					t.Fatal(err)
				}
			}
			continue // the logits are those of another token
		case 3:
			replace(s.Fork())
		case 4:
			var b bytes.Buffer
			if err := s.Snapshot(&b); err != nil {
				t.Fatal(err)
			}
			replace(m.Restore(&b, pianola.SessionOptions{IgnoreStops: true, Chain: 1 + r.IntN(20)}))
		case 5:
			if _, err := m.ReleaseIdle(0); err != nil {
				t.Fatal(err)
			}
		default:
			tokens, _, err := s.Chain(t.Context(), 1+r.IntN(100))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, tokens...)
			checkRecurrent(t, m, s, all, i)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// checkRecurrent compares the logits of the pending token, the last one, with those of a new session.
func checkRecurrent(t *testing.T, m *pianola.Model, s *pianola.Session, all []int32, call int) {
	t.Helper()
	got, want := make([]float32, m.Config().Vocab), make([]float32, m.Config().Vocab)
	if err := s.NextLogits(got); err != nil {
		t.Fatal(err)
	}
	fresh := newSession(t, m, pianola.SessionOptions{IgnoreStops: true})
	defer fresh.Close()
	next, _, err := fresh.Prompt(t.Context(), all[:len(all)-1])
	if err != nil {
		t.Fatal(err)
	}
	if err := fresh.NextLogits(want); err != nil {
		t.Fatal(err)
	}
	if next != all[len(all)-1] || !slices.Equal(got, want) {
		t.Fatalf("call %d, %d tokens: token %d, want %d, or other logits", call, len(all), all[len(all)-1], next)
	}
}

// TestRecurrentLong checks that contexts of models with recurrent state that are longer than their KV
// caches give the tokens of a whole cache at first, and that a rollover gives those of its tokens.
func TestRecurrentLong(t *testing.T) {
	ids := latentPrompt(60)
	for name, dir := range recurrentDirs(t) {
		t.Run(name, func(t *testing.T) {
			whole := open(t, dir, pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: 100}})
			_, want := greedy(t, whole, 16, ids, 10)
			m := open(t, dir, pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: 2048, KVSinks: 4, KVWindow: 100}})
			if _, got := greedy(t, m, 16, ids, 10); !slices.Equal(got, want) {
				t.Errorf("with attention sinks: %v, want %v", got, want)
			}
			if _, got := greedy(t, m, 64, ids, 700); len(got) != 700 {
				t.Errorf("%d tokens", len(got))
			}
			s := newSession(t, whole, pianola.SessionOptions{IgnoreStops: true, Rollover: pianola.Rollover{Sinks: 4, Window: 20}})
			got := greedyIDs(t, s, ids, pianola.GenerateOptions{MaxTokens: 60})
			// The context was full after 41 tokens. It went on with the first 4 and the last 20 tokens
			// before the pending one.
			all := slices.Concat(ids, got[:41])
			kept := slices.Concat(all[:4], all[80:100], all[100:])
			_, after := greedy(t, whole, 16, kept, len(got)-41)
			if !slices.Equal(got[41:], after) {
				t.Errorf("after a rollover: %v, want %v", got[41:], after)
			}
		})
	}
}
