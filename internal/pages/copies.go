package pages

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// Key names what a page holds: the tokens of a context up to the end of the page, and their namespace.
// It is a cryptographic hash, so that no two contexts have the same one.
type Key [sha256.Size]byte

// The first byte of what is hashed, so that no namespace has the key of a context.
const ofNamespace, ofTokens = 0, 1

// Namespace returns the key of the empty context of a namespace.
func Namespace(space string) *Key {
	k := Key(sha256.Sum256(append([]byte{ofNamespace}, space...)))
	return &k
}

// Next returns the key of a context with Size more tokens.
func (k *Key) Next(tokens []int32) *Key {
	b := append(make([]byte, 0, 1+sha256.Size+4*Size), ofTokens)
	b = append(b, k[:]...)
	for _, id := range tokens[:Size] {
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
	}
	next := Key(sha256.Sum256(b))
	return &next
}

// keyOf returns the key of a root or of a node with Size tokens.
func keyOf(n *node) *Key {
	var path []*node
	for ; n.key == nil; n = n.parent {
		path = append(path, n)
	}
	key := n.key
	for i := len(path) - 1; i >= 0; i-- {
		path[i].key = key.Next(path[i].tokens)
		key = path[i].key
	}
	return key
}

// Cold is a page that the prefix tree may soon give up.
type Cold struct {
	Key  *Key
	Kind int
	Page Page
	At   int // number of positions before the page
}

// Coldest calls f with the pages of a kind that eviction would take from the prefix tree, about in
// that order, until f returns false or has been called for most pages. It leaves out pages with fewer
// than Size tokens, pinned ones, and states that are worth least. Sequences may still use the pages.
func (st *Store) Coldest(kind, most int, f func(c Cold) bool) {
	p := &st.pools[kind]
	for n := st.tree.lru.prev; n != &st.tree.lru && most > 0; n = n.prev {
		if n.pages[kind] == None || len(n.tokens) < Size || p.pins(n) || p.kind.State && st.nextHas(n, kind) {
			continue
		}
		most--
		if !f(Cold{keyOf(n), kind, n.pages[kind], (n.depth - 1) * Size}) {
			return
		}
	}
}

// nextHas reports whether the only node that follows another one has a page of a kind.
func (st *Store) nextHas(n *node, kind int) bool {
	return len(n.children) == 1 && n.children[0].pages[kind] != None
}

// Hold keeps the content of a page until Unhold is called.
func (st *Store) Hold(kind int, pg Page) { st.ref(kind, pg) }

// Unhold undoes Hold.
func (st *Store) Unhold(kind int, pg Page) { st.unref(kind, pg) }

// Sees reports whether rows from a position on see positions of the page with an index.
func (k *Kind) Sees(position, index int) bool {
	first, end := k.hidden(position)
	return index < first || index >= end
}

// Reaches reports whether the sequence can be truncated to its first n positions, and keep them.
func (s *Sequence) Reaches(n int) bool {
	return n <= s.n && (!s.st.states || n%Size == 0) && s.sees(n)
}

// Stage makes room for the content of pages up to a position, with which the sequence will go on at
// another one, target: it takes those pages that rows from target on see. Advance to target completes
// this; Truncate gives the pages back. All three positions must be ends of pages. With a *FullError
// nothing has changed.
func (s *Sequence) Stage(end, target int) error {
	if s.n%Size != 0 || end%Size != 0 || target%Size != 0 || end > target {
		return fmt.Errorf("pages: cannot stage positions up to %d of %d from %d on", end, target, s.n)
	}
	for kind, t := range s.tables {
		need := 0
		for i := len(t); i < end/Size; i++ {
			if s.st.pools[kind].kind.Sees(target, i) {
				need++
			}
		}
		if err := s.st.need(kind, need); err != nil {
			return err
		}
	}
	for kind := range s.tables {
		for i := len(s.tables[kind]); i < end/Size; i++ {
			s.tables[kind] = append(s.tables[kind], None)
			if !s.st.pools[kind].kind.Sees(target, i) {
				continue
			}
			pg, err := s.st.take(kind, s.id)
			if err != nil {
				return err
			}
			s.set(kind, i, pg)
		}
	}
	return nil
}

// Page returns the page of a kind with an index, or None.
func (s *Sequence) Page(kind, index int) Page {
	if t := s.tables[kind]; index < len(t) {
		return t[index]
	}
	return None
}
