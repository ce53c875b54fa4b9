// Package shaders embeds the GPU kernels: their Metal sources, the PTX that internal/shadergen
// compiles from them, and a manifest that describes the PTX.
//
// The package knows the declarations of kernels. It must not know devices or tables.
package shaders

import (
	"embed"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/pianola-engine/pianola/internal/decl"
)

//go:embed *.metal *.h
var sources embed.FS

//go:embed manifest.json
var made embed.FS

// Manifest describes the kernels in the package.
type Manifest struct {
	Compiler      string   `json:"compiler"`      // compiler of the PTX
	Architectures []string `json:"architectures"` // architectures with PTX, in ascending order: sm_70, ...
	Exact         []Exact  `json:"exact"`         // additional PTX texts for exact architectures
	BindingAlign  int      `json:"binding_align"` // alignment in bytes that kernels require of every binding's address
	Kernels       []Kernel `json:"kernels"`
}

// Exact is a PTX text for exactly one architecture, whose instructions later processors may lack.
type Exact struct {
	File         string `json:"file"`         // "halves.metal"
	Architecture string `json:"architecture"` // "sm_90a"
}

// Env gives the expressions of a kernel the values of a command.
type Env = decl.Env

// Kernel is one kernel of the sources.
type Kernel struct {
	Name       string       `json:"name"` // name of the declaration and of the Metal function
	File       string       `json:"file"` // "norm.metal"
	MaxThreads int          `json:"max_threads"`
	Entries    []Entry      `json:"entries"` // PTX entry points
	declared   *decl.Kernel // bindings, constants and threadgroup memory
}

// Entry is a compiled instance of a kernel. It serves commands whose constants have the fixed
// values, and reads the other constants from the specialisation values.
type Entry struct {
	Name  string  `json:"name"`
	Fixed []Fixed `json:"fixed,omitempty"`
}

// Fixed is a constant with a fixed value.
type Fixed struct {
	Name  string `json:"name"`
	Value uint32 `json:"value"`
	Mask  uint32 `json:"mask,omitempty"` // mask of the bits of the value that are fixed; 0 means all
}

// Fits reports whether the constant may have the given value.
func (f Fixed) Fits(value uint32) bool {
	return value == f.Value || f.Mask != 0 && value&f.Mask == f.Value
}

var manifest = sync.OnceValues(func() (*Manifest, error) {
	b, err := made.ReadFile("manifest.json")
	if err != nil {
		return nil, fmt.Errorf("shaders: %w", err)
	}
	m := new(Manifest)
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("shaders: manifest: %w", err)
	}
	for i := range m.Kernels {
		k, ok := &m.Kernels[i], false
		if k.declared, ok = decl.Declared(k.Name); !ok {
			return nil, fmt.Errorf("shaders: manifest: kernel %s is not declared", k.Name)
		}
	}
	return m, nil
})

// Made returns the manifest of the embedded kernels. Callers share it and must not modify it.
func Made() (*Manifest, error) { return manifest() }

// Kernel returns a kernel by name.
func (m *Manifest) Kernel(name string) (*Kernel, bool) {
	i := slices.IndexFunc(m.Kernels, func(k Kernel) bool { return k.Name == name })
	if i < 0 {
		return nil, false
	}
	return &m.Kernels[i], true
}

// Entry returns the entry that serves specs, the specialisation values in the declaration's
// order. If several do, it returns the one with the most fixed constants.
func (k *Kernel) Entry(specs []uint32) (*Entry, bool) {
	var best *Entry
	for i := range k.Entries {
		e := &k.Entries[i]
		fits := !slices.ContainsFunc(e.Fixed, func(f Fixed) bool {
			at, ok := k.declared.Spec(f.Name)
			return !ok || at >= len(specs) || !f.Fits(specs[at])
		})
		if fits && (best == nil || len(e.Fixed) > len(best.Fixed)) {
			best = e
		}
	}
	return best, best != nil
}

// Source returns a Metal source file, or a header that sources include.
func Source(file string) ([]byte, error) {
	b, err := sources.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("shaders: no source %s", file)
	}
	return b, nil
}
