package testmodels

import (
	"archive/zip"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

const (
	mostTracked = 49 << 20 // bytes of all tracked files
	mostModule  = 20 << 20 // bytes of the zip file that an importer downloads
)

// TestSizes bounds the size of all tracked files and the size of the module's zip file. The
// zip file excludes the files of nested modules.
func TestSizes(t *testing.T) {
	const root = "../.."
	cmd := exec.Command("git", "ls-files", "-z")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("not a clone of the repository, so tracked files cannot be listed: %v", err)
	}
	files := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	nested := map[string]bool{}
	for _, f := range files {
		if path.Base(f) == "go.mod" && f != "go.mod" {
			nested[path.Dir(f)] = true
		}
	}
	var module bytes.Buffer
	z := zip.NewWriter(&module)
	tracked := 0
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(f)))
		if err != nil {
			t.Fatal(err)
		}
		tracked += len(b)
		if inNested(f, nested) {
			continue
		}
		w, err := z.Create(f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(w, bytes.NewReader(b)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("tracked files: %d bytes, the module's zip file: %d bytes", tracked, module.Len())
	if len(files) < 500 || !nested["testdata"] {
		t.Errorf("git lists only %d files, or a nested module is missing from %v", len(files), nested)
	}
	if tracked > mostTracked {
		t.Errorf("the tracked files have %d bytes, want at most %d", tracked, mostTracked)
	}
	if module.Len() > mostModule {
		t.Errorf("the module's zip file has %d bytes, want at most %d", module.Len(), mostModule)
	}
}

// inNested reports whether a file belongs to a nested module.
func inNested(file string, nested map[string]bool) bool {
	for dir := path.Dir(file); dir != "."; dir = path.Dir(dir) {
		if nested[dir] {
			return true
		}
	}
	return false
}
