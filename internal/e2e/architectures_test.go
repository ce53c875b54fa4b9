package e2e_test

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/table"
)

// TestArchitectures compares each excerpt of a dump in docs/ARCHITECTURES.md with the
// dump, and its table of families with the descriptors.
func TestArchitectures(t *testing.T) {
	b, err := os.ReadFile("docs/ARCHITECTURES.md")
	if err != nil {
		t.Fatal(err)
	}
	excerpts := strings.Split(string(b), "    $ pianola dump ")[1:]
	for _, e := range excerpts {
		command, rest, _ := strings.Cut(e, "\n")
		var path string
		var o table.DumpOptions
		if _, err := fmt.Sscanf(command, "%s --range %d:%d", &path, &o.First, &o.Last); err != nil {
			t.Errorf("%q: %v", command, err)
			continue
		}
		var got strings.Builder
		for line := range strings.Lines(strings.TrimPrefix(rest, "\n")) {
			text, ok := strings.CutPrefix(line, "    ")
			if !ok {
				break
			}
			got.WriteString(text)
		}
		tab, err := header(t, path).Compile(pianola.CompileOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var want bytes.Buffer
		if err := tab.Dump(&want, o); err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(got.String()) != strings.TrimSpace(want.String()) {
			t.Errorf("%s: the document has\n%s\nthe dump is\n%s", command, got.String(), want.String())
		}
	}
	if len(excerpts) == 0 {
		t.Error("there are no dumps")
	}
	for _, name := range arch.Builtin().Names() {
		if !strings.Contains(string(b), "\n| "+name+" | ") {
			t.Errorf("%s is not in the table of families", name)
		}
	}
}
