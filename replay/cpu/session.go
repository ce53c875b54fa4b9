package cpu

import (
	"fmt"

	"github.com/pianola-engine/pianola/replay/device"
	"github.com/pianola-engine/pianola/table"
)

// job is a session's submission.
type job = device.Job[*session]

// ends reports whether what is left of a job does nothing.
func ends(j *job) bool { return j.Cancelled() || j.Session.step.Stop != 0 }

// session is the slots of session scope and the commands bound to them.
type session struct {
	mem  [][]byte // by slot, nil for other scopes
	step *table.Step
	cmds []command
}

// backend is the device as package device calls it.
type backend struct{ *Device }

// Warm has nothing to do: the team is there.
func (backend) Warm(func(...table.Run) error) error { return nil }

// Open allocates the slots of session scope.
func (d backend) Open() (s *session, size uint64, err error) {
	s = &session{mem: make([][]byte, len(d.table.Slots))}
	mem := make([][]byte, len(d.table.Slots))
	copy(mem, d.model)
	for i := range d.table.Slots {
		slot := &d.table.Slots[i]
		if slot.Scope != table.ScopeSession {
			continue
		}
		if s.mem[i], err = allocate(slot.Size); err != nil {
			return s, 0, fmt.Errorf("cpu: slot %s: %w", slot.Name, err)
		}
		if d.touch {
			touchPages(s.mem[i])
		}
		mem[i] = s.mem[i]
		size += slot.Size
	}
	_, step, _ := d.table.Slot(table.SlotStep) // Load made sure that there is one
	s.step = stepOf(s.mem[step])
	s.cmds, err = bind(d.ops, d.table, mem, s.step, d.threads)
	return s, size, err
}

// Free drops a session's memory.
func (backend) Free(s *session) error {
	s.mem, s.cmds = nil, nil
	return nil
}

func (backend) Write(s *session, slot uint32, offset uint64, p []byte) error {
	copy(s.mem[slot][offset:], p)
	return nil
}

func (backend) Read(s *session, slot uint32, offset uint64, p []byte) error {
	copy(p, s.mem[slot][offset:])
	return nil
}

// Unload drops everything. The team has ended.
func (d backend) Unload(left []*session) error {
	for _, s := range left {
		_ = d.Free(s) // cannot fail
	}
	d.model, d.team = nil, nil
	return nil
}
