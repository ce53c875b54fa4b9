package cpu

import "sync/atomic"

// mailbox passes jobs from the leader to one worker.
type mailbox struct {
	_      pad
	job    atomic.Pointer[job]
	full   atomic.Bool // a job, which may be nil, is in the mailbox
	parked atomic.Bool
	wake   chan struct{}
	_      pad
}

func newMailbox() mailbox { return mailbox{wake: make(chan struct{}, 1)} }

// put passes the worker a job. nil tells it to stop. The previous job must have been taken.
func (m *mailbox) put(j *job) {
	m.job.Store(j)
	m.full.Store(true)
	if m.parked.Swap(false) {
		m.wake <- struct{}{}
	}
}

// take waits for the next job. It parks the goroutine after the given number of polls.
func (m *mailbox) take(spins int) *job {
	for i := 0; !m.full.Load(); i++ {
		if i < spins {
			continue
		}
		m.parked.Store(true)
		// A job that was put before parked was set would not wake this goroutine.
		if !m.full.Load() || !m.parked.Swap(false) {
			<-m.wake
		}
	}
	m.full.Store(false)
	return m.job.Load()
}
