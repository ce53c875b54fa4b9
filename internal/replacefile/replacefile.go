// Package replacefile writes files atomically.
package replacefile

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces the file at path with the content that write produces, with the given
// permissions. It writes a temporary file in the same directory, syncs it and renames it, so
// that a reader sees either the old file or the complete new one. If any step fails, the old
// file remains unchanged.
func Write(path string, perm fs.FileMode, write func(w io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".tmp*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close() // after a successful Close this only returns an error
			os.Remove(f.Name())
		}
	}()
	if err := write(f); err != nil {
		return err
	}
	// CreateTemp creates files that only their owner can read.
	if err := f.Chmod(perm); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
