//go:build linux && (amd64 || arm64) && !nocuda

package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

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
		if fns[i], err = purego.Dlsym(lib, name); err != nil && !slices.Contains(optional, symbol(i)) {
			return fns, fmt.Errorf("%w: it has no function %s", ErrTooOld, name)
		}
	}
	return fns, nil
}

// libraryBuild returns the name and the size of the file that contains a function, or "". NVIDIA's
// file name ends in the driver's version, such as libcuda.so.570.86.15.
func libraryBuild(fn uintptr) string {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return ""
	}
	for l := range strings.Lines(string(maps)) {
		// "7f00-7f80 r-xp 00000000 08:01 1234  /usr/lib/libcuda.so.570.86.15"
		fields := strings.Fields(l)
		if len(fields) != 6 {
			continue
		}
		var from, to uintptr
		if n, _ := fmt.Sscanf(fields[0], "%x-%x", &from, &to); n != 2 || fn < from || fn >= to {
			continue
		}
		st, err := os.Stat(fields[5])
		if err != nil {
			return filepath.Base(fields[5])
		}
		return fmt.Sprintf("%s %d", filepath.Base(fields[5]), st.Size())
	}
	return ""
}

// invoke calls a function. Objects to which the arguments point do not move until it returns.
//
//go:uintptrescapes
func invoke(fn uintptr, args ...uintptr) Code {
	r, _, _ := purego.SyscallN(fn, args...)
	return Code(int32(r))
}
