// Package kernels provides the Metal device with the embedded GPU kernels: their sources as one
// text, the library that Apple's compiler made from it (if there is one), and their
// function constants and threadgroup memory.
package kernels

import (
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/metal/joined"
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

// embeds reports whether a source file is embedded.
func embeds(file string) bool {
	_, err := shaders.Source(file)
	return err == nil
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
		if file := joined.Replacement(k.File, embeds); !slices.Contains(files, file) {
			files = append(files, file)
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
	kernels.Source = sync.OnceValues(func() ([]byte, error) {
		text, err := joined.Text(files, shaders.Source)
		if err != nil {
			return nil, fmt.Errorf("kernels: %w", err)
		}
		return text, nil
	})
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
