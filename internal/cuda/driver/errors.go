package driver

import (
	"errors"
	"fmt"
)

// Errors that a caller may act on; test for them with errors.Is, also in an *Error.
var (
	// ErrNoDriver reports that the driver library does not exist.
	ErrNoDriver = errors.New("no NVIDIA driver")
	// ErrTooOld reports that the driver lacks a required function.
	ErrTooOld = errors.New("the NVIDIA driver is too old")
	// ErrNoDevice reports that the driver has found no GPU.
	ErrNoDevice = errors.New("no NVIDIA GPU")
	// ErrOutOfMemory reports that device memory, or pinned host memory, is exhausted.
	ErrOutOfMemory = errors.New("out of memory")
	// ErrLost reports that the device's context is unusable: a kernel failed, or the device has
	// disappeared.
	ErrLost = errors.New("the device is lost")
)

// Code is a CUresult. 0 is success.
type Code int32

// Codes that callers distinguish.
const (
	codeOutOfMemory  Code = 2
	codeStub         Code = 34 // the library is the toolkit's stub
	codeNoDevice     Code = 100
	codeNotFound     Code = 500
	codeSystemDriver Code = 803 // the library's version differs from the kernel module's
)

// lost reports whether every later call in the context fails too.
func (c Code) lost() bool {
	switch c {
	case 700, 702, // illegal address, timeout
		710, 714, 715, 716, 717, 718, 719, // assertion, faults of a kernel
		214, 220, 999: // ECC, NVLink, unknown
		return true
	}
	return false
}

// Error is a failed driver call.
type Error struct {
	Call string // such as "cuMemAlloc"
	Code Code
	Name string // such as "CUDA_ERROR_OUT_OF_MEMORY"
	Log  string // log of the PTX assembler, or ""
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

// Is reports whether the code corresponds to target.
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
