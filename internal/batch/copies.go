package batch

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pianola-engine/pianola/internal/pages"
	"github.com/pianola-engine/pianola/internal/schedule"
	"github.com/pianola-engine/pianola/internal/spill"
)

// Mover is a Device whose pages can be copied to and from the host's memory. The engine calls it as it
// calls the other methods.
type Mover interface {
	Save(list []PageCopy) error    // from the device
	Restore(list []PageCopy) error // to the device
	PageSize(kind int) int         // bytes
}

// PageCopy is a page and its content in the host's memory.
type PageCopy struct {
	Kind   int
	Page   pages.Page
	Pieces spill.Pieces
}

// copies copies cold pages to a store, and back. The engine's mutex guards it.
//
// Both happen between submissions, a part at a time: pages that are needed before pages that are cold.
// While a quarter of the pages, or mostCold of them, is free or has copies, no more are copied. The scheduler
// never waits for a copy: it evicts pages at once, and those without a copy are lost.
type copies struct {
	e     *Engine
	store *spill.Store
	dev   Mover
	kinds []pages.Kind
	rate  float64   // bytes per second of copies to and from the device
	after time.Time // nothing is saved before, because the device failed
}

// The parts of the time of a submission that pages may take between two submissions, and that time when no
// request runs.
const (
	restorePart, savePart = 2, 4
	idleBound             = 50 * time.Millisecond
)

// mostCold bounds the number of pages of a kind that are free or have copies.
const mostCold = 256

// pause is the time for which nothing is saved after a failure.
const pause = 10 * time.Second

func newCopies(e *Engine, store *spill.Store) (*copies, error) {
	dev, ok := e.o.Device.(Mover)
	if !ok {
		return nil, errors.New("batch: the device cannot copy pages to the host")
	}
	c := &copies{e: e, store: store, dev: dev, rate: 4e9}
	for kind := range e.store.Kinds() {
		c.kinds = append(c.kinds, e.store.Kind(kind))
	}
	store.Notify(e.stir)
	return c, nil
}

// Open implements schedule.Copies.
func (c *copies) Open(space string, tokens []int32, at, have int, prefill func(position, rows int) time.Duration) schedule.Restore {
	if c.store.Empty() {
		return nil
	}
	blocks, ok := c.find(space, tokens, at, have)
	if !ok {
		return nil
	}
	r := &restore{c: c, at: at, blocks: blocks}
	file := float64(c.store.InFile(slices.Concat(blocks...))) / c.store.Bandwidth()
	if r.Time(at, r.End())+time.Duration(file*float64(time.Second)) >= prefill(have, r.End()-have) {
		return nil
	}
	r.Restore = c.store.Open(blocks)
	return r
}

// find returns the copies of blocks behind the first at tokens with which a sequence can go on furthest, and
// whether that is behind have.
func (c *copies) find(space string, tokens []int32, at, have int) (blocks [][]spill.ID, ok bool) {
	key := pages.Namespace(space)
	has := make([][]bool, len(c.kinds)) // by kind and block
	var keys []*pages.Key
	for i := 0; (i+1)*pages.Size <= len(tokens); i++ {
		key = key.Next(tokens[i*pages.Size:])
		if i*pages.Size < at {
			continue
		}
		all := true
		for kind := range c.kinds {
			there := c.store.Has(spill.ID{Key: *key, Kind: kind})
			has[kind] = append(has[kind], there)
			all = all && (there || c.kinds[kind].Window > 0)
		}
		if !all {
			break
		}
		keys = append(keys, key)
	}
	for n := len(keys); n > 0 && at+n*pages.Size > have; n-- {
		blocks, ok = make([][]spill.ID, n), true
		for i := range n {
			for kind := range c.kinds {
				if c.kinds[kind].Sees(at+n*pages.Size, at/pages.Size+i) {
					ok = ok && has[kind][i]
					blocks[i] = append(blocks[i], spill.ID{Key: *keys[i], Kind: kind})
				}
			}
		}
		if ok {
			return blocks, true
		}
	}
	return nil, false
}

// restore implements schedule.Restore.
type restore struct {
	*spill.Restore
	c      *copies
	at     int
	blocks [][]spill.ID
}

// End implements schedule.Restore.
func (r *restore) End() int { return r.at + len(r.blocks)*pages.Size }

// Ready implements schedule.Restore.
func (r *restore) Ready() (end int, lost bool) {
	blocks, lost := r.Restore.Ready()
	return r.at + blocks*pages.Size, lost
}

// Time implements schedule.Restore.
func (r *restore) Time(from, to int) time.Duration {
	n := 0
	for _, ids := range r.blocks[(from-r.at)/pages.Size : (to-r.at)/pages.Size] {
		for _, id := range ids {
			n += r.c.dev.PageSize(id.Kind)
		}
	}
	return r.c.time(n)
}

// Done implements schedule.Restore.
func (r *restore) Done(end int) { r.Restore.Done((end - r.at) / pages.Size) }

// time returns the predicted time of copying n bytes to or from the device.
func (c *copies) time(n int) time.Duration {
	return time.Duration(float64(n) / c.rate * float64(time.Second))
}

// measured corrects the predictions.
func (c *copies) measured(list []PageCopy, took time.Duration) {
	n := 0
	for i := range list {
		n += c.dev.PageSize(list[i].Kind)
	}
	c.rate += 0.25 * (float64(n)/max(took, time.Microsecond).Seconds() - c.rate)
}

// move copies pages to the device that are needed, or else cold ones to the host, and reports whether there
// were any. bound is the bound of submissions, or 0 if no request runs.
func (e *Engine) move(bound time.Duration) bool {
	if e.copies == nil || e.closed {
		return false
	}
	if bound == 0 {
		bound = idleBound
	}
	return e.copies.restore(bound/restorePart) || e.copies.save(bound/savePart)
}

// sleep waits until something happens, or until a request has waited long enough for its pages.
func (e *Engine) sleep() {
	var late <-chan time.Time
	if d := e.s.Patience(time.Since(e.start)); d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		late = timer.C
	}
	e.mu.Unlock()
	defer e.mu.Lock()
	select {
	case <-e.wake:
	case <-late:
	}
}

// restore writes pages to the device for which requests wait.
func (c *copies) restore(limit time.Duration) bool {
	e := c.e
	step := e.s.ReadBack(limit)
	if step.Bound = limit; e.o.Timeline != nil && len(step.Restores)+len(step.SetBack)+len(step.Refused) > 0 {
		e.o.Timeline(step.Timeline(time.Since(e.start)))
	}
	for _, r := range step.Refused {
		e.end(r.Request, r.Err)
	}
	if len(step.Restores) == 0 {
		return len(step.Refused)+len(step.SetBack) > 0
	}
	var list []PageCopy
	var requests []*schedule.Request
	for _, b := range step.Restores {
		r := b.Copies.(*restore)
		requests = append(requests, b.Request)
		for at := b.At; at < b.At+b.Rows; at += pages.Size {
			i := (at - r.at) / pages.Size
			for j, content := range r.Pages(i) {
				kind := r.blocks[i][j].Kind
				list = append(list, PageCopy{kind, b.Request.Sequence.Page(kind, at/pages.Size), content})
			}
		}
	}
	e.flight = requests
	e.mu.Unlock()
	start := time.Now()
	err := c.dev.Restore(list)
	took := time.Since(start)
	e.mu.Lock()
	e.flight = nil
	if err != nil {
		e.s.LacksBack(step)
	} else if c.measured(list, took); e.s.HasBack(step, time.Since(e.start)) != nil {
		e.s.LacksBack(step)
	}
	e.afterwards(requests)
	return true
}

// save copies cold pages to the host.
func (c *copies) save(limit time.Duration) bool {
	if time.Now().Before(c.after) {
		return false
	}
	e := c.e
	var list []PageCopy
	var taken []*spill.Copy
	bytes := 0
	for kind := range c.kinds {
		u := e.store.Usage(kind)
		most := max(1, min(u.Pages/4, mostCold))
		size := c.dev.PageSize(kind)
		if u.Free >= most {
			continue
		}
		e.store.Coldest(kind, most-u.Free, func(cold pages.Cold) bool {
			id := spill.ID{Key: *cold.Key, Kind: kind}
			if len(list) > 0 && c.time(bytes+size) > limit {
				return false
			}
			if c.store.Has(id) || !c.worth(kind, cold.At) {
				return true
			}
			to := c.store.Put(id)
			if to == nil {
				return false
			}
			e.store.Hold(kind, cold.Page)
			list, taken, bytes = append(list, PageCopy{kind, cold.Page, to.Pieces}), append(taken, to), bytes+size
			return true
		})
	}
	if len(list) == 0 {
		return false
	}
	if e.o.Timeline != nil {
		e.o.Timeline(fmt.Sprintf("%8.1f  copy %d pages to the host\n", float64(time.Since(e.start).Microseconds())/1000, len(list)))
	}
	e.mu.Unlock()
	start := time.Now()
	err := c.dev.Save(list)
	took := time.Since(start)
	for _, to := range taken {
		to.Done(err == nil)
	}
	e.mu.Lock()
	if err == nil {
		c.measured(list, took)
	}
	for i := range list {
		e.store.Unhold(list[i].Kind, list[i].Page)
	}
	if err != nil {
		c.after = time.Now().Add(pause)
	}
	return true
}

// worth reports whether reading a page back takes less time than computing it again. A state saves computing
// all positions before it.
func (c *copies) worth(kind, at int) bool {
	from, rows := at, pages.Size
	if c.kinds[kind].State {
		from, rows = 0, at+pages.Size
	}
	return c.time(c.dev.PageSize(kind)) < c.e.cost.Prefill(from, rows)
}
