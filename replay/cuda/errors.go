package cuda

import (
	"errors"

	"github.com/pianola-engine/pianola/internal/cuda/driver"
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
