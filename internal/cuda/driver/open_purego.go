//go:build linux && (amd64 || arm64) && !nocuda

package driver

import (
	"fmt"
	"runtime"

	"github.com/ebitengine/purego"
)

// Library is the name of the driver library.
const Library = "libcuda.so.1"

// open opens the library and looks up its functions. It never closes the library, which NVIDIA's
// does not support.
func open(path string) (fns [symbols]uintptr, err error) {
	// The dynamic linker keeps its error per thread and returns it in a second call.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	lib, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return fns, fmt.Errorf("%w: %w", ErrNoDriver, err)
	}
	for i, name := range symbolNames {
		if fns[i], err = purego.Dlsym(lib, name); err != nil && symbol(i) != cuGraphAddDependencies {
			return fns, fmt.Errorf("%w: it has no function %s", ErrTooOld, name)
		}
	}
	return fns, nil
}

// invoke calls a function. Objects to which the arguments point do not move until it returns.
//
//go:uintptrescapes
func invoke(fn uintptr, args ...uintptr) Code {
	r, _, _ := purego.SyscallN(fn, args...)
	return Code(int32(r))
}
