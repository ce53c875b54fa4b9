package e2e_test

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pianola-engine/pianola"
)

// TestRealTime checks which settings RealTime changes, and that it does not change the tokens.
func TestRealTime(t *testing.T) {
	plain := open(t, gopher, pianola.Options{Device: "cpu", Threads: runtime.GOMAXPROCS(0)})
	m := open(t, gopher, pianola.Options{Device: "cpu", RealTime: true})
	if !m.RealTime() || plain.RealTime() || m.Threads() != max(1, plain.Threads()-1) || !strings.Contains(m.Device().Detail, "in real time") {
		t.Errorf("%d threads with RealTime, %d without; %+v", m.Threads(), plain.Threads(), m.Device())
	}
	for _, c := range []struct {
		m    *pianola.Model
		o    pianola.SessionOptions
		want time.Duration
	}{
		{plain, pianola.SessionOptions{}, 50 * time.Millisecond}, {m, pianola.SessionOptions{}, pianola.RealTimeChain},
		{m, pianola.SessionOptions{ChainTime: time.Millisecond}, time.Millisecond}, {m, pianola.SessionOptions{Chain: 3}, 0},
	} {
		if got := newSession(t, c.m, c.o).ChainTime(); got != c.want {
			t.Errorf("%+v: chains of %v, want %v", c.o, got, c.want)
		}
	}
	o := pianola.GenerateOptions{MaxTokens: 60}
	_, want := collect(t, newSession(t, plain, pianola.SessionOptions{}), "func main() {", o)
	_, got := collect(t, newSession(t, m, pianola.SessionOptions{}), "func main() {", o)
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
