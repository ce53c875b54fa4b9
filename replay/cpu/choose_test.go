package cpu

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/replay"
)

func TestFastestTeam(t *testing.T) {
	ms := func(v float64) time.Duration { return time.Duration(v * float64(time.Millisecond)) }
	for _, c := range []struct {
		name string
		n    int
		took map[int]time.Duration
		want int
	}{
		{"a small machine", 2, nil, 2},
		{"more is faster", 16, map[int]time.Duration{16: ms(4), 15: ms(4.2), 12: ms(5), 8: ms(7)}, 16},
		{"hardly a difference", 16, map[int]time.Duration{16: ms(4), 15: ms(3.95), 12: ms(3.9), 8: ms(4)}, 16},
		{"half is faster", 16, map[int]time.Duration{16: ms(6), 15: ms(5.9), 12: ms(5), 8: ms(4)}, 8},
		{"one less is faster", 16, map[int]time.Duration{16: ms(6), 15: ms(4), 12: ms(4), 8: ms(4)}, 15},
		{"a large model", 16, map[int]time.Duration{16: ms(150), 15: ms(1), 12: ms(1), 8: ms(1)}, 16},
		{"four", 4, map[int]time.Duration{4: ms(6), 3: ms(4), 2: ms(5)}, 3},
	} {
		var spent time.Duration
		calls := map[int]int{}
		got, err := fastestTeam(c.n, func(workers int) (time.Duration, error) {
			took, ok := c.took[workers]
			if !ok && c.took != nil {
				t.Errorf("%s: %d workers are measured", c.name, workers)
			}
			if calls[workers]++; calls[workers] == 1 && took < ms(50) {
				took *= 3 // the first measurement counts for nothing
			}
			spent += took
			return took, nil
		})
		if got != c.want || err != nil {
			t.Errorf("%s: %d workers, %v; want %d", c.name, got, err, c.want)
		}
		if spent > 2*chosenTime {
			t.Errorf("%s: measurements take %v", c.name, spent)
		}
	}
	fault := errors.New("a fault of the test")
	if _, err := fastestTeam(16, func(int) (time.Duration, error) { return 0, fault }); !errors.Is(err, fault) {
		t.Errorf("error %v", err)
	}
	for n := 1; n < 70; n++ {
		list := teamSizes(n)
		if list[0] != n || list[len(list)-1] < 1 || !slices.IsSortedFunc(list, func(a, b int) int { return b - a }) || len(slices.Compact(slices.Clone(list))) != len(list) {
			t.Errorf("%d workers: %v", n, list)
		}
	}
}

// TestFewWorkers lets fewer workers take part in decode than in prompts. The results must be the
// same, and the others must return for a prompt.
func TestFewWorkers(t *testing.T) {
	ownProcs(t, 5)
	s := gopherShape
	s.layers = 2
	var tokens []uint32
	var logits []float32
	for _, few := range []int{5, 3, 1} {
		d := transformer(t, s).load(Options{Threads: 5})
		d.team.few = few
		for range 3 {
			gotTokens, gotLogits := generate(t, d, s, s.chunk+70, 10, s.chunk)
			if tokens == nil {
				tokens, logits = gotTokens, gotLogits
			}
			if !slices.Equal(gotTokens, tokens) {
				t.Errorf("%d workers: %v, want %v", few, gotTokens, tokens)
			}
			same(t, "logits", gotLogits, logits)
			// A single worker does not tell the others anything.
			if use := int(d.team.use.Load()); use != few && few > 1 {
				t.Errorf("%d workers decode, want %d", use, few)
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestChooses loads a device that chooses the number of workers, and one that does not.
func TestChooses(t *testing.T) {
	ownProcs(t, 6)
	for _, o := range []Options{{}, {Threads: 6}, {RealTime: true}} {
		var measured int
		d, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		if want := o == (Options{}); d.chooses != want {
			t.Errorf("%+v: chooses %t", o, d.chooses)
		}
		d.Close()
		d = chainModel(t).load(o)
		if few := d.team.few; few != d.threads && !slices.Contains(teamSizes(d.threads), few) {
			t.Errorf("%+v: %d workers of %d", o, few, d.threads)
		}
		err = backend{d}.Warm(func(runs ...replay.Run) error {
			measured++
			return nil
		})
		if err != nil || (measured > 0) != d.chooses {
			t.Errorf("%+v: %d measurements, %v", o, measured, err)
		}
	}
}
