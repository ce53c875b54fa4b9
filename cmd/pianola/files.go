package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola/chip"
)

// maxDataFile bounds the size of a chip or an architecture descriptor.
const maxDataFile = 1 << 20

// readData reads a file of data.
func readData(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxDataFile+1))
	if err == nil && len(b) > maxDataFile {
		err = fmt.Errorf("%s: more than %d bytes", name, maxDataFile)
	}
	return b, err
}

// readChip reads a chip in the form of the files in chip/data.
func readChip(name string) (*chip.Chip, error) {
	b, err := readData(name)
	if err != nil {
		return nil, err
	}
	c, err := chip.Decode(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}

// archFiles are the files of --arch-file.
type archFiles []string

// register adds --arch-file to a command. Its help text begins with of.
func (a *archFiles) register(cmd *cobra.Command, suffix, of string) {
	cmd.Flags().StringArrayVar((*[]string)(a), "arch-file"+suffix, nil, of+"add the architecture descriptor in `FILE` (docs/MODELS.md); may be repeated")
}

// fs returns a file system with the files in its root, or nil if there are none. Options.Architectures
// takes it.
func (a archFiles) fs() (fs.FS, error) {
	if len(a) == 0 {
		return nil, nil
	}
	files := descriptors{}
	for _, file := range a {
		name := filepath.Base(file)
		switch _, twice := files[name]; {
		case twice:
			return nil, fmt.Errorf("--arch-file: two files have the name %s", name)
		case path.Ext(name) != ".json":
			return nil, fmt.Errorf("--arch-file %s: want a name that ends with .json", file)
		}
		if st, err := os.Stat(file); err != nil {
			return nil, err
		} else if !st.Mode().IsRegular() {
			return nil, fmt.Errorf("%s: not a regular file", file)
		}
		files[name] = file
	}
	return files, nil
}

// descriptors is a file system whose root has some files of the system, by name.
type descriptors map[string]string

// Open implements fs.FS.
func (d descriptors) Open(name string) (fs.File, error) {
	file, ok := d[name]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return os.Open(file)
}

// ReadFile implements fs.ReadFileFS.
func (d descriptors) ReadFile(name string) ([]byte, error) {
	file, ok := d[name]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return readData(file)
}

// Glob implements fs.GlobFS.
func (d descriptors) Glob(pattern string) ([]string, error) {
	var names []string
	for name := range d {
		ok, err := path.Match(pattern, name)
		if err != nil {
			return nil, errors.Join(fs.ErrInvalid, err)
		}
		if ok {
			names = append(names, name)
		}
	}
	return names, nil
}
