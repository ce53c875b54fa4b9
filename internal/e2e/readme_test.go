package e2e_test

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/table"
)

// TestReadme compares the README's excerpt of a dump with the dump.
func TestReadme(t *testing.T) {
	b, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(b), "pianola dump testdata/gopher-q8_0.gguf --range 0:10\n\n")
	if !ok {
		t.Fatal("the README has no dump of commands 0:10")
	}
	var got strings.Builder
	for line := range strings.Lines(rest) {
		text, ok := strings.CutPrefix(line, "    ")
		if !ok {
			break
		}
		got.WriteString(text)
	}
	tab, err := header(t, gopher).Compile(pianola.CompileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	if err := tab.Dump(&want, table.DumpOptions{Last: 10}); err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(got.String()) != strings.TrimSpace(want.String()) {
		t.Errorf("the README has\n%s\nthe dump is\n%s", got.String(), want.String())
	}
}
