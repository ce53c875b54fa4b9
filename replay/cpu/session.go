package cpu

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"

	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/hostmem"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// job is a session's submission.
type job = device.Job[*session]

// session holds the slots of session scope and the commands bound to them.
type session struct {
	mem     [][]byte // memory of each slot; nil for other scopes
	release func() error
	step    *table.Step
	phases  []phases // of each program
	refused error    // error of the tap of the running submission
}

// phases are a program's phases.
type phases struct {
	merged []phase // divided by barriers
	single []phase // one for each command
}

// of returns the phases that a job uses.
func (p *phases) of(single bool) []phase {
	if single {
		return p.single
	}
	return p.merged
}

// divided returns the phases of each program of a table.
func divided(t *table.Table, cmds []command) []phases {
	all := make([]phases, len(t.Programs))
	for i := range t.Programs {
		p := &t.Programs[i]
		of := cmds[p.First:][:p.Count]
		all[i] = phases{phasesOf(of, false), phasesOf(of, true)}
	}
	return all
}

// backend implements device.Backend.
type backend struct{ *Device }

// Open reserves address space for the slots of session scope, with KV caches for the whole
// context. Pages take memory once they are written, and no address changes as a session grows.
func (d backend) Open() (s *session, size uint64, err error) {
	s = &session{}
	if size, err = d.reserve(s); err != nil {
		return s, 0, err
	}
	mem := make([][]byte, len(d.table.Slots))
	for i := range mem {
		if mem[i] = s.mem[i]; mem[i] == nil {
			mem[i] = d.model[i]
		}
	}
	_, step, _ := d.table.Slot(table.SlotStep) // Load has checked that the table has one
	s.step = stepOf(s.mem[step])
	cmds, err := bind(d.ops, d.table, mem, s.step)
	if err == nil {
		s.phases = divided(d.table, cmds)
	}
	return s, size, err
}

// reserve allocates a session's slots in one block. It returns their size without the caches that
// Grow counts.
func (d backend) reserve(s *session) (size uint64, err error) {
	t, page := d.table, uint64(os.Getpagesize())
	huge := func(s table.Slot) bool {
		return s.Scope == table.ScopeSession && s.Kind == table.SlotState && s.Size >= hugePage
	}
	place := func(use func(slot int, at, size uint64)) (end uint64) {
		for i := range t.Slots {
			if n := t.Slots[i].Size; t.Slots[i].Scope == table.ScopeSession {
				if huge(t.Slots[i]) {
					end = (end + hugePage - 1) &^ (hugePage - 1)
				}
				use(i, end, n)
				end += (n + page - 1) &^ (page - 1)
			}
		}
		return end
	}
	limit := machineMemory()
	end := place(func(slot int, _, n uint64) {
		if n > limit && err == nil {
			err = fmt.Errorf("cpu: slot %s: %d bytes do not fit in this machine's memory of %d", t.Slots[slot].Name, n, limit)
		}
	})
	if err == nil && end > 1<<(bits.UintSize-2) {
		err = fmt.Errorf("cpu: slots of the session: %d bytes do not fit in the address space", end)
	}
	if err != nil {
		return 0, err
	}
	slack := uint64(0) // for the alignment of the block
	if slices.ContainsFunc(t.Slots, huge) {
		slack = 2 * hugePage
	}
	block, release, err := hostmem.Reserve(int(end + slack))
	if err != nil {
		return 0, fmt.Errorf("cpu: slots of the session: %w", err)
	}
	if slack > 0 {
		block = hostmem.Within(block, hugePage)
	}
	s.release = release
	s.mem = make([][]byte, len(t.Slots))
	place(func(slot int, at, n uint64) {
		s.mem[slot] = block[at:][:n:n]
		size += n
		if huge(t.Slots[slot]) {
			preferHuge(s.mem[slot]) // a token reads and writes whole states
		}
		if d.touch {
			touchPages(s.mem[slot])
		}
	})
	for i := range d.caches {
		size -= d.caches[i].Size()
	}
	return size, nil
}

// growth is the number of positions by which the accounted size of the caches grows.
const growth = 64

// Grow accounts for the pages of more rows; the system provides them once they are written.
func (d backend) Grow(_ *session, positions int) (device.Room, error) {
	return roomOf(d.table, d.caches, positions), nil
}

// Room returns what Grow accounts for.
func (d backend) Room(positions int) device.Room { return roomOf(d.table, d.caches, positions) }

// Shrink gives the pages of rows that are not needed back to the system.
func (d backend) Shrink(s *session, positions int) (device.Room, error) {
	room := roomOf(d.table, d.caches, positions)
	for i := range d.caches {
		c := &d.caches[i]
		for part := range c.Parts() {
			at, n := c.Span(part, c.Used(room.Positions), c.Rows)
			hostmem.Discard(s.mem[c.Slot][at:][:n])
		}
	}
	return room, nil
}

// Discard gives the memory of a range of a session's slot back to the system; its content is lost. The
// range must be within the slot, and no submission may need it.
func (d *Device) Discard(id replay.SessionID, slot uint32, offset, size uint64) error {
	return d.queue.View(id, func(s *session) error {
		if uint64(slot) >= uint64(len(s.mem)) || offset > uint64(len(s.mem[slot])) || size > uint64(len(s.mem[slot]))-offset {
			return fmt.Errorf("cpu: slot %d: %d bytes at %d are out of range", slot, size, offset)
		}
		hostmem.Discard(s.mem[slot][offset:][:size])
		return nil
	})
}

// roomOf returns the size of a session's caches with room for the given number of positions.
func roomOf(t *table.Table, caches []table.KVCache, positions int) (room device.Room) {
	page := uint64(os.Getpagesize())
	room.Positions = min((positions+growth-1)&^(growth-1), int(t.Header.Context))
	for i := range caches {
		c, end := &caches[i], uint64(0) // end of the pages already counted
		for part := range c.Parts() {
			at, n := c.Span(part, 0, c.Used(room.Positions))
			from, to := max(at&^(page-1), end), (at+n+page-1)&^(page-1)
			room.Bytes += to - from
			end = to
		}
	}
	return room
}

// Copy copies the slots; of the KV caches it copies the rows in use.
func (d backend) Copy(to, from *session, positions int) error {
	for i, mem := range from.mem {
		if mem != nil && d.table.Slots[i].Kind != table.SlotKV {
			copy(to.mem[i], mem)
		}
	}
	d.eachRows(positions, func(slot uint32, at, n uint64) {
		copy(to.mem[slot][at:][:n], from.mem[slot][at:])
	})
	return nil
}

// eachRows calls f with the byte ranges of the KV caches that hold the rows of the given number of
// positions.
func (d backend) eachRows(positions int, f func(slot uint32, at, n uint64)) {
	if d.caches == nil {
		for i := range d.table.Slots {
			if s := &d.table.Slots[i]; s.Kind == table.SlotKV {
				f(uint32(i), 0, s.Size)
			}
		}
	}
	for i := range d.caches {
		c := &d.caches[i]
		for part := range c.Parts() {
			at, n := c.Span(part, 0, c.Used(positions))
			f(c.Slot, at, n)
		}
	}
}

// Free releases a session's memory.
func (backend) Free(s *session) error {
	s.mem, s.phases = nil, nil
	if s.release == nil {
		return nil
	}
	err := s.release()
	s.release = nil
	return err
}

func (backend) Send(s *session, moves []replay.Move, writes []replay.Transfer) error {
	for i := range moves {
		m := &moves[i]
		copy(s.mem[m.Slot][m.To:][:m.Size], s.mem[m.Slot][m.From:])
	}
	for i := range writes {
		copy(s.mem[writes[i].Slot][writes[i].Offset:], writes[i].Bytes)
	}
	return nil
}

func (backend) Fetch(s *session, reads []replay.Transfer) error {
	for i := range reads {
		copy(reads[i].Bytes, s.mem[reads[i].Slot][reads[i].Offset:])
	}
	return nil
}

// Unload drops all memory. The team has ended.
func (d backend) Unload(left []*session) error {
	var errs []error
	for _, s := range left {
		errs = append(errs, d.Free(s))
	}
	d.model, d.team = nil, nil
	return errors.Join(errs...)
}
