package cpu

import (
	"runtime"
	"time"
)

// waits is the number of times that a waiting worker polls before it sleeps.
type waits struct {
	meet int           // at a barrier
	idle int           // for a job
	last time.Duration // longest time that a worker may have had its thread when it takes a job; 0: no limit
}

// sharing is for a team that shares its processors with other threads. At a barrier a worker polls
// for about 40 microseconds, longer than the work that one worker does alone, such as a sampler's
// filter. A wait that is longer means that a worker has lost its processor to another thread. The
// others then sleep, so that they do not lose theirs as well. For a job a worker polls for about
// 30 microseconds, since waking a thread takes longer than the pause of a host that submits token
// after token.
var sharing = waits{meet: 1 << 16, idle: 1 << 15}

// owning is for a team that has processors for itself. At a barrier a worker polls for about 100
// ms, longer than any real-time submission; the limit lets a process continue whose goroutines
// cannot be preempted. For a job it polls for about 1 ms, the pause between chains.
//
// The runtime preempts a goroutine that has run for 10 ms. A worker that has run for 4 ms yields
// by itself before it takes a job, and then has 10 ms for a chain of 5 ms.
var owning = waits{meet: 1 << 26, idle: 1 << 20, last: 4 * time.Millisecond}

// renew yields the thread once if the runtime might preempt it before the job ends.
func (w *worker) renew() {
	last := w.team.waits.last
	if last == 0 || time.Since(w.slice) < last {
		return
	}
	runtime.Gosched()
	w.slice = time.Now()
}

// pageSize is the smallest page size of any system.
const pageSize = 4 << 10

// touchPages writes to each page of zeroed memory, so that kernels cause no page faults.
func touchPages(b []byte) {
	for i := 0; i < len(b); i += pageSize {
		b[i] = 0
	}
}
