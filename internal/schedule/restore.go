package schedule

import (
	"time"

	"github.com/pianola-engine/pianola/internal/pages"
)

// Copies has copies of pages that the prefix tree does not have any more.
type Copies interface {
	// Open returns copies of the pages behind the first at tokens of a prompt, which is the end of a
	// page, with which the prompt can go on at a position behind have. It returns nil if there are
	// none, or if reading them takes longer than prefilling, whose time prefill returns.
	Open(space string, tokens []int32, at, have int, prefill func(position, rows int) time.Duration) Restore
}

// Restore reads the copies of the pages of a prompt back, in the order of their positions.
type Restore interface {
	// End returns the position behind the last page.
	End() int
	// Ready returns the position up to which the pages can be written to the device now. lost says that
	// there will be no more.
	Ready() (end int, lost bool)
	// Time returns the predicted time of the pages of a range of positions, both ends of pages.
	Time(from, to int) time.Duration
	// Done records that the device has the pages before a position.
	Done(end int)
	// Close gives up the rest.
	Close()
}

// Restored are pages of a prompt that are to be written to the device: those of a range of positions that
// Sequence has.
type Restored struct {
	Request  *Request
	At, Rows int
	Copies   Restore
}

// restoring is the state of a request whose pages are read back.
type restoring struct {
	copies   Restore
	from, at int           // the pages between these positions have been written
	since    time.Duration // when the last ones were
}

// openCopies looks for copies of the beginning of a request that has just been admitted.
func (s *Scheduler) openCopies(r *Request, now time.Duration) {
	if s.c.Copies == nil || r.Caching == Private {
		return
	}
	have := r.Sequence.Len()
	at := have / pages.Size * pages.Size
	if r.shared() < at+pages.Size || !r.Sequence.Reaches(at) {
		return
	}
	c := s.c.Copies.Open(r.Space, r.Tokens[:r.shared()], at, have, s.prefill)
	if c == nil {
		return
	}
	r.Sequence.Truncate(at)
	r.restoring = &restoring{c, at, at, now}
}

// stopRestoring gives up the pages that have not been read back.
func (r *Request) stopRestoring() {
	if r.restoring != nil {
		r.restoring.copies.Close()
		r.restoring = nil
		r.Sequence.Truncate(r.Sequence.Len())
	}
}

// waitsForCopies reports whether a running request waits for pages that are read back. If the rest is
// lost, or takes longer to come than prefilling would, it goes on with prefilling.
func (s *Scheduler) waitsForCopies(r *Request, now time.Duration) bool {
	w := r.restoring
	if w == nil {
		return false
	}
	end, lost := w.copies.Ready()
	if end <= w.at && (lost || now >= w.since+s.patience(r)) {
		r.stopRestoring()
		return false
	}
	return true
}

// patience returns the time for which a request waits for the next page that is read back.
func (s *Scheduler) patience(r *Request) time.Duration {
	return max(leastPatience, s.prefill(r.Sequence.Len(), r.restoring.copies.End()-r.Sequence.Len()))
}

// leastPatience is the smallest time for which a request waits for a page that is read back.
const leastPatience = 100 * time.Millisecond

// Patience returns the time from now after which Next plans something for a request that waits for pages,
// even if nothing has happened, or 0 if there is no such request.
func (s *Scheduler) Patience(now time.Duration) (least time.Duration) {
	for _, r := range s.running {
		if r.restoring == nil {
			continue
		}
		if d := max(time.Millisecond, r.restoring.since+s.patience(r)-now); least == 0 || d < least {
			least = d
		}
	}
	return least
}

// first returns the predicted time until the first token of a request if it has the device alone.
func (s *Scheduler) first(r *Request) time.Duration {
	at := r.Sequence.Len()
	if r.restoring == nil {
		return s.prefill(at, r.left())
	}
	end := r.restoring.copies.End()
	return r.restoring.copies.Time(r.restoring.at, end) + s.prefill(end, len(r.Tokens)-end)
}

// ReadBack plans to write pages that have been read back: those of the first requests in rank for which
// some are ready, for at most the given time but at least the page of one block. The caller must call
// HasBack or LacksBack with the step if it has such pages, before anything else.
func (s *Scheduler) ReadBack(limit time.Duration) *Step {
	step := &Step{}
	for i := 0; i < len(s.running); i++ {
		r := s.running[i]
		w := r.restoring
		if w == nil {
			continue
		}
		end, _ := w.copies.Ready()
		to := min(end, w.at+pages.Size)
		for to < end && w.copies.Time(w.at, to+pages.Size) <= limit {
			to += pages.Size
		}
		took := w.copies.Time(w.at, to)
		if to <= w.at || len(step.Restores) > 0 && took > limit {
			continue
		}
		if !s.makeRoom(r, step, func() error { return r.Sequence.Stage(to, w.copies.End()) }) {
			i-- // r has left the list, and perhaps others behind it
			continue
		}
		step.Restores = append(step.Restores, Restored{r, w.at, to - w.at, w.copies})
		step.Predicted += took
		if limit -= took; limit <= 0 {
			break
		}
	}
	return step
}

// HasBack records that the device has the pages of a step of ReadBack.
func (s *Scheduler) HasBack(step *Step, now time.Duration) error {
	for _, b := range step.Restores {
		r, w := b.Request, b.Request.restoring
		w.at, w.since = b.At+b.Rows, now
		w.copies.Done(w.at)
		if w.at < w.copies.End() {
			continue
		}
		if err := r.Sequence.Advance(w.at); err != nil {
			return err
		}
		r.Restored += w.at - w.from
		s.hits.RestoredTokens += w.at - w.from
		r.stopRestoring()
		s.publish(r, false)
		s.pin(r)
		r.Sequence.Trim()
	}
	return nil
}

// LacksBack records that the device does not have the pages of a step of ReadBack. Their requests go on
// with prefilling.
func (s *Scheduler) LacksBack(step *Step) {
	for _, b := range step.Restores {
		b.Request.stopRestoring()
	}
}
