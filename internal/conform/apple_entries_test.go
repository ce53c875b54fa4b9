package conform

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/shaders"
)

// TestAppleEntries checks that the PTX of Apple's configuration, with which that configuration is
// measured on NVIDIA GPUs, has an entry for each command of the tables for Apple chips.
func TestAppleEntries(t *testing.T) {
	if _, err := exec.LookPath("clang-19"); err != nil {
		t.Skip("clang-19 is not installed; shadergen needs it")
	}
	dir := t.TempDir()
	cmd := exec.Command("go", "run", "./internal/shadergen", "-apple", "-only", "the manifest", "-ptx", dir)
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var made shaders.Manifest
	if err := json.Unmarshal(b, &made); err != nil {
		t.Fatal(err)
	}
	serves := func(kernel string, specs []uint32) bool {
		k, ok := made.Kernel(kernel)
		return ok && slices.ContainsFunc(k.Entries, func(e shaders.Entry) bool {
			return !slices.ContainsFunc(e.Fixed, func(f shaders.Fixed) bool {
				at, ok := decl.Of(kernel).Spec(f.Name)
				return !ok || !f.Fits(specs[at])
			})
		})
	}
	commands := 0
	for _, w := range wholes() {
		if o := w.emulator(); !o.Apple {
			continue
		}
		tab, _ := w.compile(t)
		for i := range tab.Cmds {
			k, _ := decl.Lookup(tab.Cmds[i].Kernel)
			if commands++; !serves(k.Name, tab.Specs[tab.Cmds[i].Spec].Values[:]) {
				t.Errorf("%s: command %d (%s): %s has no entry for %v", &w, i, tab.Label(i), k.Name, tab.Specs[tab.Cmds[i].Spec].Values)
			}
		}
	}
	if commands == 0 || serves("gemv", []uint32{0xff, 0xff, 0xff, 0, 0, 0, 0}) {
		t.Errorf("%d commands; an unknown weight type has an entry", commands)
	}
}
