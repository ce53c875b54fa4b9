package replay

import (
	"errors"
	"fmt"
	"time"

	"github.com/pianola-engine/pianola/table"
)

// Source gives the bytes of a model's tensors.
type Source interface {
	// Tensor returns a tensor's bytes, which stay valid until the source is
	// closed.
	Tensor(name string) ([]byte, error)
}

// Joiner is a Source of which some matrices are several tensors, quants and their
// scales: they have no bytes of their own until they are joined.
type Joiner interface {
	// Joined returns the size of such a matrix in blocks of its type.
	Joined(name string) (size uint64, ok bool)
	// ReadJoined writes whole rows of it, from byte offset on. It may be called from
	// several goroutines.
	ReadJoined(name string, offset uint64, dst []byte) error
}

// Releaser is a Source that can do without the memory of bytes that it gave,
// once they are copied.
type Releaser interface {
	Release(b []byte)
}

// Pager is a Source that has its files in memory: a device that shares the
// host's memory may use tensors where they are.
type Pager interface {
	// Mapping returns all that is mapped with b, which are bytes of a tensor. It
	// begins with a page, and its last page is there in whole. It stays until
	// the source is closed.
	Mapping(b []byte) (whole []byte, ok bool)
}

// LoadOptions are a device's settings for one table.
type LoadOptions struct {
	Progress func(done, total uint64) // bytes of the upload section; may be nil
	// Loaded, if not nil, is called when the weights are where they are used, before
	// anything is replayed. Its error ends the load.
	Loaded func() error
}

// SessionID names a session's slots on a device.
type SessionID uint32

// Run is one program, replayed Count times: each time the tokens, positions
// and KV rows move on by Step.Rows.
type Run struct {
	Program uint32 // index in Table.Programs
	Count   uint32
	Step    table.Step
}

// Positions returns how many positions have K and V when the run has ended, at most; of
// verification, with those of rows that are not there.
// CheckRun has passed it.
func (r *Run) Positions() int {
	if r.Step.Until > 0 {
		return int(r.Step.KVLen) - 1 + int(r.Step.Until-r.Step.TokenIndex) + table.MaxDraft
	}
	return int(r.Step.KVLen) - 1 + int(r.Step.Rows)*int(r.Count)
}

// Submission is what a device executes without asking the host: a list of
// runs, one after the other. Once a stop flag is set or Cancel is called the
// rest does nothing.
type Submission struct {
	Session SessionID
	Runs    []Run

	// Dry walks the table, patches and meets at barriers, but runs no
	// kernel: what replaying costs beside the kernels.
	Dry bool
	// Timings, if not nil, gets the time of each command of the last run,
	// with a barrier after every command; len must be the program's count.
	Timings []time.Duration
	// Tap, if not nil, is shown what commands write. A device that cannot do that
	// refuses the submission.
	Tap *Tap
}

// Tap looks at slots between commands.
type Tap struct {
	// Cmds says after which commands, by their index in the table: with a barrier
	// before and after Show.
	Cmds []bool
	// Show is called when a command has ended, for a step that patched it, and may call
	// read for any slot that the command has bound. It is called by the device, which
	// waits for it, and must not use the session. An error ends the submission, and
	// Wait returns it.
	Show func(cmd int, step *table.Step, read Reader) error
}

// Reader copies from a slot, at an offset, to p. It is valid during a call of Show.
type Reader func(slot uint32, offset uint64, p []byte) error

// CheckRun returns what is wrong with a run: the commands' extents are proved
// for positions within the context only. Every device asks before it runs.
func CheckRun(t *table.Table, r *Run) error {
	if int64(r.Program) >= int64(len(t.Programs)) {
		return fmt.Errorf("program %d of %d", r.Program, len(t.Programs))
	}
	rows, most := r.Step.Rows, t.Programs[r.Program].MaxRows
	if rows == 0 || rows > most {
		return fmt.Errorf("%d rows are not within 1 to %d", rows, most)
	}
	context := uint64(t.Header.Context)
	all := uint64(rows) * uint64(r.Count)
	switch until := r.Step.Until; {
	case until == 0 && t.Programs[r.Program].Flags.Has(table.FlagAdvances):
		all = uint64(most) * uint64(r.Count) // replays after the first may have as many
	case until != 0 && !t.Programs[r.Program].Flags.Has(table.FlagAdvances):
		return fmt.Errorf("program %s has no end of its own", t.Programs[r.Program].Name)
	case until != 0:
		if until <= r.Step.TokenIndex || until-r.Step.TokenIndex < rows {
			return fmt.Errorf("%d rows from token %d are past the end at %d", rows, r.Step.TokenIndex, until)
		}
		// Commands of one row each write K and V of rows that are not there, too.
		all = uint64(until-r.Step.TokenIndex) + uint64(most) - 1
	}
	switch {
	case uint64(r.Step.Position)+all > context:
		return fmt.Errorf("position %d + %d rows is past the context of %d", r.Step.Position, all, context)
	case uint64(r.Step.TokenIndex)+all > context:
		return fmt.Errorf("token %d + %d is past the context of %d", r.Step.TokenIndex, all, context)
	case r.Step.KVLen == 0 || uint64(r.Step.KVLen)-1+all > context:
		return fmt.Errorf("KV length %d with %d rows is not within 1 to the context of %d", r.Step.KVLen, all, context)
	}
	return nil
}

// CheckTap returns what is wrong with a submission's tap.
func CheckTap(t *table.Table, sub *Submission) error {
	if sub.Tap != nil && (len(sub.Tap.Cmds) != len(t.Cmds) || sub.Tap.Show == nil) {
		return fmt.Errorf("a tap of %d commands, the table has %d", len(sub.Tap.Cmds), len(t.Cmds))
	}
	return nil
}

// CheckTimings returns what is wrong with a submission's timings. CheckRun has
// passed its runs.
func CheckTimings(t *table.Table, sub *Submission) error {
	if sub.Timings == nil {
		return nil
	}
	if len(sub.Runs) == 0 {
		return errors.New("timings without a run")
	}
	p := &t.Programs[sub.Runs[len(sub.Runs)-1].Program]
	if len(sub.Timings) != int(p.Count) {
		return fmt.Errorf("timings of %d commands, program %s has %d", len(sub.Timings), p.Name, p.Count)
	}
	return nil
}

// Ticket names a submission in flight.
type Ticket uint64

// Result is what a submission gave.
type Result struct {
	Count   int           // tokens written to the ring
	Stopped bool          // a stop id was written
	Elapsed time.Duration // on the device
	Queued  time.Duration // before that, behind submissions of other sessions

	// Of runs of the program verify: tokens that were drafted, of them those that were
	// chosen, and the row of the logits that chose the last token.
	Drafted, Accepted, Row int
	Trust                  uint32 // in the next draft
}

// Info says what a device is.
type Info struct {
	Device string   // "cpu", "metal", "cuda", "null"
	Name   string   // of the chip or the processor
	Modes  []string // replay modes it can do
	Detail string   // features, threads

	// Moves says that programs which say themselves how far they have come can be
	// replayed more than once in a run.
	Moves bool
}

// Memory is what a device holds, in bytes.
type Memory struct {
	Weights  uint64 // copied or repacked
	Mapped   uint64 // used where the source has them
	Sessions uint64
	Executor uint64 // scratch and the team's private memory

	// Kinds says what the slots of each kind take: of KV caches, what is there for
	// the positions that sessions have come to.
	Kinds [table.SlotKinds]Usage
}

// Usage is bytes of memory, now and at most since the table was loaded.
type Usage struct {
	Active, Peak uint64
}
