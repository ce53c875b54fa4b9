package cpu

import (
	"bufio"
	"math"
	"os"
	"runtime"
	"strings"
	"syscall"

	"github.com/pianola-engine/pianola/internal/hostmem"
	"golang.org/x/sys/unix"
)

// machineMemory returns the bytes of memory and swap of the machine.
func machineMemory() uint64 {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil || info.Unit == 0 {
		return math.MaxInt64
	}
	return (uint64(info.Totalram) + uint64(info.Totalswap)) * uint64(info.Unit)
}

// preferHuge asks for huge pages for b, which has not been written yet. Fewer pages take less
// time to fill and to look up: a single thread reads about a tenth faster. A system without huge
// pages ignores the request.
func preferHuge(b []byte) {
	if b = hostmem.Within(b, hugePage); len(b) > 0 {
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	}
}

// machineName returns the processor's name from /proc/cpuinfo.
func machineName() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		key, value, ok := strings.Cut(s.Text(), ":")
		if ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
