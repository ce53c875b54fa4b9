// Package ptx splits PTX texts into their entries and assembles new texts: one with the entries
// that a table needs, or one with all entries of a token in a single kernel.
//
// The package knows the form of the texts that internal/shadergen writes. It must not know the
// driver or tables.
package ptx

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// InputsReady is the line of a body before which it reads no memory that another command writes.
const InputsReady = "// pianola: inputs ready"

// overlapped replaces InputsReady if the kernel begins before the preceding one has ended: it
// waits for that kernel, then lets the next one begin.
const overlapped = "\tgriddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;"

// Text is a parsed PTX text.
type Text struct {
	head    []string // directives of the module in order, without version, target and address size
	Version string   // such as "7.8"
	Target  string   // such as "sm_90"
	entries []Entry
}

// Entry is a kernel of a text.
type Entry struct {
	Name   string
	params []param
	attrs  []string // directives between the parameters and the body, such as ".maxntid 512, 1, 1"
	body   []string // lines between the braces
}

// param is a parameter: its name and its offset in the parameters' memory.
type param struct {
	name, decl string
	offset     int
}

// Error reports a construct that this package does not support.
type Error struct {
	Line int // counts from 1
	What string
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("ptx: line %d: %s", e.Line, e.What) }

// Parse parses a text. It ignores a zero byte at the end.
func Parse(text []byte) (*Text, error) {
	text = bytes.TrimSuffix(text, []byte{0})
	t := new(Text)
	var e *Entry
	inParams, inBody := false, false
	for i, l := range strings.Split(string(text), "\n") {
		fault := func(what string) error { return &Error{i + 1, what} }
		if inBody && strings.TrimSpace(l) == InputsReady {
			e.body = append(e.body, InputsReady)
			continue
		}
		if c := strings.Index(l, "//"); c >= 0 {
			l = l[:c]
		}
		l = strings.TrimRight(l, " \t\r")
		word := strings.TrimSpace(l)
		switch {
		case word == "":
		case inBody && l == "}":
			t.entries = append(t.entries, *e)
			e, inBody = nil, false
		case inBody:
			e.body = append(e.body, l)
		case e != nil && inParams && word == ")":
			inParams = false
		case e != nil && inParams:
			if err := e.addParam(strings.TrimSuffix(word, ",")); err != nil {
				return nil, fault(err.Error())
			}
		case e != nil && word == "{":
			inBody = true
		case e != nil:
			e.attrs = append(e.attrs, word)
		case strings.HasPrefix(word, ".visible .entry "):
			name, rest, ok := strings.Cut(strings.TrimPrefix(word, ".visible .entry "), "(")
			if !ok || rest != "" {
				return nil, fault("an entry whose parameters do not begin on the next line")
			}
			e, inParams = &Entry{Name: name}, true
		case strings.HasPrefix(word, ".version "):
			t.Version = strings.TrimPrefix(word, ".version ")
		case strings.HasPrefix(word, ".target "):
			t.Target = strings.TrimPrefix(word, ".target ")
		case word == ".address_size 64":
		case strings.HasPrefix(word, ".") && strings.HasSuffix(word, ";"):
			t.head = append(t.head, word)
		default:
			return nil, fault(fmt.Sprintf("%.60q outside of an entry", word))
		}
	}
	if e != nil {
		return nil, &Error{strings.Count(string(text), "\n") + 1, "entry " + e.Name + " does not end"}
	}
	if t.Version == "" || t.Target == "" {
		return nil, &Error{1, "no version or no target"}
	}
	return t, nil
}

// addParam adds a parameter at its offset: ".param .u64 NAME" or ".param .align 16 .b8 NAME[64]".
func (e *Entry) addParam(decl string) error {
	offset := 0
	if n := len(e.params); n > 0 {
		last := e.params[n-1]
		size, _, _ := extent(last.decl)
		offset = last.offset + size
	}
	size, align, name := extent(decl)
	if size == 0 {
		return fmt.Errorf("parameter %.60q", decl)
	}
	e.params = append(e.params, param{name, decl, (offset + align - 1) / align * align})
	return nil
}

// extent returns a parameter's size, alignment and name, or 0.
func extent(decl string) (size, align int, name string) {
	fields := strings.Fields(decl)
	switch {
	case len(fields) == 3 && fields[0] == ".param" && fields[1] == ".u64":
		return 8, 8, fields[2]
	case len(fields) == 5 && fields[0] == ".param" && fields[1] == ".align" && fields[3] == ".b8":
		name, rest, _ := strings.Cut(fields[4], "[")
		if _, err := fmt.Sscanf(fields[2]+" "+rest, "%d %d]", &align, &size); err != nil || align <= 0 || size < 0 {
			return 0, 0, ""
		}
		return size, align, name
	}
	return 0, 0, ""
}

// Entry returns an entry by name.
func (t *Text) Entry(name string) (*Entry, bool) {
	i := slices.IndexFunc(t.entries, func(e Entry) bool { return e.Name == name })
	if i < 0 {
		return nil, false
	}
	return &t.entries[i], true
}

// CanOverlap reports whether texts of a version and a target can begin a kernel before the
// preceding one has ended (sm_90, PTX 7.8).
func CanOverlap(version, target string) bool {
	var major, minor, sm int
	fmt.Sscanf(version, "%d.%d", &major, &minor)
	fmt.Sscanf(target, "sm_%d", &sm)
	return sm >= 90 && (major > 7 || major == 7 && minor >= 8)
}

// Exact returns the compute capability of a target for GPUs of exactly that capability, such as 90
// for "sm_90a", and 0 for other targets.
func Exact(target string) int {
	number, ok := strings.CutSuffix(strings.TrimPrefix(target, "sm_"), "a")
	n, err := strconv.Atoi(number)
	if !ok || err != nil {
		return 0
	}
	return n
}

// Select returns the text of the named entries, ending in a zero byte. It ignores names without
// an entry. With overlap, each entry waits at InputsReady (see CanOverlap).
func (t *Text) Select(names []string, overlap bool) []byte {
	var b bytes.Buffer
	t.writeHead(&b)
	for i := range t.entries {
		if e := &t.entries[i]; slices.Contains(names, e.Name) {
			e.write(&b, overlap)
		}
	}
	b.WriteByte(0)
	return b.Bytes()
}

func (t *Text) writeHead(b *bytes.Buffer) {
	fmt.Fprintf(b, ".version %s\n.target %s\n.address_size 64\n", t.Version, t.Target)
	for _, l := range t.head {
		fmt.Fprintln(b, l)
	}
}

func (e *Entry) write(b *bytes.Buffer, overlap bool) {
	fmt.Fprintf(b, ".visible .entry %s(\n", e.Name)
	for i, p := range e.params {
		comma := ","
		if i == len(e.params)-1 {
			comma = ""
		}
		fmt.Fprintf(b, "\t%s%s\n", p.decl, comma)
	}
	b.WriteString(")\n")
	for _, a := range e.attrs {
		fmt.Fprintln(b, a)
	}
	b.WriteString("{\n")
	for _, l := range e.body {
		if overlap && l == InputsReady {
			l = overlapped
		} else if overlap {
			// The preceding kernel may still be writing what this one will read.
			l = strings.ReplaceAll(l, "ld.global.nc.", "ld.global.")
		}
		fmt.Fprintln(b, l)
	}
	b.WriteString("}\n")
}
