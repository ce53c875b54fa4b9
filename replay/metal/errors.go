package metal

import (
	"errors"

	"github.com/pianola-engine/pianola/internal/metal/driver"
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
