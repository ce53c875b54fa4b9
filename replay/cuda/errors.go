package cuda

import (
	"errors"

	"github.com/pianola-engine/pianola/internal/cuda/driver"
)

// Errors of the driver; test for them with errors.Is.
var (
	ErrNoDriver     = driver.ErrNoDriver
	ErrDriverTooOld = driver.ErrTooOld
	ErrNoGPU        = driver.ErrNoDevice
	ErrOutOfMemory  = driver.ErrOutOfMemory
	ErrDeviceLost   = driver.ErrLost // the device must be closed; a new one may work
	// ErrNoKernels reports that there are no kernels, or none for this GPU.
	ErrNoKernels = errors.New("no kernels for this GPU")
)

// DriverError is the error of a driver call, with the call's name and error code.
type DriverError = driver.Error

// Code is the error code of a driver call, a CUresult.
type Code = driver.Code
