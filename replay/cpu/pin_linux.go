package cpu

import (
	"fmt"
	"math/bits"
	"syscall"
	"unsafe"
)

// canPin says that threads can be bound to processors here.
const canPin = true

// cpuSet is a set of up to 1024 processors, the kernel's cpu_set_t.
type cpuSet [1024 / 64]uint64

// allowedCPUs returns the processors that this process may run on.
func allowedCPUs() ([]int, error) {
	var set cpuSet
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_GETAFFINITY, 0, unsafe.Sizeof(set), uintptr(unsafe.Pointer(&set))); errno != 0 {
		return nil, fmt.Errorf("cpu: asking for the thread's processors: %w", errno)
	}
	var cpus []int
	for i, word := range set {
		for ; word != 0; word &= word - 1 {
			cpus = append(cpus, 64*i+bits.TrailingZeros64(word))
		}
	}
	return cpus, nil
}

// pinThread binds the calling thread, which its goroutine is locked to, to one
// processor.
func pinThread(cpu int) error {
	var set cpuSet
	set[cpu/64] |= 1 << (cpu % 64)
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, 0, unsafe.Sizeof(set), uintptr(unsafe.Pointer(&set))); errno != 0 {
		return fmt.Errorf("cpu: binding a thread to processor %d: %w", cpu, errno)
	}
	return nil
}
