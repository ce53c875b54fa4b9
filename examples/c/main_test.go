package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/exhaustive"
)

const (
	root   = "../.."
	model  = root + "/testdata/gopher-q8_0.gguf"
	prompt = "func main() {"
	tokens = 24
)

// command returns the output of a command, and fails the test if the command fails.
func command(t *testing.T, env []string, name string, args ...string) (stdout, stderr string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", cmd, err, &out, &errs)
	}
	return out.String(), errs.String()
}

// flags are the options of C compilers.
func flags(more ...string) []string {
	return append([]string{"-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I", "."}, more...)
}

// TestC builds the library and runs programs in C that use it, compiled by each compiler.
func TestC(t *testing.T) {
	exhaustive.Only(t, "building the library takes a minute")
	if runtime.GOOS != "linux" {
		t.Skip("check.c reads Linux's /proc")
	}
	var run struct {
		IDs  []int32
		Text string
	}
	out, _ := command(t, []string{"CGO_ENABLED=0"}, "go", "run", root+"/cmd/pianola", "run", model, "-p", prompt, "-n", strconv.Itoa(tokens), "--json")
	if err := json.Unmarshal([]byte(out), &run); err != nil || len(run.IDs) != tokens {
		t.Fatalf("%v: %s", err, out)
	}
	var ids []string
	for _, id := range run.IDs {
		ids = append(ids, strconv.Itoa(int(id)))
	}

	dir := t.TempDir()
	library := filepath.Join(dir, "libpianola.a")
	command(t, []string{"CGO_ENABLED=1"}, "go", "build", "-buildmode=c-archive", "-o", library, ".")
	for _, c := range []struct {
		name, compiler string
		flags          []string
	}{{"gcc", "gcc", nil}, {"clang", "clang-19", []string{"-fsanitize=address,undefined", "-fno-sanitize-recover=all"}}} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := exec.LookPath(c.compiler); err != nil {
				t.Skipf("%s is not installed; it compiles the programs in C", c.compiler)
			}
			command(t, nil, c.compiler, flags("-fsyntax-only", "call.c")...)
			generate, check := filepath.Join(dir, c.name+"-generate"), filepath.Join(dir, c.name+"-check")
			command(t, nil, c.compiler, flags(append(c.flags, "-o", generate, "generate/main.c", library, "-lpthread", "-lm")...)...)
			command(t, nil, c.compiler, flags(append(c.flags, "-o", check, "testdata/check.c", library, "-lpthread", "-lm")...)...)
			stdout, stderr := command(t, nil, generate, model, prompt, strconv.Itoa(tokens))
			if stdout != run.Text+"\n" || stderr != strings.Join(ids, " ")+" \n" {
				t.Errorf("generate prints %q and %q, pianola run %q and %v", stdout, stderr, run.Text, ids)
			}
			_, stderr = command(t, nil, check, append([]string{model, prompt}, ids...)...)
			t.Log(stderr)
			ids[0], ids[1] = ids[1], ids[0]
			if err := exec.Command(check, append([]string{model, prompt}, ids...)...).Run(); err == nil {
				t.Error("other tokens pass")
			}
			ids[0], ids[1] = ids[1], ids[0]
		})
	}
}

// TestHeader compiles the header as C++ and as Objective-C, and as the only header of a file.
func TestHeader(t *testing.T) {
	clang, err := exec.LookPath("clang-19")
	if err != nil {
		t.Skip("clang-19 is not installed (Debian package clang-19); it checks the header")
	}
	for _, language := range []string{"c", "c++", "objective-c"} {
		command(t, nil, clang, "-x", language, "-fsyntax-only", "-ffreestanding", "-Wall", "-Wextra", "-pedantic", "-Werror", "-include", "pianola.h", "-I", ".", "/dev/null")
	}
}

// TestIOSApp checks the types of the app in examples/ios, and that those of changed copies are
// wrong.
func TestIOSApp(t *testing.T) {
	clang, err := exec.LookPath("clang-19")
	if err != nil {
		t.Skip("clang-19 is not installed (Debian package clang-19); it checks the app")
	}
	const app = root + "/examples/ios"
	check := func(file string) (string, error) {
		out, err := exec.Command(clang, "-target", "arm64-apple-ios17", "-fsyntax-only", "-fobjc-arc", "-fblocks", "-ffreestanding", "-Wall", "-Wextra", "-Werror",
			"-isystem", app+"/testdata", "-isystem", root+"/internal/metal/soft/stub", "-isystem", root+"/internal/metal/soft/stub/libc", "-I", ".", file).CombinedOutput()
		return string(out), err
	}
	if out, err := check(app + "/main.m"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	source, err := os.ReadFile(app + "/main.m")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]string{
		{"show, (__bridge void *)self", "show, self"},
		{"strlen(bytes), &request", "&request"},
		{"pianola_cancel(_session)", "pianola_cancel(_model)"},
		{"forState:UIControlStateNormal", "state:UIControlStateNormal"},
		{"addSubview:_text", "addSubview:@\"text\""},
	} {
		text := strings.Replace(string(source), c[0], c[1], 1)
		file := filepath.Join(t.TempDir(), "main.m")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := check(file); err == nil || text == string(source) {
			t.Errorf("with %s for %s all is well", c[1], c[0])
		}
	}
}

// TestIOSBuild runs the script that builds the app, with stand-ins for Apple's tools and for go, and
// checks what it has them do.
func TestIOSBuild(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("it is a shell script")
	}
	repository := t.TempDir() // the script builds in the repository that contains it
	for _, file := range []string{"examples/ios/build.sh", "examples/ios/Info.plist", "testdata/gopher-q8_0.gguf"} {
		b, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		file = filepath.Join(repository, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	bin := t.TempDir()
	for name, script := range map[string]string{
		"xcrun": `case "$*" in
"--sdk iphoneos --show-sdk-path") echo /sdk ;;
"--sdk iphoneos --find clang") command -v clang ;;
*) exit 1 ;;
esac`,
		"go":    `echo "go $* for $GOOS/$GOARCH, cgo $CGO_ENABLED, $CC $CGO_CFLAGS; $CGO_LDFLAGS" >>"$LOG"`,
		"clang": `echo "clang $*" >>"$LOG"`,
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	log := filepath.Join(bin, "log")
	out, _ := command(t, []string{"LOG=" + log, "PATH=" + bin + ":/usr/bin:/bin"}, filepath.Join(repository, "examples/ios/build.sh"))
	if out != "build/ios/Pianola.app\n" {
		t.Errorf("%q", out)
	}
	const flags = "-arch arm64 -isysroot /sdk -miphoneos-version-min=17.0 -O2"
	want := "go build -tags nocuda -trimpath -buildmode=c-archive -o build/ios/libpianola.a ./examples/c for ios/arm64, cgo 1, " + bin + "/clang " + flags + "; " + flags + "\n" +
		"clang " + flags + " -fobjc-arc -Wall -I examples/c -framework Foundation -framework UIKit -framework Metal -framework CoreGraphics" +
		" -framework CoreFoundation -framework Security -lresolv -o build/ios/Pianola.app/Pianola examples/ios/main.m build/ios/libpianola.a\n"
	if got, err := os.ReadFile(log); err != nil || string(got) != want {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
	for _, file := range []string{"Info.plist", "model.gguf"} {
		if _, err := os.Stat(filepath.Join(repository, "build/ios/Pianola.app", file)); err != nil {
			t.Error(err)
		}
	}
}
