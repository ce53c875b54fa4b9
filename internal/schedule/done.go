package schedule

import (
	"fmt"
	"slices"
)

// Outcome is what a submission did for one row or chunk, in the order of the step: first its rows,
// then its chunks.
type Outcome struct {
	Tokens  []int32 // that were chosen; a row has computed as many positions
	Stopped bool    // the last token ends the request
	Skipped bool    // a chunk was not computed, because the submission was cancelled
}

// Done records the outcomes of a step and returns the requests that have ended with it: their last
// token is a stop token, or they have as many as they asked for.
func (s *Scheduler) Done(step *Step, outcomes []Outcome) (ended []*Request, err error) {
	if len(outcomes) != len(step.Decode)+len(step.Chunks) {
		return nil, fmt.Errorf("schedule: %d outcomes of %d rows and %d chunks", len(outcomes), len(step.Decode), len(step.Chunks))
	}
	for i, o := range outcomes {
		var r *Request
		if i < len(step.Decode) {
			r = step.Decode[i].Request
			err = s.decoded(step.Decode[i], o)
		} else {
			r = step.Chunks[i-len(step.Decode)].Request
			err = s.prefilled(step.Chunks[i-len(step.Decode)], o)
		}
		if err != nil {
			return ended, err
		}
		r.Tokens = append(r.Tokens, o.Tokens...)
		r.Chosen += len(o.Tokens)
		s.publish(r, false)
		s.pin(r)
		if o.Stopped || r.Chosen >= r.Most && r.Reads == nil || r.left() == 0 {
			s.publish(r, true)
			s.Cancel(r)
			ended = append(ended, r)
		}
		r.Sequence.Trim()
	}
	return ended, nil
}

// decoded records the positions that a row has computed.
func (s *Scheduler) decoded(row Row, o Outcome) error {
	if len(o.Tokens) > row.Tokens {
		return fmt.Errorf("schedule: request %d chose %d tokens of %d", row.Request.ID, len(o.Tokens), row.Tokens)
	}
	if r, n := row.Request, len(row.Draft); n > 0 && len(o.Tokens) > 0 {
		right := len(o.Tokens) - 1
		r.Drafted, r.Accepted, r.Trust = r.Drafted+n, r.Accepted+right, r.Trust.Judge(n, right)
		s.hits.Drafted, s.hits.Accepted = s.hits.Drafted+n, s.hits.Accepted+right
	}
	q := row.Request.Sequence
	return q.Advance(q.Len() + len(o.Tokens))
}

// prefilled records the positions of a chunk.
func (s *Scheduler) prefilled(c Chunk, o Outcome) error {
	r := c.Request
	if o.Skipped {
		if len(o.Tokens) > 0 {
			return fmt.Errorf("schedule: a chunk of request %d was skipped and chose a token", r.ID)
		}
		return nil
	}
	if want := map[bool]int{true: 1}[c.Last && r.Reads == nil]; len(o.Tokens) != want {
		return fmt.Errorf("schedule: a chunk of request %d chose %d tokens, want %d", r.ID, len(o.Tokens), want)
	}
	if err := r.Sequence.Advance(c.At + c.Rows); err != nil {
		return err
	}
	r.Filled += c.Rows
	if r.Reads != nil {
		r.Reads.From = max(r.Reads.From, c.At+c.Rows)
	}
	if c.Last {
		s.publish(r, true)
	}
	return nil
}

// pin pins the prompt of a request once it has been computed.
func (s *Scheduler) pin(r *Request) {
	if r.Caching == Pinned && r.Pin == nil && r.Sequence.Len() >= r.prompt {
		s.publish(r, true)
		r.Pin = s.c.Store.Pin(r.Space, r.Tokens[:r.prompt])
	}
}

// Fail ends the requests of a step whose submission failed. Their sequences keep the positions that
// they had before the step, as far as these are intact.
func (s *Scheduler) Fail(step *Step) (ended []*Request) {
	for _, r := range step.Requests() {
		if r.state == running {
			r.Sequence.Spoil()
			s.Cancel(r)
			ended = append(ended, r)
		}
	}
	return ended
}

// Reset ends all requests and releases all sequences, including idle ones, because what the pages
// contain is not known any more. The prefix tree keeps what is pinned.
func (s *Scheduler) Reset() (ended []*Request) {
	ended = slices.Concat(s.running, s.waiting)
	for _, r := range ended {
		s.Cancel(r)
		r.Sequence.Release()
	}
	for s.reclaim() {
	}
	s.c.Store.Clear()
	return ended
}
