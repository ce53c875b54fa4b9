package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// keep is the time after which unused objects are removed from the cache.
const keep = 14 * 24 * time.Hour

// compile compiles an object of the emulator.
func (t *toolchain) compile(args []string, out, file string) error {
	return t.kept(args, out, file, func() error {
		_, err := t.run(compiler, append(slices.Clip(args), "-c", "-o", out, file)...)
		return err
	})
}

// kept calls make, which writes an object compiled from a file with the given options to out.
// Several test packages need the same objects, so kept caches them in the user's cache directory
// under a hash of the compiler's version, the options and the preprocessed text.
func (t *toolchain) kept(args []string, out, file string, make func() error) error {
	dir, err := os.UserCacheDir()
	if err != nil {
		return make()
	}
	name, err := t.name(args, file)
	if err != nil {
		return err
	}
	dir = filepath.Join(dir, "pianola", "emulator")
	kept := filepath.Join(dir, name)
	if b, err := os.ReadFile(kept); err == nil {
		_ = os.Chtimes(kept, time.Time{}, time.Now()) // a failure only costs a later compilation
		return os.WriteFile(out, b, 0o600)
	}
	if err := make(); err != nil {
		return err
	}
	return put(dir, name, out)
}

// name returns the file name of an object in the cache.
func (t *toolchain) name(args []string, file string) (string, error) {
	text, err := t.run(compiler, append(slices.Clip(args), "-E", file)...)
	if err != nil {
		return "", err
	}
	// The build folder has a different name in each run, so remove it from the hashed text.
	all := bytes.ReplaceAll(fmt.Appendf(nil, "%s %q\n%s", t.version, args, text), []byte(t.build), nil)
	return fmt.Sprintf("%x.o", sha256.Sum256(all)), nil
}

// put copies an object into the cache atomically. It also removes objects that have not been
// used for the time keep.
func put(dir, name, object string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	b, err := os.ReadFile(object)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(b)
	if end := f.Close(); err == nil {
		err = end
	}
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		return err
	}
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil // another process has removed the file
		}
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > keep {
			_ = os.Remove(path)
		}
		return nil
	})
}
