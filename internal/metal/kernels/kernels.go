// Package kernels provides the Metal device with the embedded GPU kernels: their sources as one
// text, the library that Apple's compiler made from it (if there is one), and their
// function constants and threadgroup memory.
package kernels

import (
	"bytes"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"sync"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/replay/metal"
	"github.com/pianola-engine/pianola/shaders"
)

// Embedded returns the kernels. Callers share them and must not modify them.
func Embedded() (*metal.Kernels, error) { return embedded() }

var embedded = sync.OnceValues(fit)

// With returns the kernels with the compiled library of a directory in place of the embedded one.
// The library is missing if it was compiled from other sources.
func With(folder fs.FS) (*metal.Kernels, error) {
	k, err := Embedded()
	if err != nil {
		return nil, err
	}
	text, err := k.Source()
	if err != nil {
		return nil, err
	}
	own := *k
	own.Data, own.Shared = compiled(folder, text), new(metal.Libraries)
	return &own, nil
}

func fit() (*metal.Kernels, error) {
	m, err := shaders.Made()
	if err != nil {
		return nil, err
	}
	kernels := &metal.Kernels{BindingAlign: uint64(m.BindingAlign), Shared: new(metal.Libraries)}
	var files []string
	for i := range m.Kernels {
		k := &m.Kernels[i]
		if !slices.Contains(files, k.File) {
			files = append(files, k.File)
		}
		kernel := metal.Kernel{Name: k.Name, MaxThreads: k.MaxThreads}
		for _, c := range decl.Of(k.Name).Specs {
			n, ok := decl.FunctionConstant(c.Name)
			if !ok {
				return nil, fmt.Errorf("kernels: constant %s of %s has no number", c.Name, k.Name)
			}
			kernel.Constants = append(kernel.Constants, uint32(n))
		}
		if decl.Of(k.Name).TGMem != "" {
			kernel.TGMem = decl.Of(k.Name).ThreadgroupBytes
		}
		kernels.List = append(kernels.List, kernel)
	}
	kernels.Source = sync.OnceValues(func() ([]byte, error) { return source(files) })
	text, err := kernels.Source()
	if err != nil {
		return nil, err
	}
	folder, err := fs.Sub(made, "metallib")
	if err != nil {
		return nil, err
	}
	kernels.Data = compiled(folder, text)
	return kernels, nil
}

var include = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*include[ \t]+"([^"\n]+)"[^\n]*\n?`)

// source joins source files to one text and inserts each header where it is first included,
// because Metal's run-time compiler has no include directory.
func source(files []string) ([]byte, error) {
	var b bytes.Buffer
	seen := map[string]bool{}
	var add func(file string) error
	add = func(file string) error {
		if seen[file] {
			return nil
		}
		seen[file] = true
		text, err := shaders.Source(file)
		if err != nil {
			return err
		}
		at, line := 0, 1
		fmt.Fprintf(&b, "#line 1 %q\n", file)
		for _, m := range include.FindAllSubmatchIndex(text, -1) {
			b.Write(text[at:m[0]])
			line += bytes.Count(text[at:m[1]], []byte("\n"))
			at = m[1]
			if err := add(string(text[m[2]:m[3]])); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			fmt.Fprintf(&b, "#line %d %q\n", line, file)
		}
		b.Write(text[at:])
		return nil
	}
	for _, file := range files {
		if err := add(file); err != nil {
			return nil, fmt.Errorf("kernels: source: %w", err)
		}
	}
	return b.Bytes(), nil
}
