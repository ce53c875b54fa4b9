package metal

import (
	"fmt"

	"github.com/pianola-engine/pianola/internal/metal/driver"
	"github.com/pianola-engine/pianola/table"
)

// maxRecorded is the largest number of commands in an indirect command buffer.
const maxRecorded = 16384

// recording is an indirect command buffer of mode record: the table's commands at their indices, followed by the
// patches. Each flight has one, which every session uses: before a flight replays a program for another session,
// or after the session's caches have moved, its commands are recorded again: what belongs to the session changes.
type recording struct {
	buffer  driver.Recording
	patches []driver.Command // bound to the flight's secondary bytes
	bound   []uint64         // binding of the session for which each program is recorded; 0: none, or not all of it
}

// patches returns the number of a program's patches in a recording.
func (p *program) patches(d *Device) int {
	switch {
	case p.ranged:
		return d.o.tokens
	case p.patched:
		return 1
	}
	return 0
}

// newRecordings allocates the recordings of a table and the patches in them, and lists the objects that commands read.
func (d *Device) newRecordings(t *table.Table) error {
	at := len(t.Cmds)
	for i := range d.programs {
		d.programs[i].patch = at
		at += d.programs[i].patches(d)
	}
	if at > maxRecorded {
		return fmt.Errorf("metal: %d commands exceed the %d of an indirect command buffer", at, maxRecorded)
	}
	for flight := range flights {
		r := &d.recordings[flight]
		var err error
		if r.patches, err = array[driver.Command](&d.own, at-len(t.Cmds)); err != nil {
			return err
		}
		d.patchCommands(r.patches, len(t.Cmds), flight)
		if r.buffer, err = d.drv.Recording(at); err != nil {
			return fmt.Errorf("metal: recording of %d commands: %w", at, err)
		}
		d.own.add(r.buffer)
		r.bound = make([]uint64, len(d.programs))
	}
	var err error
	if d.read, err = array[driver.Object](&d.own, len(d.weights)+1); err != nil {
		return err
	}
	copy(d.read, d.weights)
	d.read[len(d.weights)] = d.params
	return nil
}

// patchCommands fills in the patches for one flight, the first of which has the given index in a recording.
func (d *Device) patchCommands(list []driver.Command, first, flight int) {
	for i := range d.programs {
		p := &d.programs[i]
		for token := range p.patches(d) {
			c := &list[p.patch-first+token]
			*c = driver.Command{
				Pipeline: d.patch.pipeline.Handle, Params: p.params, Label: p.label,
				Groups: [3]uint32{1, 1, 1}, Threads: [3]uint32{uint32(d.patch.threads), 1, 1}, ThreadgroupMemory: d.patch.memory,
			}
			c.Buffers[0], c.Offsets[0] = d.params, p.lists+uint64(token)*p.listSize
			c.Buffers[1] = d.secondary[flight]
		}
	}
}

// record makes sure that a program is recorded for a session. The flight must not be on the GPU.
func (d *Device) record(s *session, flight int, program uint32) error {
	r, p, of := &d.recordings[flight], &d.programs[program], &d.table.Programs[program]
	if r.bound[program] == s.binding {
		return nil
	}
	bound := &driver.Bound{
		Params: d.params, Second: d.secondary[flight], Step: s.step.buffer, StepOffset: s.step.offset, Again: bit(r.bound[program] != 0),
	}
	r.bound[program] = 0
	if err := d.drv.Record(r.buffer, int(of.First), s.cmds[of.First:of.First+of.Count], bound); err != nil {
		return fmt.Errorf("metal: recording: %w", err)
	}
	// A patch has no secondary bytes, and must not read the memory that it writes.
	bound.Second = d.params
	if err := d.drv.Record(r.buffer, p.patch, r.patches[p.patch-len(d.table.Cmds):][:p.patches(d)], bound); err != nil {
		return fmt.Errorf("metal: recording: patches: %w", err)
	}
	r.bound[program] = s.binding
	return nil
}

// prepare records every program for a new session, which is the only one, so that its first submissions need not. It
// does nothing while a flight is in use.
func (e *executor) prepare(s *session) error {
	for range flights {
		select {
		case f := <-e.free:
			defer func() { e.free <- f }()
		default:
			return nil
		}
	}
	for flight := range flights {
		for program := range e.d.programs {
			if err := e.d.record(s, flight, uint32(program)); err != nil {
				return err
			}
		}
	}
	return nil
}

// list lists the objects to which the recorded commands of a session write, which has the given buffers.
func (d *Device) list(s *session, blocks []driver.Buffer) error {
	for flight := range flights {
		written, err := array[driver.Object](&s.kv, len(blocks)+len(d.scratch)+1)
		if err != nil {
			return err
		}
		copy(written, blocks)
		copy(written[len(blocks):], d.scratch)
		written[len(written)-1] = d.secondary[flight]
		s.written[flight] = written
	}
	return nil
}
