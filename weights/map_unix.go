//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd || solaris

package weights

import (
	"os"

	"golang.org/x/sys/unix"
)

// mapWhole maps a file. size is its size in bytes and must be positive.
func mapWhole(f *os.File, size int) (mapping, error) {
	data, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return mapping{}, err
	}
	return mapping{data: data, unmap: func() error { return unix.Munmap(data) }}, nil
}

// release tells the system that whole pages are not needed soon. A later access reads them
// from the file again.
func release(pages []byte) {
	// Ignore an error, because the call is only advice.
	_ = unix.Madvise(pages, unix.MADV_DONTNEED)
}
