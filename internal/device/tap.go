package device

import (
	"fmt"
	"time"

	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// Show calls a tap after a command. read reads from any slot, which Show has checked the range
// against. It returns a panic of the tap as an error, so that the device survives.
func Show(name string, t *table.Table, tap *replay.Tap, cmd int, step *table.Step, read replay.Reader) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = NewCommandError(name, t, cmd, &PanicError{Value: v})
		}
	}()
	return tap.Show(cmd, step, func(slot uint32, offset uint64, p []byte) error {
		if uint64(slot) >= uint64(len(t.Slots)) {
			return fmt.Errorf("%s: slot %d: the table has %d slots", name, slot, len(t.Slots))
		}
		if s := &t.Slots[slot]; offset > s.Size || uint64(len(p)) > s.Size-offset {
			return fmt.Errorf("%s: slot %s: offset %d + %d bytes exceeds its %d bytes", name, s.Name, offset, len(p), s.Size)
		}
		if len(p) == 0 {
			return nil
		}
		return read(slot, offset, p)
	})
}

// Stepper executes a job's commands one at a time, for its tap.
type Stepper interface {
	// Execute executes a command of a run, patched with a step, and waits for it. token is the
	// number of the run's replay.
	Execute(run, token, cmd int, step *table.Step) error
	// Block returns the session's step block. It is valid until the next call.
	Block() ([]byte, error)
	// Read copies from a slot. The range is within the slot and is not empty.
	Read(slot uint32, offset uint64, p []byte) error
}

// Tapped reports whether the job must be replayed with Steps.
func (j *Job[S]) Tapped() bool { return j.Submission.Tap != nil && !j.Submission.Dry }

// Steps replays the job command by command and shows its tap what they write. The step block must
// have the first run's step. Steps ends after an error, a stop, or a cancellation.
func (j *Job[S]) Steps(on Stepper) error {
	t, sub := j.queue.table, j.Submission
	for i := range sub.Runs {
		r := &sub.Runs[i]
		step, p := r.Step, &t.Programs[r.Program]
		for token := range int(r.Count) {
			var times []time.Duration
			if i == len(sub.Runs)-1 {
				times = sub.Timings
			}
			if more, err := j.steps(on, i, token, &step, times); err != nil || !more {
				return err
			}
			if !p.Flags.Has(table.FlagAdvances) {
				Advance(&step, 1)
				continue
			}
			b, err := on.Block() // the program's last command has updated it
			if err != nil {
				return err
			}
			step = stepAt(b)
		}
	}
	return nil
}

// steps replays the commands of one token of a run. It returns false if the job ends there.
func (j *Job[S]) steps(on Stepper, run, token int, step *table.Step, times []time.Duration) (more bool, err error) {
	t, sub := j.queue.table, j.Submission
	p := &t.Programs[sub.Runs[run].Program]
	for at := range int(p.Count) {
		cmd := int(p.First) + at
		if j.Cancelled() {
			return false, nil
		}
		start := time.Now()
		if err := on.Execute(run, token, cmd, step); err != nil {
			return false, err
		}
		if times != nil {
			times[at] += time.Since(start)
		}
		if sub.Tap.Cmds[cmd] {
			shown := *step
			if err := Show(j.queue.name, t, sub.Tap, cmd, &shown, on.Read); err != nil {
				return false, err
			}
		}
		b, err := on.Block()
		if err != nil {
			return false, err
		}
		if _, stop := Result(b); stop != 0 {
			return false, nil
		}
	}
	return true, nil
}
