package spill

import "time"

// Restore brings copies back, block by block. A block is a set of copies that are needed together.
// Only one goroutine may call its methods.
type Restore struct {
	s      *Store
	blocks [][]ID
	next   int // blocks that the caller has done
	ready  int // blocks that are in memory and pinned, from next on
	pinned [][]*entry
	loads  bool // the goroutine reads a block
	failed bool // the next block is lost
	closed bool
}

// Open returns a Restore of blocks. The caller must call Close.
func (s *Store) Open(blocks [][]ID) *Restore {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &Restore{s: s, blocks: blocks, pinned: make([][]*entry, len(blocks))}
	for i := len(blocks) - 1; i >= 0; i-- { // what is needed first stays longest
		for _, id := range blocks[i] {
			for place := range places {
				if e := s.entries[id]; e != nil && e.units[place] != nil {
					s.touch(e, place)
				}
			}
		}
	}
	s.waiting = append(s.waiting, r)
	s.advance(r)
	s.changed.Broadcast()
	return r
}

// Ready returns the number of blocks that Pages returns, from the first one on, and with lost whether
// the next one is lost.
func (r *Restore) Ready() (blocks int, lost bool) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	return r.ready, r.failed
}

// Pages returns the content of the copies of a block, which must be ready and not done.
func (r *Restore) Pages(block int) (content []Pieces) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	for _, e := range r.pinned[block] {
		content = append(content, r.s.pieces(e))
	}
	return content
}

// Done records that the caller has the content of the blocks before n.
func (r *Restore) Done(n int) {
	s := r.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for ; r.next < n; r.next++ {
		for _, e := range r.pinned[r.next] {
			s.stats.Restored++
			s.stats.BackBytes += uint64(s.o.Sizes[e.id.Kind])
		}
		s.unpin(r, r.next)
	}
	s.advance(r)
	s.changed.Broadcast()
}

// Close ends the Restore.
func (r *Restore) Close() {
	s := r.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.closed {
		return
	}
	r.closed = true
	for i := r.next; i < r.ready; i++ {
		s.unpin(r, i)
	}
	s.forget(r)
	s.changed.Broadcast()
}

// forget removes a Restore from those that wait.
func (s *Store) forget(r *Restore) {
	for i, o := range s.waiting {
		if o == r {
			s.waiting = append(s.waiting[:i], s.waiting[i+1:]...)
			return
		}
	}
}

// unpin lets the copies of a block go.
func (s *Store) unpin(r *Restore, block int) {
	for _, e := range r.pinned[block] {
		e.pins--
	}
	r.pinned[block] = nil
}

// ahead reports whether a Restore has so much in memory that it waits for its caller: a quarter of the
// memory.
func (s *Store) ahead(r *Restore) bool {
	units := 0
	for i := r.next; i < r.ready; i++ {
		for _, e := range r.pinned[i] {
			units += len(e.units[inMemory])
		}
	}
	return units > 0 && units >= int(s.room[inMemory].limit)/4
}

// advance pins the next blocks that are in memory. It returns the entries of the block that must be read
// from the file first, or nil if there is nothing to read now.
func (s *Store) advance(r *Restore) (missing []*entry) {
	for r.ready < len(r.blocks) && !r.failed && !r.closed && !r.loads && !s.ahead(r) {
		var all []*entry
		for _, id := range r.blocks[r.ready] {
			e := s.entries[id]
			if e == nil {
				r.failed = true
				return nil
			}
			all = append(all, e)
			switch {
			case e.valid:
			case e.units[inMemory] != nil: // is being filled or read
				return nil
			default:
				missing = append(missing, e)
			}
		}
		if len(missing) > 0 {
			return missing
		}
		for _, e := range all {
			e.pins++
			s.touch(e, inMemory)
		}
		r.pinned[r.ready] = all
		r.ready++
	}
	if r.ready == len(r.blocks) {
		s.forget(r)
	}
	return nil
}

// Empty reports whether the store has no copies.
func (s *Store) Empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entries) == 0
}

// Bandwidth returns the measured bytes per second of reads from the file.
func (s *Store) Bandwidth() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rate
}

// InFile returns the bytes of the copies that only the file has.
func (s *Store) InFile(ids []ID) (n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if e := s.entries[id]; e != nil && e.units[inMemory] == nil {
			n += uint64(s.o.Sizes[id.Kind])
		}
	}
	return n
}

// learnt is the weight of a measurement of the bandwidth.
const learnt = 0.25

// measured corrects the bandwidth of the file.
func (s *Store) measured(bytes int, took time.Duration) {
	s.rate += learnt * (float64(bytes)/max(took, time.Microsecond).Seconds() - s.rate)
}
