package emu

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// TestLibrary uses the shared library from C. The software Metal tests build it with all types.
func TestLibrary(t *testing.T) {
	root := canBuild(t)
	lib, program := filepath.Join(t.TempDir(), "emulator.so"), filepath.Join(t.TempDir(), "host")
	for _, args := range [][]string{
		{"go", "run", "./internal/shadergen", "-types", typeNames(sample), "-host", lib},
		{compiler, "-std=gnu11", "-Wall", "-Werror", "-o", program, "internal/emu/testdata/host.c", "-ldl"},
		{program, lib},
	} {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
}
