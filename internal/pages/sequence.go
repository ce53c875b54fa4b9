package pages

import (
	"fmt"
	"slices"
)

// Entry is an entry of a sequence's page table. Page is None for a page that was released.
type Entry struct {
	Kind, Index int
	Page        Page
}

// Sequence has the page tables of one context. Its first Len positions are written. A sequence
// that no longer holds pages because Release was called is empty and can be used again.
type Sequence struct {
	st      *Store
	id      uint64
	n       int      // positions that are written
	tables  [][]Page // by kind
	changes []Entry
	claims  []*node // blocks of the prompt that the sequence is to compute, in the prefix tree
	done    int     // positions that Publish has entered in the tree
}

// NewSequence returns an empty sequence.
func (st *Store) NewSequence() *Sequence {
	st.owner++
	return &Sequence{st: st, id: st.owner, tables: make([][]Page, len(st.pools))}
}

// Len returns the number of positions that are written.
func (s *Sequence) Len() int { return s.n }

// Entries appends the whole page tables to dst, without released pages.
func (s *Sequence) Entries(dst []Entry) []Entry {
	for kind, t := range s.tables {
		for i, pg := range t {
			if pg != None {
				dst = append(dst, Entry{kind, i, pg})
			}
		}
	}
	return dst
}

// TakeChanges appends the entries to dst that have changed since the last call.
func (s *Sequence) TakeChanges(dst []Entry) []Entry {
	dst = append(dst, s.changes...)
	s.changes = s.changes[:0]
	return dst
}

// set changes an entry, which must exist.
func (s *Sequence) set(kind, index int, pg Page) {
	s.tables[kind][index] = pg
	s.changes = append(s.changes, Entry{kind, index, pg})
}

// Need returns the number of pages of a kind that Extend takes to make room for positions up to
// end.
func (s *Sequence) Need(kind, end int) int {
	if end <= s.n {
		return 0
	}
	n := max(0, pageCount(end)-len(s.tables[kind]))
	if s.mustCopy(kind) {
		n++
	}
	return n
}

// pageCount returns the number of pages of the first n positions.
func pageCount(n int) int { return (n + Size - 1) / Size }

// mustCopy reports whether the page of the next position holds rows or a state on which others rely and
// that the sequence would overwrite, or has another writer.
func (s *Sequence) mustCopy(kind int) bool {
	row, index := s.n%Size, s.n/Size
	if index >= len(s.tables[kind]) || s.tables[kind][index] == None {
		return false
	}
	pool := &s.st.pools[kind]
	p := &pool.pages[s.tables[kind][index]]
	return p.refs > 1 && (pool.kind.State || p.writer != s.id || row < int(p.shared))
}

// Extend makes room for the positions from Len to end-1: the sequence then holds pages for them
// that it may write. It evicts cached prefixes if it must. With a *FullError nothing has changed.
func (s *Sequence) Extend(end int) error {
	for kind := range s.tables {
		if err := s.st.need(kind, s.Need(kind, end)); err != nil {
			return err
		}
	}
	if end <= s.n {
		return nil
	}
	for kind := range s.tables {
		if err := s.own(kind); err != nil {
			return err
		}
		for index := len(s.tables[kind]); index < pageCount(end); index++ {
			pg, err := s.st.take(kind, s.id)
			if err != nil {
				return err
			}
			s.tables[kind] = append(s.tables[kind], pg)
			s.set(kind, index, pg)
		}
	}
	return nil
}

// own makes the sequence the writer of the page of the next position, of which it takes a copy if
// it must.
func (s *Sequence) own(kind int) error {
	index := s.n / Size
	if index >= len(s.tables[kind]) {
		return nil
	}
	old := s.tables[kind][index]
	if !s.mustCopy(kind) {
		if p := &s.st.pools[kind].pages[old]; p.refs == 1 {
			p.writer, p.shared = s.id, 0
		}
		return nil
	}
	pg, err := s.st.take(kind, s.id)
	if err != nil {
		return err
	}
	s.st.copyPage(kind, old, pg)
	s.set(kind, index, pg)
	s.st.unref(kind, old)
	return nil
}

// Advance records that the positions up to n are written. Extend must have made room for them. Trim
// should follow, after Publish.
func (s *Sequence) Advance(n int) error {
	for kind := range s.tables {
		if n < s.n || n > len(s.tables[kind])*Size {
			return fmt.Errorf("pages: cannot advance from position %d to %d with %d pages", s.n, n, len(s.tables[kind]))
		}
	}
	s.n = n
	return nil
}

// Trim releases the pages that no later row sees.
func (s *Sequence) Trim() {
	for kind := range s.tables {
		s.releaseHidden(kind)
	}
}

// hidden returns the range of pages of a kind that no row from position n on sees.
func (k *Kind) hidden(n int) (first, end int) {
	if k.Window == 0 {
		return 0, 0
	}
	first = pageCount(k.Sinks)
	return first, max(first, (n-k.Window+1)/Size)
}

// releaseHidden releases the pages that no later row sees.
func (s *Sequence) releaseHidden(kind int) {
	first, end := s.st.pools[kind].kind.hidden(s.n)
	t := s.tables[kind]
	for i := min(end, len(t)) - 1; i >= first && t[i] != None; i-- {
		s.st.unref(kind, t[i])
		s.set(kind, i, None)
	}
}

// sees reports whether the page tables have all pages that rows from position n on see.
func (s *Sequence) sees(n int) bool {
	for kind, t := range s.tables {
		first, end := s.st.pools[kind].kind.hidden(n)
		for i := range pageCount(n) {
			if t[i] == None && (i < first || i >= end) {
				return false
			}
		}
	}
	return true
}

// Truncate shortens the sequence to its first n positions and returns its new length. That is 0
// if pages that a row at position n would see have been released. With recurrent state, which is
// kept at the ends of pages, it may be the end of the last whole page before n. It also gives back
// pages that Extend took and that Advance did not reach.
func (s *Sequence) Truncate(n int) int {
	n = max(0, min(n, s.n))
	if n < s.n {
		if s.st.states {
			n = n / Size * Size
		}
		if !s.sees(n) {
			n = 0
		}
	}
	for kind := range s.tables {
		s.shorten(kind, pageCount(n))
	}
	s.n, s.done = n, min(s.done, n)
	return n
}

// Spoil records that a submission has failed that may have written behind Len: it has overwritten the
// recurrent state unless Len is the end of a page.
func (s *Sequence) Spoil() {
	if s.st.states && s.n%Size != 0 {
		s.Truncate(s.n - 1)
	}
}

// shorten releases the entries of a page table from index n on.
func (s *Sequence) shorten(kind, n int) {
	t := s.tables[kind]
	for i := n; i < len(t); i++ {
		if t[i] != None {
			s.st.unref(kind, t[i])
			s.set(kind, i, None)
		}
	}
	s.tables[kind] = t[:min(n, len(t))]
}

// Release empties the sequence, and gives up what it has announced to the prefix tree.
func (s *Sequence) Release() {
	s.Abandon()
	s.Truncate(0)
}

// Fork returns a sequence with the same positions. They share all pages; of the two, the one that
// did not write the last page copies it when it writes.
func (s *Sequence) Fork() *Sequence {
	f := s.st.NewSequence()
	f.n, f.done = s.n, s.done
	for kind, t := range s.tables {
		pool := &s.st.pools[kind]
		f.tables[kind] = slices.Clone(t[:min(len(t), pageCount(s.n))])
		for i, pg := range f.tables[kind] {
			if pg != None {
				s.st.ref(kind, pg)
				pool.share(pg, min(Size, s.n-i*Size))
			}
		}
	}
	return f
}
