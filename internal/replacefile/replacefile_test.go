package replacefile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// TestWrite replaces a file, then fails to replace it, and checks that no other file is left.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path, fault := filepath.Join(dir, "a"), errors.New("fault")
	text := func(s string, err error) func(io.Writer) error {
		return func(w io.Writer) error { io.WriteString(w, s); return err }
	}
	for _, c := range []struct {
		write func(io.Writer) error
		err   error
		want  string
	}{{text("one", nil), nil, "one"}, {text("half", fault), fault, "one"}, {text("two", nil), nil, "two"}} {
		if err := Write(path, 0o600, c.write); err != c.err {
			t.Errorf("%v, want %v", err, c.err)
		}
		b, err := os.ReadFile(path)
		if err != nil || string(b) != c.want {
			t.Errorf("%q, %v, want %q", b, err, c.want)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 1 {
			t.Errorf("files %v", left)
		}
	}
	if err := Write(filepath.Join(dir, "none", "a"), 0o600, text("", nil)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Write to a missing folder: %v", err)
	}
}
