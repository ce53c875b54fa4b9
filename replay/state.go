package replay

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/pianola-engine/pianola/internal/recurrent"
	"github.com/pianola-engine/pianola/table"
)

// Layers with recurrent state have no rows of earlier positions, so the state at a position cannot be
// taken from the slots once later positions have been computed, unless it was saved. The kernels save
// it at borders, and the session records which states its slots hold. Before a run that needs another
// state, the session prefills again from the last position whose state is held.

// recurs reports for each program whether its commands use recurrent state. It is nil for a table
// without such commands.
func recurs(t *table.Table) []bool {
	if _, ok := recurrent.Of(t.Header.Options); !ok {
		return nil
	}
	programs := make([]bool, len(t.Programs))
	for i := range t.Programs {
		for _, c := range t.ProgramCmds(&t.Programs[i]) {
			for _, b := range c.Bind[:c.Bindings] {
				if b.Slot != table.NoSlot && t.Slots[b.Slot].Kind == table.SlotState {
					programs[i] = true
				}
			}
		}
	}
	return programs
}

// newHeld returns the record of a session's states, which holds none.
func (m *Model) newHeld() recurrent.Held {
	ring, _ := recurrent.Of(m.t.Header.Options)
	if !slices.Contains(m.recurs, true) {
		return recurrent.Held{}
	}
	return recurrent.NewHeld(ring)
}

// reach adds the runs that compute the state at position n if the session does not hold it. The tokens
// before n must be in the token ring.
func (s *Session) reach(n int) {
	if s.dropped { // revive computes it
		return
	}
	for at, rows := s.states.Before(n, s.keeps), 0; at < n; at += rows {
		rows = s.m.chunk(at, n-at)
		s.add(s.m.prefill(rows), 1, at, rows, 0)
		s.again += rows
	}
}

// took records which states a submission has written that chose the given number of tokens. Its runs
// may have been cut short if it was cancelled.
func (s *Session) took(sub *Submission, chosen int, err error) {
	switch {
	case !s.states.Any() || sub.Dry:
		return
	case err != nil:
		s.states.Cut(0)
		return
	}
	whole := chosen > 0 || !s.halt.Load()
	for i := range sub.Runs {
		run := &sub.Runs[i]
		if !s.m.recurs[run.Program] {
			continue
		}
		p, at := &s.m.t.Programs[run.Program], int(run.Step.Position)
		switch {
		case p.Flags.Has(table.FlagAdvances):
			s.states.Each(at, at+chosen, at+chosen+int(p.MaxRows))
		case p.Flags.Has(table.FlagChooses):
			s.states.Each(at, at+chosen, at+min(int(run.Count), chosen+1))
		default:
			s.states.Chunk(at, at+int(run.Step.Rows), whole)
		}
	}
}

// eachState calls f with the parts of a snapshot that hold the recurrent state. While f is called with
// the state's position, which is no part of a slot, slot is table.NoSlot.
func (s *Session) eachState(f func(slot uint32, offset uint64, p []byte, positions int) error) error {
	if !s.states.Any() {
		return nil
	}
	at := s.states.Before(s.n, s.keeps)
	position := binary.LittleEndian.AppendUint32(nil, uint32(at))
	if err := f(table.NoSlot, 0, position, 0); err != nil {
		return err
	}
	// Restore has read the position.
	if at = int(binary.LittleEndian.Uint32(position)); at < 0 || at > s.n {
		return fmt.Errorf("%w: a state at position %d of %d", ErrSnapshotDamaged, at, s.n)
	}
	if at == 0 {
		return nil
	}
	ring, _ := recurrent.Of(s.m.t.Header.Options)
	for i := range s.m.t.Slots {
		slot := &s.m.t.Slots[i]
		if slot.Kind != table.SlotState {
			continue
		}
		size := slot.Size / uint64(ring.Entries())
		if err := f(uint32(i), uint64(ring.Entry(at))*size, make([]byte, size), 0); err != nil {
			return err
		}
	}
	s.states.Put(at, true)
	return nil
}
