//go:build linux || darwin

package cpu

import (
	"syscall"
	"testing"
	"unsafe"
)

// guarded returns n zeroed bytes that end at an inaccessible page, so that assembly that reads or
// writes too far faults.
func guarded(tb testing.TB, n uint64) []byte {
	tb.Helper()
	page := uint64(syscall.Getpagesize())
	size := (n + page - 1) / page * page
	mem, err := syscall.Mmap(-1, 0, int(size+page), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { syscall.Munmap(mem) })
	if err := syscall.Mprotect(mem[size:], syscall.PROT_NONE); err != nil {
		tb.Fatal(err)
	}
	return mem[size-n : size : size]
}

// TestGuard checks that the guard page works, and that a fault in a kernel becomes an error.
func TestGuard(t *testing.T) {
	d := chainModel(t).load(Options{Threads: 1})
	id := newSession(t, d, 3)
	mem := guarded(t, 64)
	// The address after the last byte, as assembly would access it.
	beyond := unsafe.Add(unsafe.Pointer(&mem[0]), len(mem))
	replace(t, d, id, 1, testKernel(func(*worker, int) { *(*byte)(beyond) = 1 }))
	checkBroken(t, d, id)
}
