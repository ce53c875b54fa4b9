package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/internal/metal/joined"
	"github.com/pianola-engine/pianola/shaders"
)

// In Apple's configuration the kernels are one text, as Apple's compiler gets it, and no macro of
// the shim is defined after its headers.
const (
	appleDefine   = "-DPIANOLA_APPLE=1"
	joinedFile    = "joined.metal"
	joinedInclude = "#include \"constants.h\"\n#include \"" + joinedFile + "\"\n"
)

// appleResident is the number of threads that a multiprocessor has room for in Apple's configuration.
// A thread then has 128 registers, as many as a thread of an Apple GPU.
const appleResident = 512

// appleArchitecture is the target of the PTX in Apple's configuration. On sm_90 a command may start
// before the preceding one has ended, as in the native configuration.
var appleArchitecture = architecture{name: "sm_90", isa: "+ptx78", number: 90, defines: []string{strings.TrimPrefix(appleDefine, "-D")}}

// divide separates the files of Apple's configuration from the others. A file that replaces another
// one must have the same kernels.
func (p *project) divide() error {
	all := p.kernels
	file := func(name string) *source {
		if i := slices.IndexFunc(all, func(s *source) bool { return s.base() == name }); i >= 0 {
			return all[i]
		}
		return nil
	}
	p.kernels = nil
	var faults []error
	for _, s := range all {
		if joined.Replacement(s.base(), func(name string) bool { return file(name) != nil }) == s.base() {
			p.apple = append(p.apple, s)
		}
		other := file(joined.Replaces(s.base()))
		if !joined.Apple(s.base()) || other == nil {
			p.kernels = append(p.kernels, s)
		} else if names := kernelNames(s); !slices.Equal(names, kernelNames(other)) {
			faults = append(faults, &fault{s.path, 1, fmt.Sprintf("the kernels %v replace those of %s, which has %v", names, other.base(), kernelNames(other))})
		}
	}
	return errors.Join(append(faults, append(twice(p.kernels), twice(p.apple)...)...)...)
}

// kernelNames returns the names of a file's kernels in alphabetical order.
func kernelNames(s *source) []string {
	var names []string
	for _, k := range s.kernels {
		names = append(names, k.name)
	}
	slices.Sort(names)
	return names
}

// twice returns a fault for each kernel that is defined in two files of a list.
func twice(files []*source) []error {
	var faults []error
	var names []string
	for _, s := range files {
		for _, k := range s.kernels {
			if slices.Contains(names, k.name) {
				faults = append(faults, &fault{s.path, 1, "kernel " + k.name + " is defined twice"})
			}
			names = append(names, k.name)
		}
	}
	return faults
}

// all returns the files of every configuration.
func (p *project) all() []*source {
	list := slices.Clone(p.kernels)
	for _, s := range p.apple {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}

// join returns the text that Apple's compiler gets. The files in other replace the real ones.
func (p *project) join(other map[string]string) (string, error) {
	var files []string
	for _, s := range p.apple {
		files = append(files, s.base())
	}
	text, err := joined.Text(files, func(file string) ([]byte, error) {
		if text, ok := other[file]; ok {
			return []byte(text), nil
		}
		text, ok := p.texts[file]
		if !ok {
			return nil, fmt.Errorf("there is no file %s", file)
		}
		return []byte(text), nil
	})
	return string(text), err
}

// putJoined writes the text that Apple's compiler gets, preprocessed for other compilers, to the
// build folder.
func (p *project) putJoined() error {
	types, err := os.ReadFile(filepath.Join(p.build, "types.h")) // perhaps limited to some types
	if err != nil {
		return err
	}
	_, limited, _ := strings.Cut(string(types), "\n")                             // without the #line directive
	text, err := p.join(map[string]string{"constants.h": "", "types.h": limited}) // joinedInclude has constants.h
	if err != nil {
		return err
	}
	return p.put(joinedFile, parseSource(joinedFile, text).preprocessed())
}

// checkJoined runs the strict passes on the text that Apple's compiler gets. It also checks that
// the kernels use nothing of the shim but Metal's own library.
func (p *project) checkJoined() error {
	text, err := p.join(nil)
	if err != nil {
		return err
	}
	const name = "strict." + joinedFile
	if err := p.put(name, text); err != nil {
		return err
	}
	file := filepath.Join(p.build, name)
	if err := p.toolchain.check(file, appleDefine); err != nil {
		return err
	}
	if err := p.checkTree(file, appleDefine); err != nil {
		return err
	}
	expanded, err := p.run(compiler, p.strictArgs("-E", "-fdirectives-only", appleDefine, file)...)
	if err != nil {
		return err
	}
	return shimUses(string(expanded))
}

// shimUses returns an error for each line of a preprocessed text outside of the shim that names the
// shim's own functions.
func shimUses(text string) error {
	var faults []error
	place := fault{}
	for _, l := range strings.Split(text, "\n") {
		if n, err := fmt.Sscanf(l, "# %d %q", &place.line, &place.path); n == 2 && err == nil {
			continue
		}
		if !strings.HasPrefix(place.path, shim) && strings.Contains(l, "shim::") {
			faults = append(faults, &fault{place.path, place.line, "Apple's compiler has no such function: " + strings.TrimSpace(l)})
		}
		place.line++
	}
	return errors.Join(faults...)
}

// applePTX writes PTX of all kernels in Apple's configuration and its manifest to a folder. It
// serves to measure these kernels on an NVIDIA GPU. The entries wait for the preceding commands,
// because the kernels do not. entries returns the entries of a kernel.
func (p *project) applePTX(dir string, entries func(kernel string) ([]shaders.Entry, error)) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := p.putJoined(); err != nil {
		return err
	}
	var jobs []func() error
	for _, s := range p.apple {
		name := strings.TrimSuffix(s.base(), ".metal")
		if !p.compiles(s) {
			continue
		}
		jobs = append(jobs, func() error {
			text, err := s.ptxEntries(joinedInclude, "    metal::shim::inputs_ready();\n", entries)
			if err != nil {
				return err
			}
			if err := p.put(name+".ptx.cc", text); err != nil {
				return err
			}
			made, err := p.ptx(name+".ptx.cc", &appleArchitecture)
			if err != nil {
				return err
			}
			path := filepath.Join(dir, s.base()+"."+appleArchitecture.name+".ptx")
			if made, err = finishPTX(made, s, path, appleResident); err != nil {
				return err
			}
			return os.WriteFile(path, made, 0o644)
		})
	}
	if err := each(jobs); err != nil {
		return err
	}
	m, err := describe(shaders.Manifest{Compiler: p.version, BindingAlign: bindingAlign, Architectures: []string{appleArchitecture.name}}, p.apple,
		func(_ *source, kernel string) ([]shaders.Entry, error) { return entries(kernel) })
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "manifest.json"), m, 0o644)
}
