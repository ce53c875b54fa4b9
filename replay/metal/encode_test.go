//go:build softmetal

package metal_test

import (
	"fmt"
	"testing"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/metal/soft"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/metal"
	"github.com/pianola-engine/pianola/table"
)

// encodeNS returns the nanoseconds per command that encoding takes, for submissions of 32
// tokens and a Metal that does nothing.
func encodeNS(tb testing.TB, m model, submissions int) (float64, error) {
	tb.Helper()
	soft.SetNull(true)
	d, err := metal.New(whole(tb, "encode"))
	soft.SetNull(false)
	if err != nil {
		return 0, err
	}
	defer d.Close()
	if err := d.Load(bg, m.t, m.src, replay.LoadOptions{}); err != nil {
		return 0, err
	}
	id, err := d.NewSession()
	if err != nil {
		return 0, err
	}
	const tokens = 32
	sub := decode(m.t, id, 0, tokens)
	sub.Dry = true // the elapsed time is the host's
	p, _, _ := m.t.Program(table.ProgramDecode)
	best := 0.0
	for range max(2, submissions) {
		res, err := submit(d, sub)
		if err != nil {
			return 0, err
		}
		if ns := float64(res.Elapsed.Nanoseconds()) / float64(tokens*p.Count); best == 0 || ns < best {
			best = ns
		}
	}
	return best, nil
}

// BenchmarkTurns measures what a submission of one token costs the host in mode record, with a Metal that does nothing, if
// the same session submits all of them and if three take turns. Two would keep a flight each.
func BenchmarkTurns(b *testing.B) {
	m := compiled(b, "gopher-q8_0.gguf", 512, compiler.Options{})
	p, _, _ := m.t.Program(table.ProgramDecode)
	for _, sessions := range []int{1, 3} {
		b.Run(fmt.Sprint(sessions), func(b *testing.B) {
			soft.SetNull(true)
			d, err := metal.New(whole(b, "record"))
			soft.SetNull(false)
			if err != nil {
				b.Fatal(err)
			}
			defer d.Close()
			if err := d.Load(bg, m.t, m.src, replay.LoadOptions{}); err != nil {
				b.Fatal(err)
			}
			var subs []*replay.Submission
			for range sessions {
				subs = append(subs, decode(m.t, begun(b, d), 0, 1))
			}
			for i := range b.N {
				if _, err := submit(d, subs[i%sessions]); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(p.Count), "commands")
		})
	}
}
