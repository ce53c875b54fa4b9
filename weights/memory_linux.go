package weights

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
)

// AvailableMemory returns the number of bytes that can be used without swapping. It is the
// kernel's estimate, or the container's limit if that is lower.
func AvailableMemory() (n uint64, ok bool) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	defer f.Close()
	n, ok = memAvailable(f)
	if limit := cgroupLimit("/sys/fs/cgroup"); limit < n {
		n = limit
	}
	return n, ok
}

// memAvailable returns the field MemAvailable of /proc/meminfo in bytes.
func memAvailable(meminfo io.Reader) (n uint64, ok bool) {
	lines := bufio.NewScanner(meminfo)
	for lines.Scan() {
		if _, err := fmt.Sscanf(lines.Text(), "MemAvailable: %d kB", &n); err == nil {
			return n << 10, true
		}
	}
	return 0, false
}

// cgroupLimit returns the memory limit in bytes of the cgroup that is mounted at dir. In a
// container, this is the container's limit. Mapped pages count towards it.
func cgroupLimit(dir string) uint64 {
	b, err := os.ReadFile(dir + "/memory.max") // "max" means no limit
	if err != nil {
		return math.MaxUint64
	}
	limit, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return math.MaxUint64
	}
	return limit
}
