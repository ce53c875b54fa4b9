package cpu

import "sync/atomic"

// mailbox hands jobs from the leader to one worker.
type mailbox struct {
	_      pad
	job    atomic.Pointer[job]
	full   atomic.Bool // job, which may be nil, is there
	parked atomic.Bool
	wake   chan struct{}
	_      pad
}

func newMailbox() mailbox { return mailbox{wake: make(chan struct{}, 1)} }

// put gives the worker a job, or nil, after which it takes no more. The one
// before must have been taken.
func (m *mailbox) put(j *job) {
	m.job.Store(j)
	m.full.Store(true)
	if m.parked.Swap(false) {
		m.wake <- struct{}{}
	}
}

// take waits for the next job. It parks when it has looked spins times.
func (m *mailbox) take(spins int) *job {
	for i := 0; !m.full.Load(); i++ {
		if i < spins {
			continue
		}
		m.parked.Store(true)
		// What was put before the flag was seen would wake nobody.
		if !m.full.Load() || !m.parked.Swap(false) {
			<-m.wake
		}
	}
	m.full.Store(false)
	return m.job.Load()
}
