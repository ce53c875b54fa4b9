//go:build !linux && !darwin

package cpu

import "testing"

// guarded returns n zeroed bytes. There is no guard page on this system.
func guarded(tb testing.TB, n uint64) []byte {
	tb.Helper()
	b, err := allocate(n)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}
