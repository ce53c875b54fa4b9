package replay_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/replay"
)

// TestProfileBatch plays scripts on a model whose batches are profiled. They have the tokens that they have
// without profiling, and each command of a program has a time.
func TestProfileBatch(t *testing.T) {
	o := compiler.Options{Context: 256, LogProbs: true, Batching: true}
	pooled := o
	pooled.Sequences, pooled.Pages = 4, 12
	for name, load := range map[string]func(o compiler.Options) *replay.Model{
		"cpu": func(o compiler.Options) *replay.Model { return parallelModel(t, "llama", o, replay.LoadOptions{}) },
		"cuda": func(o compiler.Options) *replay.Model {
			return parallelOn(t, fakeCUDA(t, "record"), "h200", "llama", o, replay.LoadOptions{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := load(pooled)
			var scripts []*script
			var wants [][]result
			r := rand.New(rand.NewPCG(3, 18))
			for range 5 {
				sc := randomScript(r, 512, false)
				want, err := sc.play(t.Context(), session(t, m, replay.SessionOptions{}), nil)
				if err != nil {
					t.Fatal(err)
				}
				scripts, wants = append(scripts, sc), append(wants, want)
			}
			runs := map[string]int{}
			err := m.ProfileBatch(func(program string, rows int, times []time.Duration) {
				p, _, ok := m.Table().Program(program)
				if !ok || len(times) != int(p.Count) || rows < 1 || rows > int(p.MaxRows) {
					t.Errorf("program %s: %d rows, %d times", program, rows, len(times))
				}
				var sum time.Duration
				for _, d := range times {
					sum += d
				}
				if sum <= 0 {
					t.Errorf("program %s takes %v", program, sum)
				}
				kind, _, _ := strings.Cut(program, ".")
				runs[kind]++
			})
			if err != nil {
				t.Fatal(err)
			}
			if faulty := playAll(t, m, scripts, wants); faulty > 0 {
				t.Errorf("%d scripts failed", faulty)
			}
			if err := m.ProfileBatch(nil); err != nil {
				t.Fatal(err)
			}
			heads := 0
			for kind, n := range runs {
				if strings.HasSuffix(kind, "head") {
					heads += n
				}
			}
			if heads == 0 || runs["prefill"]+runs["prefill_few"]+runs[sequence.ProgramFill] == 0 {
				t.Errorf("no head or no chunk of a prompt in %v", runs)
			}
			if runs["batch"]+runs["batch_sample"]+runs["batch_ranked"] == 0 {
				t.Errorf("no program of batches in %v", runs)
			}
			t.Log(runs)
		})
	}
	if loadedOn(t, fakeCUDA(t, "record"), "h200", "llama", 48, compiler.Options{Context: 64}).ProfileBatch(nil) == nil {
		t.Error("a model for one session at a time can be profiled as a batch")
	}
}
