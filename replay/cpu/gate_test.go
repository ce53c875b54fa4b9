package cpu

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
)

// TestGate makes threads sleep at a gate and wakes them, many times.
func TestGate(t *testing.T) {
	const n, rounds = 4, 200
	var g gate
	var all, met sync.WaitGroup
	met.Add(n)
	for range n {
		all.Go(func() {
			for round := range uint64(rounds) {
				if v := g.await(round, 0); v != round+1 {
					t.Errorf("word %d, want %d", v, round+1)
				}
				met.Done()
			}
		})
	}
	for round := range uint64(rounds) {
		for g.sleepers.Load() != n {
			runtime.Gosched()
		}
		g.set(round + 1)
		met.Wait()
		met.Add(n)
	}
	all.Wait()
	if left := g.sleepers.Load(); left != 0 {
		t.Errorf("%d sleepers are left", left)
	}
}

// TestTogether compares a prompt whose inputs the workers prepare together with one worker that
// prepares all of them. Some teams have more workers than there are processors.
func TestTogether(t *testing.T) {
	ownProcs(t, 5)
	for _, k := range []struct {
		t   dtype.Type
		act uint32
	}{{dtype.Q8_0, decl.ActQ8}, {dtype.Q4_0, decl.ActQ8}, {dtype.F16, decl.ActF32}} {
		s := gopherShape
		s.layers, s.weight, s.act = 2, k.t, k.act
		var tokens []uint32
		var logits []float32
		for _, threads := range []int{1, 2, 3, 5} {
			d := transformer(t, s).load(Options{Threads: threads})
			gotTokens, gotLogits := generate(t, d, s, s.chunk+70, 3, s.chunk)
			used := slices.ContainsFunc(d.team.shared, func(b byte) bool { return b != 0 })
			if used != (threads > 1) {
				t.Errorf("%v, %d threads: inputs in shared memory: %t", k.t, threads, used)
			}
			d.Close()
			if threads == 1 {
				tokens, logits = gotTokens, gotLogits
				continue
			}
			what := fmt.Sprintf("%v, %d threads", k.t, threads)
			if !slices.Equal(gotTokens, tokens) {
				t.Errorf("%s: %v, want %v", what, gotTokens, tokens)
			}
			same(t, what, gotLogits, logits)
		}
	}
}
