//go:build !((darwin && cgo) || softmetal)

package driver

import (
	"fmt"
	"runtime"
	"unsafe"
)

// Here reports whether this program can have Metal at all.
const Here = false

// Open returns an error: ErrNoMetal, with the reason.
func Open() (Device, error) {
	why := "it is Apple's, for macOS"
	if runtime.GOOS == "darwin" {
		why = "this program was built without cgo, which its calls need"
	}
	return nil, fmt.Errorf("%w: %s", ErrNoMetal, why)
}

// OpenWith returns an error, as Open does.
func OpenWith(_, _ unsafe.Pointer) (Device, error) { return Open() }
