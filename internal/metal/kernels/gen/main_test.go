package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/metal/kernels"
)

// TestCompile compiles with a script in place of Apple's compiler.
func TestCompile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the program is a shell script")
	}
	bin, out := t.TempDir(), t.TempDir()
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	if runtime.GOOS == "linux" {
		if err := compile(out, io.Discard); err == nil || !strings.Contains(err.Error(), needs) {
			t.Errorf("without xcrun: %v", err)
		}
	}
	write := func(script string) {
		if err := os.WriteFile(filepath.Join(bin, "xcrun"), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write("echo cannot find metal; exit 72\n")
	if err := compile(out, io.Discard); err == nil || !strings.Contains(err.Error(), "cannot find metal") || !strings.Contains(err.Error(), needs) {
		t.Errorf("without the toolchain: %v", err)
	}
	if files, err := os.ReadDir(out); err != nil || len(files) != 0 {
		t.Errorf("files %v, %v", files, err)
	}
	write(`test "$1 $2 $3" = "-sdk macosx metal" || exit 1
if [ "$4" = --version ]; then echo Metal 1; echo more; exit; fi
test "$4 $5 $6 $7" = "-std=metal3.1 -mmacosx-version-min=14.0 -O2 -o" || exit 2
echo a warning
{ printf MTLB; cat "$9"; } >"$8"
`)
	var said strings.Builder
	if err := compile(out, &said); err != nil || said.String() != "a warning\n" {
		t.Fatalf("%v, the compiler says %q", err, &said)
	}
	library, err := os.ReadFile(filepath.Join(out, kernels.Floor+".metallib"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(out, kernels.Floor+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var c kernels.Compiled
	if err := json.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	if c.Compiler != "Metal 1" || c.Library != kernels.Hash(library) || c.Source != kernels.Hash(library[4:]) {
		t.Errorf("%+v", c)
	}
}
