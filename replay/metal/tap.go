package metal

import (
	"errors"

	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// stepper executes a job's commands one at a time, each in a command buffer of its own. The
// goroutine that encodes calls it.
type stepper struct {
	e *executor
	j *job
	f *flight
}

// steps executes a job with a tap, after everything before it has ended.
func (e *executor) steps(j *job) error {
	f, other := <-e.free, <-e.free // nothing is in flight
	defer func() {
		e.free <- f
		e.free <- other
	}()
	err := j.Steps(&stepper{e, j, f})
	p := &j.Session.progress
	e.mu.Lock()
	defer e.mu.Unlock()
	p.result, p.stop = device.Result(j.Session.step.mem)
	return err
}

// Execute commits a command and waits for it.
func (s *stepper) Execute(run, token, cmd int, step *table.Step) error {
	e, f := s.e, s.f
	f.begin(s.j)
	e.add(f, run, s.j.Submission.Runs[run].Program, uint32(token), share{first: cmd, end: cmd + 1}, step, true)
	e.bind(f)
	err := e.send(f)
	if err == nil {
		e.d.calls.Add(f.chain.Calls + waitCalls)
		err = e.d.drv.Wait(f.chain)
	}
	if err != nil {
		if errors.Is(err, ErrDeviceLost) {
			e.d.queue.Lose(e.fault(f, err))
		}
		return device.NewCommandError(name, e.d.table, cmd, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s.j.Session.progress.took += max(f.chain.End-f.chain.Start, 1e-9)
	return nil
}

// Block returns the step block, which the host shares.
func (s *stepper) Block() ([]byte, error) { return s.j.Session.step.mem, nil }

// Read copies from memory that the host shares. Of a KV cache it copies rows that the session has.
func (s *stepper) Read(slot uint32, offset uint64, p []byte) error {
	return s.e.d.each(s.j.Session, []replay.Transfer{{Slot: slot, Offset: offset, Bytes: p}}, func(mem, p []byte) { copy(p, mem) })
}
