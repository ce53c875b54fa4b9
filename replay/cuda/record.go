package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/pianola-engine/pianola/replay/cuda/driver"
	"github.com/pianola-engine/pianola/table"
)

// record is the mode in which a token is a graph, recorded once for each
// session and program. Its first node patches the others' seconds from the step
// block and moves the step block on, so that launching the graph again is the
// next token.
type record struct{ encode }

func (record) name() string { return "record" }

// prepare records the session's graphs.
func (record) prepare(d *Device, s *session) error {
	s.graphs = make([]driver.GraphExec, len(d.table.Programs))
	for i := range s.graphs {
		if err := d.record(s, i); err != nil {
			return fmt.Errorf("cuda: graph of program %s: %w", d.table.Programs[i].Name, err)
		}
	}
	return nil
}

// record makes the graph of a program. Commands between two barriers depend on
// the commands before them, not on each other.
func (d *Device) record(s *session, program int) (err error) {
	g, err := d.drv.GraphCreate()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.drv.GraphDestroy(g)) }()
	patch, err := d.drv.GraphAddKernel(g, nil, d.patchLaunch(s, program))
	if err != nil {
		return err
	}
	before, phase := []driver.Node{patch}, []driver.Node(nil)
	p := &d.table.Programs[program]
	for i := range d.table.ProgramCmds(p) {
		c := int(p.First) + i
		if d.table.Cmds[c].Barrier != 0 && len(phase) > 0 {
			before, phase = phase, nil
		}
		n, err := d.drv.GraphAddKernel(g, before, &s.launches[c])
		if err != nil {
			return &CommandError{Command: c, Label: d.table.Label(c), Err: err}
		}
		phase = append(phase, n)
	}
	exec, err := d.drv.GraphInstantiate(g)
	if err != nil {
		return err
	}
	s.own.add(func() error { return d.drv.GraphExecDestroy(exec) })
	s.graphs[program] = exec
	if err := d.drv.GraphUpload(exec, d.transfer); err != nil {
		return err
	}
	return d.drv.StreamSynchronize(d.transfer)
}

// patchArguments returns the arguments of the kernel patch for a program.
func (d *Device) patchArguments(s *session, program int) *arguments {
	p := &d.programs[program]
	a := &arguments{step: s.step, second: d.seconds}
	a.bindings[0], a.bindings[1] = p.patches, d.seconds
	binary.LittleEndian.PutUint32(a.params[0:], uint32(len(p.patched)))
	binary.LittleEndian.PutUint32(a.params[4:], uint32(len(d.table.Cmds)))
	return a
}

// patchLaunch returns its launch.
func (d *Device) patchLaunch(s *session, program int) *driver.Launch {
	l := new(driver.Launch)
	l.Init(d.patch.f, d.patch.grid, d.patch.block, d.patch.shared, 0, d.patchArguments(s, program).bytes())
	return l
}

// run launches the program's graph for each token. The step block of a run that
// is not the first is set before it, all but its stop flag and its count.
func (record) run(e *executor, j *job, r *table.Run, first bool) error {
	s := j.session
	if !first {
		if err := e.sendStep(s, &r.Step); err != nil {
			return err
		}
	}
	for range r.Count {
		if j.cancelled.Load() {
			return nil
		}
		if err := e.d.drv.GraphLaunch(s.graphs[r.Program], e.stream); err != nil {
			return err
		}
	}
	return nil
}

// sendStep sets where the next token is, and leaves the stop flag and the count.
func (e *executor) sendStep(s *session, step *table.Step) error {
	b, err := e.ring.next()
	if err != nil {
		return err
	}
	putStep(b, step)
	return e.ring.send(s.step, b[:stepPlace], e.stream)
}
