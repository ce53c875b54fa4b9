package cuda

import (
	"fmt"

	"github.com/pianola-engine/pianola/internal/cuda/driver"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// stepper executes a job's commands one at a time, whatever the device's mode. The executor's
// thread calls it.
type stepper struct {
	e *executor
	j *job
}

// giveSteps executes a job with a tap.
func (e *executor) giveSteps(j *job) error {
	if err := e.begins(j); err != nil {
		return e.runError(j, 0, err)
	}
	return j.Steps(&stepper{e, j})
}

// Execute launches a command and waits for it. The host patches the commands of a token together,
// before the first of them.
func (s *stepper) Execute(run, _, cmd int, step *table.Step) error {
	e, program := s.e, s.j.Submission.Runs[run].Program
	if cmd == int(e.d.table.Programs[program].First) {
		if err := e.sendSecondary(program, step); err != nil {
			return e.runError(s.j, run, err)
		}
	}
	err := e.d.drv.Launch(&e.d.launches[cmd])
	if err == nil {
		err = s.wait()
	}
	if err != nil {
		return device.NewCommandError(name, e.d.table, cmd, err)
	}
	return nil
}

// wait waits for the stream. After an error, executor.wait finds that the device is lost.
func (s *stepper) wait() error { return s.e.d.drv.StreamSynchronize(s.e.stream) }

// Block copies the step block to the executor's pinned memory.
func (s *stepper) Block() ([]byte, error) {
	if err := s.e.d.drv.MemcpyDtoHAsync(s.e.result, s.e.d.current.step, s.e.stream); err != nil {
		return nil, s.e.runError(s.j, 0, err)
	}
	if err := s.wait(); err != nil {
		return nil, s.e.runError(s.j, 0, err)
	}
	return s.e.result, nil
}

// Read copies from the session's or the device's memory. Of a KV cache it copies rows that the
// session has.
func (s *stepper) Read(slot uint32, offset uint64, p []byte) error {
	d := s.e.d
	err := d.each(s.j.Session, []replay.Transfer{{Slot: slot, Offset: offset, Bytes: p}}, func(from driver.Ptr, p []byte) error {
		if err := d.drv.MemcpyDtoHAsync(p, from, s.e.stream); err != nil {
			return err
		}
		return s.wait()
	})
	if err != nil {
		return fmt.Errorf("cuda: %w", err)
	}
	return nil
}
