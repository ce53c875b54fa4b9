package replay_test

import (
	"errors"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/cpu"
)

// TestSpill plays scripts on a model with so few pages that the beginnings of their prompts are evicted, and
// read back from memory and from a file. Each gets the tokens and log-probabilities that it gets alone from
// a table for batching.
func TestSpill(t *testing.T) {
	for _, c := range []struct {
		name string
		kv   string
	}{{"llama", ""}, {"llama", "q8_0"}, {"gemma2", ""}, {"../variants/lfm2", ""}, {"../variants/qwen3_5_one", ""}} {
		t.Run(c.name+c.kv, func(t *testing.T) {
			testSpill(t, exhaustive.Pick(60, 20), compiler.Options{KV: c.kv}, func(o compiler.Options, lo replay.LoadOptions) *replay.Model {
				dev, err := cpu.New(cpu.Options{Threads: min(2, runtime.GOMAXPROCS(0))})
				if err != nil {
					t.Fatal(err)
				}
				return parallelOn(t, dev, "cpu", c.name, o, lo)
			})
		})
	}
}

// TestSpillCUDA is TestSpill with the fake CUDA driver.
func TestSpillCUDA(t *testing.T) {
	for _, mode := range exhaustive.Pick([]string{"record", "resident"}, []string{"record"}) {
		t.Run(mode, func(t *testing.T) {
			testSpill(t, 9, compiler.Options{}, func(o compiler.Options, lo replay.LoadOptions) *replay.Model {
				return parallelOn(t, fakeCUDA(t, mode), "h200", "llama", o, lo)
			})
		})
	}
}

// testSpill plays n rounds of scripts on a model for many sequences with copies of its pages, and on one for
// batching.
func testSpill(t *testing.T, n int, o compiler.Options, open func(o compiler.Options, lo replay.LoadOptions) *replay.Model) {
	o.Context, o.LogProbs, o.Batching = 320, true, true
	reference := open(o, replay.LoadOptions{})
	o.Sequences, o.Pages = 4, 9
	dir := t.TempDir()
	m := open(o, replay.LoadOptions{Queue: 100, Spill: replay.SpillOptions{Memory: 1, Dir: dir, File: 32 << 20}})
	r := rand.New(rand.NewPCG(7, 8))
	vocab := int(m.Table().Header.Vocab)
	ids := func(n int) []int32 {
		list := make([]int32, n)
		for i := range list {
			list[i] = int32(r.IntN(vocab))
		}
		return list
	}
	bases := [][]int32{ids(270), ids(200), ids(270), ids(140)}
	var all sync.WaitGroup
	restored := make([]int, n)
	for i := range n {
		base := bases[i%len(bases)]
		sc := &script{parts: []scriptPart{{ids: slices.Concat(base[:len(base)-r.IntN(70)], ids(1+r.IntN(20))), n: 1 + r.IntN(4)}}}
		if i%3 == 0 {
			sc.parts[0].sampling = replay.Sampling{Temperature: 1, Seed: uint64(i), LogProbs: 2}
		}
		want, err := sc.play(t.Context(), session(t, reference, replay.SessionOptions{}), nil)
		if err != nil {
			t.Fatal(err)
		}
		play := func() {
			s, err := m.NewSession(replay.SessionOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			got, err := sc.play(t.Context(), s, nil)
			restored[i] = s.Stats().Restored
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("script %d: %v\n%v, want\n%v", i, err, got, want)
			}
		}
		if i < n/2 {
			play() // alone, so that pages are saved while the model is idle
		} else {
			all.Go(play)
		}
	}
	all.Wait()
	l := m.Occupancy()
	for end := time.Now().Add(time.Minute); l.UsedPages > 0 && time.Now().Before(end); l = m.Occupancy() {
		time.Sleep(time.Millisecond) // a page that is being saved is in use
	}
	sum := 0
	for _, n := range restored {
		sum += n
	}
	if l.Running+l.Waiting+l.UsedPages > 0 || l.SavedPages == 0 || l.RestoredPages == 0 || l.RestoredTokens != sum || sum == 0 || l.LostPages > 0 || l.SpillMemory == 0 {
		t.Errorf("after all scripts, which restored %d tokens: %+v", restored, l)
	}
	var released uint64
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		n, err := m.ReleaseIdle(0)
		if err != nil {
			t.Fatal(err)
		}
		// A copy that is being written to the file is not released.
		if released += n; m.Occupancy().SpillMemory == 0 || time.Now().After(end) {
			break
		}
	}
	if left := m.Occupancy(); released < l.SpillMemory || left.SpillMemory > 0 {
		t.Errorf("%d bytes were released: %+v", released, left)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) > 0 {
		t.Errorf("after Close: files %v, %v", left, err)
	}
}

// TestSpillOptions refuses options without sense.
func TestSpillOptions(t *testing.T) {
	for want, o := range map[string]replay.SpillOptions{
		"requires Dir": {Memory: 1, File: 5}, "requires File": {Dir: t.TempDir()}, "no such file": {Dir: filepath.Join(t.TempDir(), "none"), File: 1 << 20},
	} {
		dev, err := cpu.New(cpu.Options{Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		tab, dir := compiledFor(t, "cpu", "llama", 48, compiler.Options{Context: 128, Sequences: 2})
		mapped, err := dir.Map()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := replay.Load(t.Context(), dev, tab, mapped, replay.LoadOptions{Spill: o}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", o, err)
		}
		if err := errors.Join(dev.Close(), mapped.Close()); err != nil {
			t.Error(err)
		}
	}
}
