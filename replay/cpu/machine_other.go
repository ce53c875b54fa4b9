//go:build !linux

package cpu

import (
	"math"
	"runtime"
)

// machineMemory returns no limit: the memory's size is not asked for here.
func machineMemory() uint64 { return math.MaxInt64 }

// machineName returns the architecture's name.
func machineName() string { return runtime.GOARCH }
