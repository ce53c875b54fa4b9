package cpu

import (
	"time"

	"golang.org/x/sys/unix"
)

// canMeasure reports whether threadTime works on this system.
const canMeasure = true

// threadTime returns the time that the calling thread has used a processor.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // cannot fail
	return time.Duration(t.Nano())
}

// yieldThread lets another thread use the processor, if one waits for it. Go's scheduler does not
// know of it: a worker that comes back would otherwise have to wait for the scheduler as well.
func yieldThread() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
