package main

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// argRegs are the registers of the first arguments in the calling convention preserve_none.
var argRegs = []int{20, 21, 22, 23, 24, 25, 26}

// reserved matches registers that generated code must not use: 18 (platform), 27 (linker),
// 28 (g), 29 (frame), 30 (return address), and the stack pointer.
var reserved = regexp.MustCompile(`\b(sp|wsp|[wx](18|27|28|29|30))\b`)

// refused are instructions that leave the function or depend on its address. The only allowed
// jumps are a return without operand and branches within the function.
var refused = []string{"bl", "blr", "br", "braa", "blraa", "adr", "adrp", "svc", "hvc", "brk", "udf", "msr", "mrs", "dc", "<unknown>"}

// check returns an error if instruction i of f cannot be used in Go assembly.
func (f *function) check(i instruction) error {
	name, operands, _ := strings.Cut(i.text, " ")
	first, last := f.code[0].addr, f.code[len(f.code)-1].addr
	switch {
	case slices.Contains(refused, name):
		return fmt.Errorf("%s: %q leaves the function", f.name, i.text)
	case reserved.MatchString(operands):
		return fmt.Errorf("%s: %q uses the stack or a reserved register", f.name, i.text)
	case name == "ret" && operands != "":
		return fmt.Errorf("%s: %q does not return through the link register", f.name, i.text)
	case i.target >= 0 && (i.target < first || i.target > last || strings.HasPrefix(name, "ld")):
		return fmt.Errorf("%s: %q refers to an address outside the function", f.name, i.text)
	}
	return nil
}

// write writes a function as Go assembly. Arguments are loaded from the frame into their
// registers. Branches keep their encoding, because it is relative.
func write(b *bytes.Buffer, d *decl, f function) error {
	if n := len(f.code); n == 0 || f.code[n-1].text != "ret" && !strings.HasPrefix(f.code[n-1].text, "b ") {
		return fmt.Errorf("%s does not end with a return or a branch", f.name)
	}
	var targets []int64
	for _, i := range f.code {
		if err := f.check(i); err != nil {
			return err
		}
		if i.target >= 0 {
			targets = append(targets, i.target)
		}
	}
	slices.Sort(targets)
	targets = slices.Compact(targets)
	fmt.Fprintf(b, "\n// %s\nTEXT ·%s(SB), NOSPLIT, $0-%d\n", d.doc, d.name, 8*len(d.params))
	for i, p := range d.params {
		fmt.Fprintf(b, "\tMOVD %s+%d(FP), R%d\n", p.name, 8*i, argRegs[i])
	}
	for _, i := range f.code {
		if at, ok := slices.BinarySearch(targets, i.addr); ok {
			fmt.Fprintf(b, "\nl%d:\n", at)
		}
		text := i.text
		if at, ok := slices.BinarySearch(targets, i.target); ok {
			text = address.ReplaceAllString(text, fmt.Sprintf("l%d", at))
		}
		if text == "ret" {
			b.WriteString("\tRET\n")
			continue
		}
		fmt.Fprintf(b, "\tWORD $%#08x // %s\n", i.word, text)
	}
	return nil
}
