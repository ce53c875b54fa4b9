package main

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/internal/cuda/ptx"
)

var (
	ptxEntry  = regexp.MustCompile(`^\.visible \.entry (\w+)\(`)
	ptxMemory = []string{"ld", "ldu", "st", "atom", "red"}
	ptxSpaces = []string{"global", "shared", "shared::cluster", "param", "const"}
)

// finishPTX adds the thread limit of each entry, and the number of threadgroups of resident threads
// that a multiprocessor must have room for, or one threadgroup. Both tell the assembler how many
// registers a thread may use. It checks that everything is inlined and that every access names its
// address space, and removes the comments of entries. path is the file name in errors.
func finishPTX(text []byte, files *source, path string, resident int) ([]byte, error) {
	var out bytes.Buffer
	threads, registers := 0, 0
	entries := false // the head of the text has ended
	for i, line := range strings.Split(strings.TrimRight(string(text), "\n"), "\n") {
		bad := func(format string, args ...any) error {
			return &fault{path, i + 1, fmt.Sprintf(format, args...)}
		}
		if m := ptxEntry.FindStringSubmatch(line); m != nil {
			entries = true
			name, _, _ := strings.Cut(m[1], "__")
			j := slices.IndexFunc(files.kernels, func(k kernel) bool { return k.name == name })
			if j < 0 {
				return nil, bad("entry %s belongs to no kernel", m[1])
			}
			threads, registers = threadsOf(m[1], files.kernels[j].maxThreads), registersOf(m[1])
		}
		fields := strings.Fields(line)
		if threads > 0 && line == "{" {
			if threads > 0 {
				fmt.Fprintf(&out, ".maxntid %d, 1, 1\n.minnctapersm %d\n", threads, max(1, resident/threads))
			}
			if registers > 0 {
				fmt.Fprintf(&out, ".maxnreg %d\n", registers)
			}
			threads = 0
		}
		if len(fields) > 0 {
			word := fields[0]
			if strings.HasPrefix(word, "@") && len(fields) > 1 {
				word = fields[1]
			}
			parts := strings.Split(strings.TrimSuffix(word, ";"), ".")
			switch {
			case parts[0] == "call" || slices.Contains(fields, ".func"):
				return nil, bad("a call that is not inlined: %s", strings.TrimSpace(line))
			case strings.HasPrefix(word, ".local") || slices.Contains(parts, "local"):
				return nil, bad("thread-local memory; loops over private arrays must be unrolled: %s", strings.TrimSpace(line))
			case slices.Contains(ptxMemory, parts[0]) && !slices.ContainsFunc(parts, func(p string) bool { return slices.Contains(ptxSpaces, p) }):
				return nil, bad("an access without an address space: %s", strings.TrimSpace(line))
			case parts[0] == "" && len(parts) > 1 && parts[1] == "file", slices.Contains(fields, "f64"):
				return nil, bad("unexpected instruction: %s", strings.TrimSpace(line))
			}
			if slices.Contains(parts, "f64") {
				return nil, bad("double precision: %s", strings.TrimSpace(line))
			}
		}
		if entries {
			line = withoutComment(line)
		}
		if !entries || line != "" {
			out.WriteString(line + "\n")
		}
	}
	return out.Bytes(), nil
}

// withoutComment returns a line without its comment, which would make the compressed texts 4 % larger. The comment
// that says where the inputs must be ready is kept.
func withoutComment(line string) string {
	if strings.TrimSpace(line) == ptx.InputsReady {
		return line
	}
	line, _, _ = strings.Cut(line, "//")
	return strings.TrimRight(line, " \t")
}

// checkBegins checks that each entry waits for its inputs, because devices may start a kernel
// before the previous one has ended.
func checkBegins(text []byte, path string) error {
	entry, begins := "", true
	for i, line := range strings.Split(string(text), "\n") {
		if m := ptxEntry.FindStringSubmatch(line); m != nil {
			entry, begins = m[1], false
		}
		begins = begins || strings.TrimSpace(line) == ptx.InputsReady
		if line == "}" && !begins {
			return &fault{path, i + 1, fmt.Sprintf("entry %s never calls begins", entry)}
		}
	}
	return nil
}
