package replay

import (
	"errors"
	"fmt"
	"math"

	"github.com/pianola-engine/pianola/internal/batch"
	"github.com/pianola-engine/pianola/internal/spill"
)

// SpillOptions let a model for many sequences keep copies of KV pages, and of recurrent states, that
// would be evicted from the device's pool. A later prompt with the same beginning reads them back
// instead of prefilling, if that is predicted to take less time. Memory and Dir of the zero value keep
// no copies.
type SpillOptions struct {
	// Memory is the largest number of bytes of the host's memory that copies may take. With Dir it
	// may be 0; the memory is then that of a few pages.
	Memory uint64
	// Dir is a directory for a file of at most File bytes, to which copies go that memory has no room
	// for. The file belongs to the model: it has no name where the system permits that, and ends
	// with the process.
	Dir  string
	File uint64
}

// errSpill reports a model that cannot keep copies.
var errSpill = errors.New("replay: LoadOptions.Spill: the table is not for many sequences")

// on reports whether copies are kept.
func (o *SpillOptions) on() bool { return o.Memory > 0 || o.Dir != "" }

// check returns an error for options without sense.
func (o *SpillOptions) check() error {
	switch {
	case o.Dir == "" && o.File > 0:
		return errors.New("replay: SpillOptions: File requires Dir")
	case o.Dir != "" && o.File == 0:
		return errors.New("replay: SpillOptions: Dir requires File")
	}
	return nil
}

// newSpill returns the store for copies of the pool's pages, or nil without such options.
func (p *pool) newSpill(o SpillOptions) (*spill.Store, error) {
	if err := o.check(); err != nil || !o.on() {
		return nil, err
	}
	var sizes []int
	for kind := range p.kinds {
		n := p.pageBytes(kind)
		if n > math.MaxInt32 {
			return nil, fmt.Errorf("replay: SpillOptions: a page of %s has %d bytes", p.kinds[kind].Name, n)
		}
		sizes = append(sizes, int(n))
	}
	s, err := spill.New(spill.Options{Sizes: sizes, Memory: o.Memory, Dir: o.Dir, File: o.File})
	if err != nil {
		return nil, fmt.Errorf("replay: SpillOptions: %w", err)
	}
	return s, nil
}

// PageSize implements batch.Mover.
func (p *pool) PageSize(kind int) int { return int(p.pageBytes(kind)) }

// Save implements batch.Mover.
func (p *pool) Save(list []batch.PageCopy) error {
	return p.move(&Submission{Session: p.id, Reads: p.transfers(list)})
}

// Restore implements batch.Mover.
func (p *pool) Restore(list []batch.PageCopy) error {
	return p.move(&Submission{Session: p.id, Writes: p.transfers(list)})
}

// transfers returns the places of pages, with the bytes that belong there.
func (p *pool) transfers(list []batch.PageCopy) (all []Transfer) {
	for i := range list {
		c := &list[i]
		pieces := c.Pieces
		var left []byte // of the current piece
		for j := range p.caches {
			cache := &p.caches[j]
			if cache.kind != c.Kind {
				continue
			}
			for _, pl := range cache.planes {
				at := pl.offset + uint64(c.Page)*pl.page
				for end := at + pl.page; at < end; {
					if len(left) == 0 {
						left, pieces = pieces[0], pieces[1:]
					}
					n := min(uint64(len(left)), end-at)
					all = append(all, Transfer{cache.slot, at, left[:n]})
					at, left = at+n, left[n:]
				}
			}
		}
	}
	return all
}

// move executes a submission without runs.
func (p *pool) move(s *Submission) error {
	if p.halt.Load() {
		return ErrClosed
	}
	s.Moves = p.moves // that an earlier submission was to make, and did not
	ticket, err := p.m.dev.Submit(s)
	if err != nil {
		return err
	}
	p.ticket.Store(uint64(ticket))
	if p.halt.Load() {
		p.m.dev.Cancel(ticket)
	}
	_, err = p.m.dev.Wait(ticket)
	p.ticket.Store(0)
	p.moves = p.moves[:0]
	if err == nil && p.halt.Load() {
		err = ErrClosed // the transfers may not have been made
	}
	return err
}
