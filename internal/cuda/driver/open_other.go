//go:build !linux || !(amd64 || arm64) || nocuda

package driver

import (
	"fmt"
	"runtime"
)

// Library is the name of the driver library.
const Library = ""

func open(string) (fns [symbols]uintptr, err error) {
	return fns, fmt.Errorf("%w: this build does not support it on %s/%s", ErrNoDriver, runtime.GOOS, runtime.GOARCH)
}

// libraryBuild is never called, since open fails.
func libraryBuild(uintptr) string { return "" }

// invoke is never called, since open fails.
func invoke(uintptr, ...uintptr) Code { return codeNotFound }
