package hostmem

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Reserve returns n zeroed bytes, n > 0, and a function that frees them. The bytes count against
// the system's commit limit at once; their pages take memory once they are written.
func Reserve(n int) (b []byte, release func() error, err error) {
	addr, err := windows.VirtualAlloc(0, uintptr(n), windows.MEM_RESERVE|windows.MEM_COMMIT, windows.PAGE_READWRITE)
	if err != nil {
		return nil, nil, fmt.Errorf("%d bytes of address space: %w", n, err)
	}
	// The address is outside Go's heap. Reading it as a pointer where it is stored is the form
	// that vet's unsafeptr check accepts.
	b = unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), n)
	return b, func() error { return windows.VirtualFree(addr, 0, windows.MEM_RELEASE) }, nil
}

// Discard does nothing: the pages of b stay.
func Discard([]byte) {}
