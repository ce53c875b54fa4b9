package fleet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

func TestCheckName(t *testing.T) {
	for _, good := range []string{"a", "org/name:Q4_K_M", "Qwen3-0.6B.gguf", "my model", "模型", "a..b", "...", "a/.b", strings.Repeat("n", 256)} {
		if err := CheckName(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", ".", "..", "/", "/a", "a/", "a//b", "../a", "a/..", "a/../b", "./a", `a\b`, `..\a`, "a\x00", "a\nb", "\xff", "a\u202eb", strings.Repeat("n", 257)} {
		if err := CheckName(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		} else if len(err.Error()) > 600 || strings.ContainsAny(err.Error(), "\x00\n") {
			t.Errorf("%q: the error is %q", bad, err)
		}
	}
}

func TestFileID(t *testing.T) {
	for path, want := range map[string]string{
		"models/Qwen3-0.6B-Q8_0.gguf":       "Qwen3-0.6B-Q8_0",
		"models/big-00001-of-00004.gguf":    "big",
		"models/big-00001-of-00004":         "big-00001-of-00004",
		"models/hf/":                        "hf",
		"gopher.gguf.gguf":                  "gopher.gguf",
		filepath.Join("models", "dir.safe"): "dir.safe",
	} {
		if got := FileID(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

// tree makes empty files below a new directory.
func tree(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestScan(t *testing.T) {
	dir := tree(t, "a.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf", "mmproj-a.gguf", ".hidden.gguf", ".git/config.json", "notes.txt",
		"hf/config.json", "hf/below/config.json", "org/one.gguf", "org/two/config.json", "org/three/deep/config.json", ".gguf")
	want := []string{"a=a.gguf", "b=b-00001-of-00002.gguf", "hf", "org/one=org/one.gguf", "org/two"}
	if runtime.GOOS != "windows" {
		if err := os.Symlink(filepath.Join(tree(t, "other.gguf"), "other.gguf"), filepath.Join(dir, "link.gguf")); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("nowhere", filepath.Join(dir, "dangling.gguf")); err != nil {
			t.Fatal(err)
		}
		want = append(want, "link=link.gguf")
	}
	all, err := Scan(dir)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	if got := sorted(all); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if _, err := Scan(t.TempDir()); err == nil || !strings.Contains(err.Error(), "no model") {
		t.Errorf("an empty directory: %v", err)
	}
	if _, err := Scan(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

// FuzzResolve checks that names resolve to entries only, whatever they look like.
func FuzzResolve(f *testing.F) {
	for _, name := range []string{"a", "../a", "a.gguf", "/etc/passwd", `..\..\a`, "a\x00", "%2e%2e/a"} {
		f.Add(name)
	}
	load := func(context.Context, Entry) (*car, error) { return nil, errors.New("not loaded") }
	fleet, err := New(Options[*car]{Load: load}, []Entry{FileEntry("models/a.gguf")})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, name string) {
		e, err := fleet.Resolve(name)
		if known := name == "a" || name == "a.gguf"; known != (err == nil) || known != (e.Path == "models/a.gguf") {
			t.Errorf("%q: %+v, %v", name, e, err)
		}
		if err != nil && (len(err.Error()) > 600 || strings.ContainsAny(err.Error(), "\n\r\x00")) {
			t.Errorf("%q: the error is %q", name, err)
		}
		if CheckName(name) == nil && strings.HasPrefix(filepath.Clean(name), "..") && !strings.HasPrefix(name, "..") {
			t.Errorf("%q leaves its directory", name)
		}
	})
}
