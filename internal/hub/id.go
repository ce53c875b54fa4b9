package hub

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ID names a model of the hub.
type ID struct {
	Org, Name string
	Quant     string // a quantization, a format or a file name; "" selects the default
	Revision  string // a branch, a tag or a commit
}

// DefaultRevision is the revision of an ID without one.
const DefaultRevision = "main"

const (
	maxID       = 96   // characters of org/name
	maxQuant    = 256  // characters
	maxRevision = 128  // characters
	maxName     = 1024 // bytes of a file name in a repository
	maxElement  = 255  // bytes of a part of it between slashes
)

var (
	partPattern     = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?$`)
	quantPattern    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._/-]*$`)
	revisionPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._/+-]*$`)
	gitHash         = regexp.MustCompile(`^[0-9a-f]{40}$`)
	commitHash      = regexp.MustCompile(`^[0-9a-f]{7,64}$`)
	sha256Hash      = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// fileExtensions are the ends of names that mean a local file and never a repository.
var fileExtensions = []string{".gguf", ".safetensors", ".json", ".roll", ".bin", ".txt"}

// ParseID parses org/name[:QUANT][@revision].
func ParseID(s string) (ID, error) {
	rest, revision, hasRevision := strings.Cut(s, "@")
	repository, quant, hasQuant := strings.Cut(rest, ":")
	org, name, ok := strings.Cut(repository, "/")
	id := ID{org, name, quant, revision}
	if !hasRevision {
		id.Revision = DefaultRevision
	}
	switch {
	case !ok || !validPart(org) || !validPart(name) || len(repository) > maxID:
		return ID{}, fmt.Errorf("hub: %.100q is not an id of the form org/name[:QUANT][@revision]", s)
	case hasQuant && (!quantPattern.MatchString(quant) || len(quant) > maxQuant || checkName(quant) != nil):
		return ID{}, fmt.Errorf("hub: %.100q: %.100q is not the name of a quantization or a file", s, quant)
	case !validRevision(id.Revision):
		return ID{}, fmt.Errorf("hub: %.100q: %.100q is not the name of a branch, a tag or a commit", s, revision)
	}
	return id, nil
}

// validPart reports whether s can be the organization or the name of a repository. "--" separates
// both in the cache, so neither contains it.
func validPart(s string) bool {
	if !partPattern.MatchString(s) || strings.Contains(s, "--") || strings.Contains(s, "..") || strings.HasSuffix(s, ".git") {
		return false
	}
	for _, ext := range fileExtensions {
		if strings.HasSuffix(s, ext) {
			return false
		}
	}
	return true
}

// validRevision reports whether s can be a revision. It is a file name below refs, too.
func validRevision(s string) bool {
	return len(s) <= maxRevision && revisionPattern.MatchString(s) && checkName(s) == nil
}

// Repository returns org/name.
func (id ID) Repository() string { return id.Org + "/" + id.Name }

// String returns the ID as ParseID reads it.
func (id ID) String() string {
	s := id.Repository()
	if id.Quant != "" {
		s += ":" + id.Quant
	}
	if id.Revision != DefaultRevision {
		s += "@" + id.Revision
	}
	return s
}

// folder returns the name of the repository's folder in the cache.
func (id ID) folder() string { return "models--" + id.Org + "--" + id.Name }

// path returns the repository's path in URLs.
func (id ID) path() string { return url.PathEscape(id.Org) + "/" + url.PathEscape(id.Name) }

// checkName checks the name of a file in a repository. It must be a relative path that every file
// system keeps below the directory that it is joined to.
func checkName(name string) error {
	switch {
	case len(name) > maxName:
		return fmt.Errorf("the file name %.40q... has %d bytes", name, len(name))
	case !utf8.ValidString(name), strings.ContainsFunc(name, func(r rune) bool { return r == '\\' || r == ':' || !unicode.IsPrint(r) }):
		return fmt.Errorf("the file name %.100q has characters that are not accepted", name)
	case !fs.ValidPath(name), name == ".", !filepath.IsLocal(filepath.FromSlash(name)):
		return fmt.Errorf("the file name %.100q is not a path below a directory", name)
	}
	for part := range strings.SplitSeq(name, "/") {
		if len(part) > maxElement {
			return errors.New("a part of a file name has more than 255 bytes")
		}
	}
	return nil
}

// linkTarget returns the target of the link for a file of a snapshot.
func linkTarget(name, hash string) string {
	return strings.Repeat("../", 2+strings.Count(name, "/")) + path.Join("blobs", hash)
}
