package device

import (
	"github.com/pianola-engine/pianola/table"

	"github.com/pianola-engine/pianola/replay"
)

// loadedMemory begins the account with what a backend says of what it has loaded.
// q.mu must be held.
func (q *Queue[S]) loadedMemory(m replay.Memory) {
	q.memory = m
	q.use(table.SlotWeight, m.Weights+m.Mapped, 0)
	q.use(table.SlotScratch, q.slots(table.ScopeExecutor, table.SlotScratch), 0)
}

// slots returns the bytes of the table's slots of a scope and kind.
func (q *Queue[S]) slots(scope table.Scope, kind table.SlotKind) (size uint64) {
	for i := range q.table.Slots {
		if s := &q.table.Slots[i]; s.Scope == scope && s.Kind == kind {
			size += s.Size
		}
	}
	return size
}

// use adds to what a kind of slots takes, and takes away. q.mu must be held.
func (q *Queue[S]) use(kind table.SlotKind, more, less uint64) {
	u := &q.memory.Kinds[kind]
	u.Active += more - less
	u.Peak = max(u.Peak, u.Active)
}

// account notes what a session takes now: its KV caches, which took most
// meanwhile, and the rest; 0 and 0 once it is freed.
func (q *Queue[S]) account(s *session[S], fixed, kv, most uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if most > kv {
		q.use(table.SlotKV, most, s.kv)
		s.kv, q.memory.Sessions = most, q.memory.Sessions+most-s.kv
	}
	q.use(table.SlotKV, kv, s.kv)
	// The rest is there or not: a slot of each other kind.
	if (fixed > 0) != (s.fixed > 0) {
		for kind := range q.memory.Kinds {
			if k := table.SlotKind(kind); k != table.SlotKV {
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

// Memory says what the device holds.
func (b Base[S]) Memory() replay.Memory {
	q := b.q
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.loaded || q.closed {
		return replay.Memory{}
	}
	return q.memory
}

// Planned returns what Memory says of a table when a backend says of it what Load
// would, and what each session adds that takes so much without the KV caches and for
// them.
func Planned(t *table.Table, m replay.Memory, fixed, kv uint64) (loaded, each replay.Memory) {
	q := &Queue[struct{}]{table: t}
	q.loadedMemory(m)
	loaded = q.memory
	q.memory = replay.Memory{}
	q.account(&session[struct{}]{}, fixed, kv, 0)
	return loaded, q.memory
}
