package batch

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pianola-engine/pianola/internal/pages"
	"github.com/pianola-engine/pianola/internal/schedule"
)

// Context is a list of tokens with pages. One caller uses it, one call at a time; Close may be called
// at any time.
type Context struct {
	e      *Engine
	space  string
	tokens []int32
	seq    *pages.Sequence
	number int     // the last sequence number
	ring   int     // leading tokens that it has
	stream *Stream // of the request in progress
	closed bool
	pin    *pages.Pin // of the last prompt that was pinned
}

// unpin releases the pin.
func (c *Context) unpin() {
	if c.pin != nil {
		c.pin.Release()
		c.pin = nil
	}
}

// NewContext returns an empty context. Contexts share prefixes with others of the same namespace.
func (e *Engine) NewContext(space string) *Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	return &Context{e: e, space: space, seq: e.store.NewSequence()}
}

// lock locks the engine for a call that changes the context.
func (c *Context) lock() error {
	c.e.mu.Lock()
	switch {
	case c.closed || c.e.closed:
		c.e.mu.Unlock()
		return ErrClosed
	case c.stream != nil:
		c.e.mu.Unlock()
		return errInUse
	}
	return nil
}

// Tokens returns the tokens of the context. They are valid until the next call.
func (c *Context) Tokens() []int32 {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	return c.tokens
}

// Set replaces the tokens of the context. It keeps the pages of the common beginning.
func (c *Context) Set(tokens []int32) error {
	if err := c.lock(); err != nil {
		return err
	}
	defer c.e.mu.Unlock()
	c.set(tokens)
	return nil
}

// set implements Set.
func (c *Context) set(tokens []int32) {
	n := 0
	for n < min(len(tokens), len(c.tokens)) && tokens[n] == c.tokens[n] {
		n++
	}
	c.ring = min(c.ring, n)
	c.seq.Truncate(n)
	if c.seq.Len() == 0 {
		c.e.s.Drop(c.seq)
	}
	c.tokens = append(c.tokens[:n], tokens[n:]...)
}

// Fork returns a context with the same tokens, which shares the pages.
func (c *Context) Fork() (*Context, error) {
	if err := c.lock(); err != nil {
		return nil, err
	}
	defer c.e.mu.Unlock()
	f := &Context{e: c.e, space: c.space, tokens: slices.Clone(c.tokens), seq: c.seq.Fork()}
	c.e.s.Rest(f.seq)
	return f, nil
}

// Close ends the request in progress with ErrClosed and releases the pages. Calling it again has no
// effect.
func (c *Context) Close() {
	c.e.mu.Lock()
	first := !c.closed
	c.closed = true
	st := c.stream
	if st != nil {
		st.cancel(ErrClosed)
	}
	c.e.mu.Unlock()
	if st != nil {
		<-st.ended
	}
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	if first {
		c.unpin()
		c.e.s.Drop(c.seq)
		c.e.stir()
	}
}

// Ask is a request to continue a context.
type Ask struct {
	Tokens   []int32         // appended to the context first
	Most     int             // number of tokens to choose
	Reads    *schedule.Reads // not nil: values are read and no token is chosen; Most is then 0
	Once     bool            // end after the first submission that chooses tokens
	Bound    time.Duration
	Priority int
	Within   time.Duration // refuse if the first token cannot come within this time; 0 means no limit
	Caching  schedule.Caching
	// Speculate says that drafts may be verified; the tokens are then the same.
	Speculate bool
	Settings  any // for the device
}

// Figures are the figures of a request.
type Figures struct {
	ID       uint64
	Queue    time.Duration // from the request to its admission
	Hit      int           // tokens of the context whose pages were there
	Filled   int           // positions that were prefilled
	Restored int           // positions whose pages were read back from copies
	SetBacks int           // number of times that the request was set back
	Drafted  int           // tokens of drafts that were verified
	Accepted int           // tokens of them that were right
	Steps    int           // submissions that computed a row or a part of the prompt of it
	Rows     int           // sum of the rows that decoded in them, at least 1 for each
	Device   time.Duration // their time
}

// Stream delivers the tokens of a request. Its methods are for the caller of Start; one call at a
// time.
type Stream struct {
	c        *Context
	ask      Ask
	settings any
	r        *schedule.Request // the current one: a resumed request is another
	base     int               // tokens of the context before those that are chosen
	old      int               // tokens of the context before Start

	cancelled error // guarded by Engine.mu: the reason to end the request after the submission
	paused    bool  // guarded by Engine.mu

	ended  chan struct{}
	signal chan struct{} // receives when something has been posted

	mu      sync.Mutex // guards the fields below
	tokens  []int32    // not yet fetched
	ranks   []byte
	values  [][]byte // not yet fetched
	stopped bool
	fetched int
	done    bool
	err     error
	figures Figures
}

// Start appends tokens to the context and asks for more. The errors are those of Scheduler.Add and
// ErrClosed; the context is then unchanged. The caller must call Close.
func (c *Context) Start(a Ask) (*Stream, error) {
	if err := c.lock(); err != nil {
		return nil, err
	}
	defer c.e.mu.Unlock()
	e := c.e
	e.ids++
	now := time.Since(e.start)
	st := &Stream{
		c: c, ask: a, settings: a.Settings, old: len(c.tokens), base: len(c.tokens) + len(a.Tokens),
		ended: make(chan struct{}), signal: make(chan struct{}, 1),
	}
	st.figures.ID = e.ids
	st.r = &schedule.Request{
		ID: e.ids, Tokens: append(c.tokens, a.Tokens...), Sequence: c.seq, Space: c.space, Caching: a.Caching, Most: a.Most, Bound: a.Bound,
		Priority: a.Priority, Arrival: now, Speculate: a.Speculate,
	}
	if a.Within > 0 {
		st.r.Deadline = now + a.Within
	}
	// The last token is computed in any case: the next one follows from it.
	last := len(st.r.Tokens) - 1
	if a.Reads != nil {
		st.r.Reads = &schedule.Reads{From: a.Reads.From, Most: a.Reads.Most}
		last = min(last, a.Reads.From)
	}
	if last >= 0 && c.seq.Len() > last {
		c.seq.Truncate(last)
	}
	if err := e.s.Add(st.r); err != nil {
		return nil, err
	}
	c.stream, e.streams[st.r] = st, st
	e.stir()
	return st, nil
}

// post appends tokens for the caller to fetch.
func (st *Stream) post(tokens []int32, ranks []byte, stopped bool) {
	st.mu.Lock()
	st.tokens, st.ranks, st.stopped = append(st.tokens, tokens...), append(st.ranks, ranks...), stopped
	st.mu.Unlock()
	st.notify()
}

// count counts a submission.
func (st *Stream) count(rows int, took time.Duration) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.figures.Steps++
	st.figures.Rows += max(1, rows)
	st.figures.Device += took
}

// postValues appends values for the caller to fetch.
func (st *Stream) postValues(v []byte) {
	st.mu.Lock()
	st.values = append(st.values, v)
	st.mu.Unlock()
	st.notify()
}

func (st *Stream) notify() {
	select {
	case st.signal <- struct{}{}:
	default:
	}
}

// valuesAhead is the number of chunks with unfetched values at which a request is paused.
const valuesAhead = 2

// behind reports whether so much has not been fetched that the request is paused: ahead tokens, or
// valuesAhead chunks with values.
func (st *Stream) behind(ahead int) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return len(st.tokens) >= ahead || len(st.values) >= valuesAhead
}

// finish ends the stream. Engine.mu must be held, and the scheduler have let the request go.
func (st *Stream) finish(err error) {
	st.tally()
	if st.r.Pin != nil {
		st.c.unpin()
		st.c.pin = st.r.Pin
	}
	st.mu.Lock()
	st.done, st.err = true, err
	st.mu.Unlock()
	close(st.ended)
	st.notify()
}

// tally adds the figures of the current request.
func (st *Stream) tally() {
	r := st.r
	st.mu.Lock()
	defer st.mu.Unlock()
	if f := &st.figures; f.Queue == 0 && r.Admitted > 0 {
		f.Queue, f.Hit = r.Admitted-r.Arrival, r.Hit
	}
	st.figures.Filled += r.Filled
	st.figures.Restored += r.Restored
	st.figures.SetBacks += r.SetBacks
	st.figures.Drafted += r.Drafted
	st.figures.Accepted += r.Accepted
}

// cancel ends the request, at once or after the submission of which it is a part. Engine.mu must be
// held.
func (st *Stream) cancel(why error) {
	e := st.c.e
	switch {
	case st.isDone() || st.cancelled != nil:
	case e.inFlight(st.r):
		st.cancelled = why
	default:
		e.s.Cancel(st.r)
		e.end(st.r, why)
		e.stir() // others may have its pages
	}
}

func (st *Stream) isDone() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.done
}

// Next returns the tokens that were chosen since the last call; it waits until there are some. With
// the last token of a request that has ended regularly, or after it, more is false. An error comes
// with the tokens before it. If ctx ends, Next ends the request and returns the cause.
func (st *Stream) Next(ctx context.Context) (tokens []int32, ranks []byte, stopped, more bool, err error) {
	for {
		tokens, ranks, stopped, done, err := st.fetch()
		if len(tokens) > 0 && !done {
			st.resume()
		}
		if len(tokens) > 0 || done {
			return tokens, ranks, stopped, !done, err
		}
		st.wait(ctx)
	}
}

// wait waits until something has been posted. If ctx ends, it ends the request.
func (st *Stream) wait(ctx context.Context) {
	select {
	case <-st.signal:
	case <-ctx.Done():
		st.c.e.mu.Lock()
		st.cancel(context.Cause(ctx))
		st.c.e.mu.Unlock()
		<-st.ended
	}
}

// Values returns the values of the next chunk of a request that reads positions, or none after the
// last one or with an error. Otherwise it is like Next.
func (st *Stream) Values(ctx context.Context) ([]byte, error) {
	for {
		st.mu.Lock()
		done, err := st.done, st.err
		var v []byte
		if len(st.values) > 0 {
			v, st.values = st.values[0], st.values[1:]
		}
		st.mu.Unlock()
		switch {
		case v != nil && err == nil:
			st.resume()
			return v, nil
		case done:
			return nil, err
		}
		st.wait(ctx)
	}
}

// fetch takes what has been posted.
func (st *Stream) fetch() (tokens []int32, ranks []byte, stopped, done bool, err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	tokens, ranks, stopped, done, err = st.tokens, st.ranks, st.stopped, st.done, st.err
	st.tokens, st.ranks = nil, nil
	st.fetched += len(tokens)
	return tokens, ranks, stopped && len(tokens) > 0, done, err
}

// Limit lowers the number of tokens that the request chooses to n, if that many have not been chosen
// yet.
func (st *Stream) Limit(n int) {
	e := st.c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if st.isDone() {
		return
	}
	// A row in flight may choose more than n tokens; the caller leaves them.
	st.r.Most = min(st.r.Most, max(n-(len(st.r.Tokens)-st.base)+st.r.Chosen, st.r.Chosen))
	if st.r.Chosen >= st.r.Most && !e.inFlight(st.r) {
		e.s.Cancel(st.r)
		e.end(st.r, nil)
	}
}

// resume lets a paused request go on.
func (st *Stream) resume() {
	e := st.c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if !st.paused || st.isDone() {
		return
	}
	st.paused = false
	was := st.r
	st.tally()
	delete(e.streams, was)
	st.r = &schedule.Request{
		ID: was.ID, Tokens: was.Tokens, Sequence: was.Sequence, Space: was.Space, Caching: was.Caching, Most: was.Most - was.Chosen,
		Bound: was.Bound, Priority: was.Priority, Arrival: was.Arrival, Resumed: true, Pin: was.Pin, Reads: was.Reads,
		Speculate: was.Speculate, Trust: was.Trust,
	}
	e.streams[st.r] = st
	if err := e.s.Add(st.r); err != nil {
		e.end(st.r, fmt.Errorf("batch: a paused request cannot go on: %w", err))
	}
	e.stir()
}

// Figures returns the figures of the request, which are complete when it has ended.
func (st *Stream) Figures() Figures {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.figures
}

// Close ends the request if it has not ended and lets the caller use the context again. The context
// keeps the first n of the chosen tokens, of those that were fetched; with a negative n it is as it
// was before Start.
func (st *Stream) Close(n int) {
	e := st.c.e
	e.mu.Lock()
	st.cancel(ErrClosed)
	e.mu.Unlock()
	<-st.ended
	e.mu.Lock()
	defer e.mu.Unlock()
	c := st.c
	if c.stream != st {
		return
	}
	c.stream = nil
	keep := st.base + min(n, st.fetched)
	if n < 0 {
		keep = st.old
	}
	c.tokens = st.r.Tokens
	if keep < len(c.tokens) {
		c.ring = min(c.ring, keep)
		c.tokens = c.tokens[:keep]
	}
	c.seq.Truncate(len(c.tokens))
	if c.seq.Len() == 0 {
		e.s.Drop(c.seq)
	}
}
