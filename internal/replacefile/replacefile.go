// Package replacefile writes files that are there in whole or not at all.
package replacefile

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Write makes what write writes the contents of a file with some permissions. It is
// written beside its place, synced and renamed, so that a reader sees the old file or
// the whole new one; if anything fails, the old one stays.
func Write(path string, perm fs.FileMode, write func(w io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".tmp*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close() // a second close only fails
			os.Remove(f.Name())
		}
	}()
	if err := write(f); err != nil {
		return err
	}
	// CreateTemp makes files that only their owner reads.
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
