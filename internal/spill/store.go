// Package spill keeps copies of KV pages and of recurrent states in a bounded part of the host's
// memory and, behind that, in a bounded file.
//
// Put reserves memory for a copy, which the caller fills. Open returns a Restore, which brings copies
// back in the order in which they are needed: it keeps those in memory that are needed next, and a
// goroutine of the store reads them from the file. The same goroutine writes the copies that were used
// least recently to the file, before their memory is needed for others.
//
// It is a cache. Whatever is wrong with the file, a copy is either what was put or a miss: the checksum
// of each copy stays in memory, with a seed that only the process knows. The file belongs to one store.
package spill

import (
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/pianola-engine/pianola/internal/hostmem"
	"github.com/pianola-engine/pianola/internal/pages"
)

// ID names a copy.
type ID struct {
	Key  pages.Key
	Kind int
}

// File is where copies go that memory has no room for.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
}

// Options are the settings of a store.
type Options struct {
	Sizes  []int  // bytes of a page, by kind
	Memory uint64 // bound of the memory in bytes; at least that of LeastPages pages of each kind is used
	Dir    string // directory of the file; "" for none
	File   uint64 // bound of the file in bytes
	// Create, if not nil, creates the file instead.
	Create func() (File, error)
}

// LeastPages is the number of pages of each kind for which a store has memory at least.
const LeastPages = 4

// mostUnit is the largest size of a unit in bytes. A copy has a whole number of units.
const mostUnit = 256 << 10

// quiet is the time for which nothing is put into a store whose memory was released.
const quiet = 30 * time.Second

// Stats describe a store.
type Stats struct {
	Put, Restored       int    // pages copied so far, and pages brought back
	PutBytes, BackBytes uint64 // their bytes
	Memory, File        uint64 // bytes in use now
	Faults              int    // copies lost because the file could not be written or read, or was damaged
}

// The places of a copy.
const (
	inMemory = iota
	inFile
	places
)

// Store has the copies of one model.
type Store struct {
	o       Options
	size    int // of a unit
	mem     []byte
	free    func() error // frees mem
	file    File
	name    string // of the file, if it could not be removed yet
	seed    maphash.Seed
	over    chan struct{}
	changed *sync.Cond

	mu      sync.Mutex
	entries map[ID]*entry
	room    [places]room
	lru     [places]entry // rings of the copies that have such a place, the most recently used first
	waiting []*Restore    // those that are not at their end
	hungry  bool          // memory is needed that only the file can free
	silent  time.Time     // nothing is put until then
	closed  bool
	rate    float64 // bytes per second of reads from the file
	stats   Stats
	notify  func() // see Notify; may be nil
}

// room has the units of a place.
type room struct {
	free  []int32 // were used before
	next  int32   // the first one that was never used
	limit int32
	lost  int // units that could not be written
}

// entry is a copy.
type entry struct {
	id    ID
	units [places][]int32
	near  [places]struct{ prev, next *entry } // in Store.lru
	valid bool                                // the memory holds the content
	pins  int                                 // those who use the memory or are filling it
	reads int                                 // those who read the file
	sum   uint64                              // of the content, if the file has it
}

// New returns an empty store.
func New(o Options) (*Store, error) {
	s := &Store{o: o, entries: map[ID]*entry{}, seed: maphash.MakeSeed(), over: make(chan struct{}), rate: 500e6}
	s.changed = sync.NewCond(&s.mu)
	least, smallest := 0, mostUnit
	if len(o.Sizes) == 0 {
		return nil, errors.New("spill: no kinds of pages")
	}
	for _, n := range o.Sizes {
		if n <= 0 || n > math.MaxInt32 {
			return nil, fmt.Errorf("spill: a page of %d bytes", n)
		}
		smallest = min(smallest, n)
	}
	page := os.Getpagesize()
	s.size = (smallest + page - 1) / page * page
	for _, n := range o.Sizes {
		least += LeastPages * s.count(n)
	}
	s.room[inMemory].limit = max(s.limit(o.Memory), int32(least))
	for p := range s.lru {
		s.lru[p].near[p].prev, s.lru[p].near[p].next = &s.lru[p], &s.lru[p]
	}
	var err error
	if s.mem, s.free, err = hostmem.Reserve(int(s.room[inMemory].limit) * s.size); err != nil {
		return nil, fmt.Errorf("spill: memory for pages: %w", err)
	}
	if o.Dir != "" || o.Create != nil {
		if s.file, err = s.create(); err != nil {
			return nil, errors.Join(fmt.Errorf("spill: the file for pages: %w", err), s.free())
		}
		s.room[inFile].limit = s.limit(o.File)
	}
	go s.work()
	return s, nil
}

// limit returns the number of units of a number of bytes.
func (s *Store) limit(n uint64) int32 {
	return int32(min(n/uint64(s.size), math.MaxInt/uint64(s.size), math.MaxInt32))
}

// count returns the number of units of n bytes.
func (s *Store) count(n int) int { return (n + s.size - 1) / s.size }

// create creates the file. Its name is removed at once where the system permits that, so that the file
// ends with the process.
func (s *Store) create() (File, error) {
	if s.o.Create != nil {
		return s.o.Create()
	}
	f, err := os.CreateTemp(s.o.Dir, "pianola-*.spill")
	if err != nil {
		return nil, err
	}
	if os.Remove(f.Name()) != nil {
		s.name = f.Name()
	}
	return f, nil
}

// Notify makes the store call f from its goroutine whenever a Restore may be further or Put may have memory
// again. f must not call the store.
func (s *Store) Notify(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify = f
}

// Close ends the store. Nobody may use what it has returned any more.
func (s *Store) Close() error {
	s.mu.Lock()
	was := s.closed
	s.closed = true
	s.changed.Broadcast()
	s.mu.Unlock()
	<-s.over
	if was {
		return nil
	}
	err := s.free()
	if s.file != nil {
		err = errors.Join(err, s.file.Close())
	}
	if s.name != "" {
		err = errors.Join(err, os.Remove(s.name))
	}
	return err
}

// Stats returns the state of the store.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Memory, st.File = s.used(inMemory), s.used(inFile)
	return st
}

// used returns the bytes of a place that are in use.
func (s *Store) used(place int) uint64 {
	r := &s.room[place]
	return uint64(int(r.next)-len(r.free)-r.lost) * uint64(s.size)
}

// Has reports whether the store has a copy.
func (s *Store) Has(id ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entries[id] != nil
}

// Pieces is the content of a page: the bytes of all pieces in order. All but the last one have the same
// size.
type Pieces [][]byte

// Copy is memory for a copy that is being made.
type Copy struct {
	Pieces Pieces
	s      *Store
	e      *entry
}

// Put reserves memory for a copy. It returns nil if there is none now or the store has the copy. The
// caller must call Done.
func (s *Store) Put(id ID) *Copy {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries[id] != nil || s.closed || time.Now().Before(s.silent) {
		return nil
	}
	units, ok := s.take(inMemory, s.count(s.o.Sizes[id.Kind]))
	if !ok {
		return nil
	}
	e := &entry{id: id, pins: 1}
	s.entries[id] = e
	s.put(e, inMemory, units)
	return &Copy{s.pieces(e), s, e}
}

// Done ends the copy: with ok the memory has the content of the page, otherwise the copy is dropped.
func (c *Copy) Done(ok bool) {
	s, e := c.s, c.e
	s.mu.Lock()
	defer s.mu.Unlock()
	e.pins--
	s.changed.Broadcast()
	if e.valid = ok; !ok {
		s.drop(e, inMemory)
		return
	}
	s.stats.Put++
	s.stats.PutBytes += uint64(s.o.Sizes[e.id.Kind])
}

// pieces returns the memory of a copy.
func (s *Store) pieces(e *entry) Pieces {
	left := s.o.Sizes[e.id.Kind]
	list := make(Pieces, len(e.units[inMemory]))
	for i, u := range e.units[inMemory] {
		n := min(left, s.size)
		list[i] = s.mem[int(u)*s.size:][:n:n]
		left -= n
	}
	return list
}

// take returns units of a place, for which it drops the copies that were used least recently.
func (s *Store) take(place, n int) ([]int32, bool) {
	r := &s.room[place]
	for e := s.lru[place].near[place].prev; e != &s.lru[place] && r.has() < n; {
		prev := e.near[place].prev
		if s.droppable(e, place) {
			s.drop(e, place)
		}
		e = prev
	}
	if r.has() < n {
		if place == inMemory && s.file != nil {
			s.hungry = true
			s.changed.Broadcast()
		}
		return nil, false
	}
	units := make([]int32, n)
	for i := range units {
		if last := len(r.free) - 1; last >= 0 {
			units[i], r.free = r.free[last], r.free[:last]
		} else {
			units[i] = r.next
			r.next++
		}
	}
	return units, true
}

// has returns the number of units that are free.
func (r *room) has() int { return len(r.free) + int(r.limit-r.next) }

// droppable reports whether a copy can be dropped from a place: nobody uses it there, and it is in the
// file if there is one with room.
func (s *Store) droppable(e *entry, place int) bool {
	if place == inFile {
		return e.reads == 0
	}
	return e.pins == 0 && (e.units[inFile] != nil || !s.writable())
}

// writable reports whether copies are written to the file.
func (s *Store) writable() bool {
	r := &s.room[inFile]
	return s.file != nil && int(r.limit)-r.lost >= s.count(slices.Max(s.o.Sizes))
}

// put gives units to a copy.
func (s *Store) put(e *entry, place int, units []int32) {
	e.units[place] = units
	s.touch(e, place)
}

// touch makes a copy the most recently used one of a place that it has.
func (s *Store) touch(e *entry, place int) {
	s.unlink(e, place)
	head := &s.lru[place]
	e.near[place].prev, e.near[place].next = head, head.near[place].next
	head.near[place].next.near[place].prev = e
	head.near[place].next = e
}

func (s *Store) unlink(e *entry, place int) {
	l := &e.near[place]
	if l.next != nil {
		l.prev.near[place].next, l.next.near[place].prev = l.next, l.prev
		l.prev, l.next = nil, nil
	}
}

// drop drops a copy from a place, and forgets it if that was the last one.
func (s *Store) drop(e *entry, place int) {
	if e.units[place] == nil {
		return
	}
	s.room[place].free = append(s.room[place].free, e.units[place]...)
	e.units[place] = nil
	s.unlink(e, place)
	if place == inMemory {
		e.valid = false
	}
	if e.units[inMemory] == nil && e.units[inFile] == nil && s.entries[e.id] == e {
		delete(s.entries, e.id)
	}
}

// Release gives the memory of copies back to the system that nobody needs at the moment, and returns
// its size in bytes. Copies that are not in the file are lost. For a while nothing new is put.
func (s *Store) Release() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.used(inMemory)
	for e := s.lru[inMemory].near[inMemory].prev; e != &s.lru[inMemory]; {
		prev := e.near[inMemory].prev
		if e.pins == 0 {
			s.drop(e, inMemory)
		}
		e = prev
	}
	for _, u := range s.room[inMemory].free {
		hostmem.Discard(s.mem[int(u)*s.size:][:s.size])
	}
	s.silent = time.Now().Add(quiet)
	return before - s.used(inMemory)
}
