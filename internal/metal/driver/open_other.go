//go:build !((darwin && cgo) || softmetal)

package driver

import (
	"fmt"
	"runtime"
	"unsafe"
)

// Here reports whether this program can have Metal at all.
const Here = false

// noMetal returns ErrNoMetal, with the reason.
func noMetal() error {
	why := "it is Apple's, for macOS"
	if runtime.GOOS == "darwin" {
		why = "this program was built without cgo, which its calls need"
	}
	return fmt.Errorf("%w: %s", ErrNoMetal, why)
}

// Open returns an error, ErrNoMetal with the reason, as all of these do.
func Open() (Device, error) { return nil, noMetal() }

// OpenWith returns an error.
func OpenWith(_, _ unsafe.Pointer) (Device, error) { return nil, noMetal() }

// SystemDevice returns an error.
func SystemDevice() (unsafe.Pointer, error) { return nil, noMetal() }

// Release does nothing.
func Release(unsafe.Pointer) {}

// Describe returns an error.
func Describe(unsafe.Pointer) (Properties, error) { return Properties{}, noMetal() }
