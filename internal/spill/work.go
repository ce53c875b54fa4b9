package spill

import (
	"errors"
	"hash/maphash"
	"io"
	"math/bits"
	"time"
)

// work reads what restores wait for and writes cold copies to the file, until the store is closed.
func (s *Store) work() {
	defer close(s.over)
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.closed {
		if s.file == nil || !s.load() && !s.demote() {
			s.changed.Wait()
		}
	}
}

// load reads a block for the first Restore that waits for one, and reports whether there was one for which
// there is memory.
func (s *Store) load() bool {
	for i := 0; i < len(s.waiting); i++ {
		r := s.waiting[i]
		missing := s.advance(r)
		if i >= len(s.waiting) || s.waiting[i] != r { // at its end
			i--
			continue
		}
		if len(missing) == 0 || !s.fetch(r, missing) {
			continue
		}
		return true
	}
	return false
}

// fetch reads copies for a Restore, unless there is no memory for all of them.
func (s *Store) fetch(r *Restore, missing []*entry) bool {
	hold := func(n int) {
		for _, id := range r.blocks[r.ready] {
			if e := s.entries[id]; e != nil {
				e.pins += n
			}
		}
	}
	hold(1) // none of the block is dropped for another one
	units := 0
	for _, e := range missing {
		units += s.count(s.o.Sizes[e.id.Kind])
		e.reads++
	}
	all, ok := s.take(inMemory, units)
	hold(-1)
	if !ok {
		for _, e := range missing {
			e.reads--
		}
		return false
	}
	for _, e := range missing {
		n := s.count(s.o.Sizes[e.id.Kind])
		e.pins++
		s.put(e, inMemory, all[:n:n])
		all = all[n:]
	}
	r.loads = true
	for _, e := range missing {
		list, at, start := s.pieces(e), e.units[inFile], time.Now()
		s.mu.Unlock()
		err := s.read(list, at, e.sum)
		s.mu.Lock()
		e.pins--
		e.reads--
		if e.valid = err == nil; err == nil {
			s.measured(s.o.Sizes[e.id.Kind], time.Since(start))
			continue
		}
		s.stats.Faults++
		s.drop(e, inMemory)
		s.drop(e, inFile)
	}
	r.loads = false
	for _, o := range append([]*Restore(nil), s.waiting...) {
		s.advance(o)
	}
	s.wake()
	return true
}

// wake calls the function of Notify.
func (s *Store) wake() {
	if f := s.notify; f != nil {
		s.mu.Unlock()
		f()
		s.mu.Lock()
	}
}

// demote writes the least recently used copy to the file that is not there yet, if memory is needed or
// three quarters of it are taken by such copies and pinned ones. It reports whether it wrote one.
func (s *Store) demote() bool {
	e := s.coldest()
	if e == nil || !s.writable() {
		s.hungry = false
		return false
	}
	units, ok := s.take(inFile, len(e.units[inMemory]))
	if !ok {
		s.hungry = false
		return false
	}
	e.pins++
	list := s.pieces(e)
	s.mu.Unlock()
	sum := s.sum(list)
	err := s.write(list, units)
	s.mu.Lock()
	e.pins--
	if err != nil {
		// The file does not grow any more, and these units are not used again.
		s.stats.Faults++
		s.room[inFile].limit, s.room[inFile].lost = s.room[inFile].next, s.room[inFile].lost+len(units)
		return true
	}
	e.sum = sum
	s.put(e, inFile, units)
	s.hungry = false
	s.wake()
	return true
}

// coldest returns the copy that demote should write, or nil.
func (s *Store) coldest() *entry {
	enough := int(s.room[inMemory].limit) / 4
	can := s.room[inMemory].has()
	for e := s.lru[inMemory].near[inMemory].prev; e != &s.lru[inMemory]; e = e.near[inMemory].prev {
		if can >= enough && !s.hungry {
			return nil
		}
		switch {
		case e.pins > 0 || !e.valid:
		case e.units[inFile] == nil:
			return e
		default:
			can += len(e.units[inMemory])
		}
	}
	return nil
}

// write writes a copy to units of the file.
func (s *Store) write(list Pieces, units []int32) error {
	for i, b := range list {
		if n, err := s.file.WriteAt(b, int64(units[i])*int64(s.size)); err != nil || n != len(b) {
			return errors.Join(err, io.ErrShortWrite)
		}
	}
	return nil
}

// errDamaged reports a copy that is not what was written.
var errDamaged = errors.New("spill: a copy in the file is damaged")

// read reads a copy from units of the file and compares its checksum.
func (s *Store) read(list Pieces, units []int32, sum uint64) error {
	for i, b := range list {
		if n, err := s.file.ReadAt(b, int64(units[i])*int64(s.size)); n != len(b) {
			return errors.Join(err, io.ErrUnexpectedEOF)
		}
	}
	if s.sum(list) != sum {
		return errDamaged
	}
	return nil
}

// sum returns the checksum of a copy.
func (s *Store) sum(list Pieces) (sum uint64) {
	for _, b := range list {
		sum = bits.RotateLeft64(sum, 1) * 0x9e3779b97f4a7c15
		sum ^= maphash.Bytes(s.seed, b)
	}
	return sum
}
