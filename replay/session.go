package replay

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pianola-engine/pianola/internal/recurrent"
	"github.com/pianola-engine/pianola/internal/sampler"
	"github.com/pianola-engine/pianola/table"
)

// Session is one context of a model: a token ring, a KV cache and the current position.
//
// One call at a time uses a session. A method called while another one is in progress
// returns ErrBusy and changes nothing; Close ends the call in progress. ID, Len, Context,
// ChainTime, IsStop and Stats may be called at any time; Len and Stats report the state
// after the last submission.
//
// The context holds Len positions. After a prompt the next token is chosen but not yet part
// of the context: it is pending, and the next chain or prompt begins with it.
type Session struct {
	*session
	held bool // the session that Hold passes to its function
}

// session is the state shared by a Session and the sessions that Hold passes to its
// functions.
type session struct {
	m  *Model
	id SessionID
	o  SessionOptions

	turn    sync.Mutex // held by the call in progress, or by Hold
	mu      sync.Mutex // held by the call in progress and by Close, which may run between two calls within Hold
	closing sync.Mutex // held by Close, so that a second call waits for the first
	closed  atomic.Bool
	ticket  atomic.Uint64 // ticket of the submission in flight, 0 without one
	halt    atomic.Bool   // the call in progress is cancelled
	used    atomic.Int64  // end of the last call, in nanoseconds of Unix time

	opened bool   // the session is open on the device
	order  uint64 // number of the session's last submission, counted over the whole model
	place

	states recurrent.Held // states of layers with recurrent state
	again  int            // positions that the submission prefills again for a state

	speculation speculation

	sub    Submission
	ids    []int32 // [context+1], the tokens of a chain
	bytes  []byte  // the same tokens in the device's encoding
	length atomic.Int64

	counting sync.Mutex // guards stats
	stats    Stats

	par *parallel // of a model for many sequences, otherwise nil

	request RequestOptions // of the following requests

	entries []byte // entries of the ranks slot for the tokens of the last call
	entered int    // number of valid entries
}

// place is the state of a session's context, which a fork copies.
type place struct {
	n        int  // positions in the KV cache
	high     int  // positions ever written, at least in part; those past n were taken back
	pending  bool // tokens[n] is chosen
	row      int  // row of the logits from which the pending token was chosen
	sampled  bool // the sampler slot selects tokens
	ranked   int  // number of likeliest tokens whose log-probabilities are kept
	seed     uint64
	rolls    uint32 // number of rollovers so far
	dropped  bool   // the KV cache was released: revive prefills the context again
	perToken time.Duration
}

// Stats are counts of a session's use of its device.
type Stats struct {
	Submissions, Waits int
	WaitTime           time.Duration // host time spent waiting
	QueueTime          time.Duration // part of WaitTime spent in the queue after submissions of other sessions
	DeviceTime         time.Duration
	BytesRead          uint64 // bytes of weights and KV caches, computed from what the table's commands declare
	Calls              uint64 // calls of a CallCounter's GPU interface, including those for other sessions

	// Prefilled counts prefilled tokens: those of prompts, pending tokens before them, and
	// the tokens that a rollover keeps. Reused counts tokens of prompts that Reprompt found
	// in the context.
	Prefilled, Reused int

	// Drafted counts the draft tokens that were verified, Accepted those that decoding
	// chose.
	Drafted, Accepted int

	// Request is the number of the last request of a model for many sequences, and BatchRows the
	// sum over its Submissions of the rows that were decoded together.
	Request   uint64
	BatchRows int
	// Restored counts tokens of prompts whose pages were read back from copies (SpillOptions).
	Restored int
}

// Stats returns the counts since the session was created.
func (s *Session) Stats() Stats {
	s.counting.Lock()
	defer s.counting.Unlock()
	return s.stats
}

// count updates the counts with f.
func (s *Session) count(f func(st *Stats)) {
	s.counting.Lock()
	defer s.counting.Unlock()
	f(&s.stats)
}

// ID returns the session's number on its device.
func (s *Session) ID() SessionID { return s.id }

// Len returns the number of positions in the context. During a call it returns the number
// at the end of the call's last submission.
func (s *Session) Len() int { return int(s.length.Load()) }

// setLen sets the number of positions in the context.
func (s *Session) setLen(n int) {
	s.n = n
	s.length.Store(int64(n))
}

// setPlace replaces the state of the context.
func (s *Session) setPlace(p place) {
	s.place = p
	s.length.Store(int64(p.n))
}

// Hold calls f while it holds the session: until f returns, other calls get ErrBusy, and f
// makes its calls through held, which has the same context. Hold returns the error of f, or
// ErrBusy or ErrClosed. f must not close held, nor use it from another goroutine. Close
// does not wait for f, only for its call in progress; later calls of f get ErrClosed.
func (s *Session) Hold(f func(held *Session) error) error {
	if s.closed.Load() {
		return ErrClosed
	}
	if s.held || !s.turn.TryLock() {
		return ErrBusy
	}
	defer s.turn.Unlock()
	held := &Session{session: s.session, held: true}
	defer func() {
		held.held = false
		s.mu.Lock()
		defer s.mu.Unlock()
		s.settle()
	}()
	return f(held)
}

// Context returns the largest number of positions of the context.
func (s *Session) Context() int { return int(s.m.t.Header.Context) }

// ChainTime returns the time bound of a chain, or 0 if SessionOptions.Chain fixes its
// length.
func (s *Session) ChainTime() time.Duration {
	if s.o.Chain > 0 {
		return 0
	}
	return s.o.ChainTime
}

// Reset empties the context.
func (s *Session) Reset() error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.done()
	if s.par != nil {
		s.settle()
		s.setRollsParallel(0)
		return s.replace(nil, 0, false)
	}
	s.empty()
	return s.closedOr(s.setRolls(0))
}

// empty empties the context.
func (s *Session) empty() {
	s.setLen(0)
	s.high, s.pending, s.row, s.dropped = 0, false, 0, false
	s.states.Cut(0)
	s.speculation.forget(0)
}

// Close frees the session's memory. A call in progress ends early with ErrClosed. Calling
// Close again has no effect.
func (s *Session) Close() error {
	if s.held {
		return ErrBusy
	}
	s.end()
	s.closing.Lock()
	defer s.closing.Unlock()
	if s.par != nil {
		s.par.c.Close() // ends the call in progress
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m.forget(s)
	if !s.opened {
		return nil
	}
	s.opened = false
	return s.m.dev.CloseSession(s.id)
}

// end cancels the call in progress and makes later calls fail.
func (s *Session) end() {
	s.closed.Store(true)
	s.cancel()
}

// closedOr replaces a device's error by ErrClosed if the session is closed.
func (s *Session) closedOr(err error) error {
	if err != nil && s.closed.Load() {
		return ErrClosed
	}
	return err
}

// begin acquires the session for one call.
func (s *Session) begin() error {
	if s.closed.Load() {
		return ErrClosed
	}
	if !s.held && !s.turn.TryLock() {
		return ErrBusy
	}
	s.mu.Lock() // only Close can hold it
	if s.closed.Load() {
		s.done()
		return ErrClosed
	}
	return nil
}

// done releases the session after a call.
func (s *Session) done() {
	s.used.Store(time.Now().UnixNano())
	s.mu.Unlock()
	if !s.held {
		s.turn.Unlock()
	}
}

// enter acquires the session for a call that submits, unless ctx has already ended: a short
// submission could otherwise complete before the cancellation reaches it.
func (s *Session) enter(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return s.begin()
}

// cancel cancels the submission in flight and keeps the call from starting another.
func (s *Session) cancel() {
	s.halt.Store(true)
	if t := s.ticket.Load(); t != 0 {
		s.m.dev.Cancel(Ticket(t))
	}
}

// watch cancels the call when ctx ends, until the returned function is called. That
// function waits for a cancellation in progress, which could otherwise hit the next call.
// watch allocates nothing for a context that cannot end.
func (s *Session) watch(ctx context.Context) (stop func()) {
	s.halt.Store(false)
	if s.closed.Load() {
		s.halt.Store(true)
	}
	if ctx.Done() == nil {
		return noWatch
	}
	cancelled := make(chan struct{})
	unwatch := context.AfterFunc(ctx, func() {
		s.cancel()
		close(cancelled)
	})
	return func() {
		if !unwatch() {
			<-cancelled
		}
	}
}

func noWatch() {}

// submit runs the submission and waits for it.
func (s *Session) submit() (Result, error) {
	return s.submitBehind(func(bool) {})
}

// submitBehind submits the runs that the function adds. own reports whether the device's
// last submission was this session's, so that scratch slots still hold its results.
func (s *Session) submitBehind(runs func(own bool)) (Result, error) {
	calls := s.m.calls()
	if s.dropped {
		if err := s.m.within(s.session, s.revive); errors.Is(err, errHalted) {
			return Result{}, nil
		} else if err != nil {
			return Result{}, err
		}
	}
	ticket, err := s.queue(runs)
	if err != nil { // perhaps the limit of KV caches
		ticket, err = s.queueWithin(runs, err)
	}
	if err != nil {
		return Result{}, s.closedOr(err)
	}
	s.count(func(st *Stats) { st.Submissions++ })
	s.ticket.Store(uint64(ticket))
	if s.halt.Load() { // cancelled before the ticket was stored
		s.m.dev.Cancel(ticket)
	}
	start := time.Now()
	res, err := s.m.dev.Wait(ticket)
	s.ticket.Store(0)
	s.took(&s.sub, res.Count, err)
	took := time.Since(start)
	s.count(func(st *Stats) {
		st.Waits++
		st.WaitTime += took
		st.QueueTime += res.Queued
		st.DeviceTime += res.Elapsed
		if err == nil {
			st.BytesRead += s.m.traffic.of(&s.sub, res.Count-res.Accepted)
		}
		st.Calls += s.m.calls() - calls
	})
	return res, s.closedOr(err)
}

// queue submits the runs that the function adds.
func (s *Session) queue(runs func(own bool)) (Ticket, error) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	runs(s.order != 0 && s.order == s.m.order)
	ticket, err := s.m.dev.Submit(&s.sub)
	if err == nil {
		s.m.order++
		s.order = s.m.order
	}
	return ticket, err
}

// queueWithin submits the runs again, after an error, if releasing the caches of idle sessions helps.
func (s *Session) queueWithin(runs func(own bool), err error) (Ticket, error) {
	var ticket Ticket
	if errors.As(err, new(*LimitError)) {
		err = s.m.within(s.session, func() (err error) {
			ticket, err = s.queue(runs)
			return err
		})
	}
	return ticket, err
}

// interrupted returns the reason to end the call early, or nil.
func (s *Session) interrupted(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if s.closed.Load() {
		return ErrClosed
	}
	return nil
}

// Prompt appends ids to the context, after the pending token if there is one, and returns
// the next token. However many chunks the prompt has, Prompt makes one submission and waits
// once. stopped reports whether the token is a stop id.
//
// If Prompt fails, the context is unchanged, with two exceptions: it is empty, and Len
// returns 0, if a rotating cache has lost rows that the context needs, or if a rollover was
// in progress.
func (s *Session) Prompt(ctx context.Context, ids []int32) (next int32, stopped bool, err error) {
	if err := s.enter(ctx); err != nil {
		return 0, false, err
	}
	defer s.done()
	if s.par != nil {
		s.settle()
		if err := s.makeRoomParallel(1 + len(ids)); err != nil {
			return 0, false, err
		}
		return s.promptParallel(ctx, ids, len(s.par.c.Tokens()))
	}
	return s.prompt(ctx, ids)
}

// prompt implements Prompt for a call that has acquired the session.
func (s *Session) prompt(ctx context.Context, ids []int32) (next int32, stopped bool, err error) {
	defer s.watch(ctx)()
	if err := s.makeRoom(ctx, 1+len(ids)); err != nil {
		return 0, false, err
	}
	if err := s.feed(ids); err != nil {
		return 0, false, err
	}
	start, total := s.n, len(ids)
	if s.pending {
		total++
	}
	s.prefill(start, total)
	res, err := s.submit()
	if err == nil && res.Count != 1 {
		err = cmp.Or(s.interrupted(ctx), errCut)
	}
	if err == nil {
		err = s.readChosen(start+total, 1)
	}
	if err != nil {
		s.lost()
		return 0, false, err
	}
	s.setLen(start + total)
	s.pending, s.row = true, 0
	s.count(func(st *Stats) { st.Prefilled += total })
	return s.ids[0], res.Stopped, nil
}

// prefill fills the submission with total positions from start on, in chunks, and the head
// of the last chunk. A single position is decoded instead, which takes less time.
func (s *Session) prefill(start, total int) {
	s.clear()
	s.reach(start)
	if total == 1 {
		decode, _ := s.choosers()
		s.add(decode, 1, start, 1, 0)
		s.wrote(start + 1)
		return
	}
	for at, rows := start, 0; at < start+total; at += rows {
		rows = s.m.chunk(at, start+total-at)
		s.add(s.m.prefill(rows), 1, at, rows, 0)
		if at+rows == start+total {
			s.addHead(at, rows)
		}
	}
	s.wrote(start + total)
}

// errCut is returned if the head has not run although nothing interrupted it.
var errCut = errors.New("replay: the prompt was cut short")

// wrote records that positions before end may have been written.
func (s *Session) wrote(end int) { s.high = max(s.high, end) }

// keeps reports whether the caches still hold the rows that positions from n on need. A
// rotating cache loses rows when later positions overwrite them.
func (s *Session) keeps(n int) bool {
	return n == 0 || s.dropped || s.high <= s.m.kvRows || s.high-n <= s.m.kvSlack
}

// lost empties the context if positions written past its end have overwritten rows that it
// needs.
func (s *Session) lost() {
	if !s.keeps(s.n) {
		s.empty()
	}
}

// clear empties the submission.
func (s *Session) clear() { s.sub.Runs, s.again = s.sub.Runs[:0], 0 }

// add appends a run that starts at a position.
func (s *Session) add(program, count, pos, rows, row int) {
	s.sub.Runs = append(s.sub.Runs, Run{
		Program: uint32(program), Count: uint32(count),
		Step: table.Step{
			Position: uint32(pos), KVRow: uint32(pos), KVLen: uint32(pos + 1), TokenIndex: uint32(pos),
			Row: uint32(row), Rows: uint32(rows),
		},
	})
}

// addHead appends the head of a chunk, which chooses the token after its last row.
func (s *Session) addHead(pos, rows int) {
	_, head := s.choosers()
	s.add(head, 1, pos+rows-1, 1, rows-1)
}

// feed checks ids and writes them to the token ring after the context.
func (s *Session) feed(ids []int32) error {
	at := s.n
	s.states.Cut(s.n)
	if s.pending {
		at++
	}
	if err := s.check(ids, at); err != nil {
		return err
	}
	for i, id := range ids {
		binary.LittleEndian.PutUint32(s.bytes[4*i:], uint32(id))
	}
	if err := s.m.dev.Write(s.id, s.m.tokens, uint64(at)*4, s.bytes[:4*len(ids)]); err != nil {
		return s.closedOr(err)
	}
	s.speculation.remember(at, s.bytes[:4*len(ids)])
	return nil
}

// check returns an error if ids cannot be placed from position at on.
func (s *Session) check(ids []int32, at int) error {
	if len(ids) == 0 {
		return ErrEmptyPrompt
	}
	if len(ids) > s.Context()-at {
		return fmt.Errorf("%w: %d tokens and %d new ones exceed its %d positions", ErrContextFull, at, len(ids), s.Context())
	}
	vocab := int(s.m.t.Header.Vocab)
	for i, id := range ids {
		if id < 0 || int(id) >= vocab {
			return &TokenError{i, id, vocab}
		}
	}
	return nil
}

// readChosen reads n chosen tokens and their log-probabilities.
func (s *Session) readChosen(at, n int) error {
	if err := s.readTokens(at, n); err != nil {
		return err
	}
	return s.readRanks(at, n)
}

// readTokens reads n tokens of the ring, from entry at on, into s.ids.
func (s *Session) readTokens(at, n int) error {
	if err := s.m.dev.Read(s.id, s.m.tokens, uint64(at)*4, s.bytes[:4*n]); err != nil {
		return err
	}
	s.speculation.remember(at, s.bytes[:4*n])
	for i := range n {
		s.ids[i] = int32(binary.LittleEndian.Uint32(s.bytes[4*i:]))
	}
	return nil
}

// Chain decodes up to limit tokens in one submission and returns them. The slice is valid
// until the next call. Chain returns fewer tokens if it reaches the chain length, a
// rejected draft, the end of the context or a stop id, which is then the last token with
// stopped true, or if ctx ends. If the context is full and has a Rollover, Chain rolls it
// over first. With an error Chain also returns the tokens decoded before it.
//
// Chain allocates nothing if ctx cannot be cancelled.
func (s *Session) Chain(ctx context.Context, limit int) (tokens []int32, stopped bool, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, false, err
	}
	defer s.done()
	if !s.pending {
		return nil, false, ErrNothingPending
	}
	if s.par != nil {
		return s.chainParallel(ctx, limit)
	}
	defer s.watch(ctx)()
	if err := s.makeRoom(ctx, 1); err != nil {
		return nil, false, err
	}
	n, err := s.chainLength(limit)
	if err != nil {
		return nil, false, err
	}
	if s.speculation.on {
		return s.speculate(ctx, n)
	}
	return s.chain(ctx, n)
}

// chain implements Chain for a call that has acquired the session; the context has room for
// n tokens.
func (s *Session) chain(ctx context.Context, n int) (tokens []int32, stopped bool, err error) {
	s.states.Cut(s.n)
	s.clear()
	s.reach(s.n)
	chain, _ := s.choosers()
	s.add(chain, n, s.n, 1, 0)
	res, err := s.submit()
	if err != nil {
		s.wrote(s.n + n)
		s.lost()
		return nil, false, err
	}
	s.wrote(s.n + min(n, res.Count+1)) // an interrupted token may have written its row
	if err := s.readChosen(s.n+1, res.Count); err != nil {
		s.lost()
		return nil, false, s.closedOr(err)
	}
	s.setLen(s.n + res.Count)
	s.row = 0
	if res.Count > 0 && s.again == 0 {
		s.perToken = res.Elapsed / time.Duration(res.Count)
	}
	if res.Count < n && !res.Stopped {
		err = s.interrupted(ctx)
	}
	return s.ids[:res.Count], res.Stopped, err
}

// chainLength returns the largest number of tokens of the next chain.
func (s *Session) chainLength(limit int) (int, error) {
	room := s.Context() - s.n
	if room <= 0 {
		return 0, fmt.Errorf("%w: all %d positions are taken", ErrContextFull, s.Context())
	}
	n := s.o.Chain
	switch {
	case n > 0:
	case s.perToken == 0:
		n = 1 // measures the time of one token
	default:
		n = max(1, int(s.o.ChainTime/s.perToken))
	}
	if s.rotates() {
		n = min(n, s.m.kvSlack) // so that Rewind can take back a whole chain
	}
	if s.ranked > 0 {
		n = min(n, sampler.RankEntries)
	}
	return max(1, min(n, limit, room)), nil
}

// Rewind removes the positions from n on from the context; the token at n becomes the
// pending one. With a rotating cache it can go back at most one chunk of the table from the
// last position that was written.
func (s *Session) Rewind(n int) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.done()
	if n < 0 || n > s.n || n == s.n && !s.pending {
		return fmt.Errorf("replay: cannot rewind to position %d of %d", n, s.n)
	}
	if s.par != nil {
		s.settle()
		return s.rewindParallel(n)
	}
	if !s.keeps(n) {
		return fmt.Errorf("replay: cannot rewind to position %d: %d are written and the cache keeps %d", n, s.high, s.m.kvSlack)
	}
	s.setLen(n)
	s.pending = true
	return nil
}

// rotates reports whether some layer's cache is shorter than the context.
func (s *Session) rotates() bool { return s.m.kvRows < s.Context() }

// SetNext replaces the pending token, for callers that choose tokens themselves from
// Logits.
func (s *Session) SetNext(id int32) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.done()
	if !s.pending {
		return ErrNothingPending
	}
	if vocab := int(s.m.t.Header.Vocab); id < 0 || int(id) >= vocab {
		return &TokenError{0, id, vocab}
	}
	if s.par != nil {
		s.settle()
		return s.setNextParallel(id)
	}
	binary.LittleEndian.PutUint32(s.bytes, uint32(id))
	if err := s.m.dev.Write(s.id, s.m.tokens, uint64(s.n)*4, s.bytes[:4]); err != nil {
		return err
	}
	s.speculation.remember(s.n, s.bytes[:4])
	return nil
}

// Logits copies the logits from which the pending token was chosen to dst, [vocab].
func (s *Session) Logits(dst []float32) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.done()
	if !s.pending {
		return ErrNothingPending
	}
	if want := int(s.m.t.Header.Vocab); len(dst) != want {
		return fmt.Errorf("replay: %d logits for a vocabulary of %d tokens", len(dst), want)
	}
	if s.par != nil {
		return s.logitsParallel(dst)
	}
	return s.readSlot(s.m.logits, s.row, dst, make([]byte, 4*len(dst)))
}

// IsStop reports whether id is a stop id of the session.
func (s *Session) IsStop(id int32) bool { return slices.Contains(s.o.StopIDs, id) }

// writeStops sets the stop ids of the following submissions.
func (s *Session) writeStops(ids []int32) error {
	return s.m.dev.Write(s.id, s.m.stops, 0, encodeStops(ids))
}
