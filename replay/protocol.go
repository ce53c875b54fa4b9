package replay

import (
	"errors"
	"fmt"
	"time"

	"github.com/pianola-engine/pianola/table"
)

// Source provides the bytes of a model's tensors.
type Source interface {
	// Tensor returns the bytes of the named tensor. They stay valid until the source is
	// closed.
	Tensor(name string) ([]byte, error)
}

// Joiner is a Source with joined tensors: matrices that the files store as several tensors,
// such as quants and scales. A joined tensor has no bytes in a file; ReadJoined assembles
// them.
type Joiner interface {
	// Joined returns the size of a joined tensor in quantization blocks. ok is false if the
	// name does not name a joined tensor.
	Joined(name string) (size uint64, ok bool)
	// ReadJoined fills dst with whole rows of a joined tensor, starting at a byte offset.
	// It may be called from several goroutines.
	ReadJoined(name string, offset uint64, dst []byte) error
}

// Releaser is a Source that can give back the memory of a tensor after the device has
// copied it.
type Releaser interface {
	Release(b []byte)
}

// Pager is a Source that maps its files into memory. A device that shares the host's memory
// can use such tensors in place.
type Pager interface {
	// Mapping returns the page-aligned memory mapping that contains b, part of a tensor's
	// bytes. The mapping consists of whole pages and stays valid until the source is
	// closed. ok is false if b is not in a mapping.
	Mapping(b []byte) (whole []byte, ok bool)
}

// LoadOptions are the settings for loading one table on a device.
type LoadOptions struct {
	Progress func(done, total uint64) // reports the bytes of the upload section copied so far; may be nil
	// Queue is the largest number of calls that wait for a place in the batch of a table for many
	// sequences; 0 means 16 for each sequence. More get an *OverloadError.
	Queue int
	// Spill selects where copies of the pages of a table for many sequences are kept that would be evicted.
	Spill SpillOptions
	// KVLimit is the largest number of bytes that the KV caches of all sessions may take; 0 sets no
	// limit. What needs more returns a *LimitError.
	KVLimit uint64
	// NoWarm leaves out the replays that make the first submission as fast as later ones.
	NoWarm bool
	// Cost predicts the times of the parts of submissions to a table for many sequences, if the device
	// does not. Measurements correct it. Without it, the first submissions are the smallest ones.
	Cost interface {
		Decode(rows, depth int) time.Duration     // of a token for each of several rows
		Prefill(position, rows int) time.Duration // of a chunk of a prompt
	}
	// Loaded, if not nil, is called once the weights are in place and before the first
	// submission. Its error ends the load.
	Loaded func() error
}

// SessionID identifies a session on a device.
type SessionID uint32

// Run is one program, replayed Count times. Each replay advances the token index, the
// position and the KV row by Step.Rows. The rows of a batch (table.FlagBatch) have row records
// instead; of the step, only Rows matters, and KVLen, the largest of the rows, for predictions.
type Run struct {
	Program uint32 // index in Table.Programs
	Count   uint32
	Step    table.Step
}

// Positions returns an upper bound of the number of positions that have K and V after the
// run. For verify the bound includes the inactive rows. The run must have passed CheckRun.
func (r *Run) Positions() int {
	if r.Step.Until > 0 {
		return int(r.Step.KVLen) - 1 + int(r.Step.Until-r.Step.TokenIndex) + table.MaxDraft
	}
	return int(r.Step.KVLen) - 1 + int(r.Step.Rows)*int(r.Count)
}

// Submission is a list of runs that a device executes in order, without asking the host.
// After a stop id or a call of Cancel the device skips the rest.
type Submission struct {
	Session SessionID
	Runs    []Run

	// Moves and then Writes are executed before the first run, even if the submission is
	// cancelled. Reads are executed after the last run, unless the submission fails or is
	// cancelled before it begins. Their slots must have session scope. A device executes all of
	// them together, which takes less time than calls of Write and Read.
	Moves         []Move
	Writes, Reads []Transfer

	// Dry walks the table, applies the patches and waits at the barriers, but runs no kernel.
	// It measures the cost of replaying apart from the kernels.
	Dry bool
	// Timings, if not nil, receives the time of each command of the last run, with a
	// barrier after every command. Its length must be the number of commands of that run's
	// program.
	Timings []time.Duration
	// Tap, if not nil, shows what the commands write. The device then executes them one at a
	// time.
	Tap *Tap
}

// Transfer copies Bytes to or from a slot, starting at a byte offset.
type Transfer struct {
	Slot   uint32
	Offset uint64
	Bytes  []byte
}

// Move copies Size bytes within a slot, from one offset to another. The ranges must not overlap.
type Move struct {
	Slot           uint32
	To, From, Size uint64
}

// Tap inspects slots between commands.
type Tap struct {
	// Cmds selects the commands to show, by their index in the table. The device places a
	// barrier before and after each call of Show.
	Cmds []bool
	// Show is called after a selected command, with the step that patched it. It may call
	// read for any slot that the command binds. The device calls Show and waits for it, so
	// Show must not use the session. An error ends the submission and is returned by Wait.
	Show func(cmd int, step *table.Step, read Reader) error
}

// Reader fills p from a slot, starting at a byte offset. It is valid only during the call
// of Show.
type Reader func(slot uint32, offset uint64, p []byte) error

// CheckRun returns an error if a run leaves the context. Validation proves that commands
// stay within their slots only for positions within the context, so every device calls
// CheckRun before it executes a run.
func CheckRun(t *table.Table, r *Run) error {
	if int64(r.Program) >= int64(len(t.Programs)) {
		return fmt.Errorf("program %d: the table has %d programs", r.Program, len(t.Programs))
	}
	rows, most := r.Step.Rows, t.Programs[r.Program].MaxRows
	if rows == 0 || rows > most {
		return fmt.Errorf("%d rows are not within 1 to %d", rows, most)
	}
	if t.Programs[r.Program].Flags.Has(table.FlagBatch) {
		return nil // the row records have the positions
	}
	context := uint64(t.Header.Context)
	all := uint64(rows) * uint64(r.Count)
	switch until := r.Step.Until; {
	case until == 0 && t.Programs[r.Program].Flags.Has(table.FlagAdvances):
		all = uint64(most) * uint64(r.Count) // later replays may have up to MaxRows rows
	case until != 0 && !t.Programs[r.Program].Flags.Has(table.FlagAdvances):
		return fmt.Errorf("program %s does not support Step.Until", t.Programs[r.Program].Name)
	case until != 0:
		if until <= r.Step.TokenIndex || until-r.Step.TokenIndex < rows {
			return fmt.Errorf("%d rows from token %d are past the end at %d", rows, r.Step.TokenIndex, until)
		}
		// The per-row commands write K and V of inactive rows, too.
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

// CheckTap returns an error if a submission's tap does not fit the table.
func CheckTap(t *table.Table, sub *Submission) error {
	if sub.Tap != nil && (len(sub.Tap.Cmds) != len(t.Cmds) || sub.Tap.Show == nil) {
		return fmt.Errorf("the tap needs Show and must select from the table's %[2]d commands, not %[1]d", len(sub.Tap.Cmds), len(t.Cmds))
	}
	return nil
}

// CheckTimings returns an error if a submission's Timings do not fit its last run. The runs
// must have passed CheckRun.
func CheckTimings(t *table.Table, sub *Submission) error {
	if sub.Timings == nil {
		return nil
	}
	if len(sub.Runs) == 0 {
		return errors.New("timings without a run")
	}
	p := &t.Programs[sub.Runs[len(sub.Runs)-1].Program]
	if len(sub.Timings) != int(p.Count) {
		return fmt.Errorf("timings of %d commands, but program %s has %d", len(sub.Timings), p.Name, p.Count)
	}
	return nil
}

// Ticket identifies a submission in flight.
type Ticket uint64

// Result is the outcome of a submission.
type Result struct {
	Count   int           // number of tokens written to the token ring
	Stopped bool          // the last token is a stop id
	Elapsed time.Duration // time of execution on the device
	Queued  time.Duration // time spent in the queue after submissions of other sessions

	// Results of the program verify: the number of drafted tokens, the number of them that
	// were accepted, and the row of the logits from which the last token was chosen.
	Drafted, Accepted, Row int
	Trust                  uint32 // confidence in the next draft; the next Step.Trust
}

// Info describes a device.
type Info struct {
	Device string   // "cpu", "metal", "cuda", "null"
	Name   string   // name of the chip or the processor
	Modes  []string // supported replay modes
	Detail string   // for example processor features and the number of threads

	// Moves reports whether the device can replay a self-advancing program, such as verify,
	// several times in one run. A self-advancing program updates the step record itself.
	Moves bool
}

// Memory is the memory that a device uses, in bytes.
type Memory struct {
	Weights  uint64 // weights that were copied or repacked
	Mapped   uint64 // weights used in place, within the source's mapping
	Sessions uint64
	Executor uint64 // scratch, and private memory of the threads

	// Kinds is the memory of the slots of each kind. KV caches count with the memory
	// allocated so far, not with the memory of the whole context.
	Kinds [table.SlotKinds]Usage
}

// Usage is an amount of memory in bytes: now, and its maximum since the table was loaded.
type Usage struct {
	Active, Peak uint64
}
