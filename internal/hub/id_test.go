package hub

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/hub/hubtest"
)

func TestParseID(t *testing.T) {
	for s, want := range map[string]ID{
		"org/name":                       {"org", "name", "", "main"},
		"org/name:Q4_K_M":                {"org", "name", "Q4_K_M", "main"},
		"org/name@v1.0":                  {"org", "name", "", "v1.0"},
		"a-1/b_2.c:UD-Q4_K_XL@refs/pr/1": {"a-1", "b_2.c", "UD-Q4_K_XL", "refs/pr/1"},
		"o/n:dir/m-Q8_0.gguf":            {"o", "n", "dir/m-Q8_0.gguf", "main"},
		"o/Qwen2.5-0.5B-Instruct-GGUF":   {"o", "Qwen2.5-0.5B-Instruct-GGUF", "", "main"},
	} {
		if id, err := ParseID(s); err != nil || id != want {
			t.Errorf("%s: %+v, %v", s, id, err)
		}
	}
	for _, s := range []string{
		"", "name", "/name", "org/", "org/name/more", "../name", "org/..", "org/.", ".org/name", "org/name:", "org/name@", "org/name@../x", "org/name@/x", "org/name:../x",
		"org/name:a b", "org--x/name", "org/a..b", "org/name.git", "org/model.gguf", "testdata/model.safetensors", "/abs/path", "C:/x", `C:\x`, "org/na me", "org/näme",
		"org/name@a//b", "org/name@" + strings.Repeat("a", 200), strings.Repeat("a", 60) + "/" + strings.Repeat("b", 60), "org/name:/etc/passwd", "./model", "org/name@a:b", "org/name-",
	} {
		if id, err := ParseID(s); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %+v, %v", s, id, err)
		}
	}
}

func FuzzID(f *testing.F) {
	for _, s := range []string{"org/name:Q4_K_M@main", "a/b", "../../x:y@z", "o/n:d/f.gguf@refs/pr/1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseID(s)
		if err != nil {
			return
		}
		if again, err := ParseID(id.String()); err != nil || again != id {
			t.Errorf("%q is %+v, and its string %q is %+v, %v", s, id, id.String(), again, err)
		}
		for _, name := range []string{id.folder(), filepath.Join("refs", filepath.FromSlash(id.Revision))} {
			if !filepath.IsLocal(name) || strings.Count(id.folder(), "--") != 2 || strings.ContainsAny(id.folder(), `/\`) {
				t.Errorf("%q is in %q", s, name)
			}
		}
	})
}

// hostileNames are names that must not become files.
var hostileNames = []string{
	"../x.gguf", "/etc/x.gguf", "a/../../x.gguf", "a//x.gguf", "./x.gguf", "", ".", "..", "a/", "x\x00.gguf", "\x1b[2J.gguf", "a\nb.gguf",
	strings.Repeat("a/", 600) + "x.gguf",
}

// TestNames gives the client listings with hostile names. No file appears outside of the cache.
func TestNames(t *testing.T) {
	for _, name := range append(hostileNames, `..\x.gguf`, "C:x.gguf", strings.Repeat("a", 300)+".gguf") {
		s := hubtest.New(t)
		r := s.Add("org/m", map[string][]byte{})
		b := noise(1, 10)
		lfs := &hubtest.LFS{OID: hubtest.Hash("x.gguf", b), Size: 10}
		r.Also = []hubtest.Entry{{Type: "file", OID: hubtest.GitHash(b), Size: 10, Path: name, LFS: lfs}}
		c := client(t, s)
		_, err := c.Pull(t.Context(), mustParse(t, "org/m"))
		if err == nil || strings.ContainsAny(err.Error(), "\n\x1b\x00") {
			t.Errorf("%.40q: %v", name, err)
		}
		filepath.WalkDir(filepath.Dir(c.Cache), func(path string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				t.Errorf("%.40q left %s", name, path)
			}
			return err
		})
	}
}

// TestListings gives the client listings that are malformed, endless or contradictory.
func TestListings(t *testing.T) {
	commit := strings.Repeat("0123", 10)
	entry := `{"type":"file","path":"m-Q8_0.gguf","size":1,"oid":"` + commit + `"}`
	for tree, want := range map[string]string{
		"[" + entry + "," + entry + "]":                                   "twice",
		strings.Replace("["+entry+"]", ":1,", ":-1,", 1):                  "has the size -1",
		strings.Replace("["+entry+"]", ":1,", ":1000000000000000000,", 1): "has the size",
		strings.Replace("["+entry+"]", ":1,", ":1e30,", 1):                "not the expected JSON",
		strings.Replace("["+entry+"]", commit, "../../x", 1):              "no valid hash",
		strings.Replace("["+entry+"]", commit, "", 1):                     "no valid hash",
		`[{"type":"file","path":"m.gguf","lfs":{"oid":"../"}}]`:           "no valid hash",
		`{"error":"x"}`:            "not the expected JSON",
		strings.Repeat("[", 20000): "not the expected JSON",
		"[]":                       "neither a GGUF file nor",
	} {
		s := hubtest.New(t)
		s.Intercept = func(w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/revision/") {
				json.NewEncoder(w).Encode(map[string]string{"sha": commit})
			} else {
				io.WriteString(w, tree)
			}
			return true
		}
		c := client(t, s)
		if _, err := c.Pull(t.Context(), mustParse(t, "org/m")); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.60s: %v, want %q", tree, err, want)
		}
	}
	for _, query := range []string{"recursive=true", "cursor=x"} { // the page is followed by itself, or by an endless row
		s := hubtest.New(t)
		pages := 0
		s.Intercept = func(w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/revision/") {
				return false
			}
			w.Header().Set("Link", `<`+r.URL.Path+`?`+query+strings.Repeat("y", pages)+`>; rel="next"`)
			if query != "recursive=true" {
				pages++
			}
			io.WriteString(w, "[]")
			return true
		}
		s.Add("org/m", nil)
		if _, err := client(t, s).Pull(t.Context(), mustParse(t, "org/m")); err == nil || !strings.Contains(err.Error(), "page") {
			t.Errorf("%s: %v", query, err)
		}
	}
}

func FuzzListing(f *testing.F) {
	f.Add(`[{"type":"file","path":"m-Q8_0.gguf","size":1,"oid":"0123012301230123012301230123012301230123"}]`, "Q8_0")
	f.Add(`[{"type":"file","path":"config.json","lfs":{"oid":"x","size":-1}},{"type":"directory","path":".."}]`, "")
	f.Add(`[{"type":"file","path":"a-00001-of-09999.gguf","size":1,"oid":"0123012301230123012301230123012301230123"}]`, "gguf")
	f.Fuzz(func(t *testing.T, text, quant string) {
		var page []treeEntry
		if json.Unmarshal([]byte(text), &page) != nil {
			return
		}
		files, err := appendPage(nil, page, map[string]bool{})
		if err != nil {
			return
		}
		c, err := choose(files, quant)
		if err != nil {
			return
		}
		for _, f := range c.files {
			if !filepath.IsLocal(filepath.FromSlash(f.Name)) || f.Size < 0 || !gitHash.MatchString(f.Hash) && !sha256Hash.MatchString(f.Hash) {
				t.Errorf("%+v is chosen", f)
			}
		}
		if len(c.files) == 0 {
			t.Error("no file is chosen")
		}
	})
}

func FuzzName(f *testing.F) {
	for _, name := range append(hostileNames, "\xff.gguf", "m.gguf", "a/b.gguf", `a\b`, "CON", "a:b") {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if checkName(name) != nil {
			return
		}
		if !filepath.IsLocal(filepath.FromSlash(name)) || strings.ContainsAny(name, "\\\x00\n:") || filepath.Join("x", linkTarget(name, "h")) == "" {
			t.Errorf("%q is accepted", name)
		}
		// The link leads from the file's directory to the blob.
		at := filepath.Join("snapshots", "c", filepath.FromSlash(name))
		if got := filepath.Join(filepath.Dir(at), filepath.FromSlash(linkTarget(name, "h"))); got != filepath.Join("blobs", "h") {
			t.Errorf("the link of %q leads to %s", name, got)
		}
	})
}

func TestLabel(t *testing.T) {
	for name, want := range map[string]string{
		"Llama-3.2-1B-Instruct-Q4_K_M": "Q4_K_M", "model.q8_0": "Q8_0", "m-UD-Q4_K_XL": "UD-Q4_K_XL", "m-IQ2_XXS": "IQ2_XXS", "m-fp16": "F16", "m-BF16": "BF16",
		"gemma-3-1b-it-qat-q4_0": "Q4_0", "gpt-oss-20b-MXFP4": "MXFP4", "gpt-oss-20b-mxfp4_moe": "MXFP4_MOE", "Q6_K/m": "Q6_K", "m-Q4_K_M-imat": "Q4_K_M", "ggml-model-f32": "F32", "m-TQ1_0": "TQ1_0",
		"Q2-model-Q8_0": "Q8_0", "plain": "plain.gguf", "dir/plain": "plain.gguf",
	} {
		if got := label(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestChoose checks which files of a listing are chosen without a quantization.
func TestChoose(t *testing.T) {
	for _, test := range []struct{ files, quant, want string }{
		{"a-Q8_0.gguf a-Q4_K_M.gguf", "", "a-Q4_K_M.gguf"},
		{"a-Q8_0.gguf a-F16.gguf", "", "a-Q8_0.gguf"},
		{"a-IQ3_M.gguf", "", "a-IQ3_M.gguf"},
		{"a.gguf", "gguf", "a.gguf"},
		{"a-IQ3_M.gguf a-IQ2_M.gguf", "", "there are several models; select one of IQ2_M, IQ3_M"},
		{"a-Q8_0.gguf b-Q8_0.gguf", "", "Q8_0 is ambiguous; name one of the files a-Q8_0.gguf, b-Q8_0.gguf"},
		{"a-Q8_0.gguf b-Q8_0.gguf", "b-Q8_0.gguf", "b-Q8_0.gguf"},
		{"a-Q4_0.gguf UD/a-UD-Q4_0.gguf", "Q4_0", "a-Q4_0.gguf"},
		{"config.json model.safetensors", "", "config.json"},
		{"config.json model.safetensors a-Q4_0.gguf", "", "a-Q4_0.gguf"},
		{"config.json a.safetensors b.safetensors", "", "neither a GGUF file nor"},
		{"a-00001-of-00002.gguf a-00002-of-00002.gguf", "", "a-00001-of-00002.gguf"},
		{"a-00003-of-00002.gguf", "", "neither a GGUF file nor"},
		{"mmproj-a-F16.gguf", "F16", "neither a GGUF file nor"},
		{"README.md", "", "neither a GGUF file nor"},
	} {
		var files []File
		for name := range strings.FieldsSeq(test.files) {
			files = append(files, File{Name: name})
		}
		got := ""
		if c, err := choose(files, test.quant); err != nil {
			got = err.Error()
		} else if got = c.open; got == "" {
			got = c.files[len(c.files)-1].Name
		}
		if !strings.HasPrefix(got, test.want) && !strings.Contains(got, test.want) {
			t.Errorf("%s with %q: %s, want %s", test.files, test.quant, got, test.want)
		}
	}
}

// TestEnvironment checks the variables that other tools read.
func TestEnvironment(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("hf_file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		t.Skip(err)
	}
	for _, test := range []struct {
		env  map[string]string
		want Client
	}{
		{map[string]string{"HF_HOME": dir}, Client{Cache: filepath.Join(dir, "hub"), Endpoint: DefaultEndpoint, Token: "hf_file"}},
		{map[string]string{"HF_HOME": dir, "HF_TOKEN": " hf_x ", "HF_HUB_CACHE": "/c", "HF_ENDPOINT": "https://m", "HF_HUB_OFFLINE": "true"}, Client{Cache: "/c", Endpoint: "https://m", Token: "hf_x", Offline: true}},
		{map[string]string{"XDG_CACHE_HOME": dir, "HF_TOKEN_PATH": filepath.Join(dir, "token"), "HF_HUB_OFFLINE": "0"}, Client{Cache: filepath.Join(dir, "huggingface", "hub"), Endpoint: DefaultEndpoint, Token: "hf_file"}},
		{map[string]string{"HF_HOME": "~/none"}, Client{Cache: filepath.Join(home, "none", "hub"), Endpoint: DefaultEndpoint}},
		{map[string]string{"HF_TOKEN": "x"}, Client{Cache: filepath.Join(home, ".cache", "huggingface", "hub"), Endpoint: DefaultEndpoint, Token: "x"}},
	} {
		c := FromEnvironment(func(name string) string { return test.env[name] })
		if c.Cache != test.want.Cache || c.Endpoint != test.want.Endpoint || c.Token != test.want.Token || c.Offline != test.want.Offline {
			t.Errorf("%v: %+v", test.env, c)
		}
	}
	for _, endpoint := range []string{"", "ftp://x", "huggingface.co", "https://a:b@c", "https://x?y=z"} {
		c := Client{Endpoint: endpoint, Cache: dir}
		if _, err := c.Pull(t.Context(), ID{"o", "n", "", "main"}); err == nil || !strings.Contains(err.Error(), "is not an address") {
			t.Errorf("endpoint %q: %v", endpoint, err)
		}
	}
}

// TestLinksOutside puts links into a cache that lead out of it. They are not followed.
func TestLinksOutside(t *testing.T) {
	s := hubtest.New(t)
	model := noise(1, 1000)
	repo := s.Add("org/m", map[string][]byte{"m-Q8_0.gguf": model})
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, model, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"snapshots/" + repo.Commit + "/m-Q8_0.gguf", "blobs/" + hubtest.Hash("m.gguf", model), "blobs/" + hubtest.Hash("m.gguf", model) + partExt, "refs/main"} {
		c := client(t, s)
		link := filepath.Join(c.Cache, "models--org--m", filepath.FromSlash(at))
		if err := os.MkdirAll(filepath.Dir(link), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(outside, link); err != nil {
			t.Skip(err)
		}
		if _, err := c.Cached(ID{"org", "m", "", repo.Commit}); err == nil {
			t.Errorf("%s: the link is followed", at)
		}
		c.Pull(t.Context(), mustParse(t, "org/m")) // may fail
		if b, err := os.ReadFile(outside); err != nil || string(b) != string(model) {
			t.Errorf("%s: the file outside was changed: %v", at, err)
		}
	}
}
