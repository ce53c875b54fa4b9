//go:build linux && (amd64 || arm64) && !nocuda

package fake

import (
	"unsafe"

	"github.com/ebitengine/purego"
)

const supported = true

func dlopen(path string) (uintptr, error) {
	return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

func (d *Driver) call(name string, args ...uintptr) uintptr {
	d.tb.Helper()
	f, err := purego.Dlsym(d.lib, name)
	if err != nil {
		d.tb.Fatal(err)
	}
	r, _, _ := purego.SyscallN(f, args...)
	return r
}

// text calls a function without arguments that returns a string.
func (d *Driver) text(name string) string {
	d.tb.Helper()
	f, err := purego.Dlsym(d.lib, name)
	if err != nil {
		d.tb.Fatal(err)
	}
	var get func() *byte
	purego.RegisterFunc(&get, f)
	p, n := get(), 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}
