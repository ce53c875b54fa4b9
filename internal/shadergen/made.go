package main

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

//go:embed ptx.go
var finishSource string // the PTX depends on it

// madePath is the file that says what each committed PTX text was made of. A text is compiled again only if
// its line or the text itself has changed, because compiling all of them takes minutes.
const madePath = "shaders/ptx.sum"

// made is a line of the file: a hash of everything that a text depends on, and one of the text.
type made struct{ from, text string }

// sum returns a hash of some texts.
func sum(texts ...[]byte) string {
	h := sha256.New()
	for _, t := range texts {
		fmt.Fprintf(h, "%d ", len(t))
		h.Write(t)
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:16])
}

// readMade reads the file. Without it, or where it is damaged, everything is compiled.
func (p *project) readMade() map[string]made {
	b, err := os.ReadFile(filepath.Join(p.root, madePath))
	if err != nil {
		return nil
	}
	list := map[string]made{}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 {
			list[f[2]] = made{f[0], f[1]}
		}
	}
	return list
}

// from returns the hash of what the PTX of a source for an architecture depends on. file is the preprocessed
// source in the build folder.
func (p *project) from(s *source, file string, a *architecture) (string, error) {
	name, err := p.name(p.ptxArgs(a), filepath.Join(p.build, file))
	if err != nil {
		return "", err
	}
	var limits bytes.Buffer
	for i := range s.kernels {
		k := &s.kernels[i]
		list, err := entries(k.name)
		if err != nil {
			return "", err
		}
		for _, e := range list {
			fmt.Fprintln(&limits, e.Name, threadsOf(e.Name, k.maxThreads), registersOf(e.Name))
		}
	}
	return sum([]byte(name), limits.Bytes(), []byte(finishSource)), nil
}

// unchanged returns the committed text of a path if it was made of the same, else nil.
func (p *project) unchanged(path, from string) []byte {
	if p.anew || p.made[path].from != from {
		return nil
	}
	text, err := p.committed(path)
	if err != nil || sum(text) != p.made[path].text {
		return nil
	}
	return text
}

// madeOutput returns the file for PTX texts with the hashes of what they are made of.
func madeOutput(outputs []output, from []string) output {
	var b bytes.Buffer
	for i, o := range outputs {
		fmt.Fprintln(&b, from[i], sum(o.text), o.path)
	}
	return output{madePath, b.Bytes()}
}
