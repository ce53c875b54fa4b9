package metal

import (
	"errors"
	"fmt"

	"github.com/pianola-engine/pianola/replay/metal/driver"
)

// Errors of a device's state.
var (
	ErrNotLoaded = errors.New("metal: no table is loaded")
	ErrLoaded    = errors.New("metal: a table is loaded already")
	ErrClosed    = errors.New("metal: the device is closed")
	ErrSession   = errors.New("metal: no such session")
	ErrBusy      = errors.New("metal: the session has a submission in flight")
	ErrTicket    = errors.New("metal: no such ticket, or it has been waited for")
)

// Errors of the driver, which errors.Is finds.
var (
	ErrNoMetal     = driver.ErrNoMetal
	ErrOutOfMemory = driver.ErrOutOfMemory
	ErrTimeout     = driver.ErrTimeout
	ErrDeviceLost  = driver.ErrLost // the device must be closed; a new one may work
	// ErrNoKernels says that there are no kernels.
	ErrNoKernels = errors.New("there are no kernels for it")
)

// DriverError is a call of Metal that failed, with what it said.
type DriverError = driver.Error

// CommandError is an error of one command of the table.
type CommandError struct {
	Command int // index in the table
	Label   string
	Err     error
}

func (e *CommandError) Error() string {
	return fmt.Sprintf("metal: command %d (%s): %v", e.Command, e.Label, e.Err)
}

// Unwrap returns what went wrong.
func (e *CommandError) Unwrap() error { return e.Err }

// KernelError says that there is no kernel of a name.
type KernelError struct{ Kernel string }

func (e *KernelError) Error() string { return fmt.Sprintf("there is no kernel %s", e.Kernel) }

// InvalidTableError holds every fault that table.Validate found.
type InvalidTableError struct {
	Faults []error
}

func (e *InvalidTableError) Error() string {
	if len(e.Faults) == 1 {
		return fmt.Sprintf("metal: the table is not valid: %v", e.Faults[0])
	}
	return fmt.Sprintf("metal: the table is not valid: %v (and %d more faults)", e.Faults[0], len(e.Faults)-1)
}

// Unwrap returns the faults.
func (e *InvalidTableError) Unwrap() []error { return e.Faults }

// RunError is an error of one run of a submission. One that shows when a command
// buffer is waited for names the first run in it, and the tokens of that run
// that it had.
type RunError struct {
	Run     int    // index in Submission.Runs
	Program string // "" if there is no such program
	First   int    // token of the run, and the one behind the last; 0, 0: all
	End     int
	Err     error
}

func (e *RunError) Error() string {
	if e.Program == "" {
		return fmt.Sprintf("metal: run %d: %v", e.Run, e.Err)
	}
	if e.End == 0 {
		return fmt.Sprintf("metal: run %d (%s): %v", e.Run, e.Program, e.Err)
	}
	return fmt.Sprintf("metal: run %d (%s), tokens %d to %d: %v", e.Run, e.Program, e.First, e.End-1, e.Err)
}

// Unwrap returns what went wrong.
func (e *RunError) Unwrap() error { return e.Err }

// PanicError is a panic, caught: of a conversion whose source's file shrank, or
// of a fault of this package.
type PanicError struct {
	Value any
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap returns the panic's value if it is an error, as a memory fault is.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
