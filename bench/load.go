package bench

import (
	"sync"
	"time"
)

// The work of one load goroutine: it allocates 256 MB per second in objects with pointers.
const (
	loadBytes = 256 << 10
	loadLive  = 16 << 20
)

// node is an object with pointers, which the garbage collector must scan.
type node struct {
	next *node
	_    [15]uint64
}

const nodeSize = 128

// startLoad starts n goroutines that allocate until the returned function is called.
func startLoad(n int) (stop func()) {
	done := make(chan struct{})
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			live := make([]*node, loadLive/loadBytes)
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				case <-tick.C:
				}
				var list *node
				for range loadBytes / nodeSize {
					list = &node{next: list}
				}
				live[i%len(live)] = list
			}
		})
	}
	return func() {
		close(done)
		all.Wait()
	}
}
