//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd || solaris

package hostmem

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Reserve returns n zeroed bytes, n > 0, whose pages take memory once they are written, and a
// function that frees them.
func Reserve(n int) (b []byte, release func() error, err error) {
	if b, err = unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|noReserve); err != nil {
		return nil, nil, fmt.Errorf("%d bytes of address space: %w", n, err)
	}
	smallPages(b)
	return b, func() error { return unix.Munmap(b) }, nil
}

// Discard gives the whole pages of b, part of what Reserve returned, back to the system. Their
// content is lost.
func Discard(b []byte) {
	if b = Within(b, uintptr(os.Getpagesize())); len(b) > 0 {
		_ = unix.Madvise(b, unix.MADV_DONTNEED)
	}
}
