package main

import (
	"bufio"
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// The names of the tools on Debian, and the only compiler version whose output is committed.
const (
	clang   = "clang-19"
	objdump = "llvm-objdump-19"
	version = "clang version 19."
)

// flags make the object file the same on every machine. They reserve registers 18 (platform),
// 27 (linker) and 28 (g). A product and a sum are fused only if the source requests it.
// Addresses are computed where they are used, because keeping them all in registers would need
// too many.
var flags = []string{
	"--target=aarch64-linux-gnu", "-std=gnu17", "-O2", "-Wall", "-Wextra", "-Werror",
	"-ffreestanding", "-fno-builtin", "-fno-jump-tables", "-fno-vectorize", "-fno-slp-vectorize",
	"-ffp-contract=off", "-fomit-frame-pointer", "-fno-stack-protector",
	"-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-ident",
	"-ffixed-x18", "-ffixed-x27", "-ffixed-x28", "-mllvm", "-disable-lsr",
}

// march selects the instruction set by the beginning of a file's name; the default is armv8-a.
// Code for processors without an extension must not use its instructions.
var march = []struct{ prefix, arch string }{
	{"matrix", "armv8.2-a+dotprod+i8mm"}, {"tiled", "armv8.2-a+dotprod"}, {"rows", "armv8.2-a+dotprod"}, {"", "armv8-a"},
}

// compiler compiles C files and checks them against the declarations in Go.
type compiler struct{ dir string }

func newCompiler(funcs map[string]*decl) (*compiler, error) {
	for tool, pkg := range map[string]string{clang: clang, objdump: "llvm-19"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("%s is missing; install Debian's package %s", tool, pkg)
		}
	}
	out, err := exec.Command(clang, "--version").Output()
	if err != nil || !bytes.Contains(out, []byte(version)) {
		return nil, fmt.Errorf("%s is not %s: %s, %w", clang, version, out, err)
	}
	dir, err := os.MkdirTemp("", "neon")
	if err != nil {
		return nil, err
	}
	return &compiler{dir}, os.WriteFile(filepath.Join(dir, "decl.h"), []byte(prototypes(funcs)), 0o644)
}

func (c *compiler) close() { os.RemoveAll(c.dir) }

// compile returns the functions of a C file in the order of their addresses.
func (c *compiler) compile(source string) ([]function, error) {
	arch := ""
	for _, m := range march {
		if arch == "" && strings.HasPrefix(filepath.Base(source), m.prefix) {
			arch = m.arch
		}
	}
	object := filepath.Join(c.dir, "o.o")
	args := append([]string{"-march=" + arch, "-include", filepath.Join(c.dir, "decl.h"), "-c", source, "-o", object}, flags...)
	if out, err := exec.Command(clang, args...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", clang, err, out)
	}
	if err := plain(object); err != nil {
		return nil, err
	}
	out, err := exec.Command(objdump, "--disassemble", "--section=.text", object).Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", objdump, err)
	}
	return parse(out)
}

// plain checks that the object consists only of instructions: .text without relocations and no
// other section that would be loaded.
func plain(object string) error {
	f, err := elf.Open(object)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, s := range f.Sections {
		switch {
		case s.Size == 0 || s.Name == ".text":
		case s.Type == elf.SHT_REL || s.Type == elf.SHT_RELA:
			return fmt.Errorf("section %s has %d bytes of relocations, from calls or constants in memory", s.Name, s.Size)
		case s.Flags&elf.SHF_ALLOC != 0:
			return fmt.Errorf("%s: %d bytes of data", s.Name, s.Size)
		}
	}
	return nil
}

// function holds the instructions of a function.
type function struct {
	name string
	code []instruction
}

// instruction is one instruction. target is the address in its operands, or -1 if there is
// none.
type instruction struct {
	addr, target int64
	word         uint32
	text         string // the disassembler's text, with a blank between operands
}

var (
	heading = regexp.MustCompile(`^([0-9a-f]+) <(\w+)>:$`)
	line    = regexp.MustCompile(`^ *([0-9a-f]+): ([0-9a-f]{8}) +\t([^/]+)(//.*)?$`)
	address = regexp.MustCompile(`0x([0-9a-f]+) <[^>]+>`)
)

// parse reads the disassembler's output.
func parse(out []byte) ([]function, error) {
	var funcs []function
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		text := strings.TrimRight(s.Text(), " ")
		if m := heading.FindStringSubmatch(text); m != nil {
			funcs = append(funcs, function{name: m[2]})
			continue
		}
		m := line.FindStringSubmatch(text)
		if m == nil {
			if text == "" || len(funcs) == 0 {
				continue // text before the first function
			}
			return nil, fmt.Errorf("the disassembly has a line that is not an instruction: %q", text)
		}
		addr, err := strconv.ParseInt(m[1], 16, 64)
		if err != nil {
			return nil, err
		}
		word, err := strconv.ParseUint(m[2], 16, 32)
		if err != nil {
			return nil, err
		}
		i := instruction{addr: addr, target: -1, word: uint32(word), text: strings.Join(strings.Fields(m[3]), " ")}
		if m := address.FindStringSubmatch(i.text); m != nil {
			if i.target, err = strconv.ParseInt(m[1], 16, 64); err != nil {
				return nil, err
			}
		}
		if len(funcs) == 0 {
			return nil, fmt.Errorf("the disassembly has an instruction before the first function: %q", text)
		}
		f := &funcs[len(funcs)-1]
		f.code = append(f.code, i)
	}
	return funcs, nil
}
