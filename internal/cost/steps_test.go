package cost_test

import (
	"testing"
	"time"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/cost"
	"github.com/pianola-engine/pianola/table"
)

// TestSteps checks the predicted times of submissions to tables for many sequences: at numbers of rows that
// are computed they are those of the program, between them they are close to those, and more rows or
// positions never take less time.
func TestSteps(t *testing.T) {
	for _, name := range []string{"cpu", "h200", "m4-pro"} {
		tab, c := compile(t, "qwen3-0.6b", "Q4_0", name, compiler.Options{Context: 2048, Sequences: 32})
		s, err := cost.StepsOf(tab, c)
		if err != nil {
			t.Fatal(err)
		}
		for _, rows := range []int{1, 4, 16, 100, int(tab.Header.Chunk)} {
			p, _ := tab.Prefill(rows)
			_, total := predict(t, tab, c, p.Name, cost.Point{Position: 1000, Rows: rows})
			want := total.Seconds + cost.RatesOf(c).Pass
			if got := s.Prefill(1000, rows).Seconds(); got < 0.75*want || got > 1.33*want {
				t.Errorf("%s: a chunk of %d rows takes %.3g s, predicted %.3g", name, rows, want, got)
			}
		}
		var rows, chunk time.Duration
		for n := 1; n <= 40; n++ {
			d, p := s.Decode(n, 100), s.Prefill(0, 16*n)
			if d < rows || p < chunk || d > s.Decode(n, 1900) {
				t.Errorf("%s: %d rows take %v after %v; %d rows of a prompt %v after %v", name, n, d, rows, 16*n, p, chunk)
			}
			if joint := s.Joint(n+16*n, n, 100); joint <= d || joint > 3*(d+s.Prefill(100, 16*n))/2 || name == "h200" && n <= 8 && joint >= d+s.Prefill(100, 16*n) {
				t.Errorf("%s: %d rows with %d rows of prompts take %v, apart %v and %v", name, n, 16*n, joint, d, s.Prefill(100, 16*n))
			}
			rows, chunk = d, p
		}
		// One row more than a program of joint passes has needs the next program, whose quantised products have other tiles.
		if name == "h200" {
			if last, next := s.Joint(64, 32, 100), s.Joint(65, 32, 100); float64(next) < 1.1*float64(last) {
				t.Errorf("passes of 64 and 65 rows take %v and %v", last, next)
			}
		}
	}
	tab, c := compile(t, "qwen3-0.6b", "Q4_0", "cpu", compiler.Options{Context: 2048})
	if _, err := cost.StepsOf(tab, c); err == nil {
		t.Error("a table for sessions that take turns has predictions of batches")
	}
	if _, err := cost.StepsOf(&table.Table{}, c); err == nil {
		t.Error("an empty table has predictions")
	}
}
