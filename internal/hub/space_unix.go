//go:build unix

package hub

import (
	"errors"

	"golang.org/x/sys/unix"
)

// freeSpace returns the number of bytes that this user can still write to the file system of a directory.
func freeSpace(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return uint64(st.Bavail) * uint64(st.Bsize), nil
}

// isFull reports whether err means that a disk or a quota is full.
func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
