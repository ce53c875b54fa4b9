//go:build !(linux || darwin || freebsd || netbsd || openbsd || windows)

package bench

// peakRSS returns false, because this system does not report the peak resident set size.
func peakRSS() (uint64, bool) { return 0, false }
