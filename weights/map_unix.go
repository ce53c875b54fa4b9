//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd || solaris

package weights

import (
	"os"

	"golang.org/x/sys/unix"
)

// mapWhole maps a file of size bytes, size > 0.
func mapWhole(f *os.File, size int) (mapping, error) {
	data, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return mapping{}, err
	}
	return mapping{data: data, unmap: func() error { return unix.Munmap(data) }}, nil
}

// release tells the system that whole pages are not needed. Reading them again reads the file
// again.
func release(pages []byte) {
	// A failure changes no result: the call is only advice.
	_ = unix.Madvise(pages, unix.MADV_DONTNEED)
}
