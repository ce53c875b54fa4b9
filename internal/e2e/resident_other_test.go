//go:build !linux

package e2e_test

import "testing"

// resident returns 0, because the resident memory of a process is not available on this
// system.
func resident(testing.TB) int64 { return 0 }
