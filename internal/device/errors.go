package device

import (
	"errors"
	"fmt"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// Errors that report the state of a device or session; test for them with errors.Is. Their texts
// are prefixed with the device's name.
var (
	ErrNotLoaded = errors.New("no table is loaded")
	ErrLoaded    = errors.New("a table is loaded already")
	ErrClosed    = errors.New("the device is closed")
	ErrSession   = errors.New("no such session")
	ErrBusy      = errors.New("the session has a submission in flight")
	ErrTicket    = errors.New("no such ticket, or it has been waited for")
)

// CommandError is an error caused by one command of the table.
type CommandError struct {
	Device  string
	Command int // index in the table
	Label   string
	Err     error
}

// Error implements error.
func (e *CommandError) Error() string {
	return fmt.Sprintf("%s: command %d (%s): %v", e.Device, e.Command, e.Label, e.Err)
}

// Unwrap returns the underlying error.
func (e *CommandError) Unwrap() error { return e.Err }

// RunError is an error in one run of a submission. If the device reports the error only after
// several runs, Run is the first of them.
type RunError struct {
	Device  string
	Run     int    // index in Submission.Runs
	Program string // "" if the program does not exist
	// The error occurred in one of the tokens First to End-1 of the run. If both are 0, the
	// device does not know the token.
	First, End int
	Err        error
}

// NewRunError returns a RunError without tokens.
func NewRunError(device string, t *table.Table, sub *replay.Submission, run int, err error) *RunError {
	e := &RunError{Device: device, Run: run, Err: err}
	if run < len(sub.Runs) {
		if i := sub.Runs[run].Program; uint64(i) < uint64(len(t.Programs)) {
			e.Program = t.Programs[i].Name
		}
	}
	return e
}

// Error implements error.
func (e *RunError) Error() string {
	switch {
	case e.Program == "":
		return fmt.Sprintf("%s: run %d: %v", e.Device, e.Run, e.Err)
	case e.End == 0:
		return fmt.Sprintf("%s: run %d (%s): %v", e.Device, e.Run, e.Program, e.Err)
	}
	return fmt.Sprintf("%s: run %d (%s), tokens %d to %d: %v", e.Device, e.Run, e.Program, e.First, e.End-1, e.Err)
}

// Unwrap returns the underlying error.
func (e *RunError) Unwrap() error { return e.Err }

// KernelError reports that a kernel is missing, or that it cannot be built with a command's
// specialisation constants.
type KernelError struct {
	Kernel    string
	Constants string // such as "wtype=12 act=0"
}

// Error implements error.
func (e *KernelError) Error() string {
	if e.Constants == "" {
		return fmt.Sprintf("there is no kernel %s", e.Kernel)
	}
	return fmt.Sprintf("there is no kernel %s for %s", e.Kernel, e.Constants)
}

// BodyError reports a command that is for another body of its kernel than the device has.
type BodyError struct {
	Kernel  string
	Threads int    // of a threadgroup
	For     string // the GPUs that the command is for, such as "Apple GPUs"
}

// Error implements error.
func (e *BodyError) Error() string {
	return fmt.Sprintf("kernel %s with threadgroups of %d threads is for %s: compile the table for this device", e.Kernel, e.Threads, e.For)
}

// CheckBody returns a *BodyError if a command is for another body of its kernel than that of a device:
// for Apple GPUs if apple is false, and for other GPUs if apple is true.
func CheckBody(t *table.Table, p *table.Program, c *table.Cmd, apple bool) error {
	k, ok := decl.Lookup(c.Kernel)
	if !ok || k.Apple == nil {
		return nil
	}
	env, err := t.NewEnv(c, p)
	if err != nil {
		return err
	}
	threads := int(c.Threadgroup[0] * c.Threadgroup[1] * c.Threadgroup[2])
	if k.ForApple(env, threads) == apple {
		return nil
	}
	e := &BodyError{Kernel: k.Name, Threads: threads, For: "Apple GPUs"}
	if apple {
		e.For = "GPUs of other makers than Apple"
	}
	return e
}

// InvalidTableError holds every fault that table.Validate found.
type InvalidTableError struct {
	Device string
	Faults []error
}

// Error implements error.
func (e *InvalidTableError) Error() string {
	if len(e.Faults) == 1 {
		return fmt.Sprintf("%s: the table is not valid: %v", e.Device, e.Faults[0])
	}
	return fmt.Sprintf("%s: the table is not valid: %v (and %d more faults)", e.Device, e.Faults[0], len(e.Faults)-1)
}

// Unwrap returns the faults.
func (e *InvalidTableError) Unwrap() []error { return e.Faults }

// PanicError is a recovered panic: in a kernel, in a conversion whose source file shrank, or in
// the device package itself. The results of the replay that panicked are not valid.
type PanicError struct {
	Value any
}

// Error implements error.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap returns the panic's value if it is an error, such as a memory fault.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
