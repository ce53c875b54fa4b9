package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/pianola-engine/pianola/internal/metal/joined"
	"github.com/pianola-engine/pianola/internal/ptxstore"
	"github.com/pianola-engine/pianola/shaders"
)

// bindingAlign is the alignment in bytes that kernels require of bindings.
const bindingAlign = 16

// output is a generated file: its path relative to the root and its content.
type output struct {
	path string
	text []byte
}

// project holds the sources and the compiler.
type project struct {
	toolchain
	kernels []*source         // .metal files, by name; not those that replace another one for Apple
	apple   []*source         // .metal files of Apple's configuration, by name
	headers []*source         // included headers, except generated ones
	texts   map[string]string // all files' texts by name, as Apple's compiler gets them
	only    string            // the only sources to compile, separated by commas, or "" for all
	anew    bool              // compile also what has not changed
	made    map[string]made   // what the committed PTX texts were made of, by path
}

// compiles reports whether a source is compiled in this run.
func (p *project) compiles(s *source) bool {
	return p.only == "" || slices.Contains(strings.Split(p.only, ","), s.base())
}

// generated lists headers that are not checked because another generator writes them.
var generated = []string{"params.h", "constants.h", "types.h"}

// open reads and checks the kernels of a folder and the headers of shaders, and preprocesses
// them for the targets. The caller must remove the build folder. If declared is false, as for
// test kernels, kernels need no declaration.
func open(root, folder string, declared bool) (*project, error) {
	p := &project{toolchain: toolchain{root: root}, texts: map[string]string{}}
	var err error
	if p.version, err = version(); err != nil {
		return nil, err
	}
	if p.build, err = os.MkdirTemp("", "pianola-shaders-"); err != nil {
		return nil, err
	}
	if err := errors.Join(p.read("shaders", ".h", declared), p.read(folder, ".metal", declared), p.divide()); err != nil {
		os.RemoveAll(p.build)
		return nil, err
	}
	return p, nil
}

// read reads the files of a folder with the extension ext.
func (p *project) read(folder, ext string, declared bool) error {
	files, err := os.ReadDir(filepath.Join(p.root, folder))
	if err != nil {
		return err
	}
	var faults []error
	for _, f := range files {
		if filepath.Ext(f.Name()) != ext {
			continue
		}
		path := folder + "/" + f.Name()
		b, err := os.ReadFile(filepath.Join(p.root, path))
		if err != nil {
			return err
		}
		p.texts[f.Name()] = string(b)
		s := parseSource(path, string(b))
		switch {
		case slices.Contains(generated, f.Name()):
			s = &source{path: path, text: string(b)}
		case ext == ".h":
			s.lintConstants()
			p.headers = append(p.headers, s)
		default:
			if declared {
				s.checkABI()
			}
			p.kernels = append(p.kernels, s)
		}
		faults = append(faults, s.faults...)
		text := s.preprocessed()
		if f.Name() == "constants.h" {
			text = constantsHeader()
		}
		if err := p.put(f.Name(), text); err != nil {
			return err
		}
	}
	return errors.Join(faults...)
}

// each runs jobs on all processors and joins their errors in the order of the jobs.
func each(jobs []func() error) error {
	errs := make([]error, len(jobs))
	next := make(chan int)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range next {
				errs[i] = jobs[i]()
			}
		})
	}
	for i := range jobs {
		next <- i
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}

// check runs the strict passes on every source, and on the text that Apple's compiler gets.
func (p *project) check() error {
	jobs := []func() error{p.checkJoined}
	for _, s := range p.all() {
		jobs = append(jobs, func() error {
			if err := p.toolchain.check(s.path); err != nil {
				return err
			}
			return p.checkTree(s.path)
		})
	}
	return each(jobs)
}

// make returns the generated files: PTX for each source and architecture, what they were made of, and the
// manifest.
func (p *project) make() ([]output, error) {
	p.made = p.readMade()
	var jobs []func() error
	var outputs []output
	var from []string
	for _, s := range p.kernels {
		if joined.Apple(s.base()) {
			continue
		}
		text, err := s.ptxSource()
		if err != nil {
			return nil, err
		}
		name := strings.TrimSuffix(s.base(), ".metal") + ".ptx.cc"
		if err := p.put(name, text); err != nil {
			return nil, err
		}
		for _, a := range architectures {
			if a.file != "" && a.file != s.base() {
				continue
			}
			i, path := len(outputs), ptxDir+"/"+strings.TrimSuffix(s.base(), ".metal")+"."+a.name
			outputs, from = append(outputs, output{path: path}), append(from, p.made[path].from)
			if !p.compiles(s) {
				if outputs[i].text, err = p.committed(path); err != nil {
					return nil, err
				}
				continue
			}
			jobs = append(jobs, func() (err error) {
				if from[i], err = p.from(s, name, &a); err != nil {
					return err
				}
				if outputs[i].text = p.unchanged(path, from[i]); outputs[i].text != nil {
					return nil
				}
				text, err := p.ptx(name, &a)
				if err != nil {
					return err
				}
				if err := checkBegins(text, path); err != nil {
					return err
				}
				outputs[i].text, err = finishPTX(text, s, path, 0)
				return err
			})
		}
	}
	if err := each(jobs); err != nil {
		return nil, err
	}
	m, err := p.manifest()
	return append(outputs, madeOutput(outputs, from), output{"shaders/manifest.json", m}), err
}

func (p *project) manifest() ([]byte, error) {
	m := shaders.Manifest{Compiler: p.version, BindingAlign: bindingAlign}
	for _, a := range architectures {
		if a.file == "" {
			m.Architectures = append(m.Architectures, a.name)
		} else if slices.ContainsFunc(p.kernels, func(s *source) bool { return s.base() == a.file }) {
			m.Exact = append(m.Exact, shaders.Exact{File: a.file, Architecture: a.name})
		}
	}
	return describe(m, p.kernels, func(s *source, kernel string) ([]shaders.Entry, error) {
		if joined.Apple(s.base()) {
			return []shaders.Entry{}, nil // NVIDIA GPUs lack the kernel
		}
		return entries(kernel)
	})
}

// describe returns a manifest with the kernels of some files, encoded as JSON.
func describe(m shaders.Manifest, files []*source, entries func(s *source, kernel string) ([]shaders.Entry, error)) ([]byte, error) {
	m.Kernels = []shaders.Kernel{}
	for _, s := range files {
		for i := range s.kernels {
			k := &s.kernels[i]
			list, err := entries(s, k.name)
			if err != nil {
				return nil, err
			}
			m.Kernels = append(m.Kernels, shaders.Kernel{Name: k.name, File: s.base(), MaxThreads: k.maxThreads, Entries: list})
		}
	}
	b, err := json.MarshalIndent(m, "", "")
	return append(b, '\n'), err
}

// host builds the emulator with every kernel of the build's configuration. The result is a shared library or the program
// that package emu starts.
func (p *project) host(out string, b hostBuild) error {
	out, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	if err := p.limit(b.types); err != nil {
		return err
	}
	var jobs []func() error
	var objects []string
	add := func(compile func(file, out string, b hostBuild) error, file string) {
		o := filepath.Join(p.build, filepath.Base(file)+".o")
		objects = append(objects, o)
		jobs = append(jobs, func() error { return compile(file, o, b) })
	}
	files := p.kernels
	if b.apple {
		files = p.apple
		if err := p.putJoined(); err != nil {
			return err
		}
	}
	for _, s := range files {
		name := strings.TrimSuffix(s.base(), ".metal") + ".host.cc"
		include := s.include()
		if b.apple {
			include = joinedInclude
		}
		if err := p.put(name, s.hostSource(include)); err != nil {
			return err
		}
		add(p.object, name)
	}
	kernelList, err := hostList(files)
	if err != nil {
		return err
	}
	if err := p.put("kernels.cc", kernelList); err != nil {
		return err
	}
	add(p.native, filepath.Join(p.build, "kernels.cc"))
	add(p.native, "shaders/host/emulator.cc")
	if b.count {
		add(p.native, "shaders/host/count.cc")
	}
	if !b.shared {
		add(p.native, "shaders/host/server.cc")
	}
	if err := each(jobs); err != nil {
		return err
	}
	return p.link(out, b, objects)
}

// compare returns an error for each output that differs from the committed file, and for each
// committed PTX text that no source produces.
func (p *project) compare(outputs []output) error {
	errs := p.differ(outputs)
	for _, path := range p.stale(outputs) {
		errs = append(errs, fmt.Errorf("no source produces %s", path))
	}
	if made, err := shaders.Made(); len(errs) > 0 && err == nil && made.Compiler != p.version {
		errs = append(errs, fmt.Errorf("the committed files were compiled with %s, this compiler is %s", made.Compiler, p.version))
	}
	return errors.Join(errs...)
}

// ptxDir is the folder of the PTX texts, which package ptxstore packs. The path of a PTX
// output consists of this folder and the text's name.
const ptxDir = "shaders/ptx"

// ptxTexts returns the outputs that are PTX texts by name.
func ptxTexts(outputs []output) map[string][]byte {
	texts := map[string][]byte{}
	for _, o := range outputs {
		if name, ok := strings.CutPrefix(o.path, ptxDir+"/"); ok {
			texts[name] = o.text
		}
	}
	return texts
}

// committed returns the committed content of an output. PTX texts are compared
// uncompressed, because the compressed bytes depend on the compressor's version.
func (p *project) committed(path string) ([]byte, error) {
	name, ok := strings.CutPrefix(path, ptxDir+"/")
	if !ok {
		return os.ReadFile(filepath.Join(p.root, path))
	}
	store, err := ptxstore.Open(os.DirFS(filepath.Join(p.root, ptxDir)))
	if err != nil {
		return nil, err
	}
	return store.Text(name)
}

// differ returns an error for each output that differs from the committed content.
func (p *project) differ(outputs []output) (errs []error) {
	for _, o := range outputs {
		got, err := p.committed(o.path)
		if err != nil || !bytes.Equal(got, o.text) {
			errs = append(errs, fmt.Errorf("%s differs from the output for its sources: run go run ./internal/shadergen", o.path))
		}
	}
	return errs
}

// stale returns the committed PTX texts that no source produces.
func (p *project) stale(outputs []output) []string {
	store, err := ptxstore.Open(os.DirFS(filepath.Join(p.root, ptxDir)))
	if err != nil {
		return nil // the store does not exist yet
	}
	texts := ptxTexts(outputs)
	var list []string
	for _, name := range store.Names() {
		if _, ok := texts[name]; !ok {
			list = append(list, ptxDir+"/"+name)
		}
	}
	return list
}

// write writes the outputs. The PTX texts replace the whole content of their folder.
func (p *project) write(outputs []output) error {
	files, err := ptxstore.Pack(ptxTexts(outputs), p.compressor())
	if err != nil {
		return err
	}
	dir := filepath.Join(p.root, ptxDir)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			return err
		}
	}
	for _, o := range outputs {
		if strings.HasPrefix(o.path, ptxDir+"/") {
			continue
		}
		if err := os.WriteFile(filepath.Join(p.root, o.path), o.text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
