// Gen compiles the GPU kernels to a Metal library with Apple's compiler. It requires a Mac and
// writes the library to the directory that package kernels embeds.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/pianola-engine/pianola/internal/metal/kernels"
)

func main() {
	out := flag.String("o", "internal/metal/kernels/metallib", "the folder to write to")
	flag.Parse()
	if err := compile(*out, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "metallib:", err)
		os.Exit(1)
	}
}

// needs is part of the error if Apple's compiler is missing.
const needs = "this needs a Mac with Xcode and its Metal toolchain (xcodebuild -downloadComponent MetalToolchain)"

// compile writes the library and the description of its source. It writes what the compiler says to
// said.
func compile(folder string, said io.Writer) error {
	k, err := kernels.Embedded()
	if err != nil {
		return err
	}
	source, err := k.Source()
	if err != nil {
		return err
	}
	version, err := metal("--version")
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "metallib-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	text, library := filepath.Join(work, "kernels.metal"), filepath.Join(work, kernels.Floor+".metallib")
	if err := os.WriteFile(text, source, 0o600); err != nil {
		return err
	}
	// The device compiles sources at run time with the same options. Fast math needs no option,
	// since it is the compiler's default.
	warnings, err := metal("-std=metal3.1", "-mmacosx-version-min="+strings.TrimPrefix(kernels.Floor, "macos")+".0", "-O2", "-o", library, text)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(said, warnings); err != nil {
		return err
	}
	made, err := os.ReadFile(library)
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(version, "\n")
	record, err := json.MarshalIndent(kernels.Compiled{Source: kernels.Hash(source), Library: kernels.Hash(made), Compiler: first}, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(folder, kernels.Floor+".metallib"), made, 0o644),
		os.WriteFile(filepath.Join(folder, kernels.Floor+".json"), append(record, '\n'), 0o644))
}

// metal runs Apple's compiler.
func metal(args ...string) (string, error) {
	out, err := exec.Command("xcrun", append([]string{"-sdk", "macosx", "metal"}, args...)...).CombinedOutput()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("%w: %s", err, needs)
	case err != nil:
		return "", fmt.Errorf("xcrun metal %s: %w: %s\n%s", strings.Join(args, " "), err, needs, out)
	}
	return string(out), nil
}
