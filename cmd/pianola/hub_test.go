package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/hub/hubtest"
)

// gopherHub starts a hub with the shipped model in both forms, and selects it and an empty cache.
func gopherHub(t *testing.T) *hubtest.Server {
	t.Helper()
	model, err := os.ReadFile(gopher)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	entries, err := os.ReadDir(gopherHF)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		if files[e.Name()], err = os.ReadFile(filepath.Join(gopherHF, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	s := hubtest.New(t)
	s.Add("org/gopher", map[string][]byte{"gopher-Q8_0.gguf": model, "README.md": []byte("# Gopher")})
	s.Add("org/gopher-hf", files)
	s.Add("ggml-org/gemma-3-1b-it-GGUF", map[string][]byte{"gemma-3-1b-it-Q4_K_M.gguf": model}) // of an example
	t.Setenv("HF_HOME", t.TempDir())
	t.Setenv("HF_ENDPOINT", s.Hub.URL)
	for _, name := range []string{"HF_HUB_CACHE", "HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE"} {
		t.Setenv(name, "")
	}
	return s
}

// TestHub runs commands with ids in place of paths: from an empty cache, and after the server has
// gone.
func TestHub(t *testing.T) {
	s := gopherHub(t)
	want := succeed(t, "run", gopher, "-p", "func main() {", "-n", "12").stdout
	for range 2 {
		if got := succeed(t, "run", "org/gopher:Q8_0", "-p", "func main() {", "-n", "12").stdout; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if got := succeed(t, "run", "org/gopher-hf", "-p", "func main() {", "-n", "1").stdout; got == "" {
			t.Error("no text")
		}
		s.Hub.Close()
		s.Storage.Close()
	}
	local := strings.TrimSpace(succeed(t, "pull", "org/gopher:Q8_0@main").stdout)
	if b, err := os.ReadFile(local); err != nil || len(b) == 0 || filepath.Base(local) != "gopher-Q8_0.gguf" {
		t.Errorf("pull prints %s: %v", local, err)
	}
	dir := t.TempDir()
	for _, c := range []string{
		"info ID", "info ID --check-weights", "plan ID", "dump ID --range 0:1", "diff ID ID", "eval ID --ids 1 -n 1", "bench ID -p 4 -n 4 -r 1", "cost ID",
		"compile ID -o OUT.roll", "profile ID -n 1", "quantize ID --type Q4_0 --allow-requantize -o OUT.gguf", "convert org/gopher-hf -o OUT.f16.gguf",
		"ppl ID --file ../../testdata/gopher/heldout.txt --chunks 1 -c 16",
	} {
		succeed(t, strings.Fields(strings.NewReplacer("ID", "org/gopher:Q8_0", "OUT", filepath.Join(dir, "out")).Replace(c))...)
	}
	if out := succeed(t, "info", filepath.Join(dir, "out.f16.gguf"), "--json").stdout; !strings.Contains(out, `"gopher-hf"`) {
		t.Errorf("the converted model is not named after its repository: %s", out)
	}
	for _, c := range []struct {
		args, contains string
		status         int
	}{
		{"run org/other -p x", "the hub cannot be reached: ", statusFailed},
		{"run org/gopher:Q4_0 -p x", "the hub cannot be reached: ", statusFailed},
		{"diff org/other " + gopher, "there is no local file org/other", statusIncomplete},
		{"pull " + gopher, "is not an id of the form org/name[:QUANT][@revision]", statusFailed},
		{"pull org/gopher@x --revision y", "exclude each other", statusUsage},
		{"pull org/gopher --revision ../y", "is not the name of a branch", statusFailed},
	} {
		wantError(t, runCommand(t, strings.Fields(c.args)...), c.status, c.contains)
	}
}

// TestHubErrors checks that the commands report the errors of a hub in one line.
func TestHubErrors(t *testing.T) {
	s := gopherHub(t)
	wantError(t, runCommand(t, "run", "org/gopher:Q4_K_M", "-p", "x"), statusFailed, "hub: org/gopher:Q4_K_M: there is no Q4_K_M; available: Q8_0; there is no local file")
	wantError(t, runCommand(t, "pull", "org/none"), statusFailed, "no such repository")
	s.Change(func() { s.Token = "hf_x" })
	wantError(t, runCommand(t, "pull", "org/gopher"), statusFailed, "accepting the repository's terms")
	t.Setenv("HF_TOKEN", "hf_x")
	if path := succeed(t, "pull", "org/gopher", "--revision", "refs/pr/1").stdout; !strings.Contains(path, s.Repositories["org/gopher"].Commit) {
		t.Errorf("pull prints %s", path)
	}
}
