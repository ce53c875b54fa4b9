package metal

import (
	"fmt"

	"github.com/pianola-engine/pianola/internal/metal/driver"
)

// maxRecorded is the largest number of commands in an indirect command buffer.
const maxRecorded = 16384

// patchCount returns the number of patches in a recording: one per program, or one per token of a
// command buffer.
func (d *Device) patchCount() int {
	n := 0
	for i := range d.programs {
		switch p := &d.programs[i]; {
		case p.ranged:
			n += d.o.tokens
		case p.patched:
			n++
		}
	}
	return n
}

// record creates a session's recordings, one for each command buffer in flight: the table's
// commands at their indices, followed by the patches.
func (d *Device) record(s *session, blocks []driver.Buffer) error {
	t := d.table
	if len(s.cmds) > maxRecorded {
		return fmt.Errorf("metal: %d commands exceed the %d of an indirect command buffer", len(s.cmds), maxRecorded)
	}
	var err error
	if s.read, err = array[driver.Object](&s.made, len(d.weights)+1); err != nil {
		return err
	}
	copy(s.read, d.weights)
	s.read[len(d.weights)] = d.params
	s.patches = make([]uint32, len(t.Programs))
	for flight := range flights {
		written, err := array[driver.Object](&s.made, len(blocks)+len(d.scratch)+1)
		if err != nil {
			return err
		}
		copy(written, blocks)
		copy(written[len(blocks):], d.scratch)
		written[len(written)-1] = d.secondary[flight]
		s.written[flight] = written
		d.patchCommands(s, flight)
		r, err := d.drv.Recording(len(s.cmds))
		if err != nil {
			return fmt.Errorf("metal: recording of %d commands: %w", len(s.cmds), err)
		}
		s.made.add(r)
		s.recordings[flight] = r
		bound := &driver.Bound{Params: d.params, Second: d.secondary[flight], Step: s.step.buffer, StepOffset: s.step.offset}
		if err := d.drv.Record(r, 0, s.cmds[:len(t.Cmds)], bound); err != nil {
			return fmt.Errorf("metal: recording: %w", err)
		}
		// A patch has no secondary bytes, and must not read the memory that it writes.
		bound.Second = d.params
		if err := d.drv.Record(r, len(t.Cmds), s.cmds[len(t.Cmds):], bound); err != nil {
			return fmt.Errorf("metal: recording: patches: %w", err)
		}
	}
	return nil
}

// patchCommands fills in the patches for one command buffer in flight.
func (d *Device) patchCommands(s *session, flight int) {
	at := len(d.table.Cmds)
	for i := range d.programs {
		p := &d.programs[i]
		n := 1
		if p.ranged {
			n = d.o.tokens
		}
		s.patches[i] = uint32(at)
		for token := range n {
			c := &s.cmds[at+token]
			*c = driver.Command{
				Pipeline: d.patch.pipeline.Handle, Params: p.params, Label: p.label,
				Groups: [3]uint32{1, 1, 1}, Threads: [3]uint32{uint32(d.patch.threads), 1, 1}, ThreadgroupMemory: d.patch.memory,
			}
			c.Buffers[0], c.Offsets[0] = d.params, p.lists+uint64(token)*p.listSize
			c.Buffers[1] = d.secondary[flight]
		}
		at += n
	}
}
