package cpu

import (
	"math"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Operations of futex(2), with FUTEX_PRIVATE_FLAG: only threads of this process wait.
const (
	futexWait = 0 | 128
	futexWake = 1 | 128
)

// sleep blocks the thread in the kernel until the gate wakes it, unless the word is no longer
// last. It can return early. The kernel compares the lower half of the word, which changes whenever
// the word does, because words are counters and the machine is little-endian. Meanwhile Go's
// scheduler may use the thread's processor for other goroutines.
func (g *gate) sleep(last uint64, _ int) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&g.word)), futexWait, uintptr(uint32(last)), 0, 0, 0)
}

func (g *gate) wakeAll() {
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&g.word)), futexWake, math.MaxInt32, 0, 0, 0)
}
