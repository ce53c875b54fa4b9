package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestCommitted compares the committed files with the declarations, as -check does.
func TestCommitted(t *testing.T) {
	for _, out := range outputs {
		if err := write(filepath.Join("..", "..", "..", out.path), out.make, true); err != nil {
			t.Error(err)
		}
	}
}

func TestDocument(t *testing.T) {
	got, err := document([]byte("before\n" + begin + "old\n" + end + "after\n"))
	if err != nil || !strings.HasPrefix(string(got), "before\n"+begin) || !strings.HasSuffix(string(got), end+"after\n") || strings.Contains(string(got), "old") {
		t.Errorf("%v\n%s", err, got)
	}
	if want := "| Q4_0 | 2 | 32 in 18 bytes | 4.5 | 4 bits, less 8 | float16 |  | 4.5 |\n"; !strings.Contains(string(got), want) {
		t.Errorf("no %q in\n%s", want, got)
	}
	if _, err := document([]byte("nothing")); err == nil {
		t.Error("a document without the lines was taken")
	}
}
