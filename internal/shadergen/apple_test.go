package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/cuda/ptx"
	"github.com/pianola-engine/pianola/internal/metal/joined"
	"github.com/pianola-engine/pianola/shaders"
)

// TestAppleMacros checks that in Apple's configuration no macro of this project is left after the
// headers of the shim, for any compiler. Without the option there are some.
func TestAppleMacros(t *testing.T) {
	tools := tools(t)
	file := filepath.Join(tools.build, "empty.metal")
	if err := os.WriteFile(file, []byte("#include <metal_stdlib>\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	include := []string{"-isystem", "shaders/shim", "-isystem", "shaders/host"}
	for name, args := range map[string][]string{
		"strict":   tools.strictArgs(),
		"emulator": append(append(slices.Clone(language), include...), hostBuild{}.options()...),
		"PTX":      append(append(slices.Clone(language), include...), "--target=nvptx64-nvidia-cuda", "-march=sm_90", "-DPIANOLA_SM=90"),
	} {
		for _, apple := range []bool{false, true} {
			all := append(slices.Clone(args), "-E", "-dM", file)
			if apple {
				all = append(all, appleDefine)
			}
			out, err := tools.run(compiler, all...)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			left := slices.DeleteFunc(strings.Split(string(out), "\n"), func(l string) bool { return !strings.HasPrefix(l, "#define PIANOLA_") })
			if apple != (len(left) == 0) {
				t.Errorf("%s, Apple's configuration %t: %q", name, apple, left)
			}
		}
	}
}

// TestJoined checks that the text that is checked and compiled in Apple's configuration is the text
// that Apple's compiler gets.
func TestJoined(t *testing.T) {
	p, err := open(tools(t).root, "shaders", true)
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(p.build)
	got, err := p.join(nil)
	if err != nil {
		t.Fatal(err)
	}
	// As package kernels makes it from the manifest.
	m, err := shaders.Made()
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, k := range m.Kernels {
		file := joined.Replacement(k.File, func(file string) bool { _, err := shaders.Source(file); return err == nil })
		if !slices.Contains(files, file) {
			files = append(files, file)
		}
	}
	want, err := joined.Text(files, shaders.Source)
	if err != nil || got != string(want) {
		t.Errorf("the texts of %d and %d bytes differ: %v", len(got), len(want), err)
	}
	for _, name := range []string{"shaders/shim", "PIANOLA_APPLE", "max_total_threads"} {
		if strings.Contains(got, name) {
			t.Errorf("the text contains %s", name)
		}
	}
}

// TestShimUses checks that uses of the shim are found where Apple's compiler would see them.
func TestShimUses(t *testing.T) {
	text := "# 7 \"gemm.metal\" 2\nint x;\n  int y = metal::shim::dot4(1, 2, 3);\n# 1 \"shaders/shim/metal/math.h\" 1 3\nmetal::shim::lane();\n"
	if err := shimUses(text); err == nil || err.Error() != "gemm.metal:8: Apple's compiler has no such function: int y = metal::shim::dot4(1, 2, 3);" {
		t.Errorf("got %v", err)
	}
}

// TestStrictJoined checks that a mistake in code that only Apple's compiler sees is found, and that a
// clash of two files is.
func TestStrictJoined(t *testing.T) {
	for want, files := range map[string]map[string]string{
		"":                             {"a.metal": "", "b.metal": ""},
		"a.metal:4: use of undeclared": {"a.metal": "#ifndef PIANOLA_SHIM\nstatic inline int wrong() { return nothing; }\n#endif\n", "b.metal": ""},
		"has no such function":         {"a.metal": "#ifndef PIANOLA_NVPTX\nstatic inline int wrong() { return metal::shim::dot4(1, 2, 3); }\n#endif\n", "b.metal": ""},
		"redefinition of 'same'":       {"a.metal": "static inline int same() { return 1; }\n", "b.metal": "static inline int same() { return 2; }\n"},
		"'SIZE' macro redefined":       {"a.metal": "#define SIZE 1\n", "b.metal": "#define SIZE 2\n"},
		"the kernels [rope] replace":   {"a.metal": "", "a.apple.metal": strings.Replace(good, "rmsnorm(", "rope(", 1)},
		"kernel add is defined twice":  {"a.metal": strings.Replace(good, "rmsnorm(", "add(", 1), "b.apple.metal": strings.Replace(good, "rmsnorm(", "add(", 1)},
	} {
		p := &project{toolchain: *tools(t), texts: map[string]string{}}
		for _, name := range []string{"a.apple.metal", "a.metal", "b.apple.metal", "b.metal"} {
			if text, ok := files[name]; ok {
				p.texts[name] = "#include <metal_stdlib>\nusing namespace metal;\n" + text
				p.kernels = append(p.kernels, parseSource(name, p.texts[name]))
			}
		}
		err := p.divide()
		if err == nil {
			err = p.checkJoined()
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestApplePTX checks the PTX in Apple's configuration: it has every entry of its manifest, and each
// waits for the commands before.
func TestApplePTX(t *testing.T) {
	p, err := open(tools(t).root, "shaders", true)
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(p.build)
	p.only = "act.metal"
	dir := t.TempDir()
	if err := p.applePTX(dir, appleEntries); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "act.metal."+appleArchitecture.name+".ptx"))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := ptx.Parse(text)
	if err := errors.Join(err, checkBegins(text, "act.ptx")); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var m shaders.Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, k := range m.Kernels {
		for _, e := range k.Entries {
			if k.File != "act.metal" {
				continue
			}
			if found++; !strings.Contains(string(text), ".entry "+e.Name+"(") {
				t.Errorf("there is no entry %s", e.Name)
			}
		}
		if len(k.Entries) == 0 {
			t.Errorf("%s has no entry", k.Name)
		}
	}
	if found < 3 || parsed.Target != appleArchitecture.name {
		t.Errorf("%d entries for %s", found, parsed.Target)
	}
}
