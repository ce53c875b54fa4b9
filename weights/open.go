package weights

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/pianola-engine/pianola/internal/safetensors"
)

const (
	configName     = "config.json"
	generationName = "generation_config.json"
	singleName     = "model.safetensors"
	shardExt       = ".safetensors"
	indexExt       = ".safetensors.index.json"
)

// OpenDirectory reads the headers of a model's files, but no weights. path is a GGUF file (any
// part of a split model), a .safetensors file, a .safetensors.index.json file, or a Hugging
// Face directory. Such a directory contains config.json and either model.safetensors, an index
// with its shards, or a single .safetensors file of another name.
// .safetensors file of another name.
//
// OpenDirectory removes the prefix "language_model." or "model.language_model." from names in
// safetensors files. The text model of a multimodal model thus has the names of a plain text
// model.
//
// The error is a [*MissingFileError] if a directory lacks a file, and wraps fs.ErrNotExist if
// path does not exist. Other errors wrap those of gguf.Decode, safetensors.Decode or
// safetensors.DecodeIndex.
func OpenDirectory(path string) (*Directory, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, pathError(path, err)
	}
	d := &Directory{path: path, format: Safetensors, meta: map[string]any{}}
	switch {
	case info.IsDir():
		err = d.openHuggingFace()
	case strings.HasSuffix(path, shardExt):
		if err = d.readConfigs(filepath.Dir(path)); err == nil {
			err = d.addSafetensors(path, nil)
		}
	case strings.HasSuffix(path, indexExt):
		if err = d.readConfigs(filepath.Dir(path)); err == nil {
			err = d.addShards(path)
		}
	default:
		d.format = GGUF
		err = d.addGGUF(path)
	}
	if err != nil {
		return nil, err
	}
	if err := d.sort(); err != nil {
		return nil, err
	}
	d.join()
	return d, nil
}

// openHuggingFace opens path as a Hugging Face directory.
func (d *Directory) openHuggingFace() error {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return pathError(d.path, err)
	}
	names := make(map[string]bool, len(entries))
	var singles, indexes []string
	for _, e := range entries {
		names[e.Name()] = true
		switch {
		case strings.HasSuffix(e.Name(), shardExt):
			singles = append(singles, e.Name())
		case strings.HasSuffix(e.Name(), indexExt):
			indexes = append(indexes, e.Name())
		}
	}
	if !names[configName] {
		return &MissingFileError{Dir: d.path, Name: configName}
	}
	if err := d.readConfigs(d.path); err != nil {
		return err
	}
	// Like transformers, prefer the single file if both exist.
	switch {
	case names[singleName]:
		return d.addSafetensors(filepath.Join(d.path, singleName), nil)
	case len(indexes) > 1 && names["model"+indexExt]:
		return d.addShards(filepath.Join(d.path, "model"+indexExt))
	case len(indexes) == 1:
		return d.addShards(filepath.Join(d.path, indexes[0]))
	case len(indexes) > 1:
		return fmt.Errorf("weights: %s: %d *%s files, but none is named model%s", d.path, len(indexes), indexExt, indexExt)
	case len(singles) == 1:
		return d.addSafetensors(filepath.Join(d.path, singles[0]), nil)
	case len(singles) > 1:
		return fmt.Errorf("weights: %s: %d *%s files but no model%s", d.path, len(singles), shardExt, indexExt)
	}
	return &MissingFileError{Dir: d.path, Name: singleName}
}

// addSafetensors adds the tensors of a file. If want is not nil, it adds only tensors whose
// names in the file are in want, and removes them from want.
func (d *Directory) addSafetensors(path string, want map[string]bool) error {
	var h *safetensors.Header
	n, err := d.addFile(path, func(r io.ReaderAt, size int64) (err error) {
		h, err = safetensors.Decode(r, size)
		return err
	})
	if err != nil {
		return err
	}
	for _, t := range h.Tensors {
		if want != nil {
			if !want[t.Name] {
				continue
			}
			delete(want, t.Name)
		}
		if text := textName(t.Name); text != t.Name {
			if d.names == nil {
				d.names = map[string]string{}
			}
			d.names[text] = t.Name
		}
		if err := d.add(Tensor{textName(t.Name), t.Type, t.TypeName, t.Shape, n, t.Offset, t.Size, false}); err != nil {
			return err
		}
	}
	return nil
}

// addShards adds the files of an index. A tensor is part of the model only if the index lists
// it and assigns it to the shard that contains it.
func (d *Directory) addShards(path string) error {
	var x *safetensors.Index
	_, err := readHeader(path, func(r io.ReaderAt, size int64) (err error) {
		x, err = safetensors.DecodeIndex(r, size)
		return err
	})
	if err != nil {
		return err
	}
	want := make([]map[string]bool, len(x.Shards))
	for i := range want {
		want[i] = map[string]bool{}
	}
	for name, i := range x.Shard {
		want[i][name] = true
	}
	for i, name := range x.Shards {
		shard := filepath.Join(filepath.Dir(path), name)
		err := d.addSafetensors(shard, want[i])
		if errors.Is(err, fs.ErrNotExist) {
			return &MissingFileError{Dir: filepath.Dir(path), Name: name}
		}
		if err != nil {
			return err
		}
		if left := want[i]; len(left) > 0 {
			first := ""
			for name := range left {
				if first == "" || name < first {
					first = name
				}
			}
			return fmt.Errorf("weights: %s: tensor %s is missing, although %s lists it", shard, printable(first), filepath.Base(path))
		}
	}
	return nil
}

// addFile reads the header of a file, adds the file and returns its index.
func (d *Directory) addFile(path string, decode func(r io.ReaderAt, size int64) error) (int, error) {
	info, err := readHeader(path, decode)
	if err != nil {
		return 0, err
	}
	d.files = append(d.files, File{Path: path, Size: uint64(info.Size())})
	d.changed = append(d.changed, info.ModTime())
	return len(d.files) - 1, nil
}

// readHeader opens a regular file and calls decode to read its header.
func readHeader(path string, decode func(r io.ReaderAt, size int64) error) (os.FileInfo, error) {
	f, info, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := decode(f, info.Size()); err != nil {
		if isPointer(f) {
			err = errors.New("is a Git LFS pointer, not the file itself: fetch it with git lfs pull")
		}
		return nil, fmt.Errorf("weights: %s: %w", path, err)
	}
	return info, nil
}

// openRegular opens a regular, nonempty file.
func openRegular(path string) (*os.File, os.FileInfo, error) {
	// Opening a named pipe would wait for a writer, so check the type of the file first.
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("weights: %s: is not a regular file", path)
	}
	var f *os.File
	if err == nil {
		f, err = os.Open(path)
	}
	if err != nil {
		return nil, nil, pathError(path, err)
	}
	info, err = f.Stat()
	switch {
	case err != nil:
		err = pathError(path, err)
	case info.Size() == 0:
		err = fmt.Errorf("weights: %s: is empty", path)
	default:
		return f, info, nil
	}
	f.Close()
	return nil, nil, err
}

// isPointer reports whether a file is a Git LFS pointer instead of its content.
func isPointer(r io.ReaderAt) bool {
	const start = "version https://git-lfs"
	b := make([]byte, len(start))
	n, _ := r.ReadAt(b, 0)
	return string(b[:n]) == start
}

// textName removes the prefix of the names in the text model of a multimodal model.
func textName(name string) string {
	if rest, ok := strings.CutPrefix(name, "language_model."); ok && rest != "" {
		return rest
	}
	if rest, ok := strings.CutPrefix(name, "model.language_model."); ok && rest != "" {
		return "model." + rest
	}
	return name
}

// pathError adds the path to an error of package os unless the error contains it.
func pathError(path string, err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return fmt.Errorf("weights: %s: %w", path, err)
}
