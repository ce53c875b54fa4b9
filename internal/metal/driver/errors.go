package driver

import (
	"errors"
	"fmt"
)

// Errors to test for with errors.Is.
var (
	// ErrNoMetal reports that Metal is unavailable; errors that wrap it give the reason.
	ErrNoMetal = errors.New("unavailable")
	// ErrOutOfMemory reports a failed allocation.
	ErrOutOfMemory = errors.New("out of memory")
	// ErrTimeout reports a command buffer that exceeded the system's time limit.
	ErrTimeout = errors.New("timeout")
	// ErrLost reports that the GPU was removed or no longer accepts work.
	ErrLost = errors.New("the GPU is lost")
)

// Error codes of command buffers.
const (
	codeTimeout       = 2
	codeAccessRevoked = 4
	codeNotPermitted  = 7
	codeOutOfMemory   = 8
	codeDeviceRemoved = 11
)

// Error is Metal's error of a failed call.
type Error struct {
	Call string // such as "newBufferWithLength:options:" or "command buffer"
	Code int64  // code of the NSError; 0 if there was none
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

// Names of calls in errors.
const (
	callBuffer        = "newBufferWithLength:options:"
	callRecording     = "newIndirectCommandBufferWithDescriptor:maxCommandCount:options:"
	callCommandBuffer = "command buffer"
)
