// Package batch runs the contexts of many callers on one device, together. An Engine has one
// goroutine, which asks the scheduler for the next step, executes it on the Device and posts the
// tokens to those who asked for them.
//
// A Context belongs to one caller: its tokens and its pages. Start adds a request to continue it, and
// the Stream delivers the tokens. The request stays in the batch until it has ended; a caller who does
// not fetch tokens for a while pauses it and loses nothing. Between requests the pages of a context
// may be given to others; the engine then computes them again, with the same contents.
package batch

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pianola-engine/pianola/internal/pages"
	"github.com/pianola-engine/pianola/internal/schedule"
	"github.com/pianola-engine/pianola/internal/spill"
)

// Device executes submissions. The engine makes one call at a time, except of Cancel.
type Device interface {
	// Place gives a sequence number to a context.
	Place(p *Placement) error
	// Copy copies pages. No page is the source and the target of copies, nor the target of two.
	Copy(copies []pages.Copy) error
	// Run executes a submission and sets the results of its rows and chunks and the time that it
	// took.
	Run(s *Submission) error
	// Cancel makes the submission that is running end early. It may be called at any time.
	Cancel()
}

// Placement is what a sequence number stands for.
type Placement struct {
	Number   int
	Tokens   []int32
	Known    int // leading tokens that the number has already
	Settings any // of the request
}

// Entry is an entry of the page table of a sequence number.
type Entry struct {
	Number int
	pages.Entry
}

// Row is a sequence that decodes, from the token at Position on.
type Row struct {
	Number, Position, Tokens int
	Draft                    []int32 // of a joint pass: tokens that may follow; Tokens is one more than there are
	Settings                 any
}

// Chunk is a part of a prompt. With Last a token is chosen behind it.
type Chunk struct {
	Number, At, Rows int
	Last             bool
	Read             int // number of its last rows whose values are read; no token is chosen then
	Settings         any
}

// Result is what a submission did for a row or a chunk.
type Result struct {
	schedule.Outcome
	Values []byte // of the rows that are read
	Ranks  []byte // what the device says of the tokens' probabilities, for the caller
}

// Submission is what a device executes: rows and chunks are independent of each other.
type Submission struct {
	Entries []Entry // changes of page tables, to be made first and in this order
	Rows    []Row
	Chunks  []Chunk
	Joint   bool // all rows and chunks are computed in one pass; a row chooses one token, or as many as its draft is right and one more

	Results []Result // set by the device: of the rows, then of the chunks
	Took    time.Duration
}

// Options are the settings of an engine.
type Options struct {
	Device   Device
	Kinds    []pages.Kind
	Schedule schedule.Config // without Store
	// Guess says that Schedule.Cost is of no use before it has been corrected by measurements.
	Guess bool
	// Ahead is the number of tokens that a caller has not fetched at which its request is paused;
	// 0 means DefaultAhead.
	Ahead int
	// Spill, if not nil, has copies of pages that the prefix tree gives up. The device must be a Mover.
	Spill *spill.Store
	// Timeline, if not nil, receives a text for each step.
	Timeline func(string)
}

// DefaultAhead is the number of unfetched tokens at which a request is paused.
const DefaultAhead = 512

// Errors of contexts and streams.
var (
	ErrClosed = errors.New("batch: the context is closed")
	errInUse  = errors.New("batch: the context is in use")
)

// Engine runs the requests of a model.
type Engine struct {
	o     Options
	cost  *schedule.Corrected
	start time.Time
	wake  chan struct{} // receives when there may be something to do
	over  chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex // not held while the device runs
	s       *schedule.Scheduler
	store   *pages.Store
	streams map[*schedule.Request]*Stream
	flight  []*schedule.Request // of the step that is running
	owners  []*Context          // by sequence number: the last one
	ids     uint64
	closed  bool
	sub     Submission
	lost    bool // a submission failed: nobody knows which of its entries the device has
	copies  *copies
	placed  []*schedule.Request // were admitted, and the device does not know that yet
}

// New starts an engine. Close ends it.
func New(o Options) (*Engine, error) {
	if o.Device == nil || o.Schedule.Cost == nil || o.Ahead < 0 {
		return nil, errors.New("batch: an engine needs a device and a cost")
	}
	store, err := pages.New(o.Kinds)
	if err != nil {
		return nil, err
	}
	if o.Ahead == 0 {
		o.Ahead = DefaultAhead
	}
	e := &Engine{
		o: o, cost: &schedule.Corrected{Cost: o.Schedule.Cost, Guess: o.Guess}, start: time.Now(), store: store,
		wake: make(chan struct{}, 1), over: make(chan struct{}), streams: map[*schedule.Request]*Stream{},
	}
	o.Schedule.Store, o.Schedule.Cost = store, e.cost
	if o.Spill != nil {
		if e.copies, err = newCopies(e, o.Spill); err != nil {
			return nil, err
		}
		o.Schedule.Copies = e.copies
	}
	if e.s, err = schedule.New(o.Schedule); err != nil {
		return nil, err
	}
	e.owners = make([]*Context, o.Schedule.Sequences)
	go e.run()
	return e, nil
}

// Close ends all requests with ErrClosed and stops the engine. It waits for the submission that is
// running, which it cancels. Calling it again has no effect.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.o.Device.Cancel()
	e.stir()
	<-e.over
}

// stir makes the engine look for something to do.
func (e *Engine) stir() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Load is the state of an engine.
type Load struct {
	Running, Waiting int
	Pages            []pages.Usage // by kind
	Hits             schedule.Hits
}

// Load returns the state of the engine.
func (e *Engine) Load() Load {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := e.s.Load()
	l := Load{Running: n.Running, Waiting: n.Waiting, Hits: e.s.Hits()}
	for kind := range e.store.Kinds() {
		l.Pages = append(l.Pages, e.store.Usage(kind))
	}
	return l
}

// Join makes every submission with rows of prompts a joint pass of as many rows as it may have, or returns to the
// choice by predicted times. It applies to the submissions that are planned afterwards.
func (e *Engine) Join(on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.s.Join(on)
}

// Discarder is a Device that can give back the memory of pages.
type Discarder interface {
	// Discard gives back the memory of pages that nobody holds. Their content is lost. A submission
	// may be running.
	Discard(kind int, free []pages.Page) error
}

// Trim removes from the prefix tree what no sequence uses and nobody has pinned, and lets the device
// give back the memory of all free pages. It returns the number of pages of each kind that it removed.
func (e *Engine) Trim() ([]int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	removed := make([]int, e.store.Kinds())
	for kind := range removed {
		removed[kind] = -e.store.Usage(kind).Free
	}
	e.store.Clear()
	var err error
	for kind := range removed {
		removed[kind] += e.store.Usage(kind).Free
		if d, ok := e.o.Device.(Discarder); ok && err == nil {
			err = d.Discard(kind, e.store.Free(kind))
		}
	}
	return removed, err
}

// run executes steps until the engine is closed.
func (e *Engine) run() {
	defer close(e.over)
	e.mu.Lock()
	defer e.mu.Unlock()
	var ended time.Time // when the last submission ended, if the next one follows at once
	for !e.closed {
		step := e.plan()
		if step == nil {
			ended = time.Time{}
			if !e.move(0) {
				e.sleep()
			}
			continue
		}
		if !e.prepare(step) {
			continue
		}
		e.flight = step.Requests()
		e.mu.Unlock()
		err := e.o.Device.Run(&e.sub)
		was := ended
		ended = time.Now()
		e.mu.Lock()
		if e.flight = nil; err == nil && !was.IsZero() {
			e.s.Idle(ended.Sub(was) - e.sub.Took)
		}
		e.settle(step, err)
		if e.move(step.Bound) {
			ended = time.Time{}
		}
	}
	for _, r := range e.s.Reset() {
		e.end(r, ErrClosed)
	}
	for _, st := range e.streams { // paused ones
		st.finish(ErrClosed)
	}
	clear(e.streams)
}

// plan returns the next step, or nil if there is nothing to do.
func (e *Engine) plan() *schedule.Step {
	for {
		now := time.Since(e.start)
		step := e.s.Next(now)
		if e.o.Timeline != nil {
			e.o.Timeline(step.Timeline(now))
		}
		for _, r := range step.Refused {
			e.end(r.Request, r.Err)
		}
		e.placed = append(e.placed, step.Admitted...)
		if !step.Empty() {
			return step
		}
		if len(step.Refused)+len(step.SetBack)+len(step.Admitted) == 0 {
			return nil
		}
	}
}

// prepare fills the submission and tells the device what has changed. It reports whether there is
// something to run.
func (e *Engine) prepare(step *schedule.Step) bool {
	placed := e.placed
	if e.lost {
		placed, e.lost = slices.Clone(e.s.Running()), false
	}
	e.placed = nil
	for _, r := range placed {
		if err := e.place(r); err != nil {
			e.s.Cancel(r)
			e.end(r, err)
		}
	}
	if copies := e.store.TakeCopies(); len(copies) > 0 {
		if err := e.o.Device.Copy(copies); err != nil {
			// Any running sequence may lack a copy.
			for _, r := range e.s.Reset() {
				e.end(r, err)
			}
			return false
		}
	}
	step.Prune()
	e.fill(step)
	return !step.Empty()
}

// place tells the device the sequence number, tokens and page tables of a request.
func (e *Engine) place(r *schedule.Request) error {
	if !r.Running() {
		return nil // set back in the same step
	}
	st := e.streams[r]
	c := st.c
	known := 0
	if e.owners[r.Number] == c && c.number == r.Number {
		known = min(c.ring, len(r.Tokens))
	}
	e.owners[r.Number], c.ring = nil, 0
	if err := e.o.Device.Place(&Placement{r.Number, r.Tokens, known, st.settings}); err != nil {
		return err
	}
	e.owners[r.Number], c.number, c.ring = c, r.Number, len(r.Tokens)
	r.Sequence.TakeChanges(nil)
	for _, entry := range r.Sequence.Entries(nil) {
		e.sub.Entries = append(e.sub.Entries, Entry{r.Number, entry})
	}
	return nil
}

// fill fills the submission with the rows and chunks of a step.
func (e *Engine) fill(step *schedule.Step) {
	sub := &e.sub
	sub.Rows, sub.Chunks, sub.Joint, sub.Took = sub.Rows[:0], sub.Chunks[:0], step.Joint, 0
	for _, row := range step.Decode {
		r := row.Request
		sub.Rows = append(sub.Rows, Row{r.Number, len(r.Tokens) - 1, row.Tokens, row.Draft, e.streams[r].settings})
	}
	for _, c := range step.Chunks {
		sub.Chunks = append(sub.Chunks, Chunk{c.Request.Number, c.At, c.Rows, c.Last && c.Request.Reads == nil, c.Read(), e.streams[c.Request].settings})
	}
	var changes []pages.Entry
	for _, r := range step.Requests() {
		changes = r.Sequence.TakeChanges(changes[:0])
		for _, entry := range changes {
			sub.Entries = append(sub.Entries, Entry{r.Number, entry})
		}
	}
	sub.Results = make([]Result, len(sub.Rows)+len(sub.Chunks))
}

// settle records what a submission did.
func (e *Engine) settle(step *schedule.Step, err error) {
	requests := step.Requests()
	before := make([]int, len(requests))
	outcomes := make([]schedule.Outcome, len(requests))
	longest := 0
	for i, r := range requests {
		before[i], outcomes[i] = r.Chosen, e.sub.Results[i].Outcome
		if i < len(step.Decode) {
			longest = max(longest, len(outcomes[i].Tokens))
		}
	}
	e.sub.Entries = e.sub.Entries[:0]
	var ended []*schedule.Request
	if err == nil {
		ended, err = e.s.Done(step, outcomes)
	}
	for i, r := range requests {
		st := e.streams[r]
		c := st.c
		if err == nil {
			st.count(len(step.Decode), e.sub.Took)
		}
		if v := e.sub.Results[i].Values; len(v) > 0 && err == nil {
			st.postValues(v)
		}
		if n := r.Chosen - before[i]; n > 0 {
			c.ring = len(r.Tokens)
			st.post(outcomes[i].Tokens, e.sub.Results[i].Ranks, outcomes[i].Stopped)
		}
	}
	if err != nil {
		e.lost = true
		clear(e.owners)
		for _, r := range e.s.Fail(step) {
			e.end(r, fmt.Errorf("batch: a submission failed: %w", err))
		}
	} else if step.Chain > 0 || len(step.Chunks) > 0 {
		decoding := step.Decoding
		if step.Chain > 0 {
			decoding = decoding * time.Duration(longest) / time.Duration(step.Chain)
		}
		e.cost.Measured(step, decoding, e.sub.Took)
	}
	for _, r := range ended {
		e.end(r, nil)
	}
	e.afterwards(requests)
}

// afterwards ends and pauses requests of a step that goes on without them.
func (e *Engine) afterwards(requests []*schedule.Request) {
	for _, r := range requests {
		st := e.streams[r]
		switch {
		case st == nil: // has ended
		case st.cancelled != nil:
			e.s.Cancel(r)
			e.end(r, st.cancelled)
		case st.ask.Once && r.Chosen > 0:
			e.s.Cancel(r)
			e.end(r, nil)
		case st.behind(e.o.Ahead):
			e.s.Cancel(r)
			st.paused = true
		}
	}
}

// end ends the stream of a request that the scheduler has let go.
func (e *Engine) end(r *schedule.Request, err error) {
	st := e.streams[r]
	if st == nil {
		return
	}
	delete(e.streams, r)
	st.finish(err)
}

// inFlight reports whether a request is part of the submission that is running.
func (e *Engine) inFlight(r *schedule.Request) bool {
	return slices.Contains(e.flight, r)
}
