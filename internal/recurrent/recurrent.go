// Package recurrent defines where the state of layers with recurrent state is kept. Such a layer has a
// state of fixed size instead of K and V for each position: position p of a sequence needs the state
// after positions 0 to p - 1, which is called the state at p.
//
// A slot of kind state has a ring of entries for the states at the last positions, and a ring of
// entries for the states at borders, the multiples of Border. The state at p has the same entry in the
// slots of all layers, so that the host knows from the positions that a program has computed which
// states a session holds, and a kernel finds the state to begin with by its first position alone. The
// state at 0 consists of zeros and has no entry. Hosts and kernels share the package, so it must not
// import tables or devices.
package recurrent

import (
	"fmt"
	"strconv"
	"strings"
)

// Border is the distance of the positions at which states are saved. It is the number of positions of
// a page of a KV cache.
const Border = 64

// Ring is the number of entries of a state slot.
type Ring struct {
	Live  int // entries of states at positions that are no borders; position p has entry p mod Live
	Saved int // entries of states at borders, after the others; border p has entry (p / Border) mod Saved
}

// Limits of a ring.
const (
	MinLive  = 2 // the state before a token is intact until the token has been computed
	MaxLive  = 1 << 10
	MaxSaved = 1 << 22
)

// Words returns the words of a table header's options that describe the ring.
func (r Ring) Words() string { return fmt.Sprintf("live-states=%d saved-states=%d", r.Live, r.Saved) }

// Of returns the ring that a table header's options describe. It reports whether the table has layers
// with recurrent state.
func Of(options string) (r Ring, ok bool) {
	for _, word := range strings.Fields(options) {
		name, value, _ := strings.Cut(word, "=")
		n, err := strconv.Atoi(value)
		switch {
		case err != nil:
		case name == "live-states":
			r.Live = n
		case name == "saved-states":
			r.Saved = n
		}
	}
	return r, r != Ring{}
}

// Check returns an error unless all numbers are within their limits.
func (r Ring) Check() error {
	if r.Live < MinLive || r.Live > MaxLive || r.Saved < 1 || r.Saved > MaxSaved {
		return fmt.Errorf("%d live and %d saved states are not in %d..%d and 1..%d", r.Live, r.Saved, MinLive, MaxLive, MaxSaved)
	}
	return nil
}

// Entries returns the number of entries of a slot.
func (r Ring) Entries() int { return r.Live + r.Saved }

// Entry returns the entry of the state at a position.
func (r Ring) Entry(position int) int {
	if position%Border == 0 {
		return r.Live + position/Border%r.Saved
	}
	return position % r.Live
}

// Held records the positions whose states the slots of a session hold: for each entry the position of
// its state, or 0 if it holds none. The zero value is for a session without such slots.
type Held struct {
	ring Ring
	at   []int
}

// NewHeld returns a record of slots without states.
func NewHeld(r Ring) Held { return Held{r, make([]int, r.Entries())} }

// Copy returns an independent copy of the record.
func (h *Held) Copy() Held { return Held{h.ring, append([]int(nil), h.at...)} }

// Any reports whether the session has state slots.
func (h *Held) Any() bool { return len(h.at) > 0 }

// Cut removes the states at positions after n, whose tokens may change.
func (h *Held) Cut(n int) {
	for i, p := range h.at {
		if p > n {
			h.at[i] = 0
		}
	}
}

// Before returns the last position that is at most n, whose state is held, and for which ok returns
// true. It is 0 if there is none, and n without state slots.
func (h *Held) Before(n int, ok func(position int) bool) int {
	if len(h.at) == 0 {
		return n
	}
	best := 0
	for _, p := range h.at {
		if p <= n && p > best && ok(p) {
			best = p
		}
	}
	return best
}

// Put records the state at a position as held, or as overwritten.
func (h *Held) Put(position int, held bool) {
	if len(h.at) == 0 || position <= 0 {
		return
	}
	i := h.ring.Entry(position)
	if h.at[i] = 0; held {
		h.at[i] = position
	}
}

// Each records that a program has computed positions from first on, one after another, and stored the
// state after each. Those at positions up to known are held. The program may have begun to write those
// up to most, which overwrites what their entries held.
func (h *Held) Each(first, known, most int) {
	if len(h.at) == 0 {
		return
	}
	for p := first + 1; p <= most; p++ {
		h.Put(p, p <= known)
	}
}

// Chunk records that a program has computed the positions from first to end - 1 and stored the states
// at borders and at end. If known is false, it may not have completed.
func (h *Held) Chunk(first, end int, known bool) {
	if len(h.at) == 0 {
		return
	}
	for p := first/Border*Border + Border; p < end; p += Border {
		h.Put(p, known)
	}
	h.Put(end, known)
}
