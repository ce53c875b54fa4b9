package cpu

import (
	"bufio"
	"math"
	"os"
	"runtime"
	"strings"
	"syscall"
)

// machineMemory returns the bytes of memory and swap that the machine has.
func machineMemory() uint64 {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil || info.Unit == 0 {
		return math.MaxInt64
	}
	return (uint64(info.Totalram) + uint64(info.Totalswap)) * uint64(info.Unit)
}

// machineName returns the processor's name as the kernel gives it.
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
