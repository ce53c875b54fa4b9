//go:build !linux

package cpu

import (
	"math"
	"runtime"
)

// machineMemory returns no limit: the size of the memory is not queried on this system.
func machineMemory() uint64 { return math.MaxInt64 }

// preferHuge does nothing: the system has no such request.
func preferHuge([]byte) {}

// machineName returns the architecture's name.
func machineName() string { return runtime.GOARCH }
