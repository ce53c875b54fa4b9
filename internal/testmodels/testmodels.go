// Package testmodels gives tests the small models whose weights are not stored in the
// repository.
//
// Package tinymodels generates such a model from its description in testdata. This package
// stores the result in the user's cache directory, in a folder whose name contains a hash of
// the description. A model is therefore generated once and then shared by all test processes.
package testmodels

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/tinymodels"
)

// Path returns the path of a file or folder whose name is a path below testdata, such as
// "../testdata/tiny/llama" or "../testdata/tiny/llama/model.gguf". For models below
// testdata/tiny and testdata/variants and for gopher-q4_0.gguf, it returns a path in the cache
// and generates the model if necessary. It returns every other name unchanged.
func Path(tb testing.TB, name string) string {
	tb.Helper()
	found, err := Find(name)
	if err != nil {
		tb.Fatal(err)
	}
	return found
}

// Find is [Path] for callers other than tests. It returns an error instead of failing a test.
func Find(name string) (string, error) {
	testdata, model, file := split(name)
	if model == "" {
		return name, nil
	}
	key, err := hash(testdata, model)
	if err != nil {
		return "", err
	}
	folder := filepath.Join(cacheDir(), "pianola-testmodels", key[:16])
	dir := filepath.Join(folder, path.Base(strings.TrimSuffix(model, path.Ext(model))))
	if err := verify(dir); errors.Is(err, fs.ErrNotExist) {
		if err := generate(testdata, model, dir); err != nil {
			return "", err
		}
	} else if err != nil {
		return "", err
	}
	return filepath.Join(dir, filepath.FromSlash(file)), nil
}

// split splits a path into the folder testdata, the model, and the file within the model. The
// model is "" if the path does not name a generated model.
func split(name string) (testdata, model, file string) {
	parts := strings.Split(filepath.ToSlash(filepath.Clean(name)), "/")
	at := slices.Index(parts, "testdata")
	if at < 0 || len(parts) < at+3 {
		return "", "", ""
	}
	testdata = filepath.FromSlash(path.Join(parts[:at+1]...))
	if filepath.IsAbs(name) && !filepath.IsAbs(testdata) {
		testdata = string(filepath.Separator) + testdata
	}
	model, file = path.Join(parts[at+1:at+3]...), path.Join(parts[at+3:]...)
	switch {
	case model == tinymodels.GopherQ4:
		return testdata, model, path.Base(model)
	case parts[at+1] == "tiny" || parts[at+1] == "variants":
		return testdata, model, file
	}
	return "", "", ""
}

// hash returns a hash of the files that determine a model.
func hash(testdata, model string) (string, error) {
	files, err := tinymodels.Sources(testdata, model)
	if err != nil {
		return "", fmt.Errorf("testmodels: %w", err)
	}
	h := sha256.New()
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return "", fmt.Errorf("testmodels: %w", err)
		}
		fmt.Fprintf(h, "%s %d\n", filepath.Base(f), len(b))
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// cacheDir returns the user's cache directory. If that directory cannot be written, it returns
// the directory for temporary files.
func cacheDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return os.TempDir()
	}
	probe := filepath.Join(dir, "pianola-testmodels")
	if err := os.MkdirAll(probe, 0o755); err != nil {
		return os.TempDir()
	}
	return dir
}

// sumsFile lists the checksums of a folder's files in the format of sha256sum.
const sumsFile = "SHA256SUMS"

// generate generates a model in a temporary folder and then renames that to the parent of dir.
// Processes that generate the same model at the same time therefore never see an incomplete
// one.
func generate(testdata, model, dir string) (err error) {
	folder := filepath.Dir(dir)
	cache := filepath.Dir(folder)
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return fmt.Errorf("testmodels: %w", err)
	}
	whole, err := os.MkdirTemp(cache, "new-*")
	if err != nil {
		return fmt.Errorf("testmodels: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(whole)) }()
	temp := filepath.Join(whole, filepath.Base(dir))
	if err := tinymodels.Write(testdata, model, temp); err != nil {
		return err
	}
	entries, err := os.ReadDir(temp)
	if err != nil {
		return fmt.Errorf("testmodels: %w", err)
	}
	var sums strings.Builder
	for _, e := range entries {
		sum, err := fileSum(filepath.Join(temp, e.Name()))
		if err != nil {
			return fmt.Errorf("testmodels: %w", err)
		}
		fmt.Fprintf(&sums, "%s  %s\n", sum, e.Name())
	}
	if err := os.WriteFile(filepath.Join(temp, sumsFile), []byte(sums.String()), 0o644); err != nil {
		return fmt.Errorf("testmodels: %w", err)
	}
	if err := os.Rename(whole, folder); err != nil && verify(dir) != nil { // another process was first
		return fmt.Errorf("testmodels: %w", err)
	}
	return nil
}

// verify compares the files of a folder in the cache with their checksums. The error is
// [fs.ErrNotExist] if the folder does not exist.
func verify(dir string) error {
	sums, err := os.ReadFile(filepath.Join(dir, sumsFile))
	if err != nil {
		return fmt.Errorf("testmodels: %w", err)
	}
	for line := range strings.Lines(string(sums)) {
		want, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		got, err := fileSum(filepath.Join(dir, name))
		if !ok || err != nil || got != want {
			return fmt.Errorf("testmodels: %s is damaged: %s does not have the SHA-256 in %s (%v); remove the folder and run the test again",
				dir, name, sumsFile, err)
		}
	}
	return nil
}

func fileSum(name string) (_ string, err error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
