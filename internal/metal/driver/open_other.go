//go:build !((darwin && cgo) || softmetal)

package driver

import (
	"fmt"
	"runtime"
	"unsafe"
)

// Here reports whether this build can use Metal.
const Here = false

// noMetal returns ErrNoMetal with the reason.
func noMetal() error {
	why := "requires macOS"
	if runtime.GOOS == "darwin" || runtime.GOOS == "ios" {
		why = "requires a build with cgo: install Xcode's command line tools with xcode-select --install, and build with CGO_ENABLED=1"
	}
	return fmt.Errorf("%w (%s)", ErrNoMetal, why)
}

// Open returns ErrNoMetal with the reason, like all functions below.
func Open() (Device, error) { return nil, noMetal() }

// OpenWith returns an error.
func OpenWith(_, _ unsafe.Pointer) (Device, error) { return nil, noMetal() }

// SystemDevice returns an error.
func SystemDevice() (unsafe.Pointer, error) { return nil, noMetal() }

// Release does nothing.
func Release(unsafe.Pointer) {}

// Describe returns an error.
func Describe(unsafe.Pointer) (Properties, error) { return Properties{}, noMetal() }
