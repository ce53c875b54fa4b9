package driver

import (
	"errors"
	"fmt"
)

// Errors that errors.Is finds.
var (
	// ErrNoMetal says that there is no Metal here, and why.
	ErrNoMetal = errors.New("there is no Metal")
	// ErrOutOfMemory is an allocation that failed.
	ErrOutOfMemory = errors.New("out of memory")
	// ErrTimeout is a command buffer that took longer than the system allows.
	ErrTimeout = errors.New("timeout")
	// ErrLost says that the GPU has gone, or that nothing more may be given to it.
	ErrLost = errors.New("the GPU is lost")
)

// Codes of errors of command buffers.
const (
	codeTimeout       = 2
	codeAccessRevoked = 4
	codeNotPermitted  = 7
	codeOutOfMemory   = 8
	codeDeviceRemoved = 11
)

// Error is what Metal said of a call that failed.
type Error struct {
	Call string // "newBufferWithLength:options:", "command buffer"
	Code int64  // of the NSError; 0: there was none
	Text string
}

func (e *Error) Error() string {
	if e.Code == 0 {
		return fmt.Sprintf("%s: %s", e.Call, e.Text)
	}
	return fmt.Sprintf("%s: error %d: %s", e.Call, e.Code, e.Text)
}

// Is reports whether e is one of the package's errors.
func (e *Error) Is(target error) bool {
	of := func(codes ...int64) bool {
		for _, c := range codes {
			if e.Code == c {
				return e.Call == callCommandBuffer
			}
		}
		return false
	}
	switch target {
	case ErrTimeout:
		return of(codeTimeout)
	case ErrLost:
		return of(codeAccessRevoked, codeNotPermitted, codeDeviceRemoved)
	case ErrOutOfMemory:
		return of(codeOutOfMemory) || e.Call == callBuffer || e.Call == callRecording
	}
	return false
}

// Calls as errors name them.
const (
	callBuffer        = "newBufferWithLength:options:"
	callRecording     = "newIndirectCommandBufferWithDescriptor:maxCommandCount:options:"
	callCommandBuffer = "command buffer"
)
