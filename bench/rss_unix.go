//go:build darwin || freebsd || netbsd || openbsd

package bench

import (
	"runtime"
	"syscall"
)

// peakRSS returns the peak resident set size of the process in bytes. It is ru_maxrss of
// getrusage(2), which is in bytes on macOS and in KiB elsewhere.
func peakRSS() (uint64, bool) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil || u.Maxrss < 0 {
		return 0, false
	}
	if runtime.GOOS == "darwin" || runtime.GOOS == "ios" {
		return uint64(u.Maxrss), true
	}
	return uint64(u.Maxrss) << 10, true
}
