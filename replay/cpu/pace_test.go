package cpu

import (
	"testing"
	"time"
)

// TestPace checks when a worker yields its processor.
func TestPace(t *testing.T) {
	var p pace
	if p.due() || p.yield() {
		t.Error("a pace that does not measure yields")
	}
	p.strike(0)
	if p.slice != shortSlice {
		t.Errorf("the first limit is %v", p.slice)
	}
	if !p.due() { // the clock has run since the test began
		time.Sleep(shortSlice)
		if !p.due() {
			t.Error("no yield after the time slice")
		}
	}
	for range 20 {
		p.strike(0)
	}
	if p.slice != leastSlice {
		t.Errorf("the least limit is %v", p.slice)
	}
	// A yield that finds another thread keeps the limit.
	for range 4 * quickRow {
		p.returned(0, 2*quickYield)
	}
	if p.slice != leastSlice {
		t.Errorf("the limit on a shared processor is %v", p.slice)
	}
	// Without another thread the limit grows and disappears.
	rows := 0
	for p.slice != 0 {
		before := p.slice
		for range quickRow {
			p.returned(0, quickYield/2)
		}
		if rows++; p.slice != 0 && p.slice <= before || rows > 20 {
			t.Fatalf("the limit was %v and is %v", before, p.slice)
		}
	}
	if p.due() {
		t.Error("a yield without a limit")
	}
}
