// Package emu runs the GPU kernels on the CPU, for tests. It emulates every thread of a
// threadgroup, in an order that the test chooses.
//
// The emulator is a separate process, built from the Metal sources by internal/shadergen, so that
// a fault in a kernel ends that process and not the test. It requires Linux on x86-64 and clang
// 19.
package emu

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/table"
)

// Order is the order in which threadgroups, SIMD groups and lanes run between two barriers.
type Order uint32

// The orders. The result of a kernel must be the same for all of them.
const (
	Forward Order = iota
	Reverse
	Random // random order, from the dispatch's seed
)

// Dispatch is one command.
type Dispatch struct {
	Kernel  string
	Grid    [3]uint32 // in threadgroups
	Threads uint32    // threads per threadgroup, a multiple of 32
	TGMem   uint32    // bytes of threadgroup memory, which starts as NaN
	Order   Order
	Specs   [decl.MaxSpecs]uint32 // specialisation values in the declaration's order
	Seed    uint64

	// Buffers are the bindings, each exactly as long as the part that the kernel may
	// access. An absent binding is nil. Run replaces their contents.
	Buffers [decl.MaxBindings][]byte
	Params  [decl.ParamBytes]byte
	Second  [decl.SecondBytes]byte
	Step    [table.StepSize]byte // the step record, replaced by Run
	Behind  []byte               // the rest of the step block, replaced by Run

	Counts Counts // set by Run if the emulator was built with Options.Count
}

// Counts are what the kernel of a dispatch requested, as sums over all threads. Accesses are in bytes.
// pianola_counts in shaders/host/count.h has the same layout.
type Counts struct {
	Loads, Stores      [decl.MaxBindings]uint64 // by binding
	Constants          uint64                   // loads of parameters
	Step               uint64                   // loads and stores of the step block
	TGLoads, TGStores  uint64                   // threadgroup memory
	Elsewhere          uint64                   // private arrays that are not in registers, and the emulator's memory
	FMA32, FMA16       uint64                   // multiply-adds of the vector units, by type
	Matrix             uint64                   // multiply-adds of simdgroup_multiply_accumulate
	Int8               uint64                   // multiply-adds of dot products of int8
	Other              uint64                   // other operations of the vector units
	ThreadgroupBarrier uint64                   // barriers, once for each threadgroup
}

// Device returns the bytes that are loaded from and stored to the bindings.
func (c *Counts) Device() uint64 {
	n := uint64(0)
	for i := range c.Loads {
		n += c.Loads[i] + c.Stores[i]
	}
	return n
}

// Program is a built emulator. Its methods may be called from several
// goroutines; dispatches run one after another.
type Program struct {
	path  string
	types []dtype.Type // quantised weight types that it was built with; nil means all
	apple bool         // built with Options.Apple
	count bool         // built with Options.Count

	mu     sync.Mutex
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr bytes.Buffer
}

// Options are the settings of a build.
type Options struct {
	Apple    bool   // build Apple's configuration: one text, as Apple's compiler gets it
	Sanitize bool   // report accesses outside of buffers and threadgroup memory, and misaligned ones
	Sample   bool   // compile fast: with only the weight types that Sampled reports, and less optimisation
	Count    bool   // count accesses and operations; with the weight types Q4_0, Q8_0, Q4_K and Q6_K only
	Sources  string // a folder of undeclared kernels, from the repository's root; "" for the real ones
}

// Apple reports whether the emulator has the kernels of Apple's configuration.
func (p *Program) Apple() bool { return p.apple }

// Build builds the emulator in a temporary folder of the test and ends its process with the
// test. It skips the test if the emulator cannot be built here.
func Build(tb testing.TB, o Options) *Program {
	tb.Helper()
	p := build(tb, o, tb.TempDir())
	tb.Cleanup(p.stop)
	return p
}

// Builds are emulators shared by the tests of a package. The zero value is ready to use.
type Builds struct {
	mu    sync.Mutex
	dir   string
	built map[Options]*Program
}

// Get returns the emulator with the given options, which it builds on the first call. It
// skips the test if the emulator cannot be built here.
func (b *Builds) Get(tb testing.TB, o Options) *Program {
	tb.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.built[o]; p != nil {
		return p
	}
	if b.built == nil {
		b.built = make(map[Options]*Program)
	}
	var err error
	if b.dir == "" {
		if b.dir, err = os.MkdirTemp("", "pianola-emulators-"); err != nil {
			tb.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp(b.dir, "")
	if err != nil {
		tb.Fatal(err)
	}
	p := build(tb, o, dir)
	b.built[o] = p
	return p
}

// Close ends the processes and removes the programs. TestMain calls it.
func (b *Builds) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.built {
		p.stop()
	}
	if b.dir == "" {
		return nil
	}
	return os.RemoveAll(b.dir)
}

func build(tb testing.TB, o Options, dir string) *Program {
	tb.Helper()
	root := canBuild(tb)
	p := &Program{path: filepath.Join(dir, "emulator"), apple: o.Apple, count: o.Count}
	args := []string{"run", "./internal/shadergen", "-program", p.path}
	if o.Sources != "" {
		args = append(args, "-undeclared", "-sources", o.Sources)
	}
	if o.Apple {
		args = append(args, "-apple")
	}
	if o.Sanitize {
		args = append(args, "-sanitize")
	}
	switch {
	case o.Count:
		p.types = counted
		args = append(args, "-count")
	case o.Sample:
		p.types = sample
	}
	if p.types != nil {
		args = append(args, "-types", typeNames(p.types))
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return p
}

const compiler = "clang-19"

// canBuild returns the root of the repository that contains the test. It skips the test if
// the emulator cannot be built here.
func canBuild(tb testing.TB) string {
	tb.Helper()
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		tb.Skip("the emulator of kernels runs on Linux on x86-64 only")
	}
	if _, err := exec.LookPath(compiler); err != nil {
		tb.Skip(compiler + " is not installed; it compiles the kernels for the emulator")
	}
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		tb.Fatalf("go env GOMOD: %v", err)
	}
	root := filepath.Dir(strings.TrimSpace(string(out)))
	if err := touch(filepath.Join(root, "shaders")); err != nil {
		tb.Fatal(err)
	}
	return root
}

// touch opens every file of the kernels, because go test does not see which files another
// process reads. So a cached test result depends on the kernels.
func touch(dir string) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		return f.Close()
	})
}

// start starts the process unless it is running. p.mu is held.
func (p *Program) start() error {
	if p.cmd != nil {
		return nil
	}
	cmd := exec.Command(p.path)
	options := "detect_leaks=0"
	if path, err := exec.LookPath("llvm-symbolizer-19"); err == nil {
		options += ":external_symbolizer_path=" + path
	}
	cmd.Env = append(os.Environ(), "ASAN_OPTIONS="+options)
	p.stderr.Reset()
	cmd.Stderr = &p.stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.cmd, p.in, p.out = cmd, in, bufio.NewReader(out)
	return nil
}

func (p *Program) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return
	}
	p.in.Close()
	p.cmd.Wait()
	p.cmd = nil
}

// Run runs a command. Afterwards Buffers and Step hold the kernel's results. The error is a
// fault of the kernel: its lanes wait at different barriers, or a sanitizer reports an invalid
// access. It is an *UncompiledError if the emulator lacks the weight type.
func (p *Program) Run(d *Dispatch) error {
	if err := p.compiled(d); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.start(); err != nil {
		return err
	}
	var refused *RefusedError
	err := p.exchange(d)
	if err == nil || errors.As(err, &refused) {
		return err
	}
	// The process has ended, or its answer is invalid.
	p.in.Close()
	p.cmd.Process.Kill()
	p.cmd.Wait()
	p.cmd = nil
	return fmt.Errorf("emu: %s: the process ended (%w): %s", d.Kernel, err, p.stderr.Bytes())
}

// RefusedError reports a fault that the emulator found.
type RefusedError struct{ Text string }

// Error implements error.
func (e *RefusedError) Error() string { return "emu: " + e.Text }

// exchange writes the request and reads the answer; host/server.cc describes their layout.
func (p *Program) exchange(d *Dispatch) error {
	var head bytes.Buffer
	sizes := [decl.MaxBindings]uint64{}
	for i, b := range d.Buffers {
		sizes[i] = uint64(len(b))
		if b == nil {
			sizes[i] = ^uint64(0)
		}
	}
	for _, v := range []any{uint32(len(d.Kernel)), []byte(d.Kernel), d.Grid, d.Threads, d.TGMem, uint32(d.Order), d.Specs, d.Seed, sizes, uint64(len(d.Step) + len(d.Behind)), d.Params, d.Second, d.Step, d.Behind} {
		if err := binary.Write(&head, binary.LittleEndian, v); err != nil {
			return err
		}
	}
	w := bufio.NewWriter(p.in)
	w.Write(head.Bytes())
	for _, b := range d.Buffers {
		w.Write(b)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	var n uint32
	if err := binary.Read(p.out, binary.LittleEndian, &n); err != nil {
		return err
	}
	if n > 0 {
		text := make([]byte, n)
		if _, err := io.ReadFull(p.out, text); err != nil {
			return err
		}
		return &RefusedError{string(text)}
	}
	for _, b := range d.Buffers {
		if _, err := io.ReadFull(p.out, b); err != nil {
			return err
		}
	}
	for _, b := range [][]byte{d.Step[:], d.Behind} {
		if _, err := io.ReadFull(p.out, b); err != nil {
			return err
		}
	}
	if !p.count {
		return nil
	}
	return binary.Read(p.out, binary.LittleEndian, &d.Counts)
}
