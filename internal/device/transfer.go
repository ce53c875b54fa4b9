package device

import (
	"fmt"

	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// Write copies p to a slot of session scope.
func (b Base[S]) Write(id replay.SessionID, slot uint32, offset uint64, p []byte) error {
	return b.transfer(id, replay.Transfer{Slot: slot, Offset: offset, Bytes: p}, func(s S, one []replay.Transfer) error {
		return b.q.backend.Send(s, nil, one)
	})
}

// Read copies from a slot of session scope to p.
func (b Base[S]) Read(id replay.SessionID, slot uint32, offset uint64, p []byte) error {
	return b.transfer(id, replay.Transfer{Slot: slot, Offset: offset, Bytes: p}, b.q.backend.Fetch)
}

// transfer calls f with a transfer of a session that has nothing in flight.
func (b Base[S]) transfer(id replay.SessionID, t replay.Transfer, f func(s S, one []replay.Transfer) error) error {
	return b.q.hold(id, func(s *session[S]) error {
		if err := b.q.inSlot(t.Slot, t.Offset, uint64(len(t.Bytes))); err != nil || len(t.Bytes) == 0 {
			return err
		}
		s.one[0] = t
		err := f(s.job.Session, s.one[:])
		s.one[0] = replay.Transfer{}
		return err
	})
}

// checkTransfers returns an error unless the moves, writes and reads of a submission are within slots of
// session scope.
func (q *Queue[S]) checkTransfers(sub *replay.Submission) error {
	for _, list := range [][]replay.Transfer{sub.Writes, sub.Reads} {
		for i := range list {
			t := &list[i]
			if err := q.inSlot(t.Slot, t.Offset, uint64(len(t.Bytes))); err != nil {
				return err
			}
			if len(t.Bytes) == 0 {
				return fmt.Errorf("%s: a transfer of slot %s has no bytes", q.name, q.table.Slots[t.Slot].Name)
			}
		}
	}
	for i := range sub.Moves {
		m := &sub.Moves[i]
		for _, offset := range []uint64{m.To, m.From} {
			if err := q.inSlot(m.Slot, offset, m.Size); err != nil {
				return err
			}
		}
		if q.table.Slots[m.Slot].Kind == table.SlotKV && !q.whole {
			return fmt.Errorf("%s: slot %s: the bytes of a cache that grows cannot be moved", q.name, q.table.Slots[m.Slot].Name)
		}
		if m.Size > max(m.To, m.From)-min(m.To, m.From) {
			return fmt.Errorf("%s: slot %s: %d bytes cannot be moved from %d to %d: the ranges overlap", q.name, q.table.Slots[m.Slot].Name, m.Size, m.From, m.To)
		}
	}
	return nil
}

// inSlot returns an error unless a range is within a slot of session scope.
func (q *Queue[S]) inSlot(slot uint32, offset, size uint64) error {
	t := q.table
	if uint64(slot) >= uint64(len(t.Slots)) {
		return fmt.Errorf("%s: slot %d: the table has %d slots", q.name, slot, len(t.Slots))
	}
	s := &t.Slots[slot]
	switch {
	case s.Scope != table.ScopeSession:
		return fmt.Errorf("%s: slot %s does not have session scope", q.name, s.Name)
	case offset > s.Size || size > s.Size-offset:
		return fmt.Errorf("%s: slot %s: offset %d + %d bytes is past its %d", q.name, s.Name, offset, size, s.Size)
	}
	return nil
}
