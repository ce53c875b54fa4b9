package main

import (
	"crypto/sha256"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// An emulator that counts is compiled from instrumented LLVM IR: a call before each load and store
// passes its address and size, and a call at the end of each basic block passes the operations of
// the block. shaders/host/count.h declares the functions that are called.

//go:embed count.go
var countSource string // objects in the cache depend on it

// counted compiles a preprocessed source to an object that counts.
func (t *toolchain) counted(args []string, out, file string) error {
	version := fmt.Sprintf("-DPIANOLA_COUNT=0x%x", sha256.Sum256([]byte(countSource)))
	args = append(slices.Clip(args), version[:len("-DPIANOLA_COUNT=0x")+8])
	return t.kept(args, out, file, func() error {
		text, err := t.run(compiler, append(slices.Clip(args), "-S", "-emit-llvm", "-o", "-", file)...)
		if err != nil {
			return err
		}
		ir, err := instrument(string(text))
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(file), err)
		}
		name := filepath.Base(file) + ".ll"
		if err := t.put(name, ir); err != nil {
			return err
		}
		_, err = t.run(compiler, "-x", "ir", "--target=x86_64-linux-gnu", "-march=x86-64-v3", "-fPIC", "-O1", "-Xclang", "-disable-llvm-passes",
			"-Wno-override-module", "-c", "-o", out, filepath.Join(t.build, name))
		return err
	})
}

// put writes a file of the build folder.
func (t *toolchain) put(name, text string) error {
	return os.WriteFile(filepath.Join(t.build, name), []byte(text), 0o600)
}

// units are functions of the shim that stand for instructions of a GPU. They are not inlined into
// an emulator that counts; a call counts as the operations here, whatever the function computes.
var units = []struct {
	name string // a part of the mangled name
	work work
}{
	{"simdgroup_multiply_accumulate", work{matrix: 16}}, // 512 multiply-adds of 32 lanes
	{"shim6reduce", work{other: 6}},
	{"shim6ballot", work{other: 1}},
	{"shim4dot4", work{int8: 4}},
	{"shim14multiply_bytes", work{int8: 64}}, // 2048 multiply-adds of 32 lanes
}

// work counts the operations of one lane.
type work struct {
	mul32, add32, mul16, add16 int // multiplications and additions; a pair of them is a multiply-add
	matrix, int8, other        int
}

// instrument inserts the calls into the text of a module.
func instrument(ir string) (string, error) {
	var b strings.Builder
	b.Grow(len(ir) * 5 / 4)
	var block work
	inside, unit := false, false
	for line := range strings.Lines(ir) {
		switch {
		case strings.HasPrefix(line, "define "):
			inside, unit, block = true, false, work{}
			b.WriteString(line)
			for _, u := range units {
				if strings.Contains(line[:strings.IndexByte(line, '(')], u.name) {
					unit = true
					b.WriteString(u.work.call())
				}
			}
			continue
		case strings.HasPrefix(line, "}"):
			inside = false
		case inside && !unit && strings.HasPrefix(line, "  "):
			call, err := access(line)
			if err != nil {
				return "", err
			}
			b.WriteString(call)
			if ends(line) {
				b.WriteString(block.call())
				block = work{}
			} else {
				block.add(line)
			}
		}
		b.WriteString(line)
	}
	b.WriteString("\ndeclare void @pianola_count_access(ptr, i64, i32)\ndeclare void @pianola_count_work(i32, i32, i32, i32, i32)\n")
	return b.String(), nil
}

// call returns the call that counts the work, or "".
func (w work) call() string {
	// The compiler for the GPU fuses a multiplication and an addition.
	fma32, fma16 := min(w.mul32, w.add32), min(w.mul16, w.add16)
	other := w.other + w.mul32 + w.add32 - 2*fma32 + w.mul16 + w.add16 - 2*fma16
	if fma32+fma16+w.matrix+w.int8+other == 0 {
		return ""
	}
	return fmt.Sprintf("  call void @pianola_count_work(i32 %d, i32 %d, i32 %d, i32 %d, i32 %d)\n", fma32, fma16, w.matrix, w.int8, other)
}

// ends reports whether an instruction ends a basic block.
func ends(line string) bool {
	for _, s := range []string{"  br ", "  ret ", "  switch ", "  unreachable", "  indirectbr "} {
		if strings.HasPrefix(line, s) {
			return true
		}
	}
	return false
}

// split returns the operation of an instruction, without the name of its result, and the rest.
func split(line string) (op, rest string) {
	line = strings.TrimSpace(line)
	if strings.HasPrefix(line, "%") {
		if _, after, ok := strings.Cut(line, " = "); ok {
			line = after
		}
	}
	op, rest, _ = strings.Cut(line, " ")
	return op, rest
}

// access returns the call that counts the memory access of an instruction, or "".
func access(line string) (string, error) {
	op, rest := split(line)
	switch op {
	case "load":
		rest = strings.TrimPrefix(strings.TrimPrefix(rest, "atomic "), "volatile ")
		typ, after, ok := strings.Cut(rest, ", ptr ")
		if !ok {
			return "", fmt.Errorf("a load without an address: %s", line)
		}
		return touch(typ, address(after), 0)
	case "store":
		rest = strings.TrimPrefix(strings.TrimPrefix(rest, "atomic "), "volatile ")
		// The type comes first; the address is the last operand.
		i := strings.LastIndex(rest, ", ptr ")
		if i < 0 {
			return "", fmt.Errorf("a store without an address: %s", line)
		}
		return touch(firstType(rest), address(rest[i+len(", ptr "):]), 1)
	case "atomicrmw":
		_, after, ok := strings.Cut(rest, "ptr ")
		if !ok {
			return "", fmt.Errorf("an atomic operation without an address: %s", line)
		}
		at := address(after) // all of them have 4 bytes
		return fmt.Sprintf("  call void @pianola_count_access(ptr %s, i64 4, i32 0)\n  call void @pianola_count_access(ptr %s, i64 4, i32 1)\n", at, at), nil
	case "tail", "call":
		return copied(rest)
	}
	return "", nil
}

// address returns the operand at the beginning of the text after ", ptr ".
func address(text string) string {
	if text[0] == '%' || text[0] == '@' {
		return text[:strings.IndexAny(text+",", " ,\n")]
	}
	if i := strings.Index(text, ", align "); i >= 0 {
		return text[:i]
	}
	if i := strings.IndexByte(text, ','); i >= 0 {
		return text[:i]
	}
	return strings.TrimSpace(text)
}

// firstType returns the type at the beginning of an operand.
func firstType(text string) string {
	if text[0] == '<' || text[0] == '[' {
		return text[:strings.IndexAny(text, ">]")+1]
	}
	typ, _, _ := strings.Cut(text, " ")
	return typ
}

// touch returns a call that counts an access; kind is 0 for a load and 1 for a store.
func touch(typ, at string, kind int) (string, error) {
	size, err := typeBytes(typ)
	return fmt.Sprintf("  call void @pianola_count_access(ptr %s, i64 %d, i32 %d)\n", at, size, kind), err
}

// copied returns the calls that count the accesses of memcpy and memset, or "".
func copied(rest string) (string, error) {
	i := strings.Index(rest, "@llvm.mem")
	if i < 0 {
		return "", nil
	}
	name, operands, _ := strings.Cut(rest[i:], "(")
	list := strings.Split(operands, ", ")
	if len(list) < 4 {
		return "", fmt.Errorf("a copy with operands %q", operands)
	}
	last := func(operand string) string { return operand[strings.LastIndexByte(operand, ' ')+1:] }
	call := fmt.Sprintf("  call void @pianola_count_access(ptr %s, %s, i32 1)\n", last(list[0]), list[2])
	if !strings.HasPrefix(name, "@llvm.memset") {
		call += fmt.Sprintf("  call void @pianola_count_access(ptr %s, %s, i32 0)\n", last(list[1]), list[2])
	}
	return call, nil
}

// typeBytes returns the size of a type: of a number, a pointer, or a vector or an array of them.
func typeBytes(typ string) (int, error) {
	switch typ {
	case "float":
		return 4, nil
	case "half":
		return 2, nil
	case "double", "ptr":
		return 8, nil
	}
	if bits, ok := strings.CutPrefix(typ, "i"); ok {
		if n, err := strconv.Atoi(bits); err == nil {
			return (n + 7) / 8, nil
		}
	}
	if len(typ) > 2 && (typ[0] == '<' || typ[0] == '[') {
		count, of, ok := strings.Cut(typ[1:len(typ)-1], " x ")
		n, err := strconv.Atoi(count)
		if ok && err == nil {
			size, err := typeBytes(of)
			return n * size, err
		}
	}
	return 0, fmt.Errorf("an access of type %q, whose size is not known", typ)
}

// add adds the operations of an instruction. Conversions between registers, and branches, are free.
func (w *work) add(line string) {
	op, rest := split(line)
	n := lanesOf(rest)
	half := strings.Contains(rest, "half ") || strings.Contains(rest, "x half>")
	switch op {
	case "fmul":
		if half {
			w.mul16 += n
		} else {
			w.mul32 += n
		}
	case "fadd", "fsub":
		if half {
			w.add16 += n
		} else {
			w.add32 += n
		}
	case "add", "sub", "mul", "shl", "lshr", "ashr", "and", "or", "xor", "icmp", "fcmp", "select", "fpext", "fptrunc",
		"sitofp", "uitofp", "fptosi", "fptoui", "fdiv", "frem", "udiv", "sdiv", "urem", "srem":
		w.other += n
	case "getelementptr": // constant offsets are a part of loads and stores
		if strings.Contains(rest[strings.LastIndex(rest, "ptr ")+5:], "%") {
			w.other++
		}
	case "tail", "call":
		w.call1(rest, n, half)
	}
}

// call1 adds the operations of a call.
func (w *work) call1(rest string, n int, half bool) {
	i := strings.IndexByte(rest, '@')
	if i < 0 {
		return
	}
	name, _, _ := strings.Cut(rest[i+1:], "(")
	switch {
	case strings.HasPrefix(name, "llvm.fmuladd") || strings.HasPrefix(name, "llvm.fma"):
		if half {
			w.mul16, w.add16 = w.mul16+n, w.add16+n
		} else {
			w.mul32, w.add32 = w.mul32+n, w.add32+n
		}
	case name == "pianola_exchange":
		w.other++
	case strings.HasPrefix(name, "llvm.lifetime") || strings.HasPrefix(name, "llvm.mem") || strings.HasPrefix(name, "llvm.assume") ||
		strings.HasPrefix(name, "pianola_") || strings.HasPrefix(name, "_Z"):
	case slow(name):
		w.other += 4 * n
	default: // minima, maxima, shifts of two words and similar ones
		w.other += n
	}
}

// slow reports whether a function takes the unit for transcendental functions, which has a quarter
// of the lanes.
func slow(name string) bool {
	name = strings.TrimPrefix(name, "llvm.")
	for _, s := range []string{"exp", "log", "sin", "cos", "tan", "sqrt", "pow"} {
		if strings.HasPrefix(name, s) {
			return true
		}
	}
	return false
}

// lanesOf returns the number of elements of the first type in an instruction.
func lanesOf(rest string) int {
	i := strings.IndexByte(rest, '<')
	if i < 0 {
		return 1
	}
	// Operands after the type cannot begin with a vector, except constants.
	count, _, ok := strings.Cut(rest[i+1:], " x ")
	if n, err := strconv.Atoi(count); ok && err == nil {
		return n
	}
	return 1
}
