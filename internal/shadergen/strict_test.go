package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// tools returns the compiler at the repository's root with a build folder. If the compiler is
// missing, it skips the test.
func tools(t *testing.T) *toolchain {
	t.Helper()
	if _, err := exec.LookPath(compiler); err != nil {
		t.Skip(compiler + ", which compiles the kernels, is missing")
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	// Open the files that the compiler reads, so that go test does not use a cached result after
	// they change.
	err = filepath.WalkDir(filepath.Join(root, "shaders", "shim"), func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			_, err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	v, err := version()
	if err != nil {
		t.Fatal(err)
	}
	return &toolchain{root: root, build: t.TempDir(), version: v}
}

// snippet is a section of testdata/strict.txt.
type snippet struct {
	name, pass, words, text string
}

var sectionHead = regexp.MustCompile(`^-- (\w+)(?:: (.*))?$`)

func snippets(t *testing.T) []snippet {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "strict.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var list []snippet
	for i, line := range strings.Split(string(b), "\n") {
		if m := sectionHead.FindStringSubmatch(line); m != nil {
			list = append(list, snippet{name: fmt.Sprintf("line %d", i+1), pass: m[1], words: m[2]})
			continue
		}
		if len(list) == 0 {
			continue
		}
		s := &list[len(list)-1]
		if s.text == "" && strings.HasSuffix(line, ".") {
			line = "// " + line // description of the snippet
		}
		s.text += line + "\n"
	}
	return list
}

// passes runs the passes on a snippet, up to the pass that must reject it, and returns the errors
// by the pass's name.
func passes(t *testing.T, tools *toolchain, s snippet) map[string]error {
	t.Helper()
	dir := t.TempDir()
	tools = &toolchain{root: tools.root, build: dir, version: tools.version}
	for name, text := range map[string]string{"constants.h": constantsHeader(), "params.h": "", "pianola.h": ""} {
		if text == "" {
			b, err := os.ReadFile(filepath.Join(tools.root, "shaders", name))
			if err != nil {
				t.Fatal(err)
			}
			text = string(b)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := "#include \"" + filepath.Join(tools.root, "shaders", "pianola.h") + "\"\n" + s.text
	path := filepath.Join(t.TempDir(), "snippet.metal")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := map[string]error{}
	src := parseSource(path, text)
	src.lintConstants()
	if len(src.faults) > 0 {
		got["lint"] = fmt.Errorf("%v", src.faults)
		return got // the other passes need a parsed source
	}
	got["check"] = tools.check(path)
	if got["check"] == nil {
		got["tree"] = tools.checkTree(path)
	}
	if got[s.pass] != nil {
		return got
	}
	put := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("snippet.metal", strings.Replace(src.preprocessed(), filepath.Join(tools.root, "shaders")+"/", "", 1))
	ptx, err := src.ptxSource()
	if err != nil {
		t.Fatal(err)
	}
	put("snippet.ptx.cc", ptx)
	put("snippet.host.cc", src.hostSource(src.include()))
	got["target"] = tools.object("snippet.host.cc", filepath.Join(dir, "snippet.o"), hostBuild{})
	for _, a := range architectures {
		text, err := tools.ptx("snippet.ptx.cc", &a)
		if err != nil {
			got["target"] = err
			continue
		}
		_, got["ptx"] = finishPTX(text, src, "snippet.ptx", 0)
	}
	return got
}

// TestStrict checks that each snippet that is invalid Metal, or breaks a rule of the project,
// is rejected by the pass that it names, and that all passes accept the valid snippets.
func TestStrict(t *testing.T) {
	tools := tools(t)
	list := snippets(t)
	if len(list) < 50 {
		t.Fatalf("strict.txt has only %d snippets", len(list))
	}
	for _, s := range list {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			got := passes(t, tools, s)
			if s.pass == "valid" {
				for pass, err := range got {
					if err != nil {
						t.Errorf("pass %s rejects a valid snippet: %v\n%s", pass, err, s.text)
					}
				}
				return
			}
			if err := got[s.pass]; err == nil || !strings.Contains(err.Error(), s.words) {
				t.Errorf("pass %s returns %v, want %q (all passes: %v)\n%s", s.pass, err, s.words, got, s.text)
			} else if !strings.Contains(err.Error(), "snippet.") {
				t.Errorf("the error %v names no file and line", err)
			}
		})
	}
}
