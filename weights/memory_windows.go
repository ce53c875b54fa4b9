package weights

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

// memoryStatus is the structure MEMORYSTATUSEX.
type memoryStatus struct {
	length               uint32
	memoryLoad           uint32
	totalPhys            uint64
	availPhys            uint64
	totalPageFile        uint64
	availPageFile        uint64
	totalVirtual         uint64
	availVirtual         uint64
	availExtendedVirtual uint64
}

// AvailableMemory returns the number of bytes of physical memory that can be used without
// writing pages to disk first.
func AvailableMemory() (n uint64, ok bool) {
	proc := windows.NewLazySystemDLL("kernel32.dll").NewProc("GlobalMemoryStatusEx")
	if proc.Find() != nil {
		return 0, false
	}
	var status memoryStatus
	status.length = uint32(unsafe.Sizeof(status))
	if r, _, _ := proc.Call(uintptr(unsafe.Pointer(&status))); r == 0 {
		return 0, false
	}
	return status.availPhys, true
}
