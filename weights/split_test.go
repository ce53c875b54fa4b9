package weights

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/gguf"
)

// partFile returns a part of a split model that contains a tensor for each name.
func partFile(t testing.TB, meta map[string]any, tensors ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gguf.NewWriter(&b)
	var errs []error
	for _, k := range slices.Sorted(maps.Keys(meta)) {
		errs = append(errs, w.Set(k, meta[k]))
	}
	for _, n := range tensors {
		errs = append(errs, w.AddTensor(n, []uint64{8}, dtype.F32))
	}
	for _, n := range tensors {
		errs = append(errs, w.WriteTensor(n, func(w io.Writer) error {
			_, err := w.Write(bytes.Repeat([]byte(n[:1]), 32))
			return err
		}))
	}
	if err := errors.Join(append(errs, w.Close())...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// split returns the metadata of a part: its number, the number of parts, and the number of
// tensors.
func split(no, count, tensors int) map[string]any {
	return map[string]any{splitNo: uint16(no), splitCount: uint16(count), splitTensors: int32(tensors)}
}

func part(i, count int) string { return fmt.Sprintf("m-%05d-of-%05d.gguf", i, count) }

func TestSplit(t *testing.T) {
	first := split(0, 3, 4)
	first["general.architecture"], first["k"] = "llama", "v"
	files := map[string][]byte{
		part(1, 3): partFile(t, first), // metadata only, like --no-tensor-first-split
		part(2, 3): partFile(t, split(1, 3, 4), "a", "b"),
		part(3, 3): partFile(t, split(2, 3, 4), "c", "d"),
	}
	dir := writeDir(t, files)
	for i := range 3 {
		d := open(t, filepath.Join(dir, part(i+1, 3)))
		if v, _ := d.Meta("k"); v != "v" || len(d.Files()) != 3 || len(d.Tensors()) != 4 {
			t.Errorf("opened by part %d: %v, %d files, %d tensors", i+1, v, len(d.Files()), len(d.Tensors()))
		}
		m, err := d.Map()
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []string{"a", "b", "c", "d"} {
			if b, err := m.Tensor(n); err != nil || !bytes.Equal(b, bytes.Repeat([]byte(n), 32)) {
				t.Errorf("tensor %s is %q, %v", n, b, err)
			}
		}
		m.Close()
	}
	for _, c := range []struct {
		name   string
		change func(files map[string][]byte)
		want   string
	}{
		{"missing", func(f map[string][]byte) { delete(f, part(2, 3)) }, "m-00002-of-00003.gguf is missing"},
		{"duplicate", func(f map[string][]byte) { f[part(3, 3)] = f[part(2, 3)] }, "m-00003-of-00003.gguf: is not part 3 of 3: key split.no is 1, want 2"},
		{"of another count", func(f map[string][]byte) { f[part(3, 3)] = partFile(t, split(2, 4, 4), "c", "d") }, "is not one of the 3 parts: key split.count is 4"},
		{"not split", func(f map[string][]byte) { f[part(3, 3)] = partFile(t, nil, "c", "d") }, "is not one of the 3 parts: key split.count is missing"},
		{"of another model", func(f map[string][]byte) { f[part(3, 3)] = partFile(t, split(2, 3, 7), "c", "d") }, "the parts belong to different models"},
		{"of another architecture", func(f map[string][]byte) {
			m := split(2, 3, 4)
			m["general.architecture"] = "qwen2"
			f[part(3, 3)] = partFile(t, m, "c", "d")
		}, "has architecture qwen2, but the first part has llama"},
		{"with fewer tensors", func(f map[string][]byte) { f[part(3, 3)] = partFile(t, split(2, 3, 4), "c") }, "have 3 tensors, but key split.tensors.count is 4"},
		{"with the same tensors", func(f map[string][]byte) { f[part(3, 3)] = partFile(t, split(2, 3, 4), "a", "d") }, "two tensors are named a"},
		{"cut", func(f map[string][]byte) { f[part(2, 3)] = f[part(2, 3)][:40] }, "m-00002-of-00003.gguf: gguf: "},
		{"counts", func(f map[string][]byte) { f[part(1, 3)] = partFile(t, map[string]any{splitCount: "many"}, "x") }, "key split.count is many, want a number of parts"},
		{"negative", func(f map[string][]byte) { f[part(1, 3)] = partFile(t, map[string]any{splitCount: int32(-3)}, "x") }, "key split.count is -3, want a number of parts"},
		{"by its name", func(f map[string][]byte) { f[part(1, 3)] = partFile(t, split(0, 5, 4), "x") }, "the file name has 3 parts, but key split.count is 5"},
	} {
		changed := maps.Clone(files)
		c.change(changed)
		_, err := OpenDirectory(filepath.Join(writeDir(t, changed), part(1, 3)))
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if c.name == "missing" && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v is not fs.ErrNotExist", err)
		}
	}
	path := filepath.Join(writeDir(t, map[string][]byte{"odd.gguf": files[part(1, 3)]}), "odd.gguf")
	if _, err := OpenDirectory(path); err == nil || !strings.Contains(err.Error(), "want a file name like NAME-00001-of-00003.gguf") {
		t.Errorf("another name: %v", err)
	}
}

// FuzzSplit opens a first part with arbitrary bytes. It must not panic, and must not look for
// more files than the name's number of parts.
func FuzzSplit(f *testing.F) {
	f.Add(partFile(f, split(0, 2, 1), "a"))
	f.Add(partFile(f, split(9, 2, -1), "a"))
	f.Add(partFile(f, map[string]any{splitCount: uint64(1 << 63)}, "a"))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		path := filepath.Join(dir, part(1, 2))
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		if d, err := OpenDirectory(path); err == nil && len(d.Files()) > 1 {
			t.Errorf("opening one part gives %d files", len(d.Files()))
		}
	})
}
