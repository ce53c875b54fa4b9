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
	// The first loss, after a long time, is no reason to yield.
	p.strike(time.Second, 3*time.Millisecond)
	if p.slice != 0 {
		t.Errorf("the limit after a rare loss is %v", p.slice)
	}
	// The next one comes 4 ms later.
	p.strike(time.Second+7*time.Millisecond, 3*time.Millisecond)
	if p.slice != 2400*time.Microsecond {
		t.Errorf("the limit after 4 ms is %v", p.slice)
	}
	p.since = time.Since(clock)
	for time.Since(clock)-p.since < p.slice {
		time.Sleep(time.Millisecond)
	}
	if !p.due() {
		t.Error("no yield after the limit")
	}
	for range 20 {
		p.strike(p.since, 0)
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
