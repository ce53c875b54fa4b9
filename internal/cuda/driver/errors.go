package driver

import (
	"errors"
	"fmt"
)

// Errors that a caller may act on; errors.Is finds them in an *Error too.
var (
	// ErrNoDriver says that the driver's library is not there.
	ErrNoDriver = errors.New("no NVIDIA driver")
	// ErrTooOld says that the driver lacks what is needed.
	ErrTooOld = errors.New("the NVIDIA driver is too old")
	// ErrNoDevice says that the driver knows no GPU.
	ErrNoDevice = errors.New("no NVIDIA GPU")
	// ErrOutOfMemory says that the device's memory, or memory that it can
	// read on the host, is used up.
	ErrOutOfMemory = errors.New("out of memory")
	// ErrLost says that the device's context is of no use any more: a kernel
	// failed, or the device has gone.
	ErrLost = errors.New("the device is lost")
)

// Code is a CUresult. 0 is success.
type Code int32

// The codes that mean something to a caller.
const (
	codeOutOfMemory  Code = 2
	codeStub         Code = 34 // the library is the toolkit's stub
	codeNoDevice     Code = 100
	codeNotFound     Code = 500
	codeSystemDriver Code = 803 // the library is of another version than the kernel's module
)

// lost reports whether every later call of the context fails as well.
func (c Code) lost() bool {
	switch c {
	case 700, 702, // illegal address, timeout
		710, 714, 715, 716, 717, 718, 719, // assertion, faults of a kernel
		214, 220, 999: // ECC, NVLink, unknown
		return true
	}
	return false
}

// Error is a call of the driver that failed.
type Error struct {
	Call string // "cuMemAlloc"
	Code Code
	Name string // "CUDA_ERROR_OUT_OF_MEMORY"
	Log  string // of the PTX assembler, else ""
}

// Error implements error.
func (e *Error) Error() string {
	name := e.Name
	if name == "" {
		name = "error"
	}
	s := fmt.Sprintf("%s: %s (%d)", e.Call, name, e.Code)
	if e.Log != "" {
		s += ": " + e.Log
	}
	return s
}

// Is reports whether the code is what target says.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrOutOfMemory:
		return e.Code == codeOutOfMemory
	case ErrLost:
		return e.Code.lost()
	case ErrNoDevice:
		return e.Code == codeNoDevice
	case ErrNoDriver:
		return e.Code == codeStub
	case ErrTooOld:
		return e.Code == codeSystemDriver
	}
	return false
}
