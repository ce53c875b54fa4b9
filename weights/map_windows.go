package weights

import (
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// mapWhole maps a file. size is its size in bytes and must be positive.
func mapWhole(f *os.File, size int) (mapping, error) {
	section, err := windows.CreateFileMapping(windows.Handle(f.Fd()), nil, windows.PAGE_READONLY, 0, 0, nil)
	if err != nil {
		return mapping{}, os.NewSyscallError("CreateFileMapping", err)
	}
	// The view keeps the mapping open after its handle is closed.
	defer windows.CloseHandle(section)
	addr, err := windows.MapViewOfFile(section, windows.FILE_MAP_READ, 0, 0, uintptr(size))
	if err != nil {
		return mapping{}, os.NewSyscallError("MapViewOfFile", err)
	}
	// The address is outside Go's heap. The compiler's check for unsafe pointers (vet's unsafeptr)
	// accepts only this form of conversion.
	data := unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), size)
	return mapping{data: data, unmap: func() error { return windows.UnmapViewOfFile(addr) }}, nil
}

// release does nothing, because this system has no call for it.
func release([]byte) {}
