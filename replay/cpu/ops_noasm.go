//go:build !amd64 && !arm64

package cpu

// fastest returns the portable loops: there is no assembly for this architecture.
func fastest() *ops { return portable() }
