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

// Keys that identify the parts of a split GGUF model.
const (
	splitNo      = "split.no"
	splitCount   = "split.count"
	splitTensors = "split.tensors.count"
)

// splitName matches the file name of a part. It consists of a stem, the number of the part,
// beginning at 1, and the number of parts.
var splitName = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.gguf$`)

// maxParts bounds the number of parts of a model. File names have room for five digits.
const maxParts = 99999

// integer returns the value of a key that has any integer type.
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

// partsOf returns the paths of all parts of a split model. path is the path of one part and f
// its metadata. If the model is not split, partsOf returns only path.
func partsOf(path string, f *gguf.File) ([]string, error) {
	value, there := f.Meta(splitCount)
	if !there {
		return []string{path}, nil
	}
	count, ok := integer(f, splitCount)
	if !ok || count > maxParts {
		return nil, fmt.Errorf("weights: %s: key %s is %v, want a number of parts", path, splitCount, value)
	}
	if count <= 1 {
		return []string{path}, nil
	}
	m := splitName.FindStringSubmatch(filepath.Base(path))
	if m == nil {
		return nil, fmt.Errorf("weights: %s: is a part of a model in %d parts, want a file name like NAME-00001-of-%05d.gguf", path, count, count)
	}
	if n, _ := strconv.ParseUint(m[3], 10, 64); n != count {
		return nil, fmt.Errorf("weights: %s: the file name has %d parts, but key %[4]s is %[3]d", path, n, count, splitCount)
	}
	parts := make([]string, count)
	for i := range parts {
		parts[i] = filepath.Join(filepath.Dir(path), fmt.Sprintf("%s-%05d-of-%05d.gguf", m[1], i+1, count))
	}
	return parts, nil
}

// checkPart returns an error unless the file at path is part i, beginning at 0, of count
// parts.
func checkPart(path string, f *gguf.File, i, count int) error {
	if n, ok := integer(f, splitCount); !ok || n != uint64(count) {
		return fmt.Errorf("weights: %s: is not one of the %d parts: key %s %s", path, count, splitCount, says(f, splitCount))
	}
	if n, ok := integer(f, splitNo); !ok || n != uint64(i) {
		return fmt.Errorf("weights: %s: is not part %d of %d: key %s %s, want %d", path, i+1, count, splitNo, says(f, splitNo), i)
	}
	return nil
}

func says(f *gguf.File, key string) string {
	if v, ok := f.Meta(key); ok {
		return fmt.Sprintf("is %v", v)
	}
	return "is missing"
}

// addGGUF adds a GGUF file. If the file is a part of a split model, it adds all parts and
// takes the metadata from the first one.
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
				return fmt.Errorf("weights: %s: key %s %s, but in %s it %s: the parts belong to different models", part, splitTensors, says(f, splitTensors), filepath.Base(path), says(named, splitTensors))
			}
		}
		if i == 0 {
			for _, kv := range f.Metadata {
				d.meta[kv.Key] = kv.Value
			}
		} else if a, b := d.meta["general.architecture"], metaOr(f, "general.architecture", d.meta["general.architecture"]); a != b {
			return fmt.Errorf("weights: %s: has architecture %v, but the first part has %v", part, b, a)
		}
		tensors += uint64(len(f.Tensors))
		for _, t := range f.Tensors {
			if err := d.add(Tensor{t.Name, t.Type, t.TypeName, t.Shape, n, t.Offset, t.Size, false}); err != nil {
				return err
			}
		}
	}
	if len(parts) > 1 && known && tensors != want {
		return fmt.Errorf("weights: %s: the %d parts have %d tensors, but key %s is %d", path, len(parts), tensors, splitTensors, want)
	}
	return nil
}

// metaOr returns the value of a key, or the given default.
func metaOr(f *gguf.File, key string, or any) any {
	if v, ok := f.Meta(key); ok {
		return v
	}
	return or
}
