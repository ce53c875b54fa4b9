package pianola

import (
	"time"

	"github.com/pianola-engine/pianola/replay"
)

// GenerateStats are the figures of a call of Generate.
type GenerateStats struct {
	PromptTokens, Tokens int // Tokens counts generated ones, the first included
	Prefilled, Reused    int // tokens prefilled, a pending one among them, and found in the context
	Drafted, Accepted    int // tokens of drafts that were verified, and of them those that decoding chose

	FirstToken time.Duration // from the call to the first token
	Prefill    time.Duration // of it, on the device
	Decode     time.Duration // from the first token to the last, what the caller did meanwhile included
	Queue      time.Duration // that submissions waited for those of other sessions
	Device     time.Duration // that the device worked for the call

	Submissions, Waits int

	// BytesRead are the bytes of weights and KV caches that the commands which ran
	// declare that they read: weights once a replay, of a cache each position that is
	// seen. Activations are not counted, nor what caches of the hardware save.
	BytesRead uint64

	// Memory is what the device held when the call ended, or last had a chain: of all
	// sessions of the model, by kind of slot, now and at most since it was opened.
	Memory replay.Memory
}

// Stats returns the figures of the last call of Generate, so far if it is in
// progress.
func (s *Session) Stats() GenerateStats {
	s.statsMu.Lock()
	defer s.statsMu.Unlock()
	return s.stats
}

func (s *Session) count(f func(st *GenerateStats)) {
	s.statsMu.Lock()
	defer s.statsMu.Unlock()
	f(&s.stats)
}

// prefilled notes the times of the first token.
func (g *generation) prefilled() {
	g.first = time.Now()
	g.tally()
	g.s.count(func(st *GenerateStats) { st.FirstToken, st.Prefill = g.first.Sub(g.start), st.Device })
}

// tally notes what the call has asked of the device so far.
func (g *generation) tally() {
	after, before := g.s.s.Stats(), &g.before
	memory := g.s.m.Memory()
	g.s.count(func(st *GenerateStats) {
		st.Submissions, st.Waits = after.Submissions-before.Submissions, after.Waits-before.Waits
		st.Prefilled, st.Reused = after.Prefilled-before.Prefilled, after.Reused-before.Reused
		st.Queue, st.Device = after.QueueTime-before.QueueTime, after.DeviceTime-before.DeviceTime
		st.Drafted, st.Accepted = after.Drafted-before.Drafted, after.Accepted-before.Accepted
		st.BytesRead = after.BytesRead - before.BytesRead
		st.Memory = memory
	})
}
