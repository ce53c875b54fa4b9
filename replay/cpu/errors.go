package cpu

import (
	"errors"
	"fmt"

	"github.com/pianola-engine/pianola/dtype"
)

// Errors of a device's state.
var (
	ErrNotLoaded = errors.New("cpu: no table is loaded")
	ErrLoaded    = errors.New("cpu: a table is loaded already")
	ErrClosed    = errors.New("cpu: the device is closed")
	ErrSession   = errors.New("cpu: no such session")
	ErrBusy      = errors.New("cpu: the session has a submission in flight")
	ErrTicket    = errors.New("cpu: no such ticket, or it has been waited for")
)

// CommandError is an error of one command of the table.
type CommandError struct {
	Command int // index in the table
	Label   string
	Err     error
}

func (e *CommandError) Error() string {
	return fmt.Sprintf("cpu: command %d (%s): %v", e.Command, e.Label, e.Err)
}

func (e *CommandError) Unwrap() error { return e.Err }

// WeightTypeError says that a kernel has no implementation for a weight type.
type WeightTypeError struct {
	Kernel string
	Type   dtype.Type
	Act    string // activation type that it is missing for, "" if none is there
}

func (e *WeightTypeError) Error() string {
	if e.Act != "" {
		return fmt.Sprintf("%s: weight type %v with activation type %s is not supported", e.Kernel, e.Type, e.Act)
	}
	return fmt.Sprintf("%s: weight type %v is not supported", e.Kernel, e.Type)
}

// InvalidTableError holds every fault that table.Validate found.
type InvalidTableError struct {
	Faults []error
}

func (e *InvalidTableError) Error() string {
	if len(e.Faults) == 1 {
		return fmt.Sprintf("cpu: the table is not valid: %v", e.Faults[0])
	}
	return fmt.Sprintf("cpu: the table is not valid: %v (and %d more faults)", e.Faults[0], len(e.Faults)-1)
}

// Unwrap returns the faults.
func (e *InvalidTableError) Unwrap() []error { return e.Faults }

// RunError says what is wrong with one run of a submission.
type RunError struct {
	Run  int // index in Submission.Runs
	What string
}

func (e *RunError) Error() string { return fmt.Sprintf("cpu: run %d: %s", e.Run, e.What) }

// PanicError is a panic of a kernel, caught. The device is of no use after it.
type PanicError struct {
	Value any
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap returns the panic's value if it is an error, as a memory fault is.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
