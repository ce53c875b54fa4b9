package driver

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// strict compiles Objective-C for macOS, against the headers of package soft.
func strict(t *testing.T, file string) (string, error) {
	t.Helper()
	compiler, err := exec.LookPath("clang-19")
	if err != nil {
		t.Skip("clang-19 is not there, which checks the Objective-C file (Debian's package clang-19)")
	}
	out, err := exec.Command(compiler, "-target", "arm64-apple-macos14", "-fsyntax-only", "-Wall", "-Wextra", "-Wunguarded-availability", "-Werror", "-ffreestanding",
		"-isystem", "../soft/stub", "-isystem", "../soft/stub/libc", "-I", ".", file).CombinedOutput()
	return string(out), err
}

// TestStrict holds the Objective-C files against Apple's declarations, and sees
// that changed copies do not pass.
func TestStrict(t *testing.T) {
	files, err := filepath.Glob("*.m")
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		if out, err := strict(t, file); err != nil {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
	}
	for _, c := range []struct{ file, what, old, with, want string }{
		{"metal.m", "a wrong selector", "setBufferOffset:offset atIndex:index", "setBufferOffset:offset index:index", "instance method '-setBufferOffset:index:' not found"},
		{"metal.m", "a wrong argument", "[blit waitForFence:d->fence]", "[blit waitForFence:d->queue]", "incompatible"},
		{"metal.m", "a wrong argument", "setBytes:second length:sizeof second", "setBytes:second length:second", "incompatible pointer to integer"},
		{"metal.m", "a missing argument", "withRange:NSMakeRange(r->first, r->count)]", "]", "not found"},
		{"metal.m", "a wrong property", "d->descriptor.retainedReferences = NO", "d->descriptor.retainReferences = NO", "property 'retainReferences' not found"},
		{"metal.m", "a wrong object", "[(id<MTLCommandQueue>)queue retain]", "[(id<MTLDevice>)queue retain]", "incompatible"},
		{"metal.m", "a wrong type", "id<MTLCommandBuffer> buffer = [d->queue", "id<MTLEvent> buffer = [d->queue", "MTLEvent"},
		{"library.m", "no nil", "newLibraryWithSource:text options", "newLibraryWithSource:nil options", "null passed"},
		{"library.m", "a wrong argument", "serializeToURL:url", "serializeToURL:path", "incompatible pointer"},
		{"residency.m", "what macOS 14 has not", "if (@available(macOS 15.0, *))", "if (@available(macOS 14.0, *))", "only available on macOS 15.0"},
		{"residency.m", "nothing, with the SDK of macOS 14", "#ifdef __MAC_15_0", "#ifdef __MAC_99_0", ""},
	} {
		source, err := os.ReadFile(c.file)
		if err != nil {
			t.Fatal(err)
		}
		text := string(source)
		if strings.Count(text, c.old) == 0 {
			t.Errorf("%s: %s has no %s", c.what, c.file, c.old)
			continue
		}
		file := filepath.Join(t.TempDir(), c.file)
		if err := os.WriteFile(file, []byte(strings.Replace(text, c.old, c.with, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := strict(t, file); (err == nil) != (c.want == "") || !strings.Contains(out, c.want) {
			t.Errorf("%s: %v, want %q\n%s", c.what, err, c.want, out)
		}
	}
}

// checkDarwin type-checks every package of the module as a build with cgo for
// macOS has it, without Apple's tools: C is taken for granted. changed has the
// text of files that are checked in another form.
func checkDarwin(t *testing.T, changed map[string]string) (seen []string, faults []error) {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-deps", "-json=ImportPath,Dir,GoFiles,CgoFiles,ImportMap,Standard", "./...")
	cmd.Dir = "../../.."
	cmd.Env = append(os.Environ(), "GOOS=darwin", "GOARCH=arm64", "CGO_ENABLED=1")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	fset, done := token.NewFileSet(), map[string]*types.Package{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; { // dependencies come first
		var p struct {
			ImportPath, Dir   string
			GoFiles, CgoFiles []string
			ImportMap         map[string]string
			Standard          bool
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return seen, faults
		} else if err != nil {
			t.Fatal(err)
		}
		ours := strings.HasPrefix(p.ImportPath, "github.com/pianola-engine/")
		if p.ImportPath == "unsafe" {
			continue
		}
		var files []*ast.File
		for _, name := range append(p.GoFiles, p.CgoFiles...) {
			path := filepath.Join(p.Dir, name)
			if ours {
				seen = append(seen, path)
			}
			var source any
			for suffix, text := range changed {
				if strings.HasSuffix(path, suffix) {
					source = text
				}
			}
			f, err := parser.ParseFile(fset, path, source, parser.SkipObjectResolution)
			if err != nil && ours {
				faults = append(faults, err)
			}
			files = append(files, f)
		}
		conf := types.Config{
			FakeImportC: true, IgnoreFuncBodies: !ours, Importer: imported{done, p.ImportMap}, Sizes: types.SizesFor("gc", "arm64"),
			Error: func(err error) {
				if ours { // C that is faked makes a few errors elsewhere
					faults = append(faults, err)
				}
			},
		}
		done[p.ImportPath], _ = conf.Check(p.ImportPath, fset, files, nil)
	}
}

type imported struct {
	done    map[string]*types.Package
	renamed map[string]string
}

func (i imported) Import(path string) (*types.Package, error) {
	if other, ok := i.renamed[path]; ok {
		path = other
	}
	if path == "unsafe" {
		return types.Unsafe, nil
	}
	if i.done[path] == nil {
		return nil, errors.New("not loaded: " + path)
	}
	return i.done[path], nil
}

// TestDarwin type-checks what macOS compiles, and sees that a changed copy does
// not pass.
func TestDarwin(t *testing.T) {
	seen, faults := checkDarwin(t, nil)
	for _, err := range faults {
		t.Error(err)
	}
	const file = "replay/metal/driver/open_cgo.go"
	if !strings.Contains(strings.Join(seen, "\n"), file) {
		t.Errorf("%s is not among the %d files", file, len(seen))
	}
	source, err := os.ReadFile("open_cgo.go")
	if err != nil {
		t.Fatal(err)
	}
	for old, with := range map[string]string{
		"ThreadgroupMemory: uint64(out": "ThreadMemory: uint64(out",
		"first(source)":                 "frist(source)",
		"return c.failed()":             "return c.failed",
	} {
		text := strings.Replace(string(source), old, with, 1)
		if text == string(source) {
			t.Errorf("%s has no %s", file, old)
		}
		if _, faults := checkDarwin(t, map[string]string{file: text}); len(faults) == 0 {
			t.Errorf("with %s for %s all is well", with, old)
		}
	}
}
