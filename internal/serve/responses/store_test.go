package responses

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

// kept returns a response with an id and a text of n bytes, after another one.
func kept(id string, n int, previous ...string) *Response {
	r := &Response{ID: id, Output: []Item{{Type: messageItem, ID: "msg_" + id, Text: []Text{{Text: strings.Repeat("x", n)}}}}}
	if len(previous) > 0 {
		r.PreviousResponseID = &previous[0]
	}
	return r
}

// ids returns those of an owner's responses that a store has, of the ids.
func (s *store) ids(owner string, ids ...string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		r := s.all[id]
		return r == nil || r.owner != owner
	})
}

func expect(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, expected %q", what, got, want)
	}
}

func TestStoreCount(t *testing.T) {
	s := newStore(Bound{Responses: 3, Bytes: 1 << 20})
	for _, id := range []string{"a", "b", "c"} {
		s.put("", kept(id, 1), nil)
	}
	s.find("", "a") // the latest used
	s.put("", kept("d", 1), nil)
	expect(t, "after a fourth response", s.ids("", "a", "b", "c", "d"), []string{"a", "c", "d"})
}

func TestStoreBytes(t *testing.T) {
	each := kept("a", 10000).size()
	s := newStore(Bound{Responses: 100, Bytes: 3 * each})
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		s.put("", kept(id, 10000), nil)
	}
	expect(t, "within the bound", s.ids("", "a", "b", "c", "d", "e"), []string{"c", "d", "e"})
	if s.bytes != 3*each {
		t.Errorf("%d bytes are counted, expected %d", s.bytes, 3*each)
	}
	s.put("", kept("f", 50000), nil)
	expect(t, "after a response that exceeds the bound alone", s.ids("", "c", "d", "e", "f"), []string{"c", "d", "e"})
	for _, id := range []string{"c", "d", "e"} {
		if !s.delete("", id) || s.delete("", id) {
			t.Errorf("%s is not deleted once", id)
		}
	}
	if s.bytes != 0 || len(s.all)+len(s.items)+len(s.owners) != 0 {
		t.Errorf("an empty store has %d bytes, %d responses, %d items and %d owners", s.bytes, len(s.all), len(s.items), len(s.owners))
	}
}

func TestStoreOwners(t *testing.T) {
	s := newStore(Bound{Responses: 4, Bytes: 1 << 20})
	s.put("alice", kept("a", 1), nil)
	for i := range 10 {
		s.put("bob", kept(fmt.Sprint("b", i), 1), nil)
	}
	expect(t, "an owner's only response beside a busy owner", s.ids("alice", "a"), []string{"a"})
	if s.find("bob", "a") != nil || s.delete("bob", "a") {
		t.Error("another owner's response can be used")
	}
	if _, ok := s.item("bob", "msg_a"); ok {
		t.Error("an item of another owner's response can be used")
	}
	if i, ok := s.item("alice", "msg_a"); !ok || i.ID != "msg_a" {
		t.Errorf("the owner's item is %v, %v", i, ok)
	}
	if _, missing := s.chain("bob", "a"); missing != "a" {
		t.Errorf("of another owner's conversation %q is missing", missing)
	}
}

func TestStoreChain(t *testing.T) {
	s := newStore(Bound{Responses: 4, Bytes: 1 << 20})
	s.put("", kept("a", 1), nil)
	s.put("", kept("b", 1, "a"), nil)
	s.put("", kept("c", 1, "b"), nil)
	chain, missing := s.chain("", "c")
	var ids []string
	for _, r := range chain {
		ids = append(ids, r.response.ID)
	}
	expect(t, "conversation", ids, []string{"a", "b", "c"})
	if missing != "" {
		t.Errorf("%q is missing", missing)
	}
	// The end of a conversation is less useful than its beginning, which branches may share.
	s.put("", kept("d", 1), nil)
	s.put("", kept("e", 1), nil)
	expect(t, "after two other responses", s.ids("", "a", "b", "c", "d", "e"), []string{"a", "b", "d", "e"})
	s.delete("", "a")
	if _, missing := s.chain("", "b"); missing != "a" {
		t.Errorf("%q is missing, expected a", missing)
	}
}

func TestStoreConcurrently(t *testing.T) {
	s := newStore(Bound{Responses: 20, Bytes: 40000})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			owner := fmt.Sprint("owner", g%3)
			for i := range 300 {
				id := fmt.Sprint(g, ".", i)
				s.put(owner, kept(id, i), nil)
				s.find(owner, id)
				s.chain(owner, id)
				if i%3 == 0 {
					s.delete(owner, id)
				}
			}
		})
	}
	wg.Wait()
	n, bytes := 0, int64(0)
	for _, h := range s.owners {
		n += h.order.Len()
		bytes += h.bytes
	}
	if n != len(s.all) || n != len(s.items) || bytes != s.bytes || n > 20 || bytes > 40000 {
		t.Errorf("%d responses with %d bytes; the store counts %d, %d items and %d bytes", n, bytes, len(s.all), len(s.items), s.bytes)
	}
}
