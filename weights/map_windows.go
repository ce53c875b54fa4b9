package weights

import (
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// mapWhole maps a file of size bytes, size > 0.
func mapWhole(f *os.File, size int) (mapping, error) {
	section, err := windows.CreateFileMapping(windows.Handle(f.Fd()), nil, windows.PAGE_READONLY, 0, 0, nil)
	if err != nil {
		return mapping{}, os.NewSyscallError("CreateFileMapping", err)
	}
	// The view keeps the section open.
	defer windows.CloseHandle(section)
	addr, err := windows.MapViewOfFile(section, windows.FILE_MAP_READ, 0, 0, uintptr(size))
	if err != nil {
		return mapping{}, os.NewSyscallError("MapViewOfFile", err)
	}
	// The address is outside Go's heap. Reading it as a pointer where it is stored is the form
	// that vet's unsafeptr check accepts.
	data := unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), size)
	return mapping{data: data, unmap: func() error { return windows.UnmapViewOfFile(addr) }}, nil
}

// release does nothing: this system has no such request.
func release([]byte) {}
