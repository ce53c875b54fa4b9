package pages

import (
	"maps"
	"slices"
)

// MinPartial is the smallest number of tokens of a block for which a prompt takes a copy of the
// block's page, or waits for another sequence that computes it. Prefilling fewer costs no more.
const MinPartial = 16

// tree is the prefix tree: it finds the pages of the longest known beginning of a prompt. A node
// is a block of Size tokens, after the blocks of its ancestors; a leaf may have fewer, but not with
// recurrent state, which is only at the ends of whole blocks. Prompts of different namespaces, such as
// those with different adapters, have different roots.
//
// A node belongs to the sequence that computes its block until the sequence publishes it. Other
// sequences can see that they should wait for it.
type tree struct {
	roots map[string]*node
	most  int  // number of roots at which those without children are removed
	lru   node // ring of the published nodes, the most recently used first
}

// node is a block of the prefix tree.
type node struct {
	parent   *node
	tokens   []int32         // 1 to Size; none for a root
	pages    []Page          // by kind; None for a page that no row after the block's last sees, or that was evicted
	owner    *Sequence       // computes the block; nil once it is published
	full     map[block]*node // children of Size tokens
	children []*node         // all children
	pins     int             // number of pins on the node and its descendants
	ends     int             // number of pins on the node alone
	prev     *node           // in tree.lru
	next     *node
	depth    int  // number of ancestors
	key      *Key // see keyOf; of a root that of its namespace
}

// block is the key of a full node.
type block [Size]int32

// minRoots is the smallest number of roots at which those without children are removed.
const minRoots = 64

// root returns the root of a namespace. Namespaces without nodes are forgotten when their number has
// doubled, so that names that come once need no memory for ever.
func (t *tree) root(space string) *node {
	r := t.roots[space]
	if r == nil {
		if len(t.roots) >= max(t.most, minRoots) {
			maps.DeleteFunc(t.roots, func(_ string, r *node) bool { return len(r.children) == 0 })
			t.most = 2 * len(t.roots)
		}
		r = &node{key: Namespace(space)}
		t.roots[space] = r
	}
	return r
}

// child returns the child with exactly the given tokens, or nil.
func (n *node) child(tokens []int32) *node {
	if len(tokens) == Size {
		return n.full[block(tokens)]
	}
	for _, c := range n.children {
		if slices.Equal(c.tokens, tokens) {
			return c
		}
	}
	return nil
}

// closest returns the child that has the longest common beginning with tokens, of those that are
// published or of those that are not.
func (n *node) closest(tokens []int32, published bool) (best *node, common int) {
	for _, c := range n.children {
		if l := commonLength(c.tokens, tokens); l > common && (c.owner == nil) == published {
			best, common = c, l
		}
	}
	return best, common
}

// commonLength returns the length of the common beginning of a and b.
func commonLength(a, b []int32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// add adds a child.
func (n *node) add(tokens []int32, kinds int) *node {
	c := &node{parent: n, depth: n.depth + 1, tokens: slices.Clone(tokens), pages: make([]Page, kinds)}
	for i := range c.pages {
		c.pages[i] = None
	}
	n.children = append(n.children, c)
	n.index(c)
	return c
}

// index enters a child of Size tokens in the map of such children.
func (n *node) index(c *node) {
	if len(c.tokens) == Size {
		if n.full == nil {
			n.full = map[block]*node{}
		}
		n.full[block(c.tokens)] = c
	}
}

// remove removes a node without published descendants from the tree and gives back its pages.
func (st *Store) remove(n *node) {
	for len(n.children) > 0 {
		st.remove(n.children[0]) // an unpublished one
	}
	for kind, pg := range n.pages {
		st.drop(n, kind, pg)
	}
	if n.owner != nil {
		n.owner.claims = slices.DeleteFunc(n.owner.claims, func(c *node) bool { return c == n })
	}
	st.tree.unlink(n)
	parent := n.parent
	parent.children = slices.DeleteFunc(parent.children, func(c *node) bool { return c == n })
	if len(n.tokens) == Size {
		delete(parent.full, block(n.tokens))
	}
	n.parent = nil
}

// drop gives back a node's page of a kind.
func (st *Store) drop(n *node, kind int, pg Page) {
	if pg != None {
		n.pages[kind] = None
		st.pools[kind].setNode(pg, nil)
		st.unref(kind, pg)
	}
}

// hold makes a node hold a page.
func (st *Store) hold(n *node, kind int, pg Page) {
	n.pages[kind] = pg
	st.pools[kind].share(pg, len(n.tokens))
	st.ref(kind, pg)
	st.pools[kind].setNode(pg, n)
}

// touch makes a node the most recently used one. A path is touched from its leaf to its root, so
// that the least recently used node has no descendants.
func (t *tree) touch(n *node) {
	t.unlink(n)
	n.prev, n.next = &t.lru, t.lru.next
	n.prev.next, n.next.prev = n, n
}

// touchPath touches a node and its ancestors.
func (t *tree) touchPath(n *node) {
	for ; n != nil && n.parent != nil; n = n.parent {
		t.touch(n)
	}
}

func (t *tree) unlink(n *node) {
	if n.next != nil {
		n.prev.next, n.next.prev = n.next, n.prev
		n.prev, n.next = nil, nil
	}
}

// evict gives back the page of a kind that was least recently used, of those that only the tree
// holds, and reports whether there was one. A page that all rows see cannot go without its node; of
// a window's pages only later prompts that go on right behind the node miss it.
func (st *Store) evict(kind int) bool {
	if st.pools[kind].kind.State {
		// A state is worth least where the only way on soon has another one.
		if st.evictOf(kind, func(n *node) bool { return st.nextHas(n, kind) }) {
			return true
		}
	}
	return st.evictOf(kind, func(*node) bool { return true })
}

// evictOf implements evict for the nodes for which of returns true.
func (st *Store) evictOf(kind int, of func(n *node) bool) bool {
	pool := &st.pools[kind]
	for n := st.tree.lru.prev; n != &st.tree.lru; n = n.prev {
		pg := n.pages[kind]
		if pg == None || pool.pins(n) || pool.pages[pg].refs > 1 || !of(n) {
			continue
		}
		if pool.kind.Window > 0 {
			st.drop(n, kind, pg)
			st.prune(n)
			return true
		}
		if slices.ContainsFunc(n.children, func(c *node) bool { return c.owner == nil }) {
			continue
		}
		st.stats.EvictedTokens += len(n.tokens)
		parent := n.parent
		st.remove(n)
		st.prune(parent)
		return true
	}
	return false
}

// prune removes a node without pages and children, and then those of its ancestors that have
// become such nodes.
func (st *Store) prune(n *node) {
	for n.parent != nil && len(n.children) == 0 && n.owner == nil && n.pins == 0 && !slices.ContainsFunc(n.pages, func(pg Page) bool { return pg != None }) {
		parent := n.parent
		st.stats.EvictedTokens += len(n.tokens)
		st.remove(n)
		n = parent
	}
}

// Match is what the prefix tree has of a prompt.
type Match struct {
	Len int // tokens whose pages are there
	// Later is the number of tokens whose pages are there once Owner has published what it is
	// computing, or 0 if nobody computes any more of the prompt.
	Later int
	Owner *Sequence

	path []*node // nodes of the first Len tokens
}

// Match returns what the tree of a namespace has of the beginning of tokens. The tree does not
// change.
func (st *Store) Match(space string, tokens []int32) Match {
	n := st.tree.roots[space]
	var m Match
	if n == nil {
		return m
	}
	for rest := tokens; len(rest) > 0; rest = rest[Size:] {
		var c *node
		if len(rest) >= Size {
			c = n.full[block(rest)]
		}
		if c == nil || c.owner != nil {
			break
		}
		m.path, m.Len, n = append(m.path, c), m.Len+Size, c
	}
	whole := m.Len
	if c, common := n.closest(tokens[whole:], true); common >= MinPartial && !st.states {
		m.path, m.Len = append(m.path, c), whole+common
	}
	m.Len = st.resumable(m.path, m.Len)
	m.path = m.path[:pageCount(m.Len)]
	m.Later, m.Owner = pendingMatch(n, tokens[whole:])
	if m.Later += whole; st.states {
		m.Later = m.Later / Size * Size
	}
	if m.Later < m.Len+MinPartial {
		m.Later, m.Owner = 0, nil
	}
	return m
}

// pendingMatch returns the length of the common beginning of tokens and the unpublished blocks
// below a node, and the sequence that computes them.
func pendingMatch(n *node, tokens []int32) (length int, owner *Sequence) {
	for {
		c, common := n.closest(tokens[length:], false)
		if c == nil || owner != nil && c.owner != owner {
			return length, owner
		}
		owner, length = c.owner, length+common
		if common < Size {
			return length, owner
		}
		n = c
	}
}

// resumable returns the largest position up to n at which a sequence can go on with the pages of a
// path, of which windows may have lost some.
func (st *Store) resumable(path []*node, n int) int {
	for ; n > 0; n = (n - 1) / Size * Size {
		ok := true
		for kind := range st.pools {
			first, end := st.pools[kind].kind.hidden(n)
			for i := range pageCount(n) {
				ok = ok && (path[i].pages[kind] != None || i >= first && i < end)
			}
		}
		if ok {
			return n
		}
	}
	return 0
}

// Adopt replaces the pages of a sequence by those of the longest beginning of tokens that the tree
// has, if that has more positions than the sequence, and returns the number of positions gained. The
// positions that the sequence has already must be those of the same tokens. Adopt takes no page: if
// the last page is not whole, Extend copies it.
func (s *Sequence) Adopt(space string, tokens []int32) int {
	st := s.st
	m := st.Match(space, tokens)
	gained := m.Len - s.n
	if gained <= 0 {
		return 0
	}
	st.stats.Adopted += gained
	for kind := range st.pools {
		for _, n := range m.path { // first, so that no page of both becomes free
			if pg := n.pages[kind]; pg != None {
				st.ref(kind, pg)
			}
		}
		s.shorten(kind, 0)
		for i, n := range m.path {
			s.tables[kind] = append(s.tables[kind], None)
			s.set(kind, i, n.pages[kind])
		}
	}
	s.n, s.done = m.Len, m.Len/Size*Size
	st.tree.touchPath(m.path[len(m.path)-1])
	s.Trim()
	return gained
}

// Claim announces that the sequence is going to compute the blocks of tokens that the tree does
// not have. Match then tells other sequences to wait for it.
func (s *Sequence) Claim(space string, tokens []int32) {
	s.Abandon()
	n := s.st.tree.root(space)
	for len(tokens) > 0 {
		part := tokens[:min(Size, len(tokens))]
		if len(part) < Size && s.st.states {
			return
		}
		tokens = tokens[len(part):]
		c := n.child(part)
		if c == nil {
			c = n.add(part, len(s.st.pools))
			c.owner = s
			s.claims = append(s.claims, c)
		} else if c.owner != nil && c.owner != s {
			return // another sequence computes the rest
		}
		n = c
	}
}

// Abandon gives up what the sequence has announced and not published.
func (s *Sequence) Abandon() {
	if len(s.claims) > 0 {
		s.st.version++
	}
	for len(s.claims) > 0 {
		c := s.claims[len(s.claims)-1]
		parent := c.parent
		s.st.remove(c)
		s.st.prune(parent)
	}
}

// Publish enters the pages of the sequence in the tree, for other sequences to share: its whole
// pages, and with last also the written part of its last page, unless there is recurrent state. tokens
// are those of its positions.
// Where the tree has a page with the same contents already, the sequence takes that page and gives
// up its own.
func (s *Sequence) Publish(space string, tokens []int32, last bool) {
	end := min(s.n, len(tokens))
	if last = last && !s.st.states; !last {
		end = end / Size * Size
	}
	if end/Size == s.done/Size && (!last || end%Size < MinPartial || end == s.done) {
		return
	}
	s.done = end
	n := s.st.tree.root(space)
	for i := 0; i*Size < end; i++ {
		part := tokens[i*Size : min(end, (i+1)*Size)]
		if len(part) < Size {
			if _, common := n.closest(part, true); len(part) < MinPartial || common == len(part) {
				break
			}
		}
		c := s.st.grow(n, s, i, part)
		if c == nil {
			break
		}
		n = c
	}
	s.st.tree.touchPath(n)
	s.st.prune(n)
}

// grow returns the published child of a node with the given tokens, to which it adds the pages with
// index i of a sequence. It returns nil if one of those belongs to another node.
func (st *Store) grow(n *node, s *Sequence, i int, part []int32) *node {
	c := n.child(part)
	if c == nil {
		c = st.widen(n, s, i, part)
	}
	for kind := range st.pools {
		if own := s.tables[kind][i]; own != None && c.pages[kind] == None && st.pools[kind].pages[own].node != nil {
			st.prune(c)
			return nil
		}
	}
	st.publish(c)
	for kind := range st.pools {
		own := s.tables[kind][i]
		switch pg := c.pages[kind]; {
		case own == pg || own == None:
		case pg == None:
			st.hold(c, kind, own)
		case len(part) == Size:
			st.ref(kind, pg)
			s.set(kind, i, pg)
			st.unref(kind, own)
			st.stats.Swapped++
		}
	}
	return c
}

// widen adds a child with the given tokens, which a sequence has in the pages with index i. A leaf
// with a beginning of these tokens becomes the child, or is removed, since it has nothing that the
// child does not have.
func (st *Store) widen(n *node, s *Sequence, i int, part []int32) *node {
	for _, c := range slices.Clone(n.children) {
		if c.owner != nil || len(c.tokens) >= len(part) || commonLength(c.tokens, part) < len(c.tokens) {
			continue
		}
		same := true
		for kind, pg := range c.pages {
			same = same && (pg == None || pg == s.tables[kind][i])
		}
		switch {
		case same:
			c.tokens = slices.Clone(part)
			n.index(c)
			for kind, pg := range c.pages {
				if pg != None {
					st.pools[kind].share(pg, len(part))
				}
			}
			return c
		case c.pins == 0:
			st.remove(c)
		}
	}
	return n.add(part, len(st.pools))
}

// publish makes a node visible.
func (st *Store) publish(c *node) {
	if c.owner != nil {
		c.owner.claims = slices.DeleteFunc(c.owner.claims, func(n *node) bool { return n == c })
		c.owner = nil
	}
	st.version++
}

// Version returns a number that changes whenever Match may return something new for a prompt, except
// that pages have been evicted.
func (st *Store) Version() uint64 { return st.version }

// Pin keeps a part of the prefix tree from being evicted until it is released.
type Pin struct {
	st   *Store
	path []*node
}

// Pin pins what the tree of a namespace has of the beginning of tokens.
func (st *Store) Pin(space string, tokens []int32) *Pin {
	p := &Pin{st, st.Match(space, tokens).path}
	p.add(1)
	return p
}

// Release undoes the pin. Calling it again has no effect.
func (p *Pin) Release() {
	p.add(-1)
	for _, n := range slices.Backward(p.path) {
		if n.parent != nil {
			p.st.prune(n)
		}
	}
	p.path = nil
}

// add changes the number of pins of the path.
func (p *Pin) add(n int) {
	for i, c := range p.path {
		for kind, pg := range c.pages {
			if pg != None {
				p.st.pools[kind].tally(pg, -1)
			}
		}
		if c.pins += n; i == len(p.path)-1 {
			c.ends += n
		}
		for kind, pg := range c.pages {
			if pg != None {
				p.st.pools[kind].tally(pg, 1)
			}
		}
	}
}

// Clear removes everything from the prefix tree that is not pinned and that no sequence uses.
func (st *Store) Clear() {
	for kind := range st.pools {
		for st.evict(kind) {
		}
	}
}
