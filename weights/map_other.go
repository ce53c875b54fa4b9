//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || solaris || windows)

package weights

import (
	"io"
	"os"
)

// mapWhole reads a file of size bytes into memory.
func mapWhole(f *os.File, size int) (mapping, error) {
	data := make([]byte, size)
	if _, err := io.ReadFull(f, data); err != nil {
		return mapping{}, err
	}
	return mapping{data: data, unmap: func() error { return nil }}, nil
}

// release does nothing, because this system has no call for it.
func release([]byte) {}
