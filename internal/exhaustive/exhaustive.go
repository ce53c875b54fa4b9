// Package exhaustive selects how many cases tests try. With the build tag exhaustive, tests
// try every case. Without it, they try a sample that covers each kernel, family and mode at
// least once. docs/TESTING.md describes where each set of tests runs.
package exhaustive

import "testing"

// Pick returns all in an exhaustive run, and sample otherwise.
func Pick[T any](all, sample T) T {
	if On {
		return all
	}
	return sample
}

// Only skips the test unless the run is exhaustive. reason explains why the test has no useful
// sample.
func Only(tb testing.TB, reason string) {
	tb.Helper()
	if !On {
		tb.Skip("needs -tags exhaustive: " + reason)
	}
}
