//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd || solaris

package weights

import (
	"os"

	"golang.org/x/sys/unix"
)

// mapWhole maps a file of size bytes, more than 0.
func mapWhole(f *os.File, size int) (mapping, error) {
	data, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return mapping{}, err
	}
	return mapping{data: data, unmap: func() error { return unix.Munmap(data) }}, nil
}

// release gives the memory of whole pages back; reading them again reads the
// file again.
func release(pages []byte) {
	// It is advice: what the system makes of it changes no result.
	_ = unix.Madvise(pages, unix.MADV_DONTNEED)
}
