package driver

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// root is the repository, relative to this package.
const root = "../../.."

// targets are clang's names of the systems that the device supports, by GOOS.
var targets = map[string]string{"darwin": "arm64-apple-macos14", "ios": "arm64-apple-ios17"}

// strict compiles Objective-C for a system with the headers of package soft.
func strict(t *testing.T, system, file string) (string, error) {
	t.Helper()
	compiler, err := exec.LookPath("clang-19")
	if err != nil {
		t.Skip("clang-19 is not installed (Debian package clang-19); it checks the Objective-C file")
	}
	out, err := exec.Command(compiler, "-target", targets[system], "-fsyntax-only", "-Wall", "-Wextra", "-Wunguarded-availability", "-Werror", "-ffreestanding",
		"-isystem", "../soft/stub", "-isystem", "../soft/stub/libc", "-I", ".", file).CombinedOutput()
	return string(out), err
}

// TestStrict compiles the Objective-C files with Apple's declarations, and checks that modified
// copies do not compile.
func TestStrict(t *testing.T) {
	files, err := filepath.Glob("*.m")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	for system := range targets {
		built := build.Context{GOOS: system, GOARCH: "arm64", CgoEnabled: true, Compiler: "gc"}
		for _, file := range files {
			if ok, err := built.MatchFile(".", file); err != nil || !ok {
				if cores := strings.HasPrefix(file, "cores"); err != nil || !cores {
					t.Errorf("%s is not compiled for %s: %v", file, system, err)
				}
				continue
			}
			if out, err := strict(t, system, file); err != nil {
				t.Errorf("%s for %s: %v\n%s", file, system, err, out)
			}
		}
	}
	if out, err := strict(t, "ios", "cores.m"); err == nil || !strings.Contains(out, "IOKit") {
		t.Errorf("cores.m compiles for iOS: %v\n%s", err, out)
	}
	for _, c := range []struct{ file, what, old, with, want string }{
		{"metal.m", "a wrong selector", "setBufferOffset:offset atIndex:index", "setBufferOffset:offset index:index", "instance method '-setBufferOffset:index:' not found"},
		{"metal.m", "a wrong argument", "[blit waitForFence:d->fence]", "[blit waitForFence:d->queue]", "incompatible"},
		{"metal.m", "a wrong argument", "setBytes:second length:sizeof second", "setBytes:second length:second", "incompatible pointer to integer"},
		{"metal.m", "a missing argument", "withRange:NSMakeRange(r->first, r->count)]", "]", "not found"},
		{"metal.m", "a wrong property", "d->descriptor.retainedReferences = NO", "d->descriptor.retainReferences = NO", "property 'retainReferences' not found"},
		{"metal.m", "a wrong object", "[(id<MTLCommandQueue>)queue retain]", "[(id<MTLDevice>)queue retain]", "incompatible"},
		{"metal.m", "a wrong type", "id<MTLCommandBuffer> buffer = [d->queue", "id<MTLEvent> buffer = [d->queue", "MTLEvent"},
		{"metal.m", "a wrong object", "[(id<MTLCommandQueue>)queue retain]", "[(id<MTLDevice>)queue retain]", "incompatible"},
		{"library.m", "no nil", "newLibraryWithSource:text options", "newLibraryWithSource:nil options", "null passed"},
		{"library.m", "a wrong argument", "serializeToURL:url", "serializeToURL:path", "incompatible pointer"},
		{"residency.m", "what macOS 14 has not", "if (@available(macOS 15.0, ", "if (@available(macOS 14.0, ", "only available on macOS 15.0"},
		{"residency.m", "what iOS 17 has not", "if (@available(macOS 15.0, iOS 18.0, ", "if (@available(macOS 15.0, iOS 17.0, ", "only available on iOS 18.0"},
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
		system := "darwin"
		if strings.Contains(c.want, "iOS") {
			system = "ios"
		}
		if out, err := strict(t, system, file); (err == nil) != (c.want == "") || !strings.Contains(out, c.want) {
			t.Errorf("%s: %v, want %q\n%s", c.what, err, c.want, out)
		}
	}
}

// darwin holds every package of the module, and their dependencies, as in a build with cgo for
// macOS or iOS.
type darwin struct {
	fset  *token.FileSet
	ours  []goPackage
	known map[string]*types.Package // packages outside the module
}

// goPackage is a package as described by go list.
type goPackage struct {
	ImportPath, Dir                 string
	GoFiles, CgoFiles, XTestGoFiles []string
	TestGoFiles                     []string
	ImportMap                       map[string]string
}

// loadDarwin reads modules for a system, and type-checks their dependencies without Apple's tools.
// It does not check C.
func loadDarwin(t *testing.T, system string, modules ...string) *darwin {
	t.Helper()
	d := &darwin{fset: token.NewFileSet(), known: map[string]*types.Package{}}
	listed := map[string]bool{}
	for _, dir := range modules {
		args := []string{"list", "-e", "-deps", "-json=ImportPath,Dir,GoFiles,CgoFiles,TestGoFiles,XTestGoFiles,ImportMap", "./..."}
		if dir == root {
			args = append(args, "testing/fstest", "testing/iotest", "github.com/google/go-cmp/cmp") // only tests import these
		}
		cmd := exec.Command("go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOOS="+system, "GOARCH=arm64", "CGO_ENABLED=1")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		for dec := json.NewDecoder(strings.NewReader(string(out))); ; { // dependencies come first
			var p goPackage
			if err := dec.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			if listed[p.ImportPath] {
				continue
			}
			listed[p.ImportPath] = true
			switch {
			case strings.HasPrefix(p.ImportPath, "github.com/pianola-engine/"):
				d.ours = append(d.ours, p)
			case p.ImportPath != "unsafe": // the fake C of this package causes a few errors
				d.known[p.ImportPath], _ = d.types(&p, append(p.GoFiles, p.CgoFiles...), nil, d.known, true)
			}
		}
	}
	return d
}

// types type-checks files of a package. changed replaces the text of some files.
func (d *darwin) types(p *goPackage, names []string, changed map[string]string, done map[string]*types.Package, ignoreBodies bool) (made *types.Package, faults []error) {
	var files []*ast.File
	for _, name := range names {
		path := filepath.Join(p.Dir, name)
		var source any
		for suffix, text := range changed {
			if strings.HasSuffix(path, suffix) {
				source = text
			}
		}
		f, err := parser.ParseFile(d.fset, path, source, parser.SkipObjectResolution)
		if err != nil {
			faults = append(faults, err)
		}
		files = append(files, f)
	}
	conf := types.Config{
		FakeImportC: true, IgnoreFuncBodies: ignoreBodies, Importer: imported{done, p.ImportMap}, Sizes: types.SizesFor("gc", "arm64"),
		Error: func(err error) { faults = append(faults, err) },
	}
	made, _ = conf.Check(p.ImportPath, d.fset, files, nil)
	return made, faults
}

// tested are the packages whose tests run on a Mac.
var tested = []string{"/darwinkit", "/replay", "/internal/e2e"}

func isTested(p *goPackage) bool {
	return slices.ContainsFunc(tested, func(end string) bool { return strings.HasSuffix(p.ImportPath, end) })
}

// check type-checks the packages, and the tests of those that are tested on a Mac.
func (d *darwin) check(changed map[string]string) (seen []string, faults []error) {
	done := maps.Clone(d.known)
	for i := range d.ours {
		p := &d.ours[i]
		files := append(p.GoFiles, p.CgoFiles...)
		if export := "export_test.go"; isTested(p) && slices.Contains(p.TestGoFiles, export) {
			files = append(files, export) // it shows external tests more of the package
		}
		made, f := d.types(p, files, changed, done, false)
		done[p.ImportPath], faults = made, append(faults, f...)
		for _, name := range files {
			seen = append(seen, filepath.Join(p.Dir, name))
		}
	}
	for i := range d.ours {
		p := &d.ours[i]
		if !isTested(p) {
			continue
		}
		_, f := d.types(p, p.XTestGoFiles, changed, done, false)
		faults = append(faults, f...)
		for _, name := range p.XTestGoFiles {
			seen = append(seen, filepath.Join(p.Dir, name))
		}
	}
	return seen, faults
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

// TestDarwin type-checks the files that are compiled on macOS, and examples/darwinkit with
// darwinkit itself. It also checks that modified copies have errors.
func TestDarwin(t *testing.T) {
	d := loadDarwin(t, "darwin", root, root+"/examples/darwinkit")
	seen, faults := d.check(nil)
	for _, err := range faults {
		t.Error(err)
	}
	const border = "examples/darwinkit/"
	for file, changes := range map[string][][2]string{
		"internal/metal/driver/open_cgo.go": {
			{"ThreadgroupMemory: uint64(p", "ThreadMemory: uint64(p"}, {"first(source)", "frist(source)"}, {"return c.failed()", "return c.failed"},
		},
		"internal/metal/driver/shared_cgo.go": {{"Queue: o.queue", "Qeue: o.queue"}},
		border + "darwinkit.go": {
			{".ComputeCommandEncoderWithDispatchType(", ".ComputeEncoderWithDispatchType("}, // a wrong method
			{"(metal.DispatchTypeSerial)", "(metal.ResourceUsageRead)"},                     // a wrong argument
			{"s.Buffer, s.Offset, index)", "s.Buffer, index)"},                              // a missing argument
			{"SetBuffer(encoder, s.Buffer", "SetBuffer(encoder, s"},                         // a wrong object
			{"CommandQueueObject{Object: objc", "DeviceObject{Object: objc"},
		},
		border + "lipogram/choose.go": {{"c.logits.Bind(e, 0)", "c.logits.Bind(0, e)"}},
		border + "example_test.go":    {{"darwinkit.Compute(buffer, ", "darwinkit.Compute("}},
		"replay/metal_mac_test.go":    {{"metal.ErrNoMetal", "metal.ErrNoGPU"}},
	} {
		if !strings.Contains(strings.Join(seen, "\n"), file) {
			t.Errorf("%s is not among the %d files", file, len(seen))
			continue
		}
		source, err := os.ReadFile(filepath.Join("../../..", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range changes {
			text := strings.Replace(string(source), c[0], c[1], 1)
			if text == string(source) {
				t.Errorf("%s has no %s", file, c[0])
			}
			if _, faults := d.check(map[string]string{file: text}); len(faults) == 0 {
				t.Errorf("%s: with %s for %s all is well", file, c[1], c[0])
			}
		}
	}
}

// TestIOS type-checks the files that are compiled on iOS.
func TestIOS(t *testing.T) {
	d := loadDarwin(t, "ios", root)
	seen, faults := d.check(nil)
	for _, err := range faults {
		t.Error(err)
	}
	for _, file := range []string{"open_cgo.go", "shared_cgo.go"} {
		if !strings.Contains(strings.Join(seen, "\n"), "internal/metal/driver/"+file) {
			t.Errorf("%s is not among the %d files", file, len(seen))
		}
	}
}
