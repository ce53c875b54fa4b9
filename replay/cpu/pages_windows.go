package cpu

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
)

// reserve returns n zeroed bytes, n > 0, and what gives them back. They count
// against what the system may promise from the start; their pages take memory when
// they are written.
func reserve(n int) (b []byte, release func() error, err error) {
	addr, err := windows.VirtualAlloc(0, uintptr(n), windows.MEM_RESERVE|windows.MEM_COMMIT, windows.PAGE_READWRITE)
	if err != nil {
		return nil, nil, fmt.Errorf("%d bytes of address space: %w", n, err)
	}
	// The address is not of Go's heap: reading it as a pointer where it is
	// stored is the form that vet's unsafeptr check lets pass.
	b = unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), n)
	return b, func() error { return windows.VirtualFree(addr, 0, windows.MEM_RELEASE) }, nil
}
