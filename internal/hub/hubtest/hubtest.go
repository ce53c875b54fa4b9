// Package hubtest implements the protocol of the Hugging Face Hub for tests: commits, paged
// listings, files, ranges, and redirects of large files to a second server. It can misbehave.
package hubtest

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// A Repository is a repository at one commit.
type Repository struct {
	Commit string
	Files  map[string][]byte
	// Listed replaces what the listing says of a file.
	Listed map[string]func(*Entry)
	// Also are further entries of the listing.
	Also []Entry
}

// An Entry is a file of a listing.
type Entry struct {
	Type string `json:"type"`
	OID  string `json:"oid"`
	Size int64  `json:"size"`
	Path string `json:"path"`
	LFS  *LFS   `json:"lfs,omitempty"`
	Xet  string `json:"xetHash,omitempty"`
}

// LFS describes a file in large file storage.
type LFS struct {
	OID  string `json:"oid"`
	Size int64  `json:"size"`
}

// Behaviour is what a Server does besides the protocol.
type Behaviour struct {
	PageSize int    // entries of a page; 0 selects 1000
	Token    string // the token that every request needs, or ""
	NoRanges bool   // files are sent whole
	NoTree   bool   // listings have names only

	// Intercept may answer a request in place of the server. It then reports true.
	Intercept func(w http.ResponseWriter, r *http.Request) bool
	// Cut returns the number of bytes of an answer after which the connection breaks, or -1.
	Cut func(name string, start, n int64) int64
	// Bytes changes what is sent of a file.
	Bytes func(name string, b []byte) []byte
	// Pause is the time between blocks of 16 KiB.
	Pause time.Duration
}

// A Server is a hub with its storage server. After the first request, change its behaviour and its
// repositories with Change.
type Server struct {
	Behaviour
	Hub, Storage *httptest.Server
	Repositories map[string]*Repository // by org/name

	mu      sync.Mutex
	sent    map[string]int64
	paths   []string
	strange []string // Authorization headers that the storage server received
	open    int
	most    int
}

// Change calls f while no request reads the server's behaviour.
func (s *Server) Change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// New starts a server that is stopped at the end of the test.
func New(t testing.TB) *Server {
	s := &Server{Repositories: map[string]*Repository{}, sent: map[string]int64{}}
	s.Hub = httptest.NewServer(http.HandlerFunc(s.serveHub))
	s.Storage = httptest.NewServer(http.HandlerFunc(s.serveStorage))
	for _, h := range []*httptest.Server{s.Hub, s.Storage} {
		h.Config.ErrorLog = nil
		t.Cleanup(h.Close)
	}
	return s
}

// Add adds a repository with the files, at a commit that depends on them.
func (s *Server) Add(id string, files map[string][]byte) *Repository {
	h := sha1.New()
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(h, "%s %x\n", name, sha256.Sum256(files[name]))
	}
	r := &Repository{Commit: fmt.Sprintf("%x", h.Sum(nil)), Files: files, Listed: map[string]func(*Entry){}}
	s.Change(func() { s.Repositories[id] = r })
	return r
}

// Sent returns the number of bytes of files that were sent since the last call.
func (s *Server) Sent() (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.sent {
		n += v
	}
	clear(s.sent)
	return n
}

// Requests returns the methods and paths of all requests to both servers since the last call.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.paths
	s.paths = nil
	return p
}

// Leaked returns the Authorization headers that the storage server received.
func (s *Server) Leaked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.strange)
}

// Together returns the largest number of files that were sent at once.
func (s *Server) Together() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most
}

// large reports whether a file is in large file storage.
func large(name string) bool {
	return strings.HasSuffix(name, ".gguf") || strings.HasSuffix(name, ".safetensors") || name == "tokenizer.json"
}

// GitHash returns the hash that Git gives a file.
func GitHash(b []byte) string {
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", len(b))
	h.Write(b)
	return fmt.Sprintf("%x", h.Sum(nil))
}

// Hash returns the name of a file's blob.
func Hash(name string, b []byte) string {
	if large(name) {
		return fmt.Sprintf("%x", sha256.Sum256(b))
	}
	return GitHash(b)
}

// entries returns the listing of a repository.
func (r *Repository) entries() []Entry {
	var list []Entry
	for name, b := range r.Files {
		e := Entry{Type: "file", OID: GitHash(b), Size: int64(len(b)), Path: name}
		if large(name) {
			e.LFS = &LFS{Hash(name, b), int64(len(b))}
			e.Xet = fmt.Sprintf("%x", sha256.Sum256([]byte(name)))
		}
		if change := r.Listed[name]; change != nil {
			change(&e)
		}
		list = append(list, e)
		if dir, _, ok := strings.Cut(name, "/"); ok {
			list = append(list, Entry{Type: "directory", OID: GitHash(nil), Path: dir})
		}
	}
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	return append(list, r.Also...)
}

// siblings returns the listing with names only.
func (r *Repository) siblings() []map[string]string {
	list := []map[string]string{}
	for _, e := range r.entries() {
		if e.Type == "file" {
			list = append(list, map[string]string{"rfilename": e.Path})
		}
	}
	return list
}

func refuse(w http.ResponseWriter, code int, reason string) {
	w.Header().Set("X-Error-Code", reason)
	w.Header().Set("X-Error-Message", reason+" of the test server")
	w.WriteHeader(code)
}

// begin records a request and returns the behaviour for it.
func (s *Server) begin(r *http.Request) Behaviour {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paths = append(s.paths, r.Method+" "+r.URL.Path)
	return s.Behaviour
}

// repository returns a repository, or nil.
func (s *Server) repository(id string) *Repository {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Repositories[id]
}

func (s *Server) serveHub(w http.ResponseWriter, r *http.Request) {
	do := s.begin(r)
	if do.Intercept != nil && do.Intercept(w, r) {
		return
	}
	if do.Token != "" && r.Header.Get("Authorization") != "Bearer "+do.Token {
		refuse(w, http.StatusUnauthorized, "GatedRepo")
		return
	}
	path := strings.Split(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	if api := len(path) >= 6 && path[0] == "api" && path[1] == "models"; api {
		s.serveAPI(w, r, do, path[2]+"/"+path[3], path[4], path[5])
		return
	}
	if len(path) < 5 || path[2] != "resolve" || s.repository(path[0]+"/"+path[1]) == nil {
		refuse(w, http.StatusNotFound, "RepoNotFound")
		return
	}
	id, name := path[0]+"/"+path[1], strings.Join(path[4:], "/")
	name, _ = url.PathUnescape(name)
	repo := s.repository(id)
	b, ok := repo.Files[name]
	switch {
	case !ok || path[3] != repo.Commit && path[3] != "main":
		refuse(w, http.StatusNotFound, "EntryNotFound")
	case large(name):
		w.Header().Set("X-Linked-Etag", strconv.Quote(Hash(name, b)))
		w.Header().Set("X-Linked-Size", strconv.Itoa(len(b)))
		http.Redirect(w, r, s.Storage.URL+"/"+id+"/"+url.PathEscape(name)+"?Signature=secret", http.StatusFound)
	default:
		w.Header().Set("Etag", strconv.Quote(Hash(name, b)))
		s.send(w, r, do, name, b)
	}
}

func (s *Server) serveAPI(w http.ResponseWriter, r *http.Request, do Behaviour, id, what, revision string) {
	repo := s.repository(id)
	switch {
	case repo == nil:
		refuse(w, http.StatusNotFound, "RepoNotFound")
	case revision != "main" && revision != "refs%2Fpr%2F1" && revision != repo.Commit:
		refuse(w, http.StatusNotFound, "RevisionNotFound")
	case what == "revision":
		json.NewEncoder(w).Encode(map[string]any{"id": id, "sha": repo.Commit, "private": false, "siblings": repo.siblings()})
	case what == "tree" && !do.NoTree:
		list, size := repo.entries(), do.PageSize
		if size == 0 {
			size = 1000
		}
		at, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
		if end := at + size; end < len(list) {
			// A mirror's links lead to the hub that it mirrors.
			w.Header().Set("Link", fmt.Sprintf(`<https://hub.invalid%s?recursive=true&cursor=%d>; rel="next"`, r.URL.Path, end))
			list = list[:end]
		}
		json.NewEncoder(w).Encode(list[at:])
	default:
		refuse(w, http.StatusNotFound, "")
	}
}

func (s *Server) serveStorage(w http.ResponseWriter, r *http.Request) {
	do := s.begin(r)
	if a := r.Header.Get("Authorization"); a != "" {
		s.mu.Lock()
		s.strange = append(s.strange, a)
		s.mu.Unlock()
	}
	if to := r.URL.Query().Get("to"); to != "" {
		http.Redirect(w, r, to, http.StatusFound)
		return
	}
	path := strings.SplitN(strings.TrimPrefix(r.URL.Path, "/"), "/", 3)
	if len(path) < 3 || s.repository(path[0]+"/"+path[1]) == nil || r.URL.Query().Get("Signature") != "secret" {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	s.send(w, r, do, path[2], s.repository(path[0] + "/" + path[1]).Files[path[2]])
}

// send sends a file or a range of it.
func (s *Server) send(w http.ResponseWriter, r *http.Request, do Behaviour, name string, b []byte) {
	s.mu.Lock()
	s.open++
	s.most = max(s.most, s.open)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.open--
		s.mu.Unlock()
	}()
	if do.Bytes != nil {
		b = do.Bytes(name, b)
	}
	first, last := int64(0), int64(len(b))-1
	code := http.StatusOK
	if h := r.Header.Get("Range"); h != "" && !do.NoRanges {
		if _, err := fmt.Sscanf(h, "bytes=%d-%d", &first, &last); err != nil || first > int64(len(b))-1 {
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return
		}
		last = min(last, int64(len(b))-1)
		code = http.StatusPartialContent
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, len(b)))
	}
	n := last + 1 - first
	w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	w.WriteHeader(code)
	if r.Method == http.MethodHead {
		return
	}
	cut := int64(-1)
	if do.Cut != nil {
		cut = do.Cut(name, first, n)
	}
	rest := b[first : last+1]
	if cut >= 0 && cut < n {
		rest = rest[:cut]
	}
	for len(rest) > 0 {
		k := min(len(rest), 16<<10)
		s.mu.Lock() // before the client can see the bytes
		s.sent[name] += int64(k)
		s.mu.Unlock()
		if _, err := w.Write(rest[:k]); err != nil {
			return
		}
		if rest = rest[k:]; do.Pause > 0 {
			w.(http.Flusher).Flush()
			time.Sleep(do.Pause)
		}
	}
	if cut >= 0 && cut < n {
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler) // closes the connection
	}
}
