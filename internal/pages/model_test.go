package pages

import (
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"testing"
)

// world is a store with sequences, and a device that holds what the rows of the pages contain. A
// row contains a hash of all tokens up to its position, as K and V depend on them. A page with a state
// has it in place of all rows: the hash of all tokens up to the position before it.
type world struct {
	st       *Store
	seed     maphash.Seed
	rows     [][]uint64 // by kind, [page*Size + row]
	live     []*context
	pins     []*Pin
	disorder bool // copies depended on their order
	exact    bool // take no pages for later positions
}

// context is a sequence with its tokens and the device's copy of its page tables.
type context struct {
	s      *Sequence
	space  string
	tokens []int32 // those of the written positions, and of those to come
	tables []map[int]Page
	cached bool // uses the prefix tree
}

func newWorld(t testing.TB, kinds []Kind) *world {
	st, err := New(kinds)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{st: st, seed: maphash.MakeSeed()}
	for _, k := range kinds {
		w.rows = append(w.rows, make([]uint64, k.Pages*Size))
	}
	return w
}

// content returns what the row of the last of the tokens contains.
func (w *world) content(space string, tokens []int32) uint64 {
	var h maphash.Hash
	h.SetSeed(w.seed)
	h.WriteString(space)
	for _, t := range tokens {
		h.Write([]byte{byte(t), byte(t >> 8)})
	}
	return h.Sum64()
}

func (w *world) start(space string, tokens []int32, cached bool) *context {
	c := &context{s: w.st.NewSequence(), space: space, tokens: tokens, cached: cached}
	w.join(c)
	return c
}

func (w *world) join(c *context) {
	for range w.rows {
		c.tables = append(c.tables, map[int]Page{})
	}
	for _, e := range c.s.Entries(nil) {
		c.tables[e.Kind][e.Index] = e.Page
	}
	c.s.TakeChanges(nil)
	w.live = append(w.live, c)
}

// submit makes the pending copies, in random order, and applies the changes of all page tables.
func (w *world) submit(r *rand.Rand) {
	copies := w.st.TakeCopies()
	r.Shuffle(len(copies), func(i, j int) { copies[i], copies[j] = copies[j], copies[i] })
	from, to := map[Copy]bool{}, map[Copy]bool{}
	for _, c := range copies {
		from[Copy{c.Kind, c.From, None}], to[Copy{c.Kind, c.To, None}] = true, true
	}
	for c := range from {
		w.disorder = w.disorder || to[c]
	}
	w.disorder = w.disorder || len(to) < len(copies)
	for _, c := range copies {
		copy(w.rows[c.Kind][int(c.To)*Size:][:Size], w.rows[c.Kind][int(c.From)*Size:][:Size])
	}
	for _, c := range w.live {
		for _, e := range c.s.TakeChanges(nil) {
			if e.Page == None {
				delete(c.tables[e.Kind], e.Index)
			} else {
				c.tables[e.Kind][e.Index] = e.Page
			}
		}
	}
}

// compute writes n positions of a context, as many as it has tokens for.
func (w *world) compute(r *rand.Rand, c *context, n int) error {
	end := min(len(c.tokens), c.s.Len()+n)
	from := c.s.Len()
	ahead := end
	if !w.exact {
		ahead += r.IntN(70)
	}
	if err := c.s.Extend(ahead); err != nil {
		if err := c.s.Extend(end); err != nil {
			return err
		}
	}
	w.submit(r)
	for kind := range w.rows {
		for p := from; p < end; p++ {
			w.rows[kind][w.at(c, kind, p)] = w.content(c.space, c.tokens[:p+1])
		}
	}
	if r.IntN(20) == 0 { // the submission has failed after it had computed everything
		c.s.Spoil()
		c.s.Truncate(c.s.Len())
		return nil
	}
	if err := c.s.Advance(end); err != nil {
		return err
	}
	if c.cached {
		c.s.Publish(c.space, c.tokens[:end], r.IntN(3) == 0)
	}
	c.s.Trim()
	return nil
}

// at returns the index of the row of a position, or of the state after it.
func (w *world) at(c *context, kind, p int) int {
	at := int(c.tables[kind][p/Size]) * Size
	if w.st.pools[kind].kind.State {
		return at
	}
	return at + p%Size
}

// visible returns an error if a row that the next position of a context sees is wrong.
func (w *world) visible(c *context) error {
	n := c.s.Len()
	for kind := range w.rows {
		k := w.st.pools[kind].kind
		for p := range n {
			if k.Window > 0 && p >= k.Sinks && p <= n-k.Window {
				continue
			}
			pg, ok := c.tables[kind][p/Size]
			if !ok {
				return fmt.Errorf("%s: position %d of %d has no page", k.Name, p, n)
			}
			if w.rows[kind][w.at(c, kind, p)] != w.content(c.space, c.tokens[:p+1]) {
				return fmt.Errorf("%s: position %d of %d in page %d is wrong", k.Name, p, n, pg)
			}
		}
	}
	return nil
}

// check compares the store's counts with those that the sequences and the tree imply.
func (w *world) check() error {
	if w.disorder {
		return errors.New("a page was the source and the target of copies, or a target twice")
	}
	for kind := range w.st.pools {
		p := &w.st.pools[kind]
		refs := make([]int32, len(p.pages))
		holder := make([]*node, len(p.pages))
		for _, c := range w.live {
			for _, pg := range c.s.tables[kind] {
				if pg != None {
					refs[pg]++
				}
			}
		}
		for _, c := range w.st.copies {
			if c.Kind == kind {
				refs[c.From]++
			}
		}
		nodes := 0
		var walk func(n *node) error
		walk = func(n *node) error {
			if len(n.tokens) == Size && n.parent.full[block(n.tokens)] != n {
				return errors.New("a whole block is not in its parent's map")
			}
			if n.parent != nil && n.owner == nil {
				nodes++
			}
			if n.parent != nil && n.owner == nil && n.next == nil {
				return errors.New("a published block is not in the list of the least recently used")
			}
			for k, pg := range n.pages {
				if k == kind && pg != None {
					refs[pg]++
					holder[pg] = n
				}
			}
			for _, c := range n.children {
				if c.parent != n {
					return errors.New("a block has another parent")
				}
				if err := walk(c); err != nil {
					return err
				}
			}
			return nil
		}
		for _, root := range w.st.tree.roots {
			if err := walk(root); err != nil {
				return err
			}
		}
		for n := w.st.tree.lru.next; n != &w.st.tree.lru; n = n.next {
			nodes--
		}
		if nodes != 0 {
			return fmt.Errorf("the list of the least recently used differs by %d from the tree", nodes)
		}
		var free, cached, pinned int
		for pg := range p.pages {
			s := &p.pages[pg]
			if s.refs != refs[pg] || s.node != holder[pg] {
				return fmt.Errorf("%s page %d: %d references, want %d", p.kind.Name, pg, s.refs, refs[pg])
			}
			switch {
			case s.refs == 0:
				free++
			case s.refs == 1 && s.node != nil && p.pins(s.node):
				pinned++
			case s.refs == 1 && s.node != nil:
				cached++
			}
		}
		if free != len(p.free) || cached != p.cached || pinned != p.pinned {
			return fmt.Errorf("%s: free %d, cached %d, pinned %d; want %d, %d, %d", p.kind.Name, len(p.free), p.cached, p.pinned, free, cached, pinned)
		}
	}
	return nil
}

// prompt returns tokens that often begin like others.
func prompt(r *rand.Rand) []int32 {
	tokens := make([]int32, 1+r.IntN(300))
	at := 0
	for at < len(tokens) {
		run, what := 1+r.IntN(120), int32(r.IntN(2))
		for ; run > 0 && at < len(tokens); run-- {
			tokens[at] = what
			at++
		}
	}
	return tokens
}

// step makes one random operation.
func (w *world) step(r *rand.Rand) error {
	if len(w.live) == 0 || r.IntN(12) == 0 && len(w.live) < 12 {
		c := w.start([]string{"", "a"}[r.IntN(2)], prompt(r), r.IntN(5) > 0)
		if c.cached {
			c.s.Adopt(c.space, c.tokens[:len(c.tokens)-1])
			if m := w.st.Match(c.space, c.tokens); m.Owner == nil {
				c.s.Claim(c.space, c.tokens)
			}
		}
		return nil
	}
	i := r.IntN(len(w.live))
	c := w.live[i]
	switch r.IntN(14) {
	case 0:
		c.s.Release()
		w.live = slices.Delete(w.live, i, i+1)
	case 1:
		f := &context{s: c.s.Fork(), space: c.space, tokens: slices.Clone(c.tokens), cached: c.cached}
		w.join(f)
	case 2:
		n := c.s.Truncate(r.IntN(c.s.Len() + 1))
		c.tokens = append(slices.Clone(c.tokens[:n]), prompt(r)...)
	case 3:
		c.tokens = append(slices.Clone(c.tokens), prompt(r)...)
	case 4: // set back, and taken up again
		c.s.Release()
		if c.cached && r.IntN(2) == 0 {
			c.s.Adopt(c.space, c.tokens[:len(c.tokens)-1])
		}
	case 5:
		if p := r.IntN(6); p < len(w.pins) {
			w.pins[p].Release()
			w.pins = slices.Delete(w.pins, p, p+1)
		} else if len(w.pins) < 2 {
			w.pins = append(w.pins, w.st.Pin(c.space, c.tokens[:r.IntN(len(c.tokens)+1)]))
		}
	case 6:
		w.st.Clear()
	case 7: // given up before its submission
		if err := c.s.Extend(c.s.Len() + 1); err == nil && r.IntN(2) == 0 {
			c.s.Release()
		}
	default:
		before := make([]Usage, len(w.rows))
		for kind := range before {
			before[kind] = w.st.Usage(kind)
		}
		if err := w.compute(r, c, 1+r.IntN(100)); err != nil {
			var full *FullError
			if !errors.As(err, &full) {
				return err
			}
			for kind := range before {
				if w.st.Usage(kind) != before[kind] {
					return fmt.Errorf("%w changed the pool %v to %v", err, before[kind], w.st.Usage(kind))
				}
			}
			// The youngest is set back.
			w.live[len(w.live)-1].s.Release()
		}
	}
	return nil
}

// finish releases everything and reports pages that are left.
func (w *world) finish() error {
	for _, c := range w.live {
		c.s.Release()
	}
	w.live = nil
	for _, p := range w.pins {
		p.Release()
	}
	w.st.TakeCopies()
	w.st.Clear()
	for kind := range w.rows {
		if u := w.st.Usage(kind); u.Free != u.Pages {
			return fmt.Errorf("%d of %d pages are free in the end", u.Free, u.Pages)
		}
	}
	for _, root := range w.st.tree.roots {
		if len(root.children) > 0 {
			return errors.New("the tree is not empty in the end")
		}
	}
	return nil
}

// shapes is the number of shapes of pools.
const shapes = 6

// kindsOf returns pools of several shapes.
func kindsOf(shape int) []Kind {
	return [][]Kind{
		{{Name: "full", Pages: 40}},
		{{Name: "full", Pages: 60}, {Name: "window", Pages: 30, Window: 100}},
		{{Name: "window", Pages: 24, Window: 64, Sinks: 4}, {Name: "full", Pages: 50}},
		{{Name: "window", Pages: 20, Window: 130, Sinks: 70}},
		{{Name: "full", Pages: 60}, {Name: "state", Pages: 14, State: true}},
		{{Name: "state", Pages: 20, State: true}},
	}[shape%shapes]
}

// TestRandomOperations makes 10,000 random operations on each of several shapes of pools. After each,
// the counts must be exact and every row that a sequence still sees must have the contents of its tokens; in the end no
// page may be left.
func TestRandomOperations(t *testing.T) {
	for shape := range shapes {
		t.Run(fmt.Sprint(shape), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, kindsOf(shape))
			r := rand.New(rand.NewPCG(uint64(shape), 1))
			for i := range 10000 {
				err := w.step(r)
				if err == nil {
					err = w.check()
				}
				for _, c := range w.live {
					if err == nil && i%16 == 0 {
						w.submit(r)
						err = w.visible(c)
					}
				}
				if err != nil {
					t.Fatalf("operation %d: %v", i, err)
				}
			}
			if s := w.st.Stats(); s.Adopted == 0 || s.EvictedTokens == 0 || s.Copied == 0 || s.Swapped == 0 {
				t.Errorf("the operations did not reach everything: %+v", s)
			}
			t.Logf("%+v", w.st.Stats())
			if err := w.finish(); err != nil {
				t.Error(err)
			}
		})
	}
}

// FuzzOperations makes the operations that the input selects.
func FuzzOperations(f *testing.F) {
	f.Add(uint64(1), uint64(2), 50)
	f.Add(uint64(7), uint64(3), 400)
	f.Fuzz(func(t *testing.T, shape, seed uint64, n int) {
		w := newWorld(t, kindsOf(int(shape%shapes)))
		r := rand.New(rand.NewPCG(shape, seed))
		for i := range max(0, min(n, 500)) {
			if err := w.step(r); err != nil {
				t.Fatalf("operation %d: %v", i, err)
			}
			if err := w.check(); err != nil {
				t.Fatalf("operation %d: %v", i, err)
			}
		}
		w.submit(r)
		for _, c := range w.live {
			if err := w.visible(c); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.finish(); err != nil {
			t.Fatal(err)
		}
	})
}
