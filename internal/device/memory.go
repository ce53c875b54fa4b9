package device

import (
	"github.com/pianola-engine/pianola/table"

	"github.com/pianola-engine/pianola/replay"
)

// loadedMemory starts the account with the memory that a backend allocated in Load. q.mu must be
// held.
func (q *Queue[S]) loadedMemory(m replay.Memory) {
	q.memory = m
	q.whole = len(q.table.KVCaches()) == 0
	q.use(table.SlotWeight, m.Weights+m.Mapped, 0)
	q.use(table.SlotScratch, q.slots(table.ScopeExecutor, table.SlotScratch), 0)
}

// slots returns the total size of the table's slots of a scope and kind.
func (q *Queue[S]) slots(scope table.Scope, kind table.SlotKind) (size uint64) {
	for i := range q.table.Slots {
		if s := &q.table.Slots[i]; s.Scope == scope && s.Kind == kind {
			size += s.Size
		}
	}
	return size
}

// use adds more bytes to a kind of slots in the account, and subtracts less. q.mu must be held.
func (q *Queue[S]) use(kind table.SlotKind, more, less uint64) {
	u := &q.memory.Kinds[kind]
	u.Active += more - less
	u.Peak = max(u.Peak, u.Active)
}

// account records a session's memory: kv bytes of KV caches that grow, at most most bytes while they
// grew, and fixed bytes of other slots. fixed and kv are 0 once the session is freed. q.mu must not be
// held.
func (q *Queue[S]) account(s *session[S], fixed, kv, most uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if most > kv {
		q.use(table.SlotKV, most, s.kv)
		s.kv, q.memory.Sessions = most, q.memory.Sessions+most-s.kv
	}
	q.use(table.SlotKV, kv, s.kv)
	// A session has all of its other slots or none of them.
	if (fixed > 0) != (s.fixed > 0) {
		for kind := range q.memory.Kinds {
			if k := table.SlotKind(kind); k != table.SlotKV || q.whole {
				if n := q.slots(table.ScopeSession, k); fixed > 0 {
					q.use(k, n, 0)
				} else {
					q.use(k, 0, n)
				}
			}
		}
	}
	q.memory.Sessions += fixed + kv - s.fixed - s.kv
	s.fixed, s.kv = fixed, kv
}

// Memory returns the device's memory account.
func (b Base[S]) Memory() replay.Memory {
	q := b.q
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.loaded || q.closed {
		return replay.Memory{}
	}
	return q.memory
}

// ResetPeaks sets the peak of each kind of slots to what is in use.
func (b Base[S]) ResetPeaks() {
	q := b.q
	q.mu.Lock()
	defer q.mu.Unlock()
	for kind := range q.memory.Kinds {
		u := &q.memory.Kinds[kind]
		u.Peak = u.Active
	}
}

// Planned predicts Memory without loading a table. m is the memory that a backend's Load would
// report; fixed and kv are the bytes of one session without and for the KV caches. It returns the
// account after Load and the amount that each session adds.
func Planned(t *table.Table, m replay.Memory, fixed, kv uint64) (loaded, each replay.Memory) {
	q := &Queue[struct{}]{table: t}
	q.loadedMemory(m)
	loaded = q.memory
	q.memory = replay.Memory{}
	q.account(&session[struct{}]{}, fixed, kv, 0)
	return loaded, q.memory
}
