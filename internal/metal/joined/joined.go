// Package joined makes the text of the GPU kernels that Apple's compiler gets: the source files of
// Apple's configuration in one text.
//
// Metal's run-time compiler has no include directory, so each header is inserted where a file
// first includes it. The kernels are in Apple's configuration when no macro of this project is
// defined from outside; see docs/METAL.md.
package joined

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
)

// extension ends the names of the files with Apple's kernels.
const extension = ".apple.metal"

// Apple reports whether a source file belongs to Apple's configuration alone.
func Apple(file string) bool { return strings.HasSuffix(file, extension) }

// Replaces returns the file that a file with Apple's kernels replaces, if there is such a file.
func Replaces(file string) string { return strings.TrimSuffix(file, extension) + ".metal" }

// Replacement returns the file whose kernels Apple's configuration has in place of those of a file:
// NAME.apple.metal for NAME.metal if it exists, and the file itself otherwise.
func Replacement(file string, exists func(file string) bool) string {
	if own := strings.TrimSuffix(file, ".metal") + extension; !Apple(file) && exists(own) {
		return own
	}
	return file
}

var (
	include = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*include[ \t]+"([^"\n]+)"[^\n]*\n?`)
	threads = regexp.MustCompile(`(?m)^\[\[max_total_threads_per_threadgroup\(\w+\)\]\]`)
)

// Text joins source files. read returns the text of a source file or a header.
//
// The attribute max_total_threads_per_threadgroup is removed. The Metal device sets the property of
// the same name of each pipeline, to the number of threads that the pipeline is launched with, and
// Metal requires that an attribute agrees with the property.
func Text(files []string, read func(file string) ([]byte, error)) ([]byte, error) {
	var b bytes.Buffer
	seen := map[string]bool{}
	var add func(file string) error
	add = func(file string) error {
		if seen[file] {
			return nil
		}
		seen[file] = true
		text, err := read(file)
		if err != nil {
			return err
		}
		text = threads.ReplaceAll(text, nil)
		at, line := 0, 1
		fmt.Fprintf(&b, "#line 1 %q\n", file)
		for _, m := range include.FindAllSubmatchIndex(text, -1) {
			b.Write(text[at:m[0]])
			line += bytes.Count(text[at:m[1]], []byte("\n"))
			at = m[1]
			if err := add(string(text[m[2]:m[3]])); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			fmt.Fprintf(&b, "#line %d %q\n", line, file)
		}
		b.Write(text[at:])
		return nil
	}
	for _, file := range files {
		if err := add(file); err != nil {
			return nil, fmt.Errorf("joined source: %w", err)
		}
	}
	return b.Bytes(), nil
}
