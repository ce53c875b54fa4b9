//go:build softmetal

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/metal/kernels"
	"github.com/pianola-engine/pianola/internal/metal/soft"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/metal"
)

// xcrun stands for Apple's compiler: its library is the source after the first bytes of a library,
// which the software Metal loads.
const xcrun = `#!/bin/sh
if [ "$4" = --version ]; then echo Metal 1; exit; fi
{ printf MTLB; cat "$9"; } >"$8"
`

// compiledKernels returns the kernels with a library that "make metallib" has made with xcrun in
// place of Apple's compiler.
func compiledKernels(t *testing.T) *metal.Kernels {
	t.Helper()
	bin, out := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "xcrun"), []byte(xcrun), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "run", "./internal/metal/kernels/gen", "-o", out)
	cmd.Dir = "../../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	k, err := kernels.With(os.DirFS(out))
	if err != nil {
		t.Fatal(err)
	}
	if k.Data == nil {
		t.Fatal("the compiled library is not found")
	}
	return k
}

// play loads a small model on the device with the kernels, and prefills a prompt.
func play(t *testing.T, k *metal.Kernels) {
	t.Helper()
	h, err := pianola.OpenHeader(testmodels.Path(t, "../../../testdata/tiny/llama/model.gguf"), nil)
	if err != nil {
		t.Fatal(err)
	}
	tab, err := h.Compile("m4-pro", pianola.TableOptions{Context: 16})
	if err != nil {
		t.Fatal(err)
	}
	if err := soft.Quicken(tab); err != nil {
		t.Fatal(err)
	}
	mapped, err := h.Directory().Map()
	if err != nil {
		t.Fatal(err)
	}
	dev, err := metal.New(metal.Options{Mode: "record", Kernels: k})
	if err != nil {
		t.Fatal(err)
	}
	m, err := replay.Load(t.Context(), dev, tab, mapped, replay.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := m.NewSession(replay.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Prompt(t.Context(), []int32{5, 6, 7}); err != nil {
		t.Error(err)
	}
	if err := errors.Join(s.Close(), dev.Close(), mapped.Close()); err != nil {
		t.Error(err)
	}
}

// TestList lists the pipelines of a model and of a shape, which are made from a compiled library.
func TestList(t *testing.T) {
	if err := soft.Start("../../.."); err != nil {
		t.Fatal(err)
	}
	k := compiledKernels(t)
	objects, size := soft.Live()
	before := soft.Calls()
	var out strings.Builder
	if err := list(&out, k, []string{"../../../testdata/gopher-q8_0.gguf", "llama-3.1-8b:Q4_0"}); err != nil {
		t.Fatal(err)
	}
	t.Log(out.String())
	calls := soft.Calls()
	if calls["newLibraryWithData:error:"]-before["newLibraryWithData:error:"] != 1 || calls["newLibraryWithSource:options:error:"] != before["newLibraryWithSource:options:error:"] {
		t.Errorf("%v", calls)
	}
	for _, want := range []string{
		"kernels from the compiled library", "20 cores", "chip data: m4-pro",
		`(?m)^ +\d+ +\d+ +\d+ +\d+ +32 +0 +\d+ +gemv\{wtype=Q8_0 .*\}$`, `gemv\{wtype=Q4_0 `, "rmsnorm|argmax",
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("%s is missing", want)
		}
	}
	if strings.Contains(out.String(), " - ") {
		t.Error("a pipeline was not made")
	}
	play(t, k)
	if n := soft.Calls()["newLibraryWithData:error:"] - calls["newLibraryWithData:error:"]; n != 1 {
		t.Errorf("the device has loaded the compiled library %d times", n)
	}
	if o, b := soft.Live(); o != objects || b != size {
		t.Errorf("%d objects and %d bytes are left", o-objects, b-size)
	}
	if err := soft.Violation(); err != nil {
		t.Error(err)
	}

	k.Data = []byte("MTLX") // not a library of this system
	out.Reset()
	if err := list(&out, k, nil); err != nil || !strings.Contains(out.String(), "kernels from source, because the compiled library does not load") {
		t.Errorf("%v: %s", err, &out)
	}
	if err := list(&out, k, []string{"none.gguf"}); err == nil || !strings.Contains(err.Error(), "none.gguf") {
		t.Error(err)
	}
	k.List = k.List[:1] // kernels without a function
	out.Reset()
	if err := list(&out, k, []string{"../../../testdata/gopher-q8_0.gguf"}); err != nil || !strings.Contains(out.String(), "has no kernel") {
		t.Errorf("%v: %s", err, &out)
	}
}
