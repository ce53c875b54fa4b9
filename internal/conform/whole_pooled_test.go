package conform

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/replay"
)

// TestWholePooled replays pooled tables with the emulated kernels, in the configuration of NVIDIA GPUs and in
// Apple's: several generations at once get the tokens and log-probabilities that a table for batching gives
// each of them alone.
func TestWholePooled(t *testing.T) {
	for _, w := range exhaustive.Pick(batchedWholes(), batchedWholes()[:2]) {
		p := builds.Get(t, w.emulator())
		t.Run(w.String(), func(t *testing.T) {
			t.Parallel()
			w.change, w.changed, w.layers = small, "small", 1
			w.options.AllLogits, w.options.LogProbs = false, true
			var alone [][]string
			on := func(f func(m *replay.Model)) {
				tab, src := w.compile(t)
				m, err := replay.Load(t.Context(), emu.NewDevice(p, emu.DeviceOptions{Order: w.order, Seed: 1}), tab, src, replay.LoadOptions{})
				if err != nil {
					t.Fatal(err)
				}
				f(m)
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			}
			on(func(m *replay.Model) {
				for i := range exhaustive.Pick(3, 2) {
					tokens, err := chosen(m, i)
					if err != nil {
						t.Fatal(err)
					}
					alone = append(alone, tokens)
				}
			})
			w.options.Sequences = 3
			on(func(m *replay.Model) {
				var all sync.WaitGroup
				for i, want := range alone {
					all.Go(func() {
						if got, err := chosen(m, i); err != nil || !slices.Equal(got, want) {
							t.Errorf("generation %d: %v, %v, alone %v", i, got, err, want)
						}
					})
				}
				all.Wait()
				if o := m.Occupancy(); o.UsedPages > 0 {
					t.Errorf("%+v", o)
				}
			})
		})
	}
}

// chosen returns the tokens and log-probabilities of generation i.
func chosen(m *replay.Model, i int) (out []string, err error) {
	s, err := m.NewSession(replay.SessionOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	sampling := replay.Sampling{LogProbs: 1}
	if i == 1 {
		sampling.Temperature, sampling.Seed = 0.9, 7
	}
	if err := s.SetSampling(sampling); err != nil {
		return nil, err
	}
	ids := make([]int32, 3+2*i)
	for j := range ids {
		ids[j] = int32(11*j + 5)
	}
	n := exhaustive.Pick(3, 2)
	next, _, err := s.Prompt(context.Background(), ids)
	tokens := []int32{next}
	for err == nil {
		for k, id := range tokens {
			of, _, _ := s.LogProbs(k, nil)
			out = append(out, fmt.Sprint(id, of.LogProb))
		}
		if len(out) == n {
			return out, nil
		}
		tokens, _, err = s.Chain(context.Background(), n-len(out))
	}
	return out, err
}
