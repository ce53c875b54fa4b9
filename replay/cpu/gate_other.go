//go:build !linux

package cpu

import (
	"runtime"
	"time"
)

// sleep pauses the goroutine for a moment, and the caller polls the word again. In the first rounds
// it only lets other goroutines run.
func (g *gate) sleep(_ uint64, round int) {
	if round < 64 {
		runtime.Gosched()
		return
	}
	time.Sleep(50 * time.Microsecond)
}

// wakeAll does nothing: threads wake up by themselves.
func (g *gate) wakeAll() {}
