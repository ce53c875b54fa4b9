//go:build !linux || !(amd64 || arm64) || nocuda

package driver

import (
	"fmt"
	"runtime"
)

// Library is the name of the driver's library.
const Library = ""

func open(string) (fns [symbols]uintptr, err error) {
	return fns, fmt.Errorf("%w: this build has none for %s/%s", ErrNoDriver, runtime.GOOS, runtime.GOARCH)
}

// invoke is never reached: open gives no driver.
func invoke(uintptr, ...uintptr) Code { return codeNotFound }
