package responses

import (
	"container/list"
	"sync"
)

// Bound bounds the responses that are kept in memory.
type Bound struct {
	Responses int   // number of responses
	Bytes     int64 // approximate size of all
}

// stored is a response that is kept, with the input of its request.
type stored struct {
	owner    string // name of the API key
	response *Response
	input    []Item
	bytes    int64
	place    *list.Element // in the order of its owner
}

// store keeps responses. The owner of a response is the API key of its request; others do not see it.
// If the bound is exceeded, the owner with the largest share loses the response that it has not used
// for the longest time. The methods may be called concurrently.
type store struct {
	bound Bound

	mu     sync.Mutex
	all    map[string]*stored // by the response's id
	items  map[string]*stored // by the ids of the output
	owners map[string]*share
	bytes  int64
}

// share is what the responses of an owner occupy.
type share struct {
	order list.List // of *stored, the latest used first
	bytes int64
}

func newStore(b Bound) *store {
	return &store{bound: b, all: map[string]*stored{}, items: map[string]*stored{}, owners: map[string]*share{}}
}

// put keeps a response. One that exceeds the bound alone is not kept.
func (s *store) put(owner string, r *Response, input []Item) {
	kept := &stored{owner: owner, response: r, input: input, bytes: r.size()}
	for i := range input {
		kept.bytes += int64(input[i].size())
	}
	if kept.bytes > s.bound.Bytes || s.bound.Responses < 1 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.owners[owner]
	if h == nil {
		h = new(share)
		s.owners[owner] = h
	}
	kept.place = h.order.PushFront(kept)
	h.bytes += kept.bytes
	s.bytes += kept.bytes
	s.all[r.ID] = kept
	for _, i := range r.Output {
		s.items[i.ID] = kept
	}
	for len(s.all) > s.bound.Responses {
		s.remove(s.oldest(func(h *share) int64 { return int64(h.order.Len()) }))
	}
	for s.bytes > s.bound.Bytes {
		s.remove(s.oldest(func(h *share) int64 { return h.bytes }))
	}
}

// oldest returns the response that the owner with the largest share has not used for the longest time.
func (s *store) oldest(size func(*share) int64) *stored {
	var most *share
	for _, h := range s.owners {
		if most == nil || size(h) > size(most) {
			most = h
		}
	}
	return most.order.Back().Value.(*stored)
}

// remove removes a response.
func (s *store) remove(r *stored) {
	h := s.owners[r.owner]
	h.order.Remove(r.place)
	h.bytes -= r.bytes
	s.bytes -= r.bytes
	if h.order.Len() == 0 {
		delete(s.owners, r.owner)
	}
	delete(s.all, r.response.ID)
	for _, i := range r.response.Output {
		delete(s.items, i.ID)
	}
}

// find returns a response of an owner, or nil. It counts as a use.
func (s *store) find(owner, id string) *stored {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.use(owner, s.all[id])
}

// item returns an item of the output of one of an owner's responses.
func (s *store) item(owner, id string) (Item, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.use(owner, s.items[id])
	if r == nil {
		return Item{}, false
	}
	for _, i := range r.response.Output {
		if i.ID == id {
			return i, true
		}
	}
	return Item{}, false
}

// use moves a response to the front of its owner's order. It returns nil if r is nil or another
// owner's.
func (s *store) use(owner string, r *stored) *stored {
	if r == nil || r.owner != owner {
		return nil
	}
	s.owners[owner].order.MoveToFront(r.place)
	return r
}

// chain returns a response with those before it, the first of the conversation first. It returns the
// id of the response that is missing, if one is.
func (s *store) chain(owner, id string) ([]*stored, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var chain []*stored
	for next := &id; next != nil; {
		r := s.use(owner, s.all[*next])
		if r == nil {
			return nil, *next
		}
		chain = append(chain, r)
		next = r.response.PreviousResponseID
	}
	for i, j := 0, len(chain)-1; i < j; i, j = i+1, j-1 {
		chain[i], chain[j] = chain[j], chain[i]
	}
	return chain, ""
}

// delete removes a response of an owner, and reports whether it was there.
func (s *store) delete(owner, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.use(owner, s.all[id])
	if r == nil {
		return false
	}
	s.remove(r)
	return true
}

// size returns the approximate number of bytes that a response occupies in memory.
func (r *Response) size() int64 {
	n := 1024 + len(r.ID) + len(r.Model)
	for i := range r.Output {
		n += r.Output[i].size()
	}
	for _, t := range r.Tools {
		n += 128 + len(t.Name) + len(t.Parameters) + len(deref(t.Description))
	}
	for k, v := range r.Metadata {
		n += 64 + len(k) + len(v)
	}
	for _, s := range []*string{r.Instructions, r.PreviousResponseID, r.PromptCacheKey, r.SafetyIdentifier, r.User} {
		n += len(deref(s))
	}
	return int64(n)
}

// deref returns an optional text, or "".
func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
