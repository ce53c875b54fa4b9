package fleet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Entry is a model that can be loaded.
type Entry struct {
	ID      string
	Aliases []string // other names
	Path    string   // for the functions of Options only
	Pinned  bool     // once loaded, the model stays
}

// Bounds of a catalog.
const (
	maxName    = 256 // bytes
	maxEntries = 10_000
)

// CheckName returns an error if a name cannot be the ID of a model. It has at most 256 bytes of
// printable UTF-8, and between its slashes neither nothing nor a dot or two.
func CheckName(name string) error {
	bad := func(why string) error { return fmt.Errorf("fleet: the model name %s %s", quote(name), why) }
	switch {
	case name == "":
		return errors.New("fleet: a model needs a name")
	case len(name) > maxName:
		return bad(fmt.Sprintf("has more than %d bytes", maxName))
	case !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return bad("has characters that cannot be printed")
	case strings.ContainsRune(name, '\\'):
		return bad("has a backslash")
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." {
			return bad("has an empty part, or one of dots only")
		}
	}
	return nil
}

// quote returns the beginning of a name, for errors and logs.
func quote(name string) string {
	if len(name) > 80 {
		name = name[:80] + "..."
	}
	return fmt.Sprintf("%q", name)
}

// shard is the end of the name of one file of several that hold a GGUF model.
var shard = regexp.MustCompile(`-(\d{5})-of-\d{5}$`)

// FileID returns the ID of a model in a file or directory: its base name without .gguf and without the
// number of a shard.
func FileID(path string) string {
	base := filepath.Base(path)
	if name := strings.TrimSuffix(base, ".gguf"); name != base {
		return shard.ReplaceAllString(name, "")
	}
	return base
}

// FileEntry returns the entry of a model in a file or directory. A GGUF file has its full base name as
// an alias.
func FileEntry(path string) Entry {
	e := Entry{ID: FileID(path), Path: path}
	if base := filepath.Base(path); base != e.ID {
		e.Aliases = []string{base}
	}
	return e
}

// Scan returns the models of a directory: its GGUF files, its subdirectories with a config.json, and
// those of their subdirectories, with IDs such as org/name. It follows links and passes over names
// that begin with a dot.
func Scan(dir string) ([]Entry, error) {
	all, err := scan(dir, "")
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("fleet: %s has no model: no .gguf file, and no directory with a config.json", dir)
	}
	return all, err
}

// scan returns the models of a directory whose IDs begin with a prefix.
func scan(dir, prefix string) ([]Entry, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	var all []Entry
	for _, file := range files {
		name := file.Name()
		path := filepath.Join(dir, name)
		st, err := os.Stat(path)
		if err != nil || strings.HasPrefix(name, ".") {
			continue
		}
		switch {
		case st.Mode().IsRegular() && isModel(name) || st.IsDir() && hasConfig(path):
			e := FileEntry(path)
			e.ID = prefix + e.ID
			for i := range e.Aliases {
				e.Aliases[i] = prefix + e.Aliases[i]
			}
			all = append(all, e)
		case st.IsDir() && prefix == "":
			below, err := scan(path, name+"/")
			if err != nil {
				return nil, err
			}
			all = append(all, below...)
		}
		if len(all) > maxEntries {
			return nil, fmt.Errorf("fleet: %s has more than %d models", dir, maxEntries)
		}
	}
	return all, nil
}

// isModel reports whether a file is a model, or the first shard of one. Projectors of images have
// names that begin with mmproj.
func isModel(name string) bool {
	stem, ok := strings.CutSuffix(name, ".gguf")
	if !ok || stem == "" || strings.HasPrefix(name, "mmproj") {
		return false
	}
	part := shard.FindStringSubmatch(stem)
	return part == nil || part[1] == "00001"
}

// hasConfig reports whether a directory holds a model in Hugging Face's form.
func hasConfig(dir string) bool {
	st, err := os.Stat(filepath.Join(dir, "config.json"))
	return err == nil && st.Mode().IsRegular()
}

// table returns the members by their names.
func table[M Model](entries []Entry) (map[string]*member[M], []*member[M], error) {
	if len(entries) > maxEntries {
		return nil, nil, fmt.Errorf("fleet: %d models, at most %d", len(entries), maxEntries)
	}
	byName := map[string]*member[M]{}
	var all []*member[M]
	for _, e := range entries {
		one := &member[M]{entry: e}
		for _, name := range append([]string{e.ID}, e.Aliases...) {
			if err := CheckName(name); err != nil {
				return nil, nil, err
			}
			if other := byName[name]; other != nil && other != one {
				return nil, nil, fmt.Errorf("fleet: %s and %s have the same name %s", e.Path, other.entry.Path, quote(name))
			}
			byName[name] = one
		}
		all = append(all, one)
	}
	return byName, all, nil
}
