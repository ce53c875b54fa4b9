package batchtest

import (
	"encoding/binary"
	"strings"

	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// Chain is a submission that decodes a batch with a pooled table. Each row begins with the only token of its
// sequence.
type Chain struct {
	replay.Submission
	Rows int

	t     *table.Table
	after []byte // the row records after the submission
}

// NewChain returns a chain of a session in which sequence first + r chooses tokens[r] tokens. It uses pages
// 2*s and 2*s + 1 for sequence s, and the smallest program that has enough rows.
func NewChain(t *table.Table, id replay.SessionID, first int, tokens ...int) *Chain {
	l := Layout(t)
	_, ring, _ := t.Slot(table.SlotTokens)
	_, step, _ := t.Slot(table.SlotStep)
	le := binary.LittleEndian
	c := &Chain{Rows: len(tokens), t: t, after: make([]byte, len(tokens)*sequence.RowBytes)}
	records := make([]byte, len(c.after))
	most := 0
	for r, n := range tokens {
		s := first + r
		row := sequence.Row{Sequence: uint32(s), KVLen: 1, Until: uint32(n)}
		row.Put((*[sequence.RowBytes]byte)(records[r*sequence.RowBytes:]))
		pages := le.AppendUint32(le.AppendUint32(nil, uint32(2*s)), uint32(2*s+1))
		c.Writes = append(c.Writes, replay.Transfer{Slot: ring, Offset: RingAt(t, s, 0), Bytes: le.AppendUint32(nil, uint32(7+s))})
		for kind := range l.Kinds {
			c.Writes = append(c.Writes, replay.Transfer{Slot: step, Offset: l.EntryAt(kind, s, 0), Bytes: pages[:4*min(l.Table, 2)]})
		}
		most = max(most, n)
	}
	c.Writes = append(c.Writes, replay.Transfer{Slot: step, Offset: l.RowAt(0), Bytes: records})
	c.Reads = []replay.Transfer{{Slot: step, Offset: l.RowAt(0), Bytes: c.after}}
	c.Session = id
	c.Runs = []replay.Run{{Program: program(t, len(tokens)), Count: uint32(most), Step: table.Step{KVLen: 1, Rows: uint32(len(tokens))}}}
	return c
}

// program returns the index of the smallest program that chooses the most probable tokens of a number of rows.
func program(t *table.Table, rows int) uint32 {
	best := 0
	for i := range t.Programs {
		p := &t.Programs[i]
		if name, _, _ := strings.Cut(p.Name, "."); name != sequence.ProgramBatch || int(p.MaxRows) < rows {
			continue
		}
		if b := &t.Programs[best]; !b.Flags.Has(table.FlagBatch) || p.MaxRows < b.MaxRows {
			best = i
		}
	}
	return uint32(best)
}

// Row returns a row record after the submission.
func (c *Chain) Row(r int) sequence.Row {
	return sequence.Parse((*[sequence.RowBytes]byte)(c.after[r*sequence.RowBytes:]))
}

// Ring makes the submission read the first n tokens of a sequence.
func (c *Chain) Ring(s, n int) (tokens []byte) {
	_, ring, _ := c.t.Slot(table.SlotTokens)
	tokens = make([]byte, 4*n)
	c.Reads = append(c.Reads, replay.Transfer{Slot: ring, Offset: RingAt(c.t, s, 0), Bytes: tokens})
	return tokens
}

// Stop makes a token a stop id of a sequence.
func (c *Chain) Stop(s int, token []byte) {
	_, stops, _ := c.t.Slot(table.SlotStops)
	at := 4 * uint64(s) * uint64(c.t.Header.MaxStops+1)
	c.Writes = append(c.Writes, replay.Transfer{Slot: stops, Offset: at, Bytes: append([]byte{1, 0, 0, 0}, token...)})
}

// Layout returns the layout of a pooled table's step block.
func Layout(t *table.Table) sequence.Layout {
	l, _ := sequence.Of(t.Header.Options, int(t.Header.Context))
	return l
}

// RingAt returns the place of a token of a sequence.
func RingAt(t *table.Table, s, at int) uint64 {
	return 4 * (uint64(s)*uint64(t.Header.Context+1) + uint64(at))
}
