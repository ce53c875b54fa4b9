package cpu

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestSharedProcessor binds a worker's thread and a busy thread to one processor. The worker must
// notice it and begin to yield, and stop when the other thread has ended.
func TestSharedProcessor(t *testing.T) {
	cpus, err := allowedCPUs()
	if err != nil {
		t.Fatal(err)
	}
	var ends, busy atomic.Bool
	var all sync.WaitGroup
	bound := func(f func()) {
		all.Go(func() {
			runtime.LockOSThread() // the thread ends with its goroutine
			if err := pinThread(cpus[len(cpus)-1]); err != nil {
				t.Error(err)
			}
			f()
		})
	}
	ownProcs(t, 2)
	bound(func() {
		for busy.Store(true); !ends.Load(); {
		}
	})
	bound(func() {
		defer ends.Store(true)
		for !busy.Load() {
			time.Sleep(time.Millisecond)
		}
		var p pace
		p.start()
		for begin := time.Now(); p.slice == 0; p.yield() {
			if time.Since(begin) > 20*time.Second {
				t.Error("the worker has not noticed the other thread")
				return
			}
		}
		yields := 0
		for begin := time.Now(); yields < 20 && time.Since(begin) < 20*time.Second; {
			if p.yield() {
				yields++
			}
		}
		if yields < 20 || p.slice == 0 {
			t.Errorf("%d yields, limit %v", yields, p.slice)
		}
		ends.Store(true)
		// Unless another program uses the processor, the limit disappears.
		for begin := time.Now(); p.slice != 0 && time.Since(begin) < time.Second; p.yield() {
		}
		t.Logf("limit %v", p.slice)
	})
	all.Wait()
}
