package cpu

import "sync/atomic"

// poisoned is the word of a barrier that no longer works; see poison.
const poisoned = ^uint64(0)

// barrier is the point at which the workers of a team wait for each other. The upper 63 bits of
// the gate's word are a generation number. The lowest bit reports whether the submission ends
// here. The last worker to arrive decides this, so that all workers see the same decision.
type barrier struct {
	_       pad
	arrived atomic.Int32
	gate    gate
}

// wait returns when all n workers have called it, and reports whether the submission ends here.
// last is the word that this worker saw before; wait updates it. The last worker to arrive sees
// all writes of the others, asks the job whether it ends, and publishes the answer. The others
// poll the word; after the given number of polls they sleep.
func (b *barrier) wait(n int32, polls int, last *uint64, j *job) bool {
	if b.arrived.Add(1) == n {
		b.arrived.Store(0)
		next := (*last | 1) + 1
		if ends(j) {
			next |= 1
		}
		b.gate.set(next)
		*last = next
	} else {
		*last = b.gate.await(*last, polls)
	}
	return *last&1 != 0
}

// poison ends all present and future waits. The caller must not have arrived at the barrier at
// which the others wait, so that this barrier can never complete.
func (b *barrier) poison() { b.gate.set(poisoned) }
