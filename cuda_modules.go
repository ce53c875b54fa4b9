package pianola

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

// cudaModules returns the embedded kernels for NVIDIA GPUs, which are shared and
// must not be changed. It returns nil if they do not fit together, which a test
// excludes; the device then says that it has none.
var cudaModules = sync.OnceValue(func() *cuda.Modules {
	m, err := makeModules()
	if err != nil {
		return nil
	}
	return m
})

func makeModules() (*cuda.Modules, error) {
	m, err := shaders.Made()
	if err != nil {
		return nil, err
	}
	mods := &cuda.Modules{BindingAlign: uint64(m.BindingAlign)}
	var files []string
	for i := range m.Kernels {
		k := &m.Kernels[i]
		if !slices.Contains(files, k.File) {
			files = append(files, k.File)
		}
		for _, e := range k.Entries {
			in := cuda.Instance{Kernel: k.Name, Text: k.File, Entry: e.Name}
			for _, f := range e.Fixed {
				at := slices.IndexFunc(k.Constants, func(c shaders.Constant) bool { return c.Name == f.Name })
				if at < 0 {
					return nil, fmt.Errorf("pianola: kernel %s has no constant %s", k.Name, f.Name)
				}
				in.Fixed = append(in.Fixed, cuda.Fixed{Spec: at, Value: f.Value, Mask: f.Mask})
			}
			if k.TGMem != "" {
				in.TGMem = func(env decl.Env, threads int) (uint64, error) { return k.ThreadgroupBytes(env, threads) }
			}
			mods.Instances = append(mods.Instances, in)
		}
	}
	for _, arch := range m.Architectures {
		for _, file := range files {
			if err := addText(mods, file, arch, false); err != nil {
				return nil, err
			}
		}
	}
	for _, e := range m.Exact {
		if err := addText(mods, e.File, e.Architecture, true); err != nil {
			return nil, err
		}
	}
	return mods, nil
}

// addText adds the text of a file for an architecture, "sm_90" or, for that
// processor alone, "sm_90a".
func addText(mods *cuda.Modules, file, arch string, exact bool) error {
	number := strings.TrimPrefix(arch, "sm_")
	if exact {
		number = strings.TrimSuffix(number, "a")
	}
	capability, err := strconv.Atoi(number)
	if err != nil {
		return fmt.Errorf("pianola: architecture %q of the kernels: %w", arch, err)
	}
	read := func() ([]byte, error) { return shaders.PTX(file, arch) }
	mods.Texts = append(mods.Texts, cuda.Text{Name: file, Arch: capability, Exact: exact, Read: read})
	return nil
}
