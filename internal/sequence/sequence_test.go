package sequence_test

import (
	"testing"

	"github.com/pianola-engine/pianola/internal/sequence"
)

// TestRow encodes a row record and decodes it again.
func TestRow(t *testing.T) {
	r := sequence.Row{Sequence: 1, Position: 2, KVLen: 3, TokenIndex: 4, Until: 5, Count: 6, Stop: 7, Joined: 8}
	var b [sequence.RowBytes]byte
	r.Put(&b)
	if got := sequence.Parse(&b); got != r {
		t.Errorf("%+v, want %+v", got, r)
	}
}

// TestJoin marks the records of sequences that have several rows.
func TestJoin(t *testing.T) {
	var b []byte
	of := []uint32{4, 1, 0, 1, 1, 2, 4}
	for i, n := range of {
		var one [sequence.RowBytes]byte
		(&sequence.Row{Sequence: n, Position: uint32(i)}).Put(&one)
		b = append(b, one[:]...)
	}
	sequence.Layout{Sequences: 5}.Join(b)
	for i, want := range []uint32{1, 1, 0, 1, 1, 0, 1} {
		got := sequence.Parse((*[sequence.RowBytes]byte)(b[i*sequence.RowBytes:]))
		if (got != sequence.Row{Sequence: of[i], Position: uint32(i), Joined: want}) {
			t.Errorf("record %d: %+v, want Joined %d", i, got, want)
		}
	}
}

// TestLayout checks that the parts of a step block follow one another, and that a header's options
// describe it.
func TestLayout(t *testing.T) {
	want := sequence.Layout{Sequences: 3, Pages: 40, Rows: 2, Table: 5, Kinds: 2}
	l, ok := sequence.Of("batching "+want.Words(), 5*64-3)
	if !ok || l != want {
		t.Fatalf("%+v, want %+v", l, want)
	}
	if err := l.Check(); err != nil {
		t.Error(err)
	}
	if at := l.EntryAt(1, 2, 5); at != l.Size() {
		t.Errorf("the last page table ends at %d, the block at %d", at, l.Size())
	}
	if at := l.EntryAt(0, 0, 0); at != 64+2*64 {
		t.Errorf("the first page table is at %d", at)
	}
	if _, ok := sequence.Of("batching", 64); ok {
		t.Error("a table without sequences is pooled")
	}
	l.Pages = 0
	if l.Check() == nil {
		t.Error("a layout without pages is accepted")
	}
}
