package pages

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func numbers(from, n int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(from + i)
	}
	return tokens
}

// full returns a world with one kind of layers.
func full(t *testing.T, n int) *world {
	return newWorld(t, []Kind{{Name: "kv.full", Pages: n}})
}

var source = rand.New(rand.NewPCG(1, 2))

// must computes all tokens of a context.
func (w *world) must(t *testing.T, c *context) {
	t.Helper()
	w.exact = true
	for c.s.Len() < len(c.tokens) {
		if err := w.compute(source, c, 1000); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.check(), w.visible(c)); err != nil {
		t.Fatal(err)
	}
}

// TestForksCopyTheirLastPages forks a context of 1,000 tokens 100 times and lets all continue. Each
// fork takes one page for its copy of the last page and no other; the original copies nothing.
func TestForksCopyTheirLastPages(t *testing.T) {
	w := full(t, 200)
	c := w.start("", numbers(0, 1000), false)
	if err := c.s.Extend(1000); err != nil {
		t.Fatal(err)
	}
	if err := c.s.Advance(1000); err != nil {
		t.Fatal(err)
	}
	var forks []*Sequence
	for range 100 {
		forks = append(forks, c.s.Fork())
	}
	if u := w.st.Usage(0); u.Used != 16 {
		t.Errorf("100 forks use %d pages, want 16", u.Used)
	}
	for _, s := range append(forks, c.s) {
		if err := s.Extend(1010); err != nil {
			t.Fatal(err)
		}
	}
	if u := w.st.Usage(0); u.Used != 116 {
		t.Errorf("100 forks that continue use %d pages, want 116", u.Used)
	}
	copies := w.st.TakeCopies()
	if len(copies) != 100 {
		t.Errorf("%d copies, want 100", len(copies))
	}
	if own := c.s.tables[0][15]; slices.ContainsFunc(copies, func(c Copy) bool { return c.To == own || c.From != own }) {
		t.Error("the original was copied too, or another page than its last")
	}
}

// TestFork checks that a fork and its original do not see each other's tokens, whichever of them
// rewinds.
func TestFork(t *testing.T) {
	w := full(t, 20)
	c := w.start("", numbers(0, 100), false)
	w.must(t, c)
	f := &context{s: c.s.Fork(), tokens: slices.Clone(c.tokens)}
	w.join(f)
	c.s.Truncate(90)
	c.tokens = append(slices.Clone(c.tokens[:90]), numbers(500, 50)...)
	w.must(t, c)
	f.tokens = append(slices.Clone(f.tokens), numbers(900, 50)...)
	w.must(t, f)
	w.must(t, c)
}

// TestWait checks that a prompt whose beginning is being computed is told to wait, and then shares
// it, with a copy of the last page only.
func TestWait(t *testing.T) {
	w := full(t, 100)
	common := numbers(0, 1000)
	a := w.start("", slices.Concat(common, numbers(5000, 30)), true)
	a.s.Claim("", a.tokens)
	b := slices.Concat(common, numbers(7000, 40))
	if m := w.st.Match("", b); m.Len != 0 || m.Later != 1000 || m.Owner != a.s {
		t.Fatalf("before: %+v, want 1000 later", m)
	}
	if m := w.st.Match("other", b); m.Owner != nil {
		t.Fatalf("another namespace: %+v", m)
	}
	if m := w.st.Match("", common[:10]); m.Owner != nil {
		t.Fatalf("a wait for 10 tokens: %+v", m)
	}
	if err := w.compute(source, a, 512); err != nil {
		t.Fatal(err)
	}
	a.s.Publish("", a.tokens[:512], false)
	if m := w.st.Match("", b); m.Len != 512 || m.Later != 1000 {
		t.Fatalf("half way: %+v, want 512 and 1000 later", m)
	}
	w.must(t, a)
	a.s.Publish("", a.tokens, true)
	if m := w.st.Match("", b); m.Len != 1000 || m.Owner != nil {
		t.Fatalf("after: %+v, want 1000", m)
	}
	c := w.start("", b, true)
	if n := c.s.Adopt("", b); n != 1000 {
		t.Fatalf("gained %d tokens, want 1000", n)
	}
	w.must(t, c)
	if u := w.st.Usage(0); u.Used != 17+2 {
		t.Errorf("%d pages in use, want 17 and 2", u.Used)
	}
	// What an owner gives up need not be waited for.
	d := w.start("", numbers(9000, 200), true)
	d.s.Claim("", d.tokens)
	d.s.Release()
	if m := w.st.Match("", d.tokens); m.Owner != nil {
		t.Errorf("after the owner has given up: %+v", m)
	}
}

// TestEvict checks that the least recently used prefixes go first and that pinned ones and those in
// use stay.
func TestEvict(t *testing.T) {
	w := full(t, 8)
	for i := range 4 {
		c := w.start("", numbers(1000*i, 128), true)
		w.must(t, c)
		c.s.Publish("", c.tokens, true)
		if i == 3 {
			continue // stays in use
		}
		c.s.Release()
	}
	has := func(i int) int { return w.st.Match("", numbers(1000*i, 128)).Len }
	pin := w.st.Pin("", numbers(0, 128))
	touch := w.start("", numbers(1000, 128), true)
	touch.s.Adopt("", touch.tokens)
	touch.s.Release()
	big := w.start("", numbers(7777, 128), true)
	w.must(t, big)
	if has(0) != 128 || has(1) != 128 || has(2) != 0 || has(3) != 128 {
		t.Errorf("kept %d %d %d %d tokens, want 128 128 0 128", has(0), has(1), has(2), has(3))
	}
	if u := w.st.Usage(0); u != (Usage{Pages: 8, Used: 4, Cached: 2, Pinned: 2}) {
		t.Errorf("%+v", u)
	}
	err := big.s.Extend(128 + 3*64)
	var e *FullError
	if !errors.As(err, &e) || *e != (FullError{"kv.full", 3, 2}) {
		t.Errorf("error %v", err)
	}
	pin.Release()
	pin.Release()
	if err := big.s.Extend(128 + 3*64); err != nil {
		t.Error(err)
	}
}

// TestManySpaces uses many namespaces once. Those whose pages were evicted are forgotten, and one that has
// pages is not.
func TestManySpaces(t *testing.T) {
	w := full(t, 8)
	use := func(space string) {
		c := w.start(space, numbers(0, 128), true)
		w.must(t, c)
		c.s.Publish(space, c.tokens, true)
		c.s.Release()
	}
	use("kept")
	pin := w.st.Pin("kept", numbers(0, 128))
	defer pin.Release()
	for i := range 1000 {
		use(fmt.Sprint(i))
		if n := len(w.st.tree.roots); n > minRoots {
			t.Fatalf("%d namespaces after %d", n, i)
		}
	}
	if n := w.st.Match("kept", numbers(0, 128)).Len; n != 128 {
		t.Errorf("%d tokens of the namespace with pages", n)
	}
}

// TestWindow checks that a sequence gives back the pages that no row sees any more, and that it can
// go back only as far as it has pages.
func TestWindow(t *testing.T) {
	w := newWorld(t, []Kind{{Name: "kv.window", Pages: 5, Window: 100, Sinks: 3}})
	c := w.start("", numbers(0, 2000), false)
	for c.s.Len() < 2000 {
		if err := w.compute(source, c, 16); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.visible(c); err != nil {
		t.Fatal(err)
	}
	if n := c.s.Truncate(1990); n != 1990 {
		t.Errorf("went back to %d, want 1990", n)
	}
	if n := c.s.Truncate(1000); n != 0 {
		t.Errorf("went back to %d, want 0", n)
	}
	if u := w.st.Usage(0); u.Free != 5 {
		t.Errorf("%+v after the release", u)
	}
}

// TestNew checks that invalid kinds are refused.
func TestNew(t *testing.T) {
	for _, kinds := range [][]Kind{nil, {{Pages: 0}}, {{Pages: 1, Window: -1}}, {{Pages: 1, Sinks: -1}}, {{Pages: 1, Window: 3, State: true}}} {
		if _, err := New(kinds); err == nil {
			t.Errorf("New(%v) succeeded", kinds)
		}
	}
	w := full(t, 1)
	if err := w.st.NewSequence().Advance(1); err == nil {
		t.Error("advanced without pages")
	}
}

// TestStates checks which states a prompt of 640 tokens leaves in the tree: those at all borders, of which
// those at the ends of whole prompts and where prompts part are evicted last. A pin keeps only the last one.
func TestStates(t *testing.T) {
	w := newWorld(t, []Kind{{Name: "full", Pages: 40}, {Name: "state", Pages: 20, State: true}})
	w.exact = true
	long := numbers(0, 640)
	fork := slices.Concat(long[:256], numbers(5000, 130))
	for _, tokens := range [][]int32{long, fork} {
		c := w.start("", tokens, true)
		c.s.Adopt("", tokens)
		w.must(t, c)
		c.s.Publish("", tokens, true)
		if got := w.st.Usage(1).Used; got != 1 {
			t.Errorf("a sequence of %d tokens uses %d states, want 1", len(tokens), got)
		}
		c.s.Release()
		w.live = nil
	}
	if m := w.st.Match("", fork); m.Len != 384 {
		t.Errorf("%d tokens of the second prompt are found, want 384", m.Len)
	}
	if u := w.st.Usage(1); u.Cached != 12 {
		t.Errorf("%d states are cached, want those at 12 borders", u.Cached)
	}
	pin := w.st.Pin("", long)
	if u := w.st.Usage(1); u.Pinned != 1 || w.st.Usage(0).Pinned != 10 {
		t.Errorf("a pin keeps %d states and %d pages, want 1 and 10", u.Pinned, w.st.Usage(0).Pinned)
	}
	for range 8 {
		if !w.st.evict(1) {
			t.Fatal("no state can be evicted")
		}
	}
	found := func(want ...int) {
		t.Helper()
		for i, tokens := range [][]int32{long[:600], long, fork} {
			if m := w.st.Match("", tokens); m.Len != want[i] {
				t.Errorf("prompt %d: %d tokens are found, want %d", i, m.Len, want[i])
			}
		}
	}
	found(256, 640, 384)
	pin.Release()
	for w.st.evict(1) {
	}
	found(0, 0, 0)
	if u := w.st.Usage(0); u.Cached != 12 {
		t.Errorf("%d pages are cached without states, want 12", u.Cached)
	}
}
