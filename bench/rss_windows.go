package bench

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

// processMemoryCounters is the structure PROCESS_MEMORY_COUNTERS of psapi.h.
type processMemoryCounters struct {
	cb, pageFaultCount             uint32
	peakWorkingSetSize             uintptr
	workingSetSize                 uintptr
	quotaPeakPagedPoolUsage        uintptr
	quotaPagedPoolUsage            uintptr
	quotaPeakNonPagedPoolUsage     uintptr
	quotaNonPagedPoolUsage         uintptr
	pagefileUsage, peakPagefileUse uintptr
}

// peakRSS returns the peak working set size of the process in bytes.
func peakRSS() (uint64, bool) {
	proc := windows.NewLazySystemDLL("kernel32.dll").NewProc("K32GetProcessMemoryInfo")
	if proc.Find() != nil {
		return 0, false
	}
	var c processMemoryCounters
	c.cb = uint32(unsafe.Sizeof(c))
	ok, _, _ := proc.Call(uintptr(windows.CurrentProcess()), uintptr(unsafe.Pointer(&c)), uintptr(c.cb))
	return uint64(c.peakWorkingSetSize), ok != 0
}
