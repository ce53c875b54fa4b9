package hub

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

const (
	maxFiles = 100_000 // files of a repository
	maxPages = 1000    // pages of a listing
	maxSize  = 1 << 43 // bytes of a file
)

// File is a file of a repository.
type File struct {
	Name string
	Size int64
	Hash string // the SHA-256 of a file in large file storage, else the Git hash; also the blob's name
}

// treeEntry is an element of the answer of the API's tree request.
type treeEntry struct {
	Type string
	Path string
	OID  string
	Size int64
	LFS  *lfsEntry
}

type lfsEntry struct {
	OID  string
	Size int64
}

// file checks the entry and returns it as a File.
func (e *treeEntry) file() (File, error) {
	f := File{e.Path, e.Size, e.OID}
	if e.LFS != nil {
		f.Size, f.Hash = e.LFS.Size, strings.TrimPrefix(e.LFS.OID, "sha256:")
	}
	switch {
	case !sha256Hash.MatchString(f.Hash) && (e.LFS != nil || !gitHash.MatchString(f.Hash)):
		return f, fmt.Errorf("%s: the listing has no valid hash", f.Name)
	case f.Size < 0 || f.Size > maxSize:
		return f, fmt.Errorf("%s: the listing has the size %d", f.Name, f.Size)
	}
	return f, nil
}

// url returns an address below the endpoint. path is escaped already.
func (s *session) url(path string) (*url.URL, error) { return url.Parse(s.base.String() + path) }

// revision is the answer of the API's revision request.
type revision struct {
	SHA      string
	Siblings []struct{ RFilename string }
}

// list asks the server for the commit of the ID's revision and for its files.
func (s *session) list(ctx context.Context, id ID) (commit string, files []File, err error) {
	u, err := s.url("/api/models/" + id.path() + "/revision/" + url.PathEscape(id.Revision))
	if err != nil {
		return "", nil, err
	}
	var info revision
	if _, err := s.getJSON(ctx, u, &info); err != nil {
		return "", nil, err
	}
	if !commitHash.MatchString(info.SHA) {
		return "", nil, errors.New("the server's answer has no valid commit")
	}
	files, err = s.tree(ctx, id, info.SHA)
	if errors.Is(err, ErrNotFound) && len(info.Siblings) > 0 {
		files, err = info.files() // some mirrors have no tree request
	}
	return info.SHA, files, err
}

// files returns the files with their names only.
func (r *revision) files() ([]File, error) {
	page := make([]treeEntry, len(r.Siblings))
	for i, f := range r.Siblings {
		page[i] = treeEntry{Type: "file", Path: f.RFilename, OID: unknownHash}
	}
	files, err := appendPage(nil, page, map[string]bool{})
	for i := range files {
		files[i].Hash = ""
	}
	return files, err
}

// unknownHash stands for the hash of a file of which only the name is known.
var unknownHash = strings.Repeat("0", 40)

// linkedHash is the header with the hash of a file in large file storage.
const linkedHash = "X-Linked-Etag"

// describe asks the server for the size and the hash of a file of which only the name is known.
func (s *session) describe(ctx context.Context, id ID, commit string, f *File) error {
	u, err := s.fileURL(id, commit, f.Name)
	if err != nil {
		return err
	}
	return s.retry(ctx, func() (bool, error) {
		resp, err := s.do(ctx, http.MethodHead, u, "")
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		e := treeEntry{Path: f.Name, OID: entityTag(resp.Header.Get("Etag")), Size: resp.ContentLength}
		if linked := resp.Header.Get(linkedHash); linked != "" {
			e.OID = entityTag(linked)
			if e.Size, err = strconv.ParseInt(resp.Header.Get("X-Linked-Size"), 10, 64); err != nil {
				return false, errors.New("the server's answer has no valid size")
			}
		} else if err := s.check(resp); err != nil {
			return false, err
		}
		if sha256Hash.MatchString(e.OID) {
			e.LFS = &lfsEntry{e.OID, e.Size}
		}
		*f, err = e.file()
		return false, err
	})
}

// entityTag returns the value of an entity tag.
func entityTag(s string) string { return strings.Trim(strings.TrimPrefix(s, "W/"), `"`) }

// tree asks the server for the files of a commit.
func (s *session) tree(ctx context.Context, id ID, commit string) ([]File, error) {
	u, err := s.url("/api/models/" + id.path() + "/tree/" + commit + "?recursive=true")
	if err != nil {
		return nil, err
	}
	var files []File
	seen := map[string]bool{}
	for range maxPages {
		var page []treeEntry
		header, err := s.getJSON(ctx, u, &page)
		if err != nil {
			return nil, err
		}
		if files, err = appendPage(files, page, seen); err != nil {
			return nil, err
		}
		query, more := nextPage(header)
		if !more {
			return files, nil
		}
		// A mirror may name the hub itself in the link. Only its query is used.
		next := *u
		if next.RawQuery = query; next.RawQuery == u.RawQuery {
			return nil, errors.New("a page of the listing is followed by itself")
		}
		u = &next
	}
	return nil, fmt.Errorf("the listing has more than %d pages", maxPages)
}

// appendPage appends the files of a page to files. seen has the names so far.
func appendPage(files []File, page []treeEntry, seen map[string]bool) ([]File, error) {
	for _, e := range page {
		if e.Type != "file" {
			continue
		}
		if err := checkName(e.Path); err != nil {
			if !fs.ValidPath(e.Path) {
				return nil, err
			}
			continue // a legal name that some file system cannot store
		}
		f, err := e.file()
		if err != nil {
			return nil, err
		}
		if seen[f.Name] || len(files) == maxFiles {
			return nil, fmt.Errorf("the listing has %.100q twice, or more than %d files", f.Name, maxFiles)
		}
		seen[f.Name] = true
		files = append(files, f)
	}
	return files, nil
}

// nextLink matches the link to the next page in the header Link of RFC 8288.
var nextLink = regexp.MustCompile(`<([^<>]*)>[^<>,]*;\s*rel="?next"?\s*($|[,;])`)

// nextPage returns the query of the next page.
func nextPage(h http.Header) (query string, more bool) {
	m := nextLink.FindStringSubmatch(strings.Join(h.Values("Link"), ", "))
	if m == nil {
		return "", false
	}
	u, err := url.Parse(m[1])
	if err != nil || u.RawQuery == "" {
		return "", false
	}
	return u.RawQuery, true
}
