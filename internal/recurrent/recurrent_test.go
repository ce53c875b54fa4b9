package recurrent

import (
	"math/rand/v2"
	"testing"
)

// TestHeld compares the record with slots that hold the number of the state's history in each entry.
func TestHeld(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 19))
	any := func(int) bool { return true }
	for range 200 {
		ring := Ring{Live: 2 + r.IntN(5), Saved: 1 + r.IntN(4)}
		if err := ring.Check(); err != nil {
			t.Fatal(err)
		}
		h := NewHeld(ring)
		type state struct{ position, history int }
		slot := make([]state, ring.Entries()) // what a device has written
		history := make([]int, 2000)          // of the state at each position
		n, serial := 0, 0
		write := func(p, of int) { slot[ring.Entry(p)] = state{p, of} }
		for range 100 {
			if r.IntN(4) == 0 { // a rewind
				n = r.IntN(n + 1)
			}
			h.Cut(n)
			from := h.Before(n, any)
			if from > 0 && slot[ring.Entry(from)] != (state{from, history[from]}) {
				t.Fatalf("%+v: the state at %d is not in its entry", ring, from)
			}
			serial++
			if r.IntN(2) == 0 { // a chunk, which may be cut short
				end := n + 1 + r.IntN(200)
				whole := r.IntN(4) > 0
				for p := n + 1; p <= end; p++ {
					if p%Border != 0 && p != end {
						history[p] = serial
						continue
					}
					of := serial
					if !whole {
						of = -serial
					}
					write(p, of)
					history[p] = serial
				}
				if h.Chunk(n, end, whole); whole {
					n = end
				}
			} else { // tokens, the last of which may be cut short
				count := r.IntN(30)
				for p := n + 1; p <= n+count; p++ {
					history[p] = serial
					write(p, serial)
				}
				write(n+count+1, -serial)
				h.Each(n, n+count, n+count+1)
				n += count
				if count > 0 && h.Before(n, any) != n {
					t.Fatalf("%+v: the state after the last token is not held", ring)
				}
			}
			if n > 1700 {
				n = 0
			}
		}
	}
}

// TestOf checks that Of reads what Words writes.
func TestOf(t *testing.T) {
	want := Ring{Live: 6, Saved: 64}
	if got, ok := Of("draft=4 " + want.Words() + " kv=q8_0"); !ok || got != want {
		t.Errorf("%+v, %t", got, ok)
	}
	if _, ok := Of("draft=4"); ok {
		t.Error("a table without recurrent state has a ring")
	}
	for _, r := range []Ring{{1, 1}, {2, 0}, {MaxLive + 1, 1}, {2, MaxSaved + 1}, {-1, -1}} {
		if r.Check() == nil {
			t.Errorf("%+v is accepted", r)
		}
	}
}
