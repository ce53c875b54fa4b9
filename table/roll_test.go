package table_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	. "github.com/pianola-engine/pianola/table"
)

func mustEncode(t testing.TB, table *Table) []byte {
	t.Helper()
	b, err := table.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sealed returns b with a correct checksum.
func sealed(b []byte) []byte {
	n := len(b) - RollHashLen
	sum := sha256.Sum256(b[:n])
	return append(b[:n:n], sum[:]...)
}

func TestRollRoundTrip(t *testing.T) {
	tables := []*Table{{}, smallTable()}
	r := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		tables = append(tables, randomTable(r))
	}
	for i, want := range tables {
		b := mustEncode(t, want)
		got, err := Decode(b)
		if err != nil {
			t.Fatalf("table %d: %v", i, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("table %d: got %+v\nwant %+v", i, got, want)
		}
		if !bytes.Equal(mustEncode(t, got), b) {
			t.Fatalf("table %d: encoding the decoded table gives other bytes", i)
		}
	}
}

// TestDecodeKeepsNoReference changes the bytes after decoding: the table must not change.
func TestDecodeKeepsNoReference(t *testing.T) {
	b := mustEncode(t, smallTable())
	got, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	clear(b)
	if !reflect.DeepEqual(got, smallTable()) {
		t.Error("the table changes with the bytes it was decoded from")
	}
}

// TestRollCommandLayout compares a command's record with its memory. On a little-endian machine
// that is the layout that C sees.
func TestRollCommandLayout(t *testing.T) {
	one := uint16(1)
	if *(*byte)(unsafe.Pointer(&one)) != 1 {
		t.Skip("a big-endian machine: the memory layout differs from the roll")
	}
	r := rand.New(rand.NewPCG(5, 6))
	for range 50 {
		c := randomCmd(r)
		got := AppendCmd(nil, &c)
		want := unsafe.Slice((*byte)(unsafe.Pointer(&c)), CmdSize)
		if !bytes.Equal(got, want) {
			t.Fatalf("got  %x\nwant %x", got, want)
		}
	}
}

func TestRollRefusesEveryBitFlip(t *testing.T) {
	b := mustEncode(t, smallTable())
	kinds := []error{ErrMagic, ErrVersion, ErrTruncated, ErrChecksum, ErrFormat}
	for bit := range 8 * len(b) {
		b[bit/8] ^= 1 << (bit % 8)
		_, err := Decode(b)
		b[bit/8] ^= 1 << (bit % 8)
		if err == nil {
			t.Fatalf("bit %d of byte %d flipped: accepted", bit%8, bit/8)
		}
		known := false
		for _, k := range kinds {
			known = known || errors.Is(err, k)
		}
		if !known {
			t.Fatalf("bit %d of byte %d flipped: %v wraps none of the roll's errors", bit%8, bit/8, err)
		}
	}
}

func TestRollRefusesEveryTruncation(t *testing.T) {
	b := mustEncode(t, smallTable())
	for n := range b {
		if _, err := Decode(b[:n:n]); !errors.Is(err, ErrTruncated) {
			t.Fatalf("%d bytes of %d: %v", n, len(b), err)
		}
	}
}

// rollSection returns a section's bytes within b.
func rollSection(b []byte, id Section) []byte {
	e := b[RollPrefix+int(id-1)*RollEntry:]
	at := binary.LittleEndian.Uint64(e[8:])
	return b[at : at+binary.LittleEndian.Uint64(e[16:])]
}

func TestRollErrors(t *testing.T) {
	entry := func(b []byte, id Section) []byte { return b[RollPrefix+int(id-1)*RollEntry:] }
	for _, tt := range []struct {
		name string
		edit func(b []byte) []byte
		want error
		text string
	}{
		{"gguf", func(b []byte) []byte { return append([]byte("GGUF"), b...) }, ErrMagic, ""},
		{"line ends converted", func(b []byte) []byte { b[7] = '\n'; return b }, ErrMagic, ""},
		{"empty", func(b []byte) []byte { return nil }, ErrTruncated, "got 0 of 24 bytes"},
		{"version", func(b []byte) []byte { b[8]++; return sealed(b) }, ErrVersion, "version 10, want 9"},
		{"old version", func(b []byte) []byte { b[8] = 1; return sealed(b) }, ErrVersion, "version 1, want 9 (compile the model again)"},
		{"sections", func(b []byte) []byte { binary.LittleEndian.PutUint32(b[12:], math.MaxUint32); return sealed(b) }, ErrFormat, "4294967295 sections"},
		{"length", func(b []byte) []byte { binary.LittleEndian.PutUint64(b[16:], math.MaxUint64); return sealed(b) }, ErrFormat, "18446744073709551615"},
		{"short length", func(b []byte) []byte { binary.LittleEndian.PutUint64(b[16:], 31); return sealed(b) }, ErrFormat, "length 31 out of range"},
		{"longer", func(b []byte) []byte { binary.LittleEndian.PutUint64(b[16:], uint64(len(b)+8)); return sealed(b) }, ErrTruncated, ""},
		{"more bytes", func(b []byte) []byte { return append(b, 0) }, ErrFormat, "1 bytes after"},
		{"checksum", func(b []byte) []byte { b[len(b)-1]++; return b }, ErrChecksum, ""},
		{"section id", func(b []byte) []byte { entry(b, SectionSlots)[0] = 77; return sealed(b) }, ErrFormat, "entry 1 is section 77"},
		{"directory reserved", func(b []byte) []byte { entry(b, SectionSlots)[4] = 1; return sealed(b) }, ErrFormat, "slots: reserved"},
		{"section offset", func(b []byte) []byte {
			binary.LittleEndian.PutUint64(entry(b, SectionCmds)[8:], math.MaxUint64-7)
			return sealed(b)
		}, ErrFormat, "commands: offset"},
		{"section length", func(b []byte) []byte {
			binary.LittleEndian.PutUint64(entry(b, SectionCmds)[16:], 1<<63)
			return sealed(b)
		}, ErrFormat, "exceeds the size"},
		{"last section short", func(b []byte) []byte {
			e := entry(b, SectionStrings)
			binary.LittleEndian.PutUint64(e[16:], binary.LittleEndian.Uint64(e[16:])-16)
			return sealed(b)
		}, ErrFormat, "after the last section"},
		{"padding", func(b []byte) []byte { b[len(b)-RollHashLen-1] = 1; return sealed(b) }, ErrFormat, ""},
		{"string index", func(b []byte) []byte {
			binary.LittleEndian.PutUint32(rollSection(b, SectionSlots), 1<<31)
			return sealed(b)
		}, ErrFormat, "slots: record 0: string 2147483648 of"},
		{"string order", func(b []byte) []byte {
			binary.LittleEndian.PutUint32(rollSection(b, SectionHeader), 1)
			return sealed(b)
		}, ErrFormat, "used before string 0"},
		{"string length", func(b []byte) []byte {
			binary.LittleEndian.PutUint32(rollSection(b, SectionStrings), math.MaxUint32)
			return sealed(b)
		}, ErrFormat, "string 0 has 4294967295 bytes"},
		{"string twice", func(b []byte) []byte {
			s := rollSection(b, SectionStrings)
			// The names of slots kv.0.k and kv.0.v have the same length.
			i := bytes.Index(s, []byte("kv.0.v"))
			copy(s[i:], "kv.0.k")
			return sealed(b)
		}, ErrFormat, "there twice"},
		{"slot reserved", func(b []byte) []byte { rollSection(b, SectionSlots)[SlotSize+6] = 1; return sealed(b) }, ErrFormat, "slots: record 1: reserved"},
		{"spec reserved", func(b []byte) []byte { rollSection(b, SectionSpecs)[2] = 1; return sealed(b) }, ErrFormat, "specs: record 0: reserved"},
		{"command reserved", func(b []byte) []byte { rollSection(b, SectionCmds)[CmdSize+11] = 1; return sealed(b) }, ErrFormat, "commands: record 1: reserved"},
		{"binding reserved", func(b []byte) []byte { rollSection(b, SectionCmds)[40+4] = 1; return sealed(b) }, ErrFormat, "commands: record 0: reserved"},
		{"command end", func(b []byte) []byte { rollSection(b, SectionCmds)[CmdSize-1] = 1; return sealed(b) }, ErrFormat, "commands: record 0: reserved"},
		{"region reserved", func(b []byte) []byte { rollSection(b, SectionRegions)[20] = 1; return sealed(b) }, ErrFormat, "regions: record 0: reserved"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Decode(tt.edit(mustEncode(t, smallTable())))
			if !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if !strings.Contains(err.Error(), tt.text) || !strings.HasPrefix(err.Error(), "table: ") {
				t.Errorf("%q does not name %q", err, tt.text)
			}
		})
	}
}

// TestRollSections damages whole sections and seals each roll again.
func TestRollSections(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(s *[SectionCount][]byte)
		want string
	}{
		{"no header", func(s *[SectionCount][]byte) { s[SectionHeader-1] = nil }, "header: 0 records"},
		{"two headers", func(s *[SectionCount][]byte) {
			s[SectionHeader-1] = append(s[SectionHeader-1], s[SectionHeader-1]...)
		}, "header: 2 records"},
		{"half a slot", func(s *[SectionCount][]byte) { s[SectionSlots-1] = s[SectionSlots-1][:SlotSize*3/2] }, "slots: 24 bytes are no multiple of 16"},
		{"half a command", func(s *[SectionCount][]byte) { s[SectionCmds-1] = s[SectionCmds-1][:128] }, "commands: 128 bytes are no multiple of 256"},
		{"half a label", func(s *[SectionCount][]byte) { s[SectionLabels-1] = s[SectionLabels-1][:2] }, "labels: 2 bytes are no multiple of 4"},
		{"no labels", func(s *[SectionCount][]byte) { s[SectionLabels-1] = nil }, "labels: 0 for 22 commands"},
		{"no strings", func(s *[SectionCount][]byte) { s[SectionStrings-1] = nil }, "string 0 of 0"},
		{"half a length", func(s *[SectionCount][]byte) { s[SectionStrings-1] = append(s[SectionStrings-1], 0, 0) }, "strings: 2 bytes for the length"},
		// A string that nothing uses would give one table a second encoding.
		{"unused string", func(s *[SectionCount][]byte) { s[SectionStrings-1] = append(s[SectionStrings-1], 1, 0, 0, 0, '!') }, "is not used"},
	} {
		b := mustEncode(t, smallTable())
		var s [SectionCount][]byte
		for i := range s {
			s[i] = bytes.Clone(rollSection(b, Section(i+1)))
		}
		if again, err := AssembleRoll(&s); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("the sections make another roll: %v", err)
		}
		tt.edit(&s)
		b, err := AssembleRoll(&s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(b); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
}

func TestRollEncodeRefuses(t *testing.T) {
	table := smallTable()
	table.Labels = table.Labels[1:]
	if _, err := table.Encode(); err == nil {
		t.Error("a missing label is accepted")
	}
	table = &Table{Const: make([]byte, MaxRollSize)}
	if _, err := table.Encode(); err == nil {
		t.Error("a roll over the limit is accepted")
	}
}

func TestRollFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "small.roll")
	if err := (&Table{}).WriteFile(path); err != nil {
		t.Fatal(err)
	}
	if err := smallTable().WriteFile(path); err != nil { // replaces the old file
		t.Fatal(err)
	}
	got, err := ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, smallTable()) {
		t.Error("reading the file gives another table")
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("%d files are left in the folder, %v", len(names), err)
	}

	b := mustEncode(t, smallTable())
	for _, tt := range []struct {
		name string
		b    []byte
		want error
	}{
		{"truncated", b[:len(b)-1], ErrTruncated},
		{"prefix", b[:10], ErrTruncated},
		{"longer", append(bytes.Clone(b), 0), ErrFormat},
		{"model", []byte("GGUF\x03\x00\x00\x00 and 40 GB more"), ErrMagic},
	} {
		path := filepath.Join(dir, tt.name)
		if err := os.WriteFile(path, tt.b, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadFile(path); !errors.Is(err, tt.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if _, err := ReadFile(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if err := smallTable().WriteFile(filepath.Join(dir, "none", "x.roll")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	// A failed rename must leave no temporary file in the directory.
	if err := os.MkdirAll(filepath.Join(dir, "busy", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	before, _ := os.ReadDir(dir)
	if err := smallTable().WriteFile(filepath.Join(dir, "busy")); err == nil {
		t.Error("WriteFile replaces a directory")
	}
	if after, _ := os.ReadDir(dir); len(after) != len(before) {
		t.Errorf("%d files, %d before", len(after), len(before))
	}
}

// TestReadRollReadsNoMore reads an endless file that is not a roll.
func TestReadRollReadsNoMore(t *testing.T) {
	r := &countReader{}
	if _, err := ReadRoll(r); !errors.Is(err, ErrMagic) {
		t.Fatal(err)
	}
	if r.n > RollPrefix {
		t.Errorf("%d bytes read of a file that is no roll", r.n)
	}
}

type countReader struct{ n int }

func (r *countReader) Read(p []byte) (int, error) {
	clear(p)
	r.n += len(p)
	return len(p), nil
}

// FuzzDecodeRoll decodes its input unchanged and with a correct checksum, so that Decode checks more than the checksum.
func FuzzDecodeRoll(f *testing.F) {
	f.Add(mustEncode(f, &Table{}))
	f.Add(mustEncode(f, smallTable()))
	r := rand.New(rand.NewPCG(7, 8))
	for range 8 {
		f.Add(mustEncode(f, randomTable(r)))
	}
	f.Add([]byte(RollMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		inputs := [][]byte{b}
		if len(b) >= RollPrefix+RollHashLen {
			s := sealed(b)
			binary.LittleEndian.PutUint64(s[16:], uint64(len(s)))
			inputs = append(inputs, sealed(s))
		}
		for _, in := range inputs {
			table, err := Decode(in)
			if err != nil {
				continue
			}
			out, err := table.Encode()
			if err != nil || !bytes.Equal(out, in) {
				t.Fatalf("decoded, and encoded as %d other bytes, %v", len(out), err)
			}
			table.Validate()
			if err := table.Dump(&bytes.Buffer{}, DumpOptions{}); err != nil {
				t.Fatal(err)
			}
			if d := Diff(table, table); d != nil {
				t.Fatalf("a table differs from itself: %v", d)
			}
		}
	})
}
