package cpu

import (
	"runtime"
	"sync/atomic"
)

// poisoned is the word of a barrier that nobody may wait at.
const poisoned = ^uint64(0)

type pad [align]byte

// barrier is where the team meets. word is the generation in the upper 63 bits
// and, in the lowest, the decision of the last to arrive that the submission
// ends here: all see the same one.
type barrier struct {
	_       pad
	arrived atomic.Int32
	_       pad
	word    atomic.Uint64
	_       pad
}

// wait returns when all n workers have called it. last is the word that this
// worker saw before, and gets the new one. The last to arrive, who sees
// everything that the others did before, asks the job whether it ends; the
// answer is everybody's. Who has looked spins times lets others run.
func (b *barrier) wait(n int32, spins int, last *uint64, j *job) bool {
	if b.arrived.Add(1) == n {
		b.arrived.Store(0)
		next := (*last | 1) + 1
		if ends(j) {
			next |= 1
		}
		b.word.Store(next)
		*last = next
		return next&1 != 0
	}
	for i := 0; ; i++ {
		if v := b.word.Load(); v != *last {
			*last = v
			return v&1 != 0
		}
		if i >= spins {
			runtime.Gosched()
		}
	}
}

// poison ends every wait, now and later. The caller must not have arrived at
// the barrier that the others wait at, which therefore never completes.
func (b *barrier) poison() { b.word.Store(poisoned) }
