//go:build darwin || freebsd || linux

package weights

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestTouchCut truncates a mapped file. Touch must return the memory fault as an error.
func TestTouchCut(t *testing.T) {
	path := filepath.Join(writeDir(t, map[string][]byte{"m.gguf": ggufFile(1<<20, 1)}), "m.gguf")
	m := mapped(t, open(t, path))
	if err := os.Truncate(path, 1<<20); err != nil {
		t.Fatal(err)
	}
	got, err := m.touch(t.Context(), nil, 2, nil, noLimit)
	if err == nil || got.Bytes != 0 {
		t.Fatalf("%+v, error %v", got, err)
	}
	// Both spans are truncated. Either may be the first to fail.
	first := fmt.Sprintf("weights: %s: cannot read byte %d: ", path, 1<<20)
	second := fmt.Sprintf("weights: %s: cannot read byte %d: ", path, touchStep)
	if !strings.HasPrefix(err.Error(), first) && !strings.HasPrefix(err.Error(), second) {
		t.Errorf("error %v, want %q", err, first)
	}
}

// TestPipe opens a named pipe. OpenDirectory must not wait for a writer.
func TestPipe(t *testing.T) {
	for _, name := range []string{"m.gguf", "m.safetensors"} {
		path := filepath.Join(t.TempDir(), name)
		if err := syscall.Mkfifo(path, 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenDirectory(path); err == nil || err.Error() != "weights: "+path+": is not a regular file" {
			t.Errorf("error %v", err)
		}
	}
}

// TestSymlinks opens a directory of symbolic links, as in the cache of Hugging Face's library.
func TestSymlinks(t *testing.T) {
	blobs := writeDir(t, map[string][]byte{"c0": []byte("{}"), "a1": safetensorsFile(t, f32s("x", 2, 7))})
	dir := t.TempDir()
	for blob, name := range map[string]string{"c0": "config.json", "a1": "model.safetensors"} {
		if err := os.Symlink(filepath.Join(blobs, blob), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	m := mapped(t, open(t, dir))
	if b, err := m.Tensor("x"); err != nil || string(b) != "\x07\x07\x07\x07\x07\x07\x07\x07" {
		t.Errorf("tensor %v, error %v", b, err)
	}
}
