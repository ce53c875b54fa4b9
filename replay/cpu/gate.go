package cpu

import "sync/atomic"

type pad [align]byte

// gate is a word that threads wait on until it changes.
type gate struct {
	_        pad
	word     atomic.Uint64
	_        pad
	sleepers atomic.Int32
	_        pad
}

// await returns the word once it differs from last. It polls the word the given number of times
// and then sleeps. While it polls, the goroutine keeps its thread, and with it one of the
// scheduler's processors.
func (g *gate) await(last uint64, polls int) uint64 {
	for range polls {
		if v := g.word.Load(); v != last {
			return v
		}
	}
	g.sleepers.Add(1)
	defer g.sleepers.Add(-1)
	for round := 0; ; round++ {
		if v := g.word.Load(); v != last {
			return v
		}
		g.sleep(last, round)
	}
}

// set changes the word and wakes the threads that sleep.
func (g *gate) set(v uint64) {
	g.word.Store(v)
	g.wake()
}

// wake wakes the threads that sleep. A thread that is about to sleep either counts as a sleeper
// already or will see the changed word.
func (g *gate) wake() {
	if g.sleepers.Load() != 0 {
		g.wakeAll()
	}
}
