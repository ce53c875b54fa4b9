//go:build !amd64 && !arm64

package cpu

// fastest returns the best loops for this processor: there is no assembly for
// its architecture.
func fastest() *ops { return portable() }
