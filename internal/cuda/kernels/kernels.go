// Package kernels provides the CUDA device with the embedded GPU kernels: the PTX of their sources for
// each architecture, their constants and their threadgroup memory.
//
// The package must not know the driver or tables.
package kernels

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/replay/cuda"
	"github.com/pianola-engine/pianola/shaders"
)

// Embedded returns the kernels. Callers share them and must not modify them.
func Embedded() (*cuda.Modules, error) { return embedded() }

var embedded = sync.OnceValues(func() (*cuda.Modules, error) {
	m, err := shaders.Made()
	if err != nil {
		return nil, err
	}
	return Of(m, func(file, arch string) cuda.Text {
		return cuda.Text{
			Read: func() ([]byte, error) { return shaders.PTX(file, arch) },
			Describe: func() (i cuda.TextInfo, err error) {
				i.Hash, i.Version, i.Target, err = shaders.DescribePTX(file, arch)
				return i, err
			},
		}
	})
})

// Of returns the kernels of a manifest that have PTX. text returns a source file's PTX for an
// architecture.
func Of(m *shaders.Manifest, text func(file, arch string) cuda.Text) (*cuda.Modules, error) {
	mods := &cuda.Modules{BindingAlign: uint64(m.BindingAlign), Pooled: true}
	var files []string
	for i := range m.Kernels {
		k := &m.Kernels[i]
		if len(k.Entries) == 0 {
			continue // only Apple GPUs have the kernel
		}
		if !slices.Contains(files, k.File) {
			files = append(files, k.File)
		}
		for _, e := range k.Entries {
			in := cuda.Instance{Kernel: k.Name, Text: k.File, Entry: e.Name}
			for _, f := range e.Fixed {
				at, ok := decl.Of(k.Name).Spec(f.Name)
				if !ok {
					return nil, fmt.Errorf("cuda: kernel %s has no constant %s", k.Name, f.Name)
				}
				in.Fixed = append(in.Fixed, cuda.Fixed{Spec: at, Value: f.Value, Mask: f.Mask})
			}
			if decl.Of(k.Name).TGMem != "" {
				in.TGMem = decl.Of(k.Name).ThreadgroupBytes
			}
			if decl.Of(k.Name).Cluster != "" {
				in.Cluster = decl.Of(k.Name).ClusterSize
			}
			mods.Instances = append(mods.Instances, in)
		}
	}
	for _, arch := range m.Architectures {
		for _, file := range files {
			if err := addText(mods, text(file, arch), file, arch, false); err != nil {
				return nil, err
			}
		}
	}
	for _, e := range m.Exact {
		if err := addText(mods, text(e.File, e.Architecture), e.File, e.Architecture, true); err != nil {
			return nil, err
		}
	}
	return mods, nil
}

// addText adds the PTX of a file for an architecture: "sm_90", or "sm_90a" for that processor alone.
func addText(mods *cuda.Modules, text cuda.Text, file, arch string, exact bool) error {
	number := strings.TrimPrefix(arch, "sm_")
	if exact {
		number = strings.TrimSuffix(number, "a")
	}
	capability, err := strconv.Atoi(number)
	if err != nil {
		return fmt.Errorf("cuda: architecture %q of the kernels: %w", arch, err)
	}
	text.Name, text.Arch, text.Exact = file, capability, exact
	mods.Texts = append(mods.Texts, text)
	return nil
}
