package table_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	. "github.com/pianola-engine/pianola/table"

	"github.com/pianola-engine/pianola/internal/decl"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// A checkout may have CRLF line endings.
	want = bytes.ReplaceAll(want, []byte("\r\n"), []byte("\n"))
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; go test -update rewrites it.\ngot:\n%s", path, got)
	}
}

func dumpText(t *testing.T, table *Table, o DumpOptions) string {
	t.Helper()
	var b bytes.Buffer
	if err := table.Dump(&b, o); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestDumpGolden(t *testing.T) {
	text := dumpText(t, smallTable(), DumpOptions{})
	golden(t, "small.dump", []byte(text))
	var b bytes.Buffer
	if err := smallTable().DumpJSON(&b, DumpOptions{}); err != nil {
		t.Fatal(err)
	}
	golden(t, "small.json", b.Bytes())
}

// TestDumpJSONAgrees compares the text and the JSON dump of each command.
func TestDumpJSONAgrees(t *testing.T) {
	table := smallTable()
	var b bytes.Buffer
	if err := table.DumpJSON(&b, DumpOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(b.Bytes(), []byte{'\n'}); n != 1 || b.Bytes()[b.Len()-1] != '\n' {
		t.Errorf("%d line ends, want one at the end", n)
	}
	var got struct {
		Header   struct{ Arch, Arithmetic string }
		Slots    []struct{ Name string }
		Uploads  []struct{ Slot string }
		Commands []struct {
			Index    int
			Label    string
			Kernel   string
			Params   map[string]any
			Bindings []struct{ Name, Slot, Region string }
			Barrier  bool
		}
	}
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Header.Arch != "llama" || len(got.Slots) != len(table.Slots) || len(got.Uploads) != len(table.Uploads) || len(got.Commands) != len(table.Cmds) {
		t.Fatalf("header %+v, %d slots, %d uploads, %d commands", got.Header, len(got.Slots), len(got.Uploads), len(got.Commands))
	}
	text := dumpText(t, table, DumpOptions{})
	if !strings.Contains(text, got.Header.Arithmetic) {
		t.Errorf("the text dump does not have %q", got.Header.Arithmetic)
	}
	i := 0
	for _, line := range strings.Split(text[strings.Index(text, "\nprogram decode"):], "\n") {
		f := strings.Fields(line)
		if len(f) < 4 || f[0] == "program" {
			continue
		}
		c := got.Commands[i]
		i++
		if c.Barrier != (f[1] == "|") {
			t.Errorf("command %d: barrier %t: %s", c.Index, c.Barrier, line)
		}
		want := []string{c.Label, c.Kernel}
		for _, bind := range c.Bindings {
			want = append(want, " "+bind.Name+"="+bind.Slot, bind.Region)
		}
		k, _ := decl.Lookup(table.Cmds[c.Index].Kernel)
		for name, v := range c.Params {
			s, _ := json.Marshal(v)
			if string(s) == "0" && slices.Contains(k.Optional, name) {
				continue
			}
			want = append(want, " "+name+"="+strings.Replace(string(s), "0.000001", "1e-06", 1))
		}
		for _, w := range want {
			if !strings.Contains(line, w) {
				t.Errorf("command %d: no %q in %s", c.Index, w, line)
			}
		}
	}
	if i != len(got.Commands) {
		t.Errorf("%d lines for %d commands", i, len(got.Commands))
	}
}

func TestDumpRestricted(t *testing.T) {
	table := smallTable()
	n := len(table.Cmds)
	decode := int(table.Programs[0].Count)
	all := map[string]bool{}
	for _, l := range strings.Split(dumpText(t, table, DumpOptions{}), "\n") {
		all[l] = true
	}
	for _, tt := range []struct {
		name     string
		o        DumpOptions
		commands int
		programs int
	}{
		{"one", DumpOptions{First: 2, Last: 3}, 1, 1},
		{"first", DumpOptions{First: 0, Last: 1}, 1, 1},
		{"across programs", DumpOptions{First: decode - 1, Last: decode + 2}, 3, 2},
		{"second program", DumpOptions{First: decode, Last: n}, n - decode, 1},
		{"past the end", DumpOptions{First: n - 1, Last: math.MaxInt}, 1, 1},
		{"beyond the end", DumpOptions{First: n, Last: n + 5}, 0, 0},
		{"empty", DumpOptions{First: 3, Last: 3}, 0, 0},
		{"label", DumpOptions{Grep: "argmax{"}, 0, 0},
		{"grep", DumpOptions{Grep: ":gate_up"}, 4, 2},
		{"grep in range", DumpOptions{First: 0, Last: decode, Grep: ":gate_up"}, 2, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			commands, programs := 0, 0
			text := dumpText(t, table, tt.o)
			for _, l := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
				switch {
				case strings.HasPrefix(l, "program "):
					programs++
				case l != "":
					commands++
				}
				// A grep keeps the lines of the full dump; a range may have narrower columns.
				if tt.o.Last == 0 && !all[l] {
					t.Errorf("the whole dump does not have the line %q", l)
				}
			}
			if commands != tt.commands || programs != tt.programs || strings.HasPrefix(text, "\n") {
				t.Errorf("%d commands and %d programs, want %d and %d:\n%s", commands, programs, tt.commands, tt.programs, text)
			}
			var b bytes.Buffer
			if err := table.DumpJSON(&b, tt.o); err != nil {
				t.Fatal(err)
			}
			var got map[string]json.RawMessage
			if err := json.Unmarshal(b.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			var lists struct{ Commands, Programs []any }
			if err := json.Unmarshal(b.Bytes(), &lists); err != nil {
				t.Fatal(err)
			}
			if got["header"] != nil || got["slots"] != nil || got["uploads"] != nil || len(lists.Commands) != tt.commands || len(lists.Programs) != tt.programs {
				t.Errorf("JSON: %s", b.Bytes())
			}
		})
	}
	for _, o := range []DumpOptions{{First: -1, Last: 2}, {First: 3, Last: 2}, {First: 1}} {
		if err := table.Dump(&bytes.Buffer{}, o); err == nil {
			t.Errorf("range %d:%d is accepted", o.First, o.Last)
		}
		if err := table.DumpJSON(&bytes.Buffer{}, o); err == nil {
			t.Errorf("JSON: range %d:%d is accepted", o.First, o.Last)
		}
	}
}

// TestDumpUnvalidatedTables dumps tables that Validate has not accepted: each must come out
// as one printable line a command and as JSON.
func TestDumpUnvalidatedTables(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		table := randomTable(r)
		text := dumpText(t, table, DumpOptions{Last: math.MaxInt})
		if lines := strings.Count(text, " grid="); lines != len(table.Cmds) {
			t.Fatalf("%d lines for %d commands:\n%s", lines, len(table.Cmds), text)
		}
		text = dumpText(t, table, DumpOptions{})
		if !utf8.ValidString(text) || strings.ContainsAny(text, "\x00\x1b") {
			t.Fatalf("not printable: %q", text)
		}
		var b bytes.Buffer
		if err := table.DumpJSON(&b, DumpOptions{}); err != nil {
			t.Fatal(err)
		}
		if !json.Valid(b.Bytes()) {
			t.Fatalf("not JSON: %s", b.Bytes())
		}
	}
}

func TestSizes(t *testing.T) {
	for _, tt := range []struct {
		n            uint64
		human, exact string
	}{
		{0, "0 B", "0"},
		{1023, "1023 B", "1023"},
		{1024, "1.00 KiB", "1K"},
		{1500, "1.46 KiB", "1500"},
		{1<<20 - 1, "1.00 MiB", "1048575"},
		{1 << 20, "1.00 MiB", "1M"},
		{1<<20 + 1024, "1.00 MiB", "1025K"},
		{150 << 20, "150 MiB", "150M"},
		{123 << 27, "15.4 GiB", "15744M"},
		{math.MaxUint64, "16777216 TiB", "18446744073709551615"},
	} {
		if got := HumanSize(tt.n); got != tt.human {
			t.Errorf("HumanSize(%d) = %q, want %q", tt.n, got, tt.human)
		}
		if got := ExactSize(tt.n); got != tt.exact {
			t.Errorf("ExactSize(%d) = %q, want %q", tt.n, got, tt.exact)
		}
	}
}

// failWriter fails after n bytes.
type failWriter struct{ n int }

func (w *failWriter) Write(p []byte) (int, error) {
	if w.n -= len(p); w.n < 0 {
		return 0, os.ErrClosed
	}
	return len(p), nil
}

func TestDumpWriteError(t *testing.T) {
	table := smallTable()
	size := len(dumpText(t, table, DumpOptions{}))
	for _, n := range []int{0, 100, 4096, size - 1} {
		if err := table.Dump(&failWriter{n}, DumpOptions{}); err == nil {
			t.Errorf("no error from a writer that takes %d of %d bytes", n, size)
		}
	}
	if err := table.Dump(&failWriter{size}, DumpOptions{}); err != nil {
		t.Error(err)
	}
}
