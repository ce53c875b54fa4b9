package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/hub/hubtest"
)

// noise returns n bytes that depend on seed.
func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	var key [32]byte
	key[0] = byte(seed)
	rand.NewChaCha8(key).Read(b)
	return b
}

// client returns a client for a server with an empty cache and short pauses.
func client(t *testing.T, s *hubtest.Server) *Client {
	t.Helper()
	return &Client{Cache: filepath.Join(t.TempDir(), "hub"), Endpoint: s.Hub.URL, Backoff: time.Millisecond, Piece: 64 << 10}
}

func mustParse(t *testing.T, s string) ID {
	t.Helper()
	id, err := ParseID(s)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// pull pulls an ID and checks that every file of the repository's snapshot has its content.
func pull(t *testing.T, c *Client, s *hubtest.Server, id string) string {
	t.Helper()
	path, err := c.Pull(t.Context(), mustParse(t, id))
	if err != nil {
		t.Fatal(err)
	}
	checkCache(t, c, s)
	return path
}

// checkCache checks that every blob has the hash of its name, that every file of a snapshot has the
// content on the server, and that every ref is the server's commit and has a snapshot.
func checkCache(t *testing.T, c *Client, s *hubtest.Server) {
	t.Helper()
	for id, repo := range s.Repositories {
		dir := filepath.Join(c.Cache, "models--"+strings.ReplaceAll(id, "/", "--"))
		blobs, _ := filepath.Glob(filepath.Join(dir, "blobs", "*"))
		for _, path := range blobs {
			if strings.HasSuffix(path, partExt) {
				continue
			}
			b, err := os.ReadFile(path)
			name := filepath.Base(path)
			if err != nil || name != hubtest.GitHash(b) && name != hubtest.Hash(".gguf", b) {
				t.Errorf("blob %s is damaged (%v)", name, err)
			}
		}
		snapshot := filepath.Join(dir, "snapshots", repo.Commit)
		for name, want := range repo.Files {
			if got, err := os.ReadFile(filepath.Join(snapshot, name)); err == nil && !bytes.Equal(got, want) {
				t.Errorf("%s of the snapshot is damaged", name)
			}
		}
		if ref, err := os.ReadFile(filepath.Join(dir, "refs", "main")); err == nil {
			if _, err := os.Stat(filepath.Join(dir, "snapshots", string(ref))); err != nil {
				t.Errorf("refs/main: %v", err)
			}
		}
	}
}

// wantError checks that an error is one line of one of the kinds.
func wantError(t *testing.T, err error, contains string, kinds ...error) {
	t.Helper()
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "hub: ") || !strings.Contains(err.Error(), contains) {
		t.Errorf("error %q, want one line with %q", fmt.Sprint(err), contains)
	}
	if strings.ContainsAny(fmt.Sprint(err), "\x1b") || strings.Contains(fmt.Sprint(err), "secret") {
		t.Errorf("error %q has control characters or a signature", fmt.Sprint(err))
	}
	for _, kind := range []error{ErrNotFound, ErrGated, ErrOffline, ErrNoSpace, ErrContent} {
		if errors.Is(err, kind) != slices.Contains(kinds, kind) {
			t.Errorf("errors.Is(%v, %v) is %v", err, kind, errors.Is(err, kind))
		}
	}
}

// hfFiles are the files of a Hugging Face directory with two shards.
func hfFiles() map[string][]byte {
	return map[string][]byte{
		"config.json": []byte(`{"model_type":"llama"}`), "tokenizer.json": noise(1, 300<<10), "tokenizer_config.json": []byte("{}"),
		"README.md": []byte("# A model"), "model-00001-of-00002.safetensors": noise(2, 200<<10), "model-00002-of-00002.safetensors": noise(3, 100<<10),
		"model.safetensors.index.json":      []byte(`{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}`),
		"additional_chat_templates/t.jinja": []byte("{{ messages }}"), "pytorch_model.bin": noise(4, 1000), "empty.json": nil,
	}
}

// TestPull pulls models of each form. A second pull and look-ups without the server transfer no
// bytes of files.
func TestPull(t *testing.T) {
	s := hubtest.New(t)
	s.PageSize = 3
	s.Token = "hf_token"
	s.Pause = 2 * time.Millisecond // so that ranges overlap on a busy machine
	one := noise(5, 700<<10)
	s.Add("org/gguf", map[string][]byte{
		"m-Q8_0.gguf": one, "m.q4_k_m.gguf": noise(6, 999), "mmproj-F16.gguf": noise(7, 10), "README.md": nil,
		"UD-IQ1_S/m-UD-IQ1_S-00001-of-00003.gguf": noise(8, 5000), "UD-IQ1_S/m-UD-IQ1_S-00002-of-00003.gguf": noise(9, 5000), "UD-IQ1_S/m-UD-IQ1_S-00003-of-00003.gguf": noise(10, 70<<10),
		"BF16/m-BF16-00001-of-00002.gguf": noise(11, 5),
	})
	s.Add("org/hf", hfFiles())
	c := client(t, s)
	c.Token = "hf_token"
	for _, test := range []struct {
		id, path string
		files    int
	}{
		{"org/gguf:Q8_0", "m-Q8_0.gguf", 1},
		{"org/gguf:q8_0@refs/pr/1", "m-Q8_0.gguf", 1},
		{"org/gguf", "m.q4_k_m.gguf", 1},
		{"org/gguf:m-Q8_0.gguf@main", "m-Q8_0.gguf", 1},
		{"org/gguf:IQ1_S", "UD-IQ1_S/m-UD-IQ1_S-00001-of-00003.gguf", 3},
		{"org/hf", "", 7},
		{"org/hf:safetensors@" + s.Repositories["org/hf"].Commit, "", 7},
	} {
		path := pull(t, c, s, test.id)
		s.Sent()
		snapshot := filepath.Join("snapshots", s.Repositories[strings.Split(strings.Split(test.id, ":")[0], "@")[0]].Commit)
		if !strings.HasSuffix(path, filepath.Join(snapshot, filepath.FromSlash(test.path))) {
			t.Errorf("%s is at %s", test.id, path)
		}
		if again := pull(t, c, s, test.id); again != path || s.Sent() != 0 {
			t.Errorf("%s is pulled again to %s", test.id, again)
		}
		s.Requests()
		if found, err := c.Resolve(t.Context(), test.id); err != nil || found != path || len(s.Requests()) != 0 {
			t.Errorf("Resolve(%s) is %s, %v", test.id, found, err)
		}
	}
	if leaked := s.Leaked(); leaked != nil {
		t.Errorf("the storage server received %q", leaked)
	}
	dir := filepath.Join(c.Cache, "models--org--hf")
	for _, name := range []string{"README.md", "pytorch_model.bin"} {
		if _, err := os.Stat(filepath.Join(dir, "snapshots", s.Repositories["org/hf"].Commit, name)); err == nil {
			t.Errorf("%s was downloaded", name)
		}
	}
	link, err := os.Readlink(filepath.Join(dir, "snapshots", s.Repositories["org/hf"].Commit, "additional_chat_templates/t.jinja"))
	if err != nil || filepath.ToSlash(link) != "../../../blobs/"+hubtest.GitHash(s.Repositories["org/hf"].Files["additional_chat_templates/t.jinja"]) {
		t.Errorf("a link to %s, %v", link, err)
	}
	if s.Together() < 2 {
		t.Errorf("at most %d ranges at once", s.Together())
	}
	for id, want := range map[string]string{
		"org/gguf:Q5_K_M":      "there is no Q5_K_M; available: BF16, Q4_K_M, Q8_0, UD-IQ1_S",
		"org/gguf:BF16":        "part 2 of 2 of BF16/m-BF16-00001-of-00002.gguf is missing",
		"org/hf:Q8_0":          "there is no Q8_0; available: safetensors",
		"org/none":             "no such repository",
		"org/hf@v7":            "no such revision",
		"org/gguf:safetensors": "there is no safetensors",
	} {
		_, err := c.Pull(t.Context(), mustParse(t, id))
		wantError(t, err, want, ErrNotFound)
	}
}

// TestNoTree pulls from a mirror whose listings have names only.
func TestNoTree(t *testing.T) {
	s := hubtest.New(t)
	s.NoTree = true
	s.Token = "hf_token"
	s.Add("org/hf", hfFiles())
	s.Add("org/gguf", map[string][]byte{"m-Q8_0.gguf": noise(1, 300<<10), "m-Q4_0.gguf": nil})
	c := client(t, s)
	c.Token = "hf_token"
	for _, id := range []string{"org/hf", "org/gguf:Q8_0"} {
		path := pull(t, c, s, id)
		s.Sent()
		if again := pull(t, c, s, id); again != path || s.Sent() != 0 {
			t.Errorf("%s is pulled again to %s", id, again)
		}
		if found, err := c.Cached(mustParse(t, id)); err != nil || found != path {
			t.Errorf("Cached(%s) is %s, %v", id, found, err)
		}
	}
	if leaked := s.Leaked(); leaked != nil {
		t.Errorf("the storage server received %q", leaked)
	}
	s.Change(func() {
		s.Intercept = func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Etag", `"../../x"`)
			return r.Method == http.MethodHead
		}
	})
	c = client(t, s)
	c.Token = "hf_token"
	_, err := c.Pull(t.Context(), mustParse(t, "org/gguf:Q8_0"))
	wantError(t, err, "no valid hash")
}

// TestUpdate moves a branch. Resolve keeps to the cached commit, Pull follows, and files that did
// not change are not downloaded again.
func TestUpdate(t *testing.T) {
	s := hubtest.New(t)
	s.Add("org/hf", hfFiles())
	c := client(t, s)
	old := pull(t, c, s, "org/hf")
	s.Sent()
	files := hfFiles()
	files["config.json"] = []byte(`{"model_type":"qwen3"}`)
	s.Add("org/hf", files)
	if path, err := c.Resolve(t.Context(), "org/hf"); err != nil || path != old {
		t.Errorf("Resolve: %s, %v", path, err)
	}
	if path := pull(t, c, s, "org/hf"); path == old || s.Sent() != int64(len(files["config.json"])) {
		t.Errorf("Pull: %s", path)
	}
}

// TestCut breaks every connection after 1/16 to 15/16 of the rest. One run goes on after each
// break, and transfers nothing twice but what was on the way.
func TestCut(t *testing.T) {
	s := hubtest.New(t)
	model := noise(1, 600<<10)
	s.Add("org/m", map[string][]byte{"m-Q8_0.gguf": model})
	for i := range int64(16) {
		for _, piece := range []int64{0, 100_000} {
			c := client(t, s)
			c.Piece = piece
			cut := func(_ string, _, n int64) int64 {
				if n > 20_000 {
					return n * i / 16
				}
				return -1
			}
			if i == 0 { // the connection breaks before the first byte, three times
				var broken atomic.Int32
				cut = func(string, int64, int64) int64 {
					if broken.Add(1) <= 3 {
						return 0
					}
					return -1
				}
			}
			s.Change(func() { s.Cut = cut })
			pull(t, c, s, "org/m")
			if sent := s.Sent(); sent != int64(len(model)) {
				t.Errorf("cut at %d/16: %d bytes were sent, want %d", i, sent, len(model))
			}
		}
	}
}

// TestResume lets the server break for good at every 1/16. The run fails, the cache stays
// whole, and the next run transfers only the rest.
func TestResume(t *testing.T) {
	s := hubtest.New(t)
	model := noise(2, 640<<10)
	s.Add("org/m", map[string][]byte{"m-Q8_0.gguf": model})
	for i := range int64(16) {
		c := client(t, s)
		c.Connections, c.Attempts, c.Stall = 1, 2, time.Minute
		end := int64(len(model)) * i / 16
		s.Change(func() { s.Cut = func(_ string, start, n int64) int64 { return max(min(n, end-start), 0) } })
		_, err := c.Pull(t.Context(), mustParse(t, "org/m"))
		wantError(t, err, "m-Q8_0.gguf: the connection")
		checkCache(t, c, s)
		if _, err := c.Cached(mustParse(t, "org/m")); !errors.Is(err, ErrOffline) {
			t.Errorf("Cached after a broken download: %v", err)
		}
		first := s.Sent()
		s.Change(func() { s.Cut = nil })
		var told []uint64
		c.Progress = func(done, total uint64) { told = append(told, done, total) }
		pull(t, c, s, "org/m")
		if second := s.Sent(); first != end || first+second != int64(len(model)) {
			t.Errorf("cut at %d: %d and %d bytes were sent, want %d in all", end, first, second, len(model))
		}
		if n := len(told); n < 2 || told[n-2] != uint64(len(model)) || told[n-1] != uint64(len(model)) {
			t.Errorf("progress ends with %v", told)
		}
	}
}

// TestBadContent lets the server send or announce wrong bytes. Nothing of it becomes visible, and
// the next run succeeds with a server that behaves.
func TestBadContent(t *testing.T) {
	model := noise(3, 300<<10)
	flip := func(at int) func(string, []byte) []byte {
		return func(_ string, b []byte) []byte { b = bytes.Clone(b); b[at] ^= 1; return b }
	}
	listed := func(change func(*hubtest.Entry)) func(s *hubtest.Server) {
		return func(s *hubtest.Server) {
			s.Repositories["org/m"].Listed["m-Q8_0.gguf"] = change
		}
	}
	for _, test := range []struct {
		name, id string
		spoil    func(s *hubtest.Server)
		contains string
	}{
		{"first byte", "org/m", func(s *hubtest.Server) { s.Bytes = flip(0) }, "the SHA-256 of the download is"},
		{"last byte", "org/m", func(s *hubtest.Server) { s.Bytes = flip(len(model) - 1) }, "the SHA-256 of the download is"},
		{"without ranges", "org/m", func(s *hubtest.Server) { s.Bytes, s.NoRanges = flip(7), true }, "the SHA-256 of the download is"},
		{"git hash", "org/m:safetensors", func(s *hubtest.Server) {
			s.Bytes = func(name string, b []byte) []byte {
				if name == "config.json" {
					return []byte(strings.ToUpper(string(b)))
				}
				return b
			}
		}, "config.json: the Git hash of the download is"},
		{"announced hash", "org/m", listed(func(e *hubtest.Entry) { e.LFS.OID = strings.Repeat("ab", 32) }), "the SHA-256 of the download is"},
		{"shorter", "org/m", func(s *hubtest.Server) { s.Bytes = func(_ string, b []byte) []byte { return b[:len(b)-1] } }, "bytes, but its listing has 307200"},
		{"longer", "org/m", func(s *hubtest.Server) {
			s.Bytes = func(_ string, b []byte) []byte { return append(bytes.Clone(b), 1) }
		}, "307201 bytes, but its listing has 307200"},
		{"longer without ranges", "org/m", func(s *hubtest.Server) {
			s.NoRanges, s.Bytes = true, func(_ string, b []byte) []byte { return append(bytes.Clone(b), 1) }
		}, "307201 bytes, but its listing has 307200"},
		{"announced shorter", "org/m", listed(func(e *hubtest.Entry) { e.LFS.Size-- }), "307200 bytes, but its listing has 307199"},
		{"announced longer", "org/m", listed(func(e *hubtest.Entry) { e.LFS.Size += 1 << 20 }), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := hubtest.New(t)
			r := s.Add("org/m", map[string][]byte{"m-Q8_0.gguf": model, "config.json": []byte(`{"a":1}`), "model.safetensors": noise(4, 100)})
			c := client(t, s)
			test.spoil(s)
			_, err := c.Pull(t.Context(), mustParse(t, test.id))
			wantError(t, err, test.contains, ErrContent)
			checkCache(t, c, s)
			if _, err := c.Cached(mustParse(t, test.id)); err == nil {
				t.Error("the model is in the cache")
			}
			s.Change(func() {
				s.Bytes, s.NoRanges = nil, false
				clear(r.Listed)
			})
			pull(t, c, s, test.id)
		})
	}
}

// TestNoRanges pulls from a server that sends whole files only, and breaks once.
func TestNoRanges(t *testing.T) {
	s := hubtest.New(t)
	s.Add("org/hf", hfFiles())
	s.NoRanges = true
	var once sync.Once
	s.Cut = func(_ string, _, n int64) int64 {
		cut := int64(-1)
		if n > 100<<10 {
			once.Do(func() { cut = n / 2 })
		}
		return cut
	}
	pull(t, client(t, s), s, "org/hf")
}

// TestStatus checks the errors for answers of the server, and the requests that are repeated.
func TestStatus(t *testing.T) {
	status := func(code int, header ...string) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(code)
			return true
		}
	}
	body := func(text string) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool { io.WriteString(w, text); return true }
	}
	for _, test := range []struct {
		name     string
		answer   func(w http.ResponseWriter, r *http.Request) bool
		token    string
		contains string
		kinds    []error
	}{
		{"401", status(401, "X-Error-Code", "RepoNotFound"), "", "requires a token in HF_TOKEN", []error{ErrGated, ErrNotFound}},
		{"401 with a token", status(401), "hf_x", "the token does not give access", []error{ErrGated}},
		{"401 gated", status(401, "X-Error-Code", "GatedRepo"), "", "requires accepting the repository's terms", []error{ErrGated}},
		{"403", status(403, "X-Error-Message", "a b"), "hf_x", "the server answers 403", []error{ErrGated}},
		{"403 gated", status(403, "X-Error-Code", "GatedRepo"), "hf_x", "requires accepting the repository's terms", []error{ErrGated}},
		{"404", status(404, "X-Error-Code", "RepoNotFound"), "", "no such repository", []error{ErrNotFound}},
		{"429", status(429), "", "the server answers 429, 2 times in a row", nil},
		{"429 with a long pause", status(429, "Retry-After", "3600"), "", "asks for a pause of 1h0m0s", nil},
		{"500", status(500), "", "the server answers 500, 2 times in a row", nil},
		{"418", status(418), "", "the server answers 418", nil},
		{"redirects", status(302, "Location", "/api/models/org/m/revision/main"), "", "more than 10 redirects", nil},
		{"redirect to a file", status(302, "Location", "file:///etc/passwd"), "", "not accepted", nil},
		{"redirect to nowhere", status(302), "", "no valid target", nil},
		{"no JSON", body("<html>sign in</html>"), "", "not the expected JSON", nil},
		{"no commit", body(`{"sha":"../../x"}`), "", "no valid commit", nil},
		{"endless", func(w http.ResponseWriter, r *http.Request) bool {
			io.WriteString(w, `{"sha":"`)
			io.Copy(w, io.LimitReader(zeros{}, maxJSON+10))
			return true
		}, "", "more than 32 MiB", nil},
		{"a token with a line break", nil, "a\nb", "invalid header field value", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := hubtest.New(t)
			s.Intercept = test.answer
			c := client(t, s)
			c.Token, c.Attempts = test.token, 2
			_, err := c.Pull(t.Context(), mustParse(t, "org/m"))
			wantError(t, err, test.contains, test.kinds...)
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}

// TestRetryAfter lets the server refuse requests for a second. The client waits as long as asked.
func TestRetryAfter(t *testing.T) {
	s := hubtest.New(t)
	s.Add("org/m", map[string][]byte{"m-Q8_0.gguf": noise(1, 1000)})
	for i, path := range []string{"/api/models/org/m/revision/main", "/org/m/resolve/"} {
		refused := false
		var at time.Time
		s.Intercept = func(w http.ResponseWriter, r *http.Request) bool {
			if refused || !strings.HasPrefix(r.URL.Path, path) {
				return false
			}
			refused, at = true, time.Now()
			w.Header().Set("Retry-After", []string{"1", time.Now().Add(2 * time.Second).UTC().Format(http.TimeFormat)}[i])
			w.WriteHeader([]int{429, 503}[i])
			return true
		}
		pull(t, client(t, s), s, "org/m")
		if d := time.Since(at); !refused || d < 900*time.Millisecond {
			t.Errorf("%s: repeated after %v", path, d)
		}
	}
}

// TestRedirects redirects a file to other origins and back. The token goes to none of them, and not
// back either.
func TestRedirects(t *testing.T) {
	s := hubtest.New(t)
	s.Add("org/m", map[string][]byte{"config.json": []byte("{}"), "model.safetensors": noise(2, 10)})
	c := client(t, s)
	c.Token = "hf_secret"
	home := mustURL(t, s.Hub.URL).Host
	for _, u := range []string{s.Storage.URL, strings.Replace(s.Hub.URL, "127.0.0.1", "localhost", 1)} {
		c.Cache = t.TempDir()
		back := 0
		s.Intercept = func(w http.ResponseWriter, r *http.Request) bool {
			returned := r.URL.Query().Get("back") != ""
			if token := r.Header.Get("Authorization"); (token != "") != (r.Host == home && !returned) {
				t.Errorf("a request to %s%s has the token %q", r.Host, r.URL, token)
			}
			switch {
			case returned:
				back++
			case r.URL.Query().Get("to") != "":
				http.Redirect(w, r, r.URL.Query().Get("to"), http.StatusTemporaryRedirect)
				return true
			case strings.HasSuffix(r.URL.Path, "/config.json"):
				http.Redirect(w, r, u+"/x?to="+url.QueryEscape(s.Hub.URL+r.URL.Path+"?back=1"), http.StatusFound)
				return true
			}
			return false
		}
		pull(t, c, s, "org/m")
		if back != 1 || s.Leaked() != nil {
			t.Errorf("%d redirects came back, and the storage server received %q", back, s.Leaked())
		}
	}
	for _, o := range []struct {
		a, b string
		same bool
	}{
		{"https://a.example", "https://cdn.a.example", false}, {"https://a", "http://a", false}, {"http://a:1", "http://a:2", false},
		{"https://A:443/x", "https://a/y", true}, {"http://a:443", "https://a:80", false}, {"http://a:80", "http://a", true},
	} {
		if same := sameOrigin(mustURL(t, o.a), mustURL(t, o.b)); same != o.same {
			t.Errorf("%s and %s: %v", o.a, o.b, same)
		}
	}
	from := &http.Request{URL: mustURL(t, "https://a/b")}
	_, err := redirect(&http.Response{StatusCode: 302, Header: http.Header{"Location": {"http://a/b"}}, Request: from})
	if err == nil {
		t.Error("a redirect from https to http is followed")
	}
}

func mustURL(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// TestSlow pulls from a slow server, and from one that sends nothing for longer than a client
// waits.
func TestSlow(t *testing.T) {
	s := hubtest.New(t)
	s.Add("org/m", map[string][]byte{"m-Q8_0.gguf": noise(1, 200<<10)})
	s.Pause = 20 * time.Millisecond
	c := client(t, s)
	c.Stall = time.Minute
	pull(t, c, s, "org/m")

	silent := make(chan struct{})
	defer close(silent)
	s.Change(func() {
		s.Pause = 0
		s.Intercept = func(w http.ResponseWriter, r *http.Request) bool {
			if strings.HasPrefix(r.URL.Path, "/api") {
				return false
			}
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
			<-silent
			return true
		}
	})
	c = client(t, s)
	c.Stall, c.Attempts, c.Connections = 50*time.Millisecond, 2, 1
	_, err := c.Pull(t.Context(), mustParse(t, "org/m"))
	wantError(t, err, "the server sends nothing, 2 times in a row")

	c.Stall = time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.Pull(ctx, mustParse(t, "org/m")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cancelled: %v", err)
	}
}

// full is a disk that has room for n bytes.
type full struct {
	io.WriterAt
	n *atomic.Int64
}

func (f full) WriteAt(b []byte, at int64) (int, error) {
	if f.n.Add(-int64(len(b))) < 0 {
		return 0, &os.PathError{Op: "write", Path: "blob", Err: syscall.ENOSPC}
	}
	return f.WriterAt.WriteAt(b, at)
}

// TestFullDisk fills the disk at several places. What was written stays for the next run.
func TestFullDisk(t *testing.T) {
	s := hubtest.New(t)
	model := noise(1, 512<<10)
	s.Add("org/m", map[string][]byte{"m-Q8_0.gguf": model})
	for _, room := range []int64{0, 10, 10_000, 200_000, 500_000} {
		c := client(t, s)
		c.Connections = 1
		var n atomic.Int64
		n.Store(room)
		c.writer = func(w io.WriterAt) io.WriterAt { return full{w, &n} }
		_, err := c.Pull(t.Context(), mustParse(t, "org/m"))
		wantError(t, err, "the disk is full", ErrNoSpace)
		checkCache(t, c, s)
		s.Sent()
		c.writer = nil
		pull(t, c, s, "org/m")
		if again := s.Sent(); again > int64(len(model))-room+room/8+64<<10 {
			t.Errorf("room for %d bytes: %d bytes were sent again", room, again)
		}
	}
	c := client(t, s)
	c.free = func(string) (uint64, error) { return spareSpace + 100<<10, nil }
	_, err := c.Pull(t.Context(), mustParse(t, "org/m"))
	wantError(t, err, "17 MiB are needed in "+c.Cache+", and 16 MiB are free", ErrNoSpace)
	if s.Sent() != 0 {
		t.Error("bytes were sent although the space does not suffice")
	}
}

// TestOffline uses the cache without a network: with Offline set, and after the server has gone.
func TestOffline(t *testing.T) {
	s := hubtest.New(t)
	s.Add("org/hf", hfFiles())
	c := client(t, s)
	path := pull(t, c, s, "org/hf")
	c.Offline = true
	s.Requests()
	for _, f := range []func() (string, error){
		func() (string, error) { return c.Pull(t.Context(), mustParse(t, "org/hf")) },
		func() (string, error) { return c.Resolve(t.Context(), "org/hf") },
	} {
		if found, err := f(); err != nil || found != path {
			t.Errorf("%s, %v", found, err)
		}
	}
	_, err := c.Resolve(t.Context(), "org/other")
	wantError(t, err, "HF_HUB_OFFLINE is set; there is no local file org/other", ErrOffline)
	if r := s.Requests(); r != nil {
		t.Errorf("requests %q", r)
	}
	c.Offline = false
	s.Hub.Close()
	note := ""
	c.Note = func(text string) { note = text }
	if found, err := c.Pull(t.Context(), mustParse(t, "org/hf")); err != nil || found != path {
		t.Errorf("%s, %v", found, err)
	}
	if !strings.HasPrefix(note, "the hub cannot be reached: ") || !strings.HasSuffix(note, "; using the model in the cache") {
		t.Errorf("note %q", note)
	}
	_, err = c.Pull(t.Context(), mustParse(t, "org/other"))
	wantError(t, err, "the hub cannot be reached", ErrOffline)

	// Without one of its files, a model is not in the cache.
	c.Offline = true
	for name := range hfFiles() {
		at := filepath.Join(path, name)
		b, err := os.Readlink(at)
		if err != nil {
			continue
		}
		os.Remove(at)
		_, err = c.Pull(t.Context(), mustParse(t, "org/hf"))
		if needed := name == "config.json" || strings.HasPrefix(name, "model"); needed == (err == nil) {
			t.Errorf("without %s: %v", name, err)
		}
		os.Symlink(b, at)
	}
}
