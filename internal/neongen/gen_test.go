package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// compileC compiles a C source with prototypes of the functions f and g.
func compileC(t *testing.T, source string) ([]function, error) {
	t.Helper()
	for _, tool := range []string{clang, objdump} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	c, err := newCompiler(map[string]*decl{
		"f": {name: "f", params: []param{{"y", "float *"}, {"n", "int64_t"}}},
		"g": {name: "g", params: []param{{"y", "float *"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	path := filepath.Join(t.TempDir(), "test.c")
	if err := os.WriteFile(path, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	return c.compile(path)
}

// assemble compiles a C source and returns the Go assembly of its first function.
func assemble(t *testing.T, source string) (string, error) {
	t.Helper()
	funcs, err := compileC(t, source)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	err = write(&b, &decl{name: "f", doc: "func f(y *float32, n int)", params: []param{{"y", "float *"}, {"n", "int64_t"}}}, funcs[0])
	return b.String(), err
}

func TestAssemble(t *testing.T) {
	out, err := assemble(t, "void f(float *y, int64_t n) { for (; n > 0; n--) *y++ += 1; }")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\n// func f(y *float32, n int)\nTEXT ·f(SB), NOSPLIT, $0-16\n",
		"\tMOVD y+0(FP), R20\n\tMOVD n+8(FP), R21\n",
		"\nl0:\n", " l0\n", "\tRET\n", "\tWORD $0x",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the assembly lacks %q:\n%s", want, out)
		}
	}
}

// TestRefused checks that functions which cannot become Go assembly are refused.
func TestRefused(t *testing.T) {
	for name, tt := range map[string]struct{ source, want string }{
		"call":      {"void h(void); void f(float *y, int64_t n) { (void)y; (void)n; h(); }", "relocations"},
		"local":     {"__attribute__((noinline)) static void h(float *y) { *y = *y * *y; __asm__(\"\"); } void f(float *y, int64_t n) { h(y); y[n] = 1; }", ""},
		"memory":    {"void f(float *y, int64_t n) { static const float t[] = {3, 1, 4, 1, 5}; *y = t[n]; }", "relocations"},
		"variable":  {"static int64_t v; void f(float *y, int64_t n) { v += n; *y = v; }", ""},
		"stack":     {"void f(float *y, int64_t n) { volatile float t[8]; t[n & 7] = 1; *y = t[0]; }", "stack"},
		"g":         {"void f(float *y, int64_t n) { (void)y; (void)n; __asm__ volatile(\"mov x28, xzr\"); }", "reserved"},
		"platform":  {"void f(float *y, int64_t n) { (void)y; (void)n; __asm__ volatile(\"mov w18, wzr\"); }", "reserved"},
		"jump":      {"void f(float *y, int64_t n) { (void)y; __asm__ volatile(\"br %0\" : : \"r\"(n)); }", "leaves"},
		"system":    {"void f(float *y, int64_t n) { (void)y; (void)n; __asm__ volatile(\"msr fpcr, xzr\"); }", "leaves"},
		"trap":      {"void f(float *y, int64_t n) { (void)y; (void)n; __builtin_trap(); }", ""},
		"prototype": {"void f(float *y, int n) { y[n] = 1; }", "conflicting types"},
		"warning":   {"void f(float *y, int64_t n) { y[0] = 1; }", "unused parameter"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := assemble(t, tt.source)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q\n%s", err, tt.want, out)
			}
		})
	}
}

// TestCheck checks that instructions are refused which the compiler does not normally
// generate.
func TestCheck(t *testing.T) {
	for _, text := range []string{
		"ldr q0, 0x40 <f+0x40>", "b 0x100 <g>", "cbz x0, 0x100 <g+0x4>", "ret x5", "str x30, [x0]", "add x29, x29, #0x1", "mov x27, x0", "ldp x1, w28, [x2]",
	} {
		i := instruction{addr: 4, target: -1, text: text}
		if m := address.FindStringSubmatch(text); m != nil {
			if _, err := fmt.Sscanf(m[1], "%x", &i.target); err != nil {
				t.Fatal(err)
			}
		}
		f := function{name: "f", code: []instruction{{addr: 0, target: -1}, i, {addr: 0x80, target: -1, text: "ret"}}}
		if err := f.check(i); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

func TestParse(t *testing.T) {
	funcs, err := parse([]byte("\no.o:\tfile format elf64-littleaarch64\n\n0000000000000000 <f>:\n" +
		"       0: 5280020f     \tmov\tw15, #0x10              // =16\n       4: 54ffffe1     \tb.ne\t0x0 <f>\n\n0000000000000008 <g>:\n       8: d65f03c0     \tret\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(funcs) != 2 || len(funcs[0].code) != 2 || funcs[1].code[0].text != "ret" {
		t.Fatalf("%+v", funcs)
	}
	if i := funcs[0].code[0]; i.text != "mov w15, #0x10" || i.word != 0x5280020f || i.target != -1 {
		t.Errorf("%+v", i)
	}
	if i := funcs[0].code[1]; i.target != 0 || i.addr != 4 {
		t.Errorf("%+v", i)
	}
	if _, err := parse([]byte("0000000000000000 <f>:\n\t\t...\n")); err == nil {
		t.Error("parse accepts a line that is not an instruction")
	}
}

// TestCommitted checks that each C file has a committed assembly file that is not long, and compares those of
// one package with the output for their C files. To compile all of them, as make generated does, takes a minute.
func TestCommitted(t *testing.T) {
	for _, dir := range packages {
		dir = filepath.Join("..", "..", filepath.FromSlash(dir))
		sources, err := filepath.Glob(filepath.Join(dir, "neon", "*.c"))
		if err != nil || len(sources) == 0 {
			t.Fatalf("%s: no C files: %v", dir, err)
		}
		there, err := filepath.Glob(filepath.Join(dir, "neon_*_arm64.s"))
		if err != nil || len(there) != len(sources) {
			t.Errorf("%s: %d committed assembly files for %d C files: %v", dir, len(there), len(sources), err)
		}
		for _, source := range sources {
			path := assembly(dir, strings.TrimSuffix(filepath.Base(source), ".c"))
			if b, err := os.ReadFile(path); err != nil {
				t.Error(err)
			} else if n := bytes.Count(b, []byte("\n")); n > 800 {
				t.Errorf("%s has %d lines: split its C file", path, n)
			}
		}
	}
	for _, tool := range []string{clang, objdump} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	files, err := generate(filepath.Join("..", "..", "internal", "quantize"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for path, want := range files {
		if got, err := os.ReadFile(path); err != nil {
			t.Error(err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("%s differs from the output for its C file: run make gen", path)
		}
	}
}
