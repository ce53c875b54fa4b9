package e2e_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/packed"
)

// latentPrompt returns n tokens.
func latentPrompt(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(i*29%500 + 3)
	}
	return ids
}

// TestLatentSessions checks that chains, prompts in pieces, rewinds, forks and snapshots of a model with
// latent attention give the tokens of one prompt and one chain.
func TestLatentSessions(t *testing.T) {
	const n = 40
	ids := latentPrompt(130)
	for name, latent := range packed.Latents() {
		dir := latentDir(t, latent)
		for _, kv := range []pianola.KVType{pianola.KVF16, pianola.KVQ8} {
			if kv == pianola.KVQ8 && (latent.Rank+latent.Rope)%32 != 0 {
				continue
			}
			t.Run(name+"/"+string(kv), func(t *testing.T) {
				m := open(t, dir, pianola.Options{Device: "cpu", Table: pianola.TableOptions{KV: kv, Draft: 4}})
				_, want := greedy(t, m, 64, ids, n)
				for _, chain := range []int{1, 7} {
					if _, got := greedy(t, m, chain, ids, n); !slices.Equal(got, want) {
						t.Errorf("chains of %d: %v, want %v", chain, got, want)
					}
				}
				if _, got := greedy(t, open(t, dir, pianola.Options{Device: "cpu", Threads: otherThreads, Table: pianola.TableOptions{KV: kv, NoFuse: true}}), 64, ids, n); !slices.Equal(got, want) {
					t.Errorf("without fusions: %v, want %v", got, want)
				}
				checkSessions(t, m, ids, want)
				got := greedyIDs(t, newSession(t, m, pianola.SessionOptions{IgnoreStops: true}), ids, pianola.GenerateOptions{MaxTokens: n, Speculate: true})
				if !slices.Equal(got, want) {
					t.Errorf("speculative: %v, want %v", got, want)
				}
			})
		}
	}
}

func greedyIDs(t *testing.T, s *pianola.Session, prompt []int32, o pianola.GenerateOptions) (list []int32) {
	t.Helper()
	for token, err := range s.GenerateIDs(t.Context(), prompt, o) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, token.ID)
	}
	return list
}

// checkSessions compares the tokens after prompts in pieces, rewinds, forks and snapshots with want.
func checkSessions(t *testing.T, m *pianola.Model, ids, want []int32) {
	t.Helper()
	more := func(what string, s *pianola.Session, next int32) {
		t.Helper()
		got := []int32{next}
		for len(got) < len(want) {
			tokens, _, err := s.Chain(t.Context(), len(want)-len(got))
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, tokens...)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	for _, each := range []int{1, 7, 64} {
		s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true})
		more("in pieces", s, promptInPieces(t, s, ids, each))
		if err := s.Rewind(len(ids) - 20); err != nil {
			t.Fatal(err)
		}
		next := promptInPieces(t, s, ids[len(ids)-20:], each)
		f, err := s.Fork()
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := s.Snapshot(&b); err != nil {
			t.Fatal(err)
		}
		more("after a rewind", s, next)
		more("of a fork", f, next)
		r, err := m.Restore(&b, pianola.SessionOptions{IgnoreStops: true})
		if err != nil {
			t.Fatal(err)
		}
		more("of a snapshot", r, next)
		for _, s := range []*pianola.Session{f, r} {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestLatentParallel checks that many sequences at once get the tokens that each gets alone.
func TestLatentParallel(t *testing.T) {
	dir := latentDir(t, packed.Latents()["ranked"])
	table := pianola.TableOptions{Context: 256, Batching: true, LogProbs: true}
	alone := open(t, dir, pianola.Options{Device: pianola.DeviceCPU, Threads: teamThreads, Table: table})
	table.Pages = 12
	checkParallel(t, alone, open(t, dir, pianola.Options{Device: pianola.DeviceCPU, Threads: teamThreads, Parallel: 5, Table: table}), 12, briefPrompt)
}

// TestLatentSinks checks that a context beyond the cache works with attention sinks, whose Q is rotated
// back: the first positions give the tokens of the whole cache.
func TestLatentSinks(t *testing.T) {
	dir := latentDir(t, packed.Latents()["direct"])
	ids := latentPrompt(60)
	_, want := greedy(t, open(t, dir, pianola.Options{Device: "cpu"}), 16, ids, 10)
	m := open(t, dir, pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: 2048, KVSinks: 4, KVWindow: 100}})
	if _, got := greedy(t, m, 16, ids, 10); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if _, got := greedy(t, m, 64, ids, 1000); len(got) != 1000 {
		t.Errorf("%d tokens", len(got))
	}
}
