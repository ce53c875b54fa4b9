// Package sequence defines the memory layout of the step block of a pooled table. A pooled table
// keeps the state of many sequences: their token rings, their settings, the pages of their KV
// caches and their recurrent states. Behind the step record, its step block has row records, which name the sequences that the
// rows of a batch belong to, and the page tables of all sequences. The host writes both between
// submissions; kernels on every device read them. The package must not import tables or devices.
package sequence

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Sizes in bytes. StepBytes is the size of the step record, table.StepSize.
const (
	StepBytes = 64
	RowBytes  = 64
	// PagePositions is the number of positions of a KV page.
	PagePositions = 64
)

// Names of the programs that decode a token for each row of a batch. The number of rows that a program is
// compiled for follows the name, as in batch.8. ProgramBatch chooses the most probable token of each row;
// ProgramSample and ProgramRanked choose as the table's programs sample and ranked do.
const (
	ProgramBatch  = "batch"
	ProgramSample = "batch_sample"
	ProgramRanked = "batch_ranked"
)

// Names of the programs of a joint pass, in which rows that decode and rows of prompts are computed
// together. ProgramFill computes all rows without choosing tokens; consecutive positions of one sequence may
// be rows of it. Then one of the programs with a head chooses the token that follows each of the first rows.
const (
	ProgramFill       = "batch_fill"
	ProgramHead       = "batch_head"
	ProgramSampleHead = "batch_sample_head"
	ProgramRankedHead = "batch_ranked_head"
)

// Row is a row record: the place of one row of a batch. Programs that decode batches advance it after
// each token. C has the same struct (shaders/params.h).
type Row struct {
	Sequence   uint32
	Position   uint32 // position of the row's token
	KVLen      uint32 // positions visible to the row, its own included
	TokenIndex uint32 // index of the row's token in the sequence's ring
	Until      uint32 // token index at which the row stops
	Count      uint32 // tokens chosen since the submission began
	Stop       uint32 // not 0: nothing is computed for the row
	Joined     uint32 // not 0: other rows of a joint pass belong to the same sequence
	_          [8]uint32
}

// Values of Row.Stop.
const (
	StopID    = 1 // the last token is one of the sequence's stops
	StopUntil = 2 // the token index has reached Until
)

// StopBatch is the stop flag of the step record once all rows of a batch have stopped.
const StopBatch = 1024

// Put encodes a row record.
func (r *Row) Put(b *[RowBytes]byte) {
	clear(b[:])
	for i, v := range [...]uint32{r.Sequence, r.Position, r.KVLen, r.TokenIndex, r.Until, r.Count, r.Stop, r.Joined} {
		binary.LittleEndian.PutUint32(b[4*i:], v)
	}
}

// Parse decodes a row record.
func Parse(b *[RowBytes]byte) (r Row) {
	for i, v := range [...]*uint32{&r.Sequence, &r.Position, &r.KVLen, &r.TokenIndex, &r.Until, &r.Count, &r.Stop, &r.Joined} {
		*v = binary.LittleEndian.Uint32(b[4*i:])
	}
	return r
}

// Layout is the layout of a pooled table's step block.
type Layout struct {
	Sequences int
	Pages     int // of each KV slot
	Rows      int // row records
	Table     int // entries of a sequence's page table
	Kinds     int // kinds of layers, each of which has its own page tables
	States    int // of each slot with recurrent state, which has pages of one state; 0 without such slots
}

// Limits of a layout.
const (
	MaxSequences = 1 << 16
	MaxPages     = 1 << 24
	MaxRows      = 1 << 12
)

// Words returns the words of a table header's options that describe the layout.
func (l Layout) Words() string {
	words := fmt.Sprintf("sequences=%d pages=%d rows=%d kinds=%d", l.Sequences, l.Pages, l.Rows, l.Kinds)
	if l.States != 0 {
		words += fmt.Sprintf(" states=%d", l.States)
	}
	return words
}

// Of returns the layout that a table header's options describe. It reports whether the table is a
// pooled one.
func Of(options string, context int) (l Layout, ok bool) {
	l.Table = (context + PagePositions - 1) / PagePositions
	for _, word := range strings.Fields(options) {
		name, value, _ := strings.Cut(word, "=")
		for _, to := range []struct {
			name string
			n    *int
		}{{"sequences", &l.Sequences}, {"pages", &l.Pages}, {"rows", &l.Rows}, {"kinds", &l.Kinds}, {"states", &l.States}} {
			if n, err := strconv.Atoi(value); to.name == name && err == nil {
				*to.n = n
			}
		}
	}
	return l, l.Sequences > 0
}

// Check returns an error unless all numbers are within their limits.
func (l Layout) Check() error {
	for _, c := range []struct {
		name        string
		n           int
		least, most int
	}{
		{"sequences", l.Sequences, 1, MaxSequences}, {"pages", l.Pages, 1, MaxPages}, {"rows", l.Rows, 1, MaxRows}, {"kinds of layers", l.Kinds, 1, 16},
		{"states", l.States, 0, MaxPages},
	} {
		if c.n < c.least || c.n > c.most {
			return fmt.Errorf("%d %s are not in %d..%d", c.n, c.name, c.least, c.most)
		}
	}
	return nil
}

// RowAt returns the offset of a row record in the step block.
func (l Layout) RowAt(row int) uint64 { return StepBytes + uint64(row)*RowBytes }

// TablesAt returns the offset of the page tables of a kind of layers.
func (l Layout) TablesAt(kind int) uint64 {
	return l.RowAt(l.Rows) + 4*uint64(kind)*uint64(l.Sequences)*uint64(l.Table)
}

// Join sets Joined in the encoded records of a joint pass: those of sequences that have several rows.
func (l Layout) Join(records []byte) {
	rows := make([]uint8, l.Sequences) // of each sequence, at most 2
	for record := range slices.Chunk(records, RowBytes) {
		n := &rows[binary.LittleEndian.Uint32(record)]
		*n = min(*n+1, 2)
	}
	for record := range slices.Chunk(records, RowBytes) {
		if rows[binary.LittleEndian.Uint32(record)] > 1 {
			binary.LittleEndian.PutUint32(record[joinedAt:], 1)
		}
	}
}

// joinedAt is the offset of Joined in a row record.
const joinedAt = 28

// EntryAt returns the offset of an entry of a sequence's page table.
func (l Layout) EntryAt(kind, sequence, entry int) uint64 {
	return l.TablesAt(kind) + 4*(uint64(sequence)*uint64(l.Table)+uint64(entry))
}

// Size returns the size of the step block.
func (l Layout) Size() uint64 { return l.TablesAt(l.Kinds) }
