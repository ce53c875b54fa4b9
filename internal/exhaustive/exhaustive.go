// Package exhaustive selects between the tests that everybody runs and the
// exhaustive ones. With the build tag exhaustive tests try every case; without
// it they try a sample that covers each kernel, family and mode at least once.
// docs/TESTING.md describes which tests run where.
package exhaustive

import "testing"

// Pick returns all in an exhaustive run, and sample otherwise.
func Pick[T any](all, sample T) T {
	if On {
		return all
	}
	return sample
}

// Only skips the test unless the run is exhaustive. The reason says why no
// sample of the test is worth running.
func Only(tb testing.TB, reason string) {
	tb.Helper()
	if !On {
		tb.Skip("needs -tags exhaustive: " + reason)
	}
}

// Sampled skips the i-th case of a list unless the run is exhaustive or i is a
// multiple of every.
func Sampled(tb testing.TB, i, every int) {
	tb.Helper()
	if !On && i%every != 0 {
		tb.Skipf("needs -tags exhaustive: one case of %d is in the sample", every)
	}
}
