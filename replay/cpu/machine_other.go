//go:build !linux

package cpu

import (
	"math"
	"runtime"
)

// machineMemory returns no limit: the memory's size is not asked for here.
func machineMemory() uint64 { return math.MaxInt64 }

// preferHuge does nothing: there is no such advice here.
func preferHuge([]byte) {}

// machineName returns the architecture's name.
func machineName() string { return runtime.GOARCH }
