// Package pages manages the pages of a paged KV cache, and of recurrent state: which pages are
// free, which sequence uses which, and which hold prefixes that later sequences may share.
//
// A page holds the K and V of Size consecutive positions. A Store has a pool of pages for each
// kind of layer, such as full attention and sliding-window attention. A Sequence has a page table
// for each kind. Sequences share pages: a fork shares all pages of its original, and a prompt
// shares the pages of an earlier prompt with the same beginning, which the store's prefix tree
// finds. A shared page is copied before a sequence writes rows that another one relies on.
//
// The package decides only. It records the entries of page tables that have changed and the pages
// that must be copied; its caller tells the device, before the next submission. The types are not
// safe for concurrent use.
package pages

import (
	"fmt"
	"slices"
)

// Size is the number of positions of a page.
const Size = 64

// Page is the number of a page in its pool.
type Page uint32

// None stands for a page that a page table does not have, or no longer has.
const None Page = 1<<32 - 1

// Kind describes one kind of layers, whose K and V share a pool.
type Kind struct {
	Name  string
	Pages int // number of pages in the pool
	// Window is the number of positions that a row sees, its own included, besides the first
	// Sinks positions. 0 means all.
	Window, Sinks int
	// State says that the layers have recurrent state instead of K and V. A page then holds one
	// state: that after the last of its positions that is written, which the next position
	// overwrites. Window and Sinks must be 0; New sets Window to 2, because a row needs the state
	// after the position before it.
	State bool
}

// stateWindow is the window of a kind with State.
const stateWindow = 2

// Usage is the state of a pool.
type Usage struct {
	Pages  int // number of pages in the pool
	Used   int // pages that sequences use
	Cached int // pages that only the prefix tree holds and that can be evicted
	Pinned int // pages that only the prefix tree holds and that are pinned
	Free   int // pages that nobody holds
}

// FullError reports a pool without enough pages, even if all pages that only the prefix tree
// holds are evicted.
type FullError struct {
	Kind       string
	Need, Free int // pages needed, and pages that are free or can be evicted
}

// Error implements error.
func (e *FullError) Error() string {
	return fmt.Sprintf("pages: %s needs %d pages and has %d", e.Kind, e.Need, e.Free)
}

// Copy is a page that the device must copy to another page of the same pool.
type Copy struct {
	Kind     int
	From, To Page
}

// Store has the pools of a model and its prefix tree.
type Store struct {
	pools   []pool
	tree    tree
	copies  []Copy
	states  bool   // some kind has State
	owner   uint64 // number of sequences created so far
	stats   Stats
	version uint64 // see Version
}

// Stats are counts since the store was created.
type Stats struct {
	Adopted       int // positions that sequences took from the prefix tree
	EvictedTokens int // tokens of the blocks that were evicted from the prefix tree
	Copied        int // pages copied before a write, or for the last part of a hit
	Swapped       int // pages given up for a page of the tree with the same contents
}

// pool has the pages of one kind.
type pool struct {
	kind  Kind
	free  []Page
	pages []page
	// cached and pinned count the pages whose only reference is the prefix tree's: those that can
	// be evicted and others.
	cached, pinned int
}

// page is the state of one page.
type page struct {
	refs   int32  // number of sequences, tree nodes and pending copies that hold the page
	shared uint8  // number of leading rows on which holders other than the writer rely
	node   *node  // the tree's node that holds the page, if there is one
	writer uint64 // the sequence that appends to the page
}

// New returns a store with empty sequences and an empty prefix tree.
func New(kinds []Kind) (*Store, error) {
	if len(kinds) == 0 {
		return nil, fmt.Errorf("pages: a store needs at least one kind of layers")
	}
	st := &Store{pools: make([]pool, len(kinds))}
	st.tree.roots = map[string]*node{}
	st.tree.lru.prev, st.tree.lru.next = &st.tree.lru, &st.tree.lru
	for i, k := range kinds {
		if k.Pages < 1 || int64(k.Pages) >= int64(None) || k.Window < 0 || k.Sinks < 0 || k.State && k.Window+k.Sinks > 0 {
			return nil, fmt.Errorf("pages: kind %q: %d pages, window %d, %d sinks", k.Name, k.Pages, k.Window, k.Sinks)
		}
		if k.State {
			st.states, k.Window = true, stateWindow
		}
		p := &st.pools[i]
		p.kind, p.pages, p.free = k, make([]page, k.Pages), make([]Page, k.Pages)
		for j := range p.free {
			p.free[j] = Page(k.Pages - 1 - j) // page 0 is taken first
		}
	}
	return st, nil
}

// Kinds returns the number of kinds of layers.
func (st *Store) Kinds() int { return len(st.pools) }

// Kind returns the description of a kind of layers.
func (st *Store) Kind(kind int) Kind { return st.pools[kind].kind }

// Usage returns the state of the pool of a kind.
func (st *Store) Usage(kind int) Usage {
	p := &st.pools[kind]
	return Usage{
		Pages: len(p.pages), Free: len(p.free), Cached: p.cached, Pinned: p.pinned,
		Used: len(p.pages) - len(p.free) - p.cached - p.pinned,
	}
}

// Free returns the pages of a kind that nobody holds. They are valid until the next call of a method.
func (st *Store) Free(kind int) []Page { return st.pools[kind].free }

// Available returns the number of pages of a kind that are free or can be evicted.
func (st *Store) Available(kind int) int {
	p := &st.pools[kind]
	return len(p.free) + p.cached
}

// Stats returns the counts so far.
func (st *Store) Stats() Stats { return st.stats }

// TakeCopies returns the copies that the device must make before its next submission, in any
// order: no page is both the source and the target of copies, and none is a target twice.
func (st *Store) TakeCopies() []Copy {
	taken := st.copies
	st.copies = nil
	for _, c := range taken {
		st.unref(c.Kind, c.From)
	}
	return taken
}

// copyPage records a copy and keeps its source until the copy has been taken.
func (st *Store) copyPage(kind int, from, to Page) {
	st.ref(kind, from)
	st.copies = append(st.copies, Copy{kind, from, to})
	st.stats.Copied++
}

// pins reports whether a pin keeps the page of a node. Of the states of a pinned path, only the last one
// is of use.
func (p *pool) pins(n *node) bool {
	if p.kind.State {
		return n.ends > 0
	}
	return n.pins > 0
}

// tally adds n to the count to which a page belongs whose only holder is the tree.
func (p *pool) tally(pg Page, n int) {
	switch s := &p.pages[pg]; {
	case s.refs != 1 || s.node == nil:
	case p.pins(s.node):
		p.pinned += n
	default:
		p.cached += n
	}
}

// ref adds a holder to a page.
func (st *Store) ref(kind int, pg Page) {
	p := &st.pools[kind]
	p.tally(pg, -1)
	p.pages[pg].refs++
	p.tally(pg, 1)
}

// unref removes a holder of a page, which becomes free if it was the last one.
func (st *Store) unref(kind int, pg Page) {
	p := &st.pools[kind]
	p.tally(pg, -1)
	p.pages[pg].refs--
	if p.pages[pg].refs > 0 {
		p.tally(pg, 1)
		return
	}
	p.pages[pg] = page{}
	p.free = append(p.free, pg)
	// A copy to a page that nobody holds any more need not be made, and must not be made after
	// the page has become the target of another one.
	if i := slices.IndexFunc(st.copies, func(c Copy) bool { return c.Kind == kind && c.To == pg }); i >= 0 {
		from := st.copies[i].From
		st.copies = slices.Delete(st.copies, i, i+1)
		st.unref(kind, from)
	}
}

// setNode records the tree's node that holds a page, or that none does.
func (p *pool) setNode(pg Page, n *node) {
	p.tally(pg, -1)
	p.pages[pg].node = n
	p.tally(pg, 1)
}

// share records that others than the writer rely on the first rows of a page.
func (p *pool) share(pg Page, rows int) {
	p.pages[pg].shared = max(p.pages[pg].shared, uint8(rows))
}

// take returns a page for a sequence to write. It does not fail if need has returned nil.
func (st *Store) take(kind int, writer uint64) (Page, error) {
	p := &st.pools[kind]
	for len(p.free) == 0 {
		if !st.evict(kind) {
			return None, &FullError{p.kind.Name, 1, 0}
		}
	}
	pg := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.pages[pg] = page{refs: 1, writer: writer}
	return pg, nil
}

// need returns a *FullError if a kind has fewer than n pages that are free or can be evicted.
func (st *Store) need(kind, n int) error {
	if have := st.Available(kind); n > have {
		return &FullError{st.pools[kind].kind.Name, n, have}
	}
	return nil
}
