//go:build !linux

package cpu

import "time"

// canMeasure reports whether threadTime works on this system.
const canMeasure = false

// threadTime is not used.
func threadTime() time.Duration { return 0 }

// yieldThread is not used.
func yieldThread() {}
