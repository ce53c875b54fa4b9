package weights

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/pianola-engine/pianola/internal/gguf"
)

// Keys by which the parts of a split GGUF model know each other.
const (
	splitNo      = "split.no"
	splitCount   = "split.count"
	splitTensors = "split.tensors.count"
)

// splitName is the name of a part: a stem, its number from 1 on, how many there are.
var splitName = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.gguf$`)

// maxParts bounds the parts of a model, whose numbers have five digits.
const maxParts = 99999

// integer returns the value of a key of any integer type.
func integer(f *gguf.File, key string) (n uint64, ok bool) {
	v, _ := f.Meta(key)
	switch v := v.(type) {
	case uint8:
		return uint64(v), true
	case uint16:
		return uint64(v), true
	case uint32:
		return uint64(v), true
	case uint64:
		return v, true
	case int8:
		return uint64(v), v >= 0
	case int16:
		return uint64(v), v >= 0
	case int32:
		return uint64(v), v >= 0
	case int64:
		return uint64(v), v >= 0
	}
	return 0, false
}

// partsOf returns the paths of all parts of a split model, of which path is one
// with metadata f, or path alone if it is not split.
func partsOf(path string, f *gguf.File) ([]string, error) {
	value, there := f.Meta(splitCount)
	if !there {
		return []string{path}, nil
	}
	count, ok := integer(f, splitCount)
	if !ok || count > maxParts {
		return nil, fmt.Errorf("weights: %s: key %s is %v, want a count of parts", path, splitCount, value)
	}
	if count <= 1 {
		return []string{path}, nil
	}
	m := splitName.FindStringSubmatch(filepath.Base(path))
	if m == nil {
		return nil, fmt.Errorf("weights: %s: is one of %d parts of a split model, which must be named NAME-00001-of-%05d.gguf and so on", path, count, count)
	}
	if n, _ := strconv.ParseUint(m[3], 10, 64); n != count {
		return nil, fmt.Errorf("weights: %s: is one of %d parts by its name, and of %d by key %s", path, n, count, splitCount)
	}
	parts := make([]string, count)
	for i := range parts {
		parts[i] = filepath.Join(filepath.Dir(path), fmt.Sprintf("%s-%05d-of-%05d.gguf", m[1], i+1, count))
	}
	return parts, nil
}

// checkPart returns why a file is not part i of count.
func checkPart(path string, f *gguf.File, i, count int) error {
	if n, ok := integer(f, splitCount); !ok || n != uint64(count) {
		return fmt.Errorf("weights: %s: is not one of the %d parts: key %s %s", path, count, splitCount, says(f, splitCount))
	}
	if n, ok := integer(f, splitNo); !ok || n != uint64(i) {
		return fmt.Errorf("weights: %s: is not part %d of the %d: key %s %s, want %d", path, i+1, count, splitNo, says(f, splitNo), i)
	}
	return nil
}

func says(f *gguf.File, key string) string {
	if v, ok := f.Meta(key); ok {
		return fmt.Sprintf("is %v", v)
	}
	return "is not there"
}

// addGGUF adds a GGUF file, with all parts where it is one of several. The first
// part has the metadata.
func (d *Directory) addGGUF(path string) error {
	var named *gguf.File
	if _, err := readHeader(path, func(r io.ReaderAt, size int64) (err error) {
		named, err = gguf.Decode(r, size)
		return err
	}); err != nil {
		return err
	}
	parts, err := partsOf(path, named)
	if err != nil {
		return err
	}
	want, known := integer(named, splitTensors)
	tensors := uint64(0)
	for i, part := range parts {
		var f *gguf.File
		n, err := d.addFile(part, func(r io.ReaderAt, size int64) (err error) {
			f, err = gguf.Decode(r, size)
			return err
		})
		if errors.Is(err, fs.ErrNotExist) && len(parts) > 1 {
			return &MissingFileError{Dir: filepath.Dir(path), Name: filepath.Base(part)}
		}
		if err != nil {
			return err
		}
		if len(parts) > 1 {
			if err := checkPart(part, f, i, len(parts)); err != nil {
				return err
			}
			if n, ok := integer(f, splitTensors); ok != known || n != want {
				return fmt.Errorf("weights: %s: key %s %s, in %s it %s: the parts are of different models", part, splitTensors, says(f, splitTensors), filepath.Base(path), says(named, splitTensors))
			}
		}
		if i == 0 {
			for _, kv := range f.Metadata {
				d.meta[kv.Key] = kv.Value
			}
		} else if a, b := d.meta["general.architecture"], metaOr(f, "general.architecture", d.meta["general.architecture"]); a != b {
			return fmt.Errorf("weights: %s: is of architecture %v, the first part of %v", part, b, a)
		}
		tensors += uint64(len(f.Tensors))
		for _, t := range f.Tensors {
			if err := d.add(Tensor{t.Name, t.Type, t.TypeName, t.Shape, n, t.Offset, t.Size, false}); err != nil {
				return err
			}
		}
	}
	if len(parts) > 1 && known && tensors != want {
		return fmt.Errorf("weights: %s: the %d parts have %d tensors, and key %s is %d", path, len(parts), tensors, splitTensors, want)
	}
	return nil
}

// metaOr returns the value of a key, or what it would be.
func metaOr(f *gguf.File, key string, or any) any {
	if v, ok := f.Meta(key); ok {
		return v
	}
	return or
}
