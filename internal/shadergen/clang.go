package main

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const compiler = "clang-19"

// packages are the Debian packages that are needed to build the kernels.
const packages = "clang-19 llvm-19 libclang-rt-19-dev"

// toolchain runs the compiler in the repository's root, so that messages and output contain
// file names relative to it.
type toolchain struct {
	root    string // the repository
	build   string // folder for the preprocessed sources
	version string // of the compiler
}

var versionPattern = regexp.MustCompile(`clang version (\d+\.\d+\.\d+)`)

// version returns the compiler's name and version. If the compiler is missing, the error names
// the packages to install.
func version() (string, error) {
	out, err := exec.Command(compiler, "--version").Output()
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("%s, which compiles the kernels, is missing; on Debian, run apt-get install %s", compiler, packages)
	}
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", compiler, err)
	}
	m := versionPattern.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("%s --version printed %q", compiler, out)
	}
	return "clang " + string(m[1]), nil
}

var diagnostic = regexp.MustCompile(`^(.+?):(\d+):\d+: (error|fatal error|note): (.*)$`)

// shim is the folder of the headers that replace Metal's standard library. If a wrong use of
// the library causes an error in this folder, the error is reported at the first note outside
// the folder.
const shim = "shaders/shim/"

// said shortens the compiler's messages to one line per error.
func said(text string) error {
	var faults []error
	var last *fault
	for _, l := range strings.Split(text, "\n") {
		m := diagnostic.FindStringSubmatch(l)
		if m == nil {
			continue
		}
		line, _ := strconv.Atoi(m[2])
		switch {
		case m[3] != "note":
			last = &fault{m[1], line, m[4]}
			faults = append(faults, last)
		case last != nil && strings.HasPrefix(last.path, shim) && !strings.HasPrefix(m[1], shim):
			last.path, last.line = m[1], line
		}
	}
	if len(faults) == 0 {
		return errors.New(strings.TrimSpace(text))
	}
	return errors.Join(faults...)
}

// run runs a tool. The error contains the tool's output.
func (t *toolchain) run(name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = t.root
	var out, messages bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &messages
	if err := cmd.Run(); err != nil {
		if messages.Len() > 0 {
			return nil, said(messages.String())
		}
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return out.Bytes(), nil
}

// brief are options that reduce each message to one line.
var brief = []string{"-fno-caret-diagnostics", "-fno-color-diagnostics", "-fno-diagnostics-show-note-include-stack"}

// language are the options of both targets: Metal's C++14, without an operating system.
var language = []string{
	"-x", "c++", "-std=c++14", "-Werror=c++17-extensions", "-ffreestanding", "-fsigned-char", "-nostdinc", "-fno-exceptions", "-fno-rtti",
	"-fno-strict-aliasing", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-Xclang", "-cl-single-precision-constant",
	"-flax-vector-conversions=none", "-D__METAL_VERSION__=310", "-Wall", "-Werror", "-Wno-unused-function", "-Wno-unused-const-variable",
	"-Wno-duplicate-decl-specifier", "-Wno-sometimes-uninitialized", "-Wno-psabi",
}

// strict are the options for checking the unchanged sources with clang's front end for C++ for
// OpenCL. Unlike the other targets, it has address spaces and no implicit conversions between
// them.
var strict = []string{
	"-x", "clcpp", "-cl-std=clc++1.0", "-cl-no-stdinc", "--target=nvptx64-nvidia-cuda", "-Xclang", "-cl-ext=+cl_khr_fp16",
	"-cl-single-precision-constant", "-D__METAL_VERSION__=310", "-fsyntax-only",
}

func (t *toolchain) strictArgs(more ...string) []string {
	args := append([]string{}, strict...)
	return append(append(args, "-isystem", "shaders/shim"), more...)
}

// check runs the strict front end on a source file, with more options.
func (t *toolchain) check(file string, more ...string) error {
	args := t.strictArgs(more...)
	args = append(args, "-Wall", "-Wextra", "-Werror", "-Wno-unknown-attributes", "-Wno-ignored-pragmas", "-Wno-sometimes-uninitialized",
		"-Wno-uninitialized", "-Wno-duplicate-decl-specifier", "-Wno-unused-function")
	_, err := t.run(compiler, append(append(args, brief...), file)...)
	return err
}

// includes returns the options for compiling a preprocessed source.
func (t *toolchain) includes() []string {
	return []string{"-isystem", "shaders/shim", "-isystem", "shaders/host", "-I", t.build}
}

// ptx compiles a source in the build folder to PTX for an architecture.
func (t *toolchain) ptx(file string, a *architecture) ([]byte, error) {
	return t.run(compiler, append(t.ptxArgs(a), "-S", "-o", "-", filepath.Join(t.build, file))...)
}

// ptxArgs returns the options for an architecture.
func (t *toolchain) ptxArgs(a *architecture) []string {
	args := append([]string{}, language...)
	for _, d := range a.defines {
		args = append(args, "-D"+d)
	}
	args = append(args, "--target=nvptx64-nvidia-cuda", "-march="+a.name, "-Xclang", "-target-feature", "-Xclang", a.isa, fmt.Sprintf("-DPIANOLA_SM=%d", a.number),
		// Barriers and shuffles must not be moved into branches.
		"-fconvergent-functions",
		// The disabled pass would split 128-bit loads near inline assembly.
		"-O3", "-mllvm", "-disable-vector-combine",
		// Inline every function, whatever its size.
		"-mllvm", "-inline-threshold=1000000", "-mllvm", "-inline-cold-callsite-threshold=1000000",
		"-mllvm", "-nvptx-prec-divf32=1", "-mllvm", "-nvptx-prec-sqrtf32=0")
	return append(append(args, t.includes()...), brief...)
}

// hostBuild selects how the emulator is built.
type hostBuild struct {
	apple    bool   // in Apple's configuration
	shared   bool   // a shared library, which executes whole models
	sanitize bool   // with sanitizers, and the line numbers that their reports print
	count    bool   // with counts of accesses and operations
	types    string // names of the only quantised weight types to compile, separated by commas; "" for all
}

// quick are options of a program whose compilation counts for more than its speed: the tests run little
// of its code. In functions with the products of all weight types, the omitted steps take more time than
// the rest of the compiler.
var quick = []string{"-O1", "-mllvm", "-regalloc=basic", "-mllvm", "-enable-tail-merge=0"}

// options returns the options for all parts of the emulator.
func (b hostBuild) options() []string {
	args := []string{"--target=x86_64-linux-gnu", "-march=x86-64-v3", "-fPIC", "-ftls-model=initial-exec"}
	switch {
	case b.sanitize:
		// There are line numbers, but no places of variables.
		args = append(append(args, quick...), "-gline-tables-only", "-mllvm", "-experimental-debug-variable-locations=false")
		return append(args, "-fno-omit-frame-pointer", "-fsanitize=address,alignment,bounds", "-fno-sanitize-recover=all", "-fsanitize-address-use-after-return=never")
	case b.count: // the loads, stores and loops of the source, as a GPU executes them
		return append(args, "-O1", "-fno-vectorize", "-fno-slp-vectorize", "-fno-unroll-loops")
	case !b.shared:
		return append(args, quick...)
	}
	return append(args, "-O2")
}

// object compiles a preprocessed source for the emulator.
func (t *toolchain) object(file, out string, b hostBuild) error {
	args := append(append([]string{}, language...), b.options()...)
	// Do not unroll loops: it takes most of the compile time and gains nothing here.
	args = append(args, "-Xclang", "-ffloat16-excess-precision=none", "-D_Pragma(x)=", "-Wno-builtin-macro-redefined")
	if b.apple {
		args = append(args, appleDefine)
	}
	args = append(append(args, t.includes()...), brief...)
	if b.count {
		return t.counted(args, out, filepath.Join(t.build, file))
	}
	return t.compile(args, out, filepath.Join(t.build, file))
}

// native compiles a part of the emulator that is not a kernel. It is not sanitized, because it
// runs for every lane at every barrier.
func (t *toolchain) native(file, out string, b hostBuild) error {
	args := append([]string{"-x", "c++", "-std=c++17", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra", "-Werror", "-I", "shaders/host"}, hostBuild{shared: true}.options()...)
	if b.sanitize {
		args = append(args, "-DPIANOLA_ASAN")
	}
	if b.count {
		args = append(args, "-DPIANOLA_COUNT")
	}
	return t.compile(append(args, brief...), out, file)
}

// link builds a shared library or a program.
func (t *toolchain) link(out string, b hostBuild, objects []string) error {
	args := b.options()
	if b.shared {
		args = append(args, "-shared")
	}
	_, err := t.run(compiler, append(append(args, "-o", out), append(objects, "-lm", "-lstdc++")...)...)
	return err
}

var (
	astPlace  = regexp.MustCompile(`([\w./<> -]*[\w>]):(\d+):\d+|line:(\d+):\d+`)
	astDecl   = regexp.MustCompile(`^[| \x60-]*(Var|ParmVar|Field|TypeAlias|Typedef)Decl 0x`)
	astName   = regexp.MustCompile(`(?:used|referenced|:\d+) (\w+) '([^']*)'`)
	astCast   = regexp.MustCompile(`(CStyleCastExpr|CXXReinterpretCastExpr|CXXFunctionalCastExpr|CXXStaticCastExpr) 0x`)
	anyVector = regexp.MustCompile(`ext_vector|\b(char|uchar|short|ushort|int|uint|half|float)[234]'`)
	noSpace   = regexp.MustCompile(`__generic [^*&]*[*&]`)
	toNoSpace = regexp.MustCompile(`'[^']*__generic [^']*\*'`)
)

// checkTree checks the syntax tree of the strict front end for code that this front end
// accepts but Metal rejects. In the tree, a pointer without an address space is __generic.
func (t *toolchain) checkTree(file string, more ...string) error {
	out, err := t.run(compiler, append(t.strictArgs("-w", "-Xclang", "-ast-dump", "-fno-color-diagnostics"), append(more, file)...)...)
	if err != nil {
		return err
	}
	var faults []error
	current, line := "", 0
	for _, l := range strings.Split(string(out), "\n") {
		// Locations in the tree are relative to the previous location, and unchanged parts are
		// omitted. A line has the start and the end of the range and the location of the name.
		start := 0
		if i := strings.Index(l, " <"); i >= 0 {
			head := l[i:]
			if j := strings.IndexByte(head, '\''); j >= 0 {
				head = head[:j]
			}
			for n, m := range astPlace.FindAllStringSubmatch(head, -1) {
				if m[1] != "" {
					current = strings.TrimLeft(m[1], " <")
					line, _ = strconv.Atoi(m[2])
				} else {
					line, _ = strconv.Atoi(m[3])
				}
				if n == 0 {
					start = line
				}
			}
		}
		if !slices.Contains([]string{".metal", ".h"}, path.Ext(current)) || strings.HasPrefix(current, shim) {
			continue
		}
		if start == 0 {
			start = line
		}
		if what := inspect(l); what != "" {
			faults = append(faults, &fault{current, start, what})
		}
	}
	return errors.Join(faults...)
}

// inspect returns the error in one node of the tree, or "".
func inspect(l string) string {
	switch {
	case astDecl.MatchString(l) && !strings.Contains(l, " implicit "):
		for _, m := range astName.FindAllStringSubmatch(l, -1) {
			if noSpace.MatchString(m[2]) {
				return "pointer or reference without an address space: " + m[1]
			}
			global := strings.HasPrefix(m[2], "__global ") || strings.HasPrefix(m[2], "const __global ")
			if global && !strings.ContainsAny(m[2], "*&") && strings.Contains(l, "VarDecl") {
				return "variable of the program that is not constant: " + m[1]
			}
		}
	case strings.Contains(l, "LambdaExpr 0x"):
		return "Metal has no lambdas"
	case astCast.MatchString(l) && strings.Contains(l, "<BitCast>") && anyVector.MatchString(l):
		return "a cast between vectors reinterprets the bits: use a constructor or as_type"
	case astCast.MatchString(l) && toNoSpace.MatchString(l):
		return "cast to a pointer without an address space"
	}
	return ""
}
