package pianola

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestStopStrings cuts random texts into pieces. The text that is shown must be the text up to
// the first stop string, and nothing that belongs to one is shown early.
func TestStopStrings(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	stops := []string{"aab", "ba", "b€b", "€€"}
	for range 20_000 {
		var text strings.Builder
		for range r.IntN(12) {
			text.WriteString([]string{"a", "b", "€", "c"}[r.IntN(4)])
		}
		want, hit := text.String(), false
		for i := range want {
			for _, s := range stops {
				if !hit && strings.HasPrefix(want[i:], s) {
					want, hit = want[:i], true
				}
			}
			if hit {
				break
			}
		}
		p, err := newStopStrings(stops)
		if err != nil {
			t.Fatal(err)
		}
		got, stopped := "", false
		for rest := []rune(text.String()); len(rest) > 0 && !stopped; {
			n := 1 + r.IntN(len(rest))
			var show string
			show, stopped = p.next(string(rest[:n]))
			got, rest = got+show, rest[n:]
			if !strings.HasPrefix(want, got) {
				t.Fatalf("%q: %q was shown, of %q", text.String(), got, want)
			}
		}
		if got += p.flush(); got != want || stopped != hit {
			t.Fatalf("%q: %q, stopped %t; want %q, %t", text.String(), got, stopped, want, hit)
		}
	}
	for _, bad := range []string{"", "\xff"} {
		if _, err := newStopStrings([]string{"x", bad}); !errors.Is(err, ErrStopString) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
