package cpu

import (
	"os"
	"syscall"
	"testing"
	"unsafe"
)

// missing returns the number of pages of b that are not in memory, by mincore(2).
func missing(t *testing.T, b []byte) (n int) {
	t.Helper()
	page := uintptr(os.Getpagesize())
	from := uintptr(unsafe.Pointer(&b[0])) &^ (page - 1)
	bytes := uintptr(unsafe.Pointer(&b[len(b)-1])) + 1 - from
	pages := make([]byte, (bytes+page-1)/page)
	if _, _, errno := syscall.Syscall(syscall.SYS_MINCORE, from, bytes, uintptr(unsafe.Pointer(&pages[0]))); errno != 0 {
		t.Fatal(errno)
	}
	for _, p := range pages {
		n += int(1 - p&1)
	}
	return n
}

// TestRealTimeTouches checks that a session's memory is resident when the session is created, so
// that chains do not wait for page faults.
func TestRealTimeTouches(t *testing.T) {
	for _, real := range []bool{false, true} {
		s := smallShape
		s.ctx = 1 << 16 // four caches of 8 MiB, which Go gets from the system
		d := transformer(t, s).load(Options{RealTime: real, Threads: 1})
		id, err := d.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		if err := d.queue.Hold(id, func(s *session) error {
			for _, mem := range s.mem {
				if len(mem) > 0 {
					n += missing(t, mem)
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if (n == 0) != real {
			t.Errorf("real time %t: %d pages are missing", real, n)
		}
	}
}
