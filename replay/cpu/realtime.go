package cpu

import (
	"runtime"
	"time"
)

// waits say how often a worker that waits looks before it gives its thread up.
type waits struct {
	meet int           // at a barrier
	idle int           // for a job
	last time.Duration // how long it may have had its thread when it takes a job; 0: any time
}

// sharing suits a team whose processors are everybody's. At a barrier a worker
// waits for some 40 microseconds, longer than what one worker does alone, such as a
// sampler's filter: who shares processors is correct, merely slower.
// For a job it waits for 30, since waking a parked thread takes longer than the
// pause of a host that submits token after token.
var sharing = waits{meet: 1 << 16, idle: 1 << 15}

// owning suits a team that has processors for itself. At a barrier it waits for
// some 100 ms, longer than any submission of real time takes: so that a process
// whose goroutines cannot be preempted goes on nevertheless. For a job it waits
// for about 1 ms, the pause between chains.
//
// The runtime preempts a goroutine that has run for 10 ms on end. What has run
// for 4 is preempted at once, by itself, and has 10 for a chain of 5.
var owning = waits{meet: 1 << 26, idle: 1 << 20, last: 4 * time.Millisecond}

// renew gives the thread up once, if it might be taken away before the job ends.
func (w *worker) renew() {
	last := w.team.waits.last
	if last == 0 || time.Since(w.slice) < last {
		return
	}
	runtime.Gosched()
	w.slice = time.Now()
}

// pageSize is the least that systems have.
const pageSize = 4 << 10

// touchPages writes to each page of zeroed memory, so that none is missing when a
// kernel writes to it first.
func touchPages(b []byte) {
	for i := 0; i < len(b); i += pageSize {
		b[i] = 0
	}
}
