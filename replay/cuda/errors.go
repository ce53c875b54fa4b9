package cuda

import (
	"errors"
	"fmt"

	"github.com/pianola-engine/pianola/replay/cuda/driver"
)

// Errors of a device's state.
var (
	ErrNotLoaded = errors.New("cuda: no table is loaded")
	ErrLoaded    = errors.New("cuda: a table is loaded already")
	ErrClosed    = errors.New("cuda: the device is closed")
	ErrSession   = errors.New("cuda: no such session")
	ErrBusy      = errors.New("cuda: the session has a submission in flight")
	ErrTicket    = errors.New("cuda: no such ticket, or it has been waited for")
)

// Errors of the driver, which errors.Is finds.
var (
	ErrNoDriver     = driver.ErrNoDriver
	ErrDriverTooOld = driver.ErrTooOld
	ErrNoGPU        = driver.ErrNoDevice
	ErrOutOfMemory  = driver.ErrOutOfMemory
	ErrDeviceLost   = driver.ErrLost // the device must be closed; a new one may work
	// ErrNoKernels says that there are no kernels, or none for this GPU.
	ErrNoKernels = errors.New("there are no kernels for it")
)

// DriverError is a call of the driver that failed: its name and its code.
type DriverError = driver.Error

// CommandError is an error of one command of the table.
type CommandError struct {
	Command int // index in the table
	Label   string
	Err     error
}

func (e *CommandError) Error() string {
	return fmt.Sprintf("cuda: command %d (%s): %v", e.Command, e.Label, e.Err)
}

// Unwrap returns what went wrong.
func (e *CommandError) Unwrap() error { return e.Err }

// KernelError says that no module has a kernel for a command's constants.
type KernelError struct {
	Kernel    string
	Constants string // "wtype=12 act=0"
}

func (e *KernelError) Error() string {
	if e.Constants == "" {
		return fmt.Sprintf("there is no kernel %s", e.Kernel)
	}
	return fmt.Sprintf("there is no kernel %s for %s", e.Kernel, e.Constants)
}

// InvalidTableError holds every fault that table.Validate found.
type InvalidTableError struct {
	Faults []error
}

func (e *InvalidTableError) Error() string {
	if len(e.Faults) == 1 {
		return fmt.Sprintf("cuda: the table is not valid: %v", e.Faults[0])
	}
	return fmt.Sprintf("cuda: the table is not valid: %v (and %d more faults)", e.Faults[0], len(e.Faults)-1)
}

// Unwrap returns the faults.
func (e *InvalidTableError) Unwrap() []error { return e.Faults }

// RunError is an error of one run of a submission. An error of the device that
// shows only when the submission is waited for names its first run.
type RunError struct {
	Run     int    // index in Submission.Runs
	Program string // "" if there is no such program
	Err     error
}

func (e *RunError) Error() string {
	if e.Program == "" {
		return fmt.Sprintf("cuda: run %d: %v", e.Run, e.Err)
	}
	return fmt.Sprintf("cuda: run %d (%s): %v", e.Run, e.Program, e.Err)
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
