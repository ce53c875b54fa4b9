//go:build !(linux || darwin || freebsd || netbsd || openbsd || windows)

package bench

// peakRSS is unknown on this system.
func peakRSS() (uint64, bool) { return 0, false }
