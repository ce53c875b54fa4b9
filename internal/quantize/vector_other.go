//go:build !amd64 && !arm64

package quantize

// available returns the loops that this processor can run.
func available() []*loops { return []*loops{&portable} }
