package cpu

import "time"

// pace makes a worker give up its processor between two pieces of work if another thread uses the
// processor too. The system would otherwise take the processor away in the middle of a piece, and
// the team would wait for the piece for as long as the other thread runs. Between two pieces
// nobody waits for the worker, and it returns with a new time slice.
//
// The worker learns that it shares its processor from the time during which it wanted to run but
// did not: the elapsed time, less the time that it used the processor, slept or yielded.
type pace struct {
	on    bool
	slice time.Duration // longest time to run before the worker yields; 0: no limit
	since time.Duration // the worker has had the processor since then
	last  time.Duration // the last call of yield
	quick int           // number of last yields that returned at once

	// The last measurement.
	wall, used time.Duration
	off        time.Duration // time slept or yielded since then
	asleep     time.Duration // the current sleep began then
}

const (
	// A worker that has lost its processor yields from then on when it has had it for three fifths
	// of the time after which it lost it. A worker that had it for longer than mostSlice does not
	// yield at all.
	sliceShare = 3. / 5
	leastSlice = 500 * time.Microsecond
	mostSlice  = 40 * time.Millisecond

	// A worker has lost its processor if it lacks lostTime, plus a fiftieth of the time between
	// two measurements, during which interrupts used the processor.
	lostTime  = 500 * time.Microsecond
	lostShare = 50

	suspicious = time.Millisecond      // a longer interval between two phases is examined
	measured   = 20 * time.Millisecond // longest time between two measurements

	quickYield = 50 * time.Microsecond // a shorter yield found no other thread
	quickRow   = 16                    // so many in a row double the limit
)

// clock is the origin of all times of paces.
var clock = time.Now()

// start begins to measure, on the worker's own thread.
func (p *pace) start() {
	p.on = true
	p.since = time.Since(clock)
	p.last = p.since
	p.measure(p.since)
}

// measure returns the time since the last measurement, and the part of it during which the worker
// lacked its processor.
func (p *pace) measure(now time.Duration) (interval, lost time.Duration) {
	used := threadTime()
	interval = now - p.wall
	lost = interval - p.off - (used - p.used)
	p.wall, p.used, p.off = now, used, 0
	return interval, lost
}

// yield yields the processor if it is time to. The worker must not hold a claim.
func (p *pace) yield() bool {
	if !p.on {
		return false
	}
	now := time.Since(clock)
	if now-p.last > suspicious || now-p.wall > measured {
		if interval, lost := p.measure(now); lost > lostTime+interval/lostShare {
			p.strike(now, lost)
		}
	}
	p.last = now
	if p.slice == 0 || now-p.since < p.slice {
		return false
	}
	yieldThread()
	p.returned(now, time.Since(clock))
	return true
}

// due reports whether it is time to yield.
func (p *pace) due() bool { return p.slice != 0 && time.Since(clock)-p.since >= p.slice }

// strike sets the limit after the worker has lost its processor for some time before now.
func (p *pace) strike(now, lost time.Duration) {
	had := now - p.since - lost
	p.limit(time.Duration(sliceShare * float64(max(had, 0))))
	p.since, p.quick = now, 0
}

// limit sets the limit. Long ones are none.
func (p *pace) limit(d time.Duration) {
	if p.slice = max(d, leastSlice); p.slice > mostSlice {
		p.slice = 0
	}
}

// returned records a yield. If yields find no other thread, the limit grows and disappears.
func (p *pace) returned(before, now time.Duration) {
	p.off += now - before
	p.since, p.last = now, now
	if now-before > quickYield {
		p.quick = 0
		return
	}
	if p.quick++; p.quick < quickRow {
		return
	}
	p.quick = 0
	p.limit(2 * p.slice)
}

// pause is called before the worker sleeps.
func (p *pace) pause() {
	if p.on {
		p.asleep = time.Since(clock)
	}
}

// resume is called after the worker has slept.
func (p *pace) resume() {
	if p.on {
		now := time.Since(clock)
		p.off += now - p.asleep
		p.since, p.last = now, now
	}
}
