package bench

import (
	"bytes"
	"os"
	"strconv"
)

// peakRSS returns the peak resident set size of the process in bytes. It is VmHWM of proc(5).
func peakRSS() (uint64, bool) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, false
	}
	for line := range bytes.Lines(status) {
		words := bytes.Fields(line)
		if len(words) == 3 && string(words[0]) == "VmHWM:" && string(words[2]) == "kB" {
			n, err := strconv.ParseUint(string(words[1]), 10, 54)
			return n << 10, err == nil
		}
	}
	return 0, false
}
