package metal

import (
	"errors"

	"github.com/pianola-engine/pianola/internal/metal/driver"
)

// Errors of the driver; test for them with errors.Is.
var (
	ErrNoMetal     = driver.ErrNoMetal
	ErrOutOfMemory = driver.ErrOutOfMemory
	ErrTimeout     = driver.ErrTimeout
	ErrDeviceLost  = driver.ErrLost // the device must be closed; a new one may work
	// ErrNoKernels reports that there are no kernels.
	ErrNoKernels = errors.New("no kernels for this GPU")
)

// DriverError is the error of a Metal call, with Metal's message.
type DriverError = driver.Error
