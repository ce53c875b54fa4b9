package cpu

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/sequence"
)

// sequences tells which sequence and position the rows of a command have.
type sequences struct {
	kind    uint32         // a value of the constant sequences
	rows    []sequence.Row // row records of a batch
	last    int            // the largest number of a sequence
	context int            // the largest number of positions
	part    rowPart        // of a batch: which rows are computed
}

// rowPart is the part of a batch's rows that a command computes.
type rowPart int

const (
	allRows    rowPart = iota
	joinedRows         // rows that are not the only ones of their sequence
	aloneRows          // the others
)

// partOf returns the part that the parameter joined selects.
func partOf(joined uint32) rowPart {
	if joined != 0 {
		return joinedRows
	}
	return allRows
}

// sequences returns the sequences of a command whose constant is spec. pool is its number of sequences.
func (b *binder) sequences(spec int, pool uint32) sequences {
	s := sequences{kind: b.spec(spec), last: int(max(pool, 1)) - 1, context: int(b.t.Header.Context)}
	if s.kind == decl.SequencesMany && b.block != nil {
		l, ok := sequence.Of(b.t.Header.Options, int(b.t.Header.Context))
		b.need(ok && l.Rows > 0 && l.RowAt(l.Rows) <= uint64(len(b.block)), "the step block has no row records")
		if b.err == nil {
			s.rows = rowsOf(b.block[sequence.StepBytes:], l.Rows)
		}
	}
	return s
}

// of returns the number of the sequence that row r belongs to.
func (s *sequences) of(w *worker, r int) int {
	switch s.kind {
	case decl.SequencesOne:
		return min(int(w.step.Sequence), s.last)
	case decl.SequencesMany:
		return min(int(s.rows[r].Sequence), s.last)
	}
	return 0
}

// stopped reports whether nothing is to be computed for row r.
func (s *sequences) stopped(r int) bool { return s.kind == decl.SequencesMany && s.rows[r].Stop != 0 }

// follows reports whether row r of a batch is the position after row r-1 in the same sequence, as in a joint
// pass.
func (s *sequences) follows(r int) bool {
	if r < 1 || r >= len(s.rows) {
		return false
	}
	a, b := &s.rows[r-1], &s.rows[r]
	return a.Sequence == b.Sequence && a.KVLen+1 == b.KVLen && a.Stop == b.Stop
}

// skips reports whether the command does not compute row r.
func (s *sequences) skips(r int) bool {
	if s.kind != decl.SequencesMany || s.part == allRows || s.stopped(r) {
		return s.stopped(r)
	}
	return (s.rows[r].Joined != 0) != (s.part == joinedRows)
}

// visible returns the number of positions that row r sees.
func (s *sequences) visible(w *worker, r int) int {
	if s.kind == decl.SequencesMany {
		return min(int(s.rows[r].KVLen), s.context)
	}
	return int(w.kvLen) + r
}

// position returns the position whose K and V row r writes.
func (s *sequences) position(w *worker, r int) int {
	if s.kind == decl.SequencesMany {
		return max(s.visible(w, r), 1) - 1
	}
	return w.position(r)
}

// place returns the position of row r, from which its rotation follows.
func (s *sequences) place(w *worker, r int) uint32 {
	if s.kind == decl.SequencesMany {
		return s.rows[r].Position
	}
	return w.index + uint32(r)
}

// token returns the index of row r's token in its ring.
func (s *sequences) token(w *worker, r int) int {
	if s.kind == decl.SequencesMany {
		return int(s.rows[r].TokenIndex)
	}
	return int(w.index) + r
}

// part returns the elements of row r's sequence in a pool with the same number of elements for each.
func part[T any](s *sequences, w *worker, r int, pool []T) []T {
	n := len(pool) / (s.last + 1)
	return pool[s.of(w, r)*n:][:n]
}

// tables are the page tables of a kind of layers.
type tables struct {
	entries []uint32 // [sequences, each]
	each    int
	last    int // the largest page number
}

// tables returns the page tables at an offset of the step block.
func (b *binder) tables(at, each, pool uint32, pages int) tables {
	t := tables{each: int(each), last: pages - 1}
	if b.block == nil || b.err != nil {
		return t
	}
	size := 4 * uint64(each) * uint64(pool)
	b.need(uint64(at)+size <= uint64(len(b.block)) && at%4 == 0 && pages > 0 && each > 0, "the page tables at %d are not within the step block", at)
	if b.err == nil {
		t.entries = uint32s(b.block[at:][:size])
	}
	return t
}

// page returns the page that holds position p of a sequence. A position past the table has its last page.
func (t *tables) page(sequence, p int) int {
	return min(int(t.entries[sequence*t.each+min(p/pagePositions, t.each-1)]), t.last)
}

// pagePositions is the number of positions of a KV page.
const pagePositions = sequence.PagePositions

// active returns the number of rows that a command of the sampler computes. Programs without row records
// choose one token.
func (s *sequences) active(w *worker) int {
	if s.kind == decl.SequencesMany {
		return min(w.rows, len(s.rows))
	}
	return min(w.rows, 1)
}

// settings are the sampler's settings of all sequences.
type settings struct {
	words  []uint32
	stride int // words from one sequence to the next; 0 if there is one
}

func (b *binder) settings(i int, stride uint32) settings {
	b.need(stride%4 == 0, "the settings are %d bytes apart", stride)
	return settings{b.u32(i), int(stride / 4)}
}

func (s *settings) of(sequence int) []uint32 { return s.words[sequence*s.stride:] }

// eachRow divides units lo to hi-1 of rows with n units each, and calls f with the units of each row.
func eachRow(lo, hi, n int, f func(r, lo, hi int)) {
	for lo < hi {
		r := lo / n
		end := min(hi, (r+1)*n)
		f(r, lo-r*n, end-r*n)
		lo = end
	}
}
