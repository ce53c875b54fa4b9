// Package schedule decides what a model that serves many sequences computes next.
//
// A Scheduler knows all requests: those that wait for admission and those that run, which have a
// sequence number on the device. Next plans one submission: the rows that decode and for how many
// tokens, and the chunks of prompts. The caller executes it and calls Done with the tokens, or Fail.
// The package decides only: it starts no goroutine, reads no clock and knows no device. Its types
// are not safe for concurrent use.
//
// # Order
//
// Requests are ordered by rank. Of two requests with the same priority the earlier one ranks first,
// and one level of priority is worth Config.Age of waiting: the rank is the arrival minus the
// priority times Age. A request keeps its rank until it ends.
//
// # What is promised
//
// The predicted time of a submission is at most the smallest bound of all requests that run or wait, or four
// times that while none of them decodes, with two exceptions, the minimum units: one token of all rows that
// decode, or one chunk of LeastChunk rows, may take longer, and are then a submission of their own.
//
// Rows that decode come first in a submission. Chunks of prompts are computed behind them, or in one pass
// with them, in which each row chooses one token. Prompts get what is left of the token budget and of the
// bound, and while rows decode no more time than Config.Share allows, or than the smallest pass takes that
// computes nearly as many rows a second as any within the bound. If a submission had no room for
// any prompt, the next one is for prompts alone; so is every second one while prompts are behind and would have
// much less time beside the rows, or less time while a first token is late. So a row that decodes waits for
// at most one submission of prompts between two of its tokens, and a prompt for at most one submission
// without prompts.
//
// A row of a request with Speculate may verify a draft: it is then several rows of a joint pass, one for each
// token of the draft, and chooses as many tokens as the draft is right, and one more. Drafts are used where
// they are predicted to choose more tokens a second, as many of them being right as those before let expect.
//
// Nothing starves. Requests are admitted in the order of their ranks, and a later one never passes an
// earlier one that lacks pages or a sequence number; only a request that waits for another one to
// compute the beginning of its prompt lets others pass. When pages run out, the last in rank is set
// back, which is the youngest of the lowest priority unless that has waited longer by Age for each level.
// The first in rank is never set back. So a request is delayed only by the work of requests that rank before
// it, which arrived at most Age times the difference in priority after it, and of those that run when it arrives.
// The time until its first token is at most the time that this work takes alone, with chunks of LeastChunk
// rows, plus what set back requests prefill again.
package schedule

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pianola-engine/pianola/internal/pages"
	"github.com/pianola-engine/pianola/internal/speculate"
)

// LeastChunk is the smallest number of rows of a chunk that is not the end of a prompt.
const LeastChunk = 16

// Errors of requests that are not served.
var (
	// ErrDeadline ends a request whose first token cannot come before its deadline.
	ErrDeadline = errors.New("schedule: the deadline cannot be met")
	// ErrPages ends a request whose context does not fit in the pages of the model, even alone.
	ErrPages = errors.New("schedule: the context needs more pages than the model has")
)

// OverloadError refuses a request because too many others wait.
type OverloadError struct {
	Waiting, Limit int
	Wait           time.Duration // predicted time until those that wait have been prefilled
}

// Error implements error.
func (e *OverloadError) Error() string {
	return fmt.Sprintf("schedule: %d requests wait, which is the limit", e.Waiting)
}

// Cost predicts the time of the parts of a submission.
type Cost interface {
	// Decode returns the time of one token for each of several rows, whose contexts have depth
	// positions on average.
	Decode(rows, depth int) time.Duration
	// Prefill returns the time of a chunk of a prompt with the given rows, from a position on.
	Prefill(position, rows int) time.Duration
	// Joint returns the time of one pass of rows that decode and rows of prompts. heads of the rows
	// choose a token; depth is the number of positions that the rows see on average.
	Joint(rows, heads, depth int) time.Duration
}

// Config are the settings of a scheduler.
type Config struct {
	Cost      Cost
	Store     *pages.Store
	Copies    Copies // of pages that the store has no room for; may be nil
	Sequences int    // sequence numbers of the device, at most the rows of its largest batch program
	Context   int    // largest number of positions of a sequence
	Chunk     int    // largest number of rows of a chunk
	Joint     int    // largest number of rows of a pass for rows that decode and prompts; 0 if the device has none
	// Passes are the numbers of rows that the device has programs of joint passes for, in ascending order; the last
	// is Joint. A pass takes about as long as one with all rows of its program. None means that it depends on the rows.
	Passes []int
	Heads  int // largest number of rows of such a pass that choose a token, at least Sequences; 0 means Sequences
	// Budget is the largest number of tokens of a submission, not counting those of a chain after
	// its first; 0 means Sequences + Chunk.
	Budget int
	// Chain is the largest number of tokens of a row in a submission; 0 means that bounds decide.
	Chain int
	// Queue is the largest number of requests that wait because no sequence number is free.
	Queue int
	// Age is the time of waiting that a level of priority is worth; 0 means DefaultAge.
	Age time.Duration
	// Share bounds the predicted time of the prompts in a submission with decoding rows, as a
	// multiple of the time of the rows; 0 means 1. A joint pass may take longer if it computes many rows
	// a second.
	Share float64
}

// DefaultAge is the time of waiting that a level of priority is worth if Config.Age is 0.
const DefaultAge = time.Second

// Caching selects what a request does with the prefix tree.
type Caching int

// A request shares what other requests have computed and lets them share what it computes, keeps
// apart from them, or shares and pins its prompt.
const (
	Shared Caching = iota
	Private
	Pinned
)

// Request is a context that is to be computed and continued. The caller sets the fields of the first
// group and leaves the rest to the scheduler.
type Request struct {
	ID       uint64
	Tokens   []int32         // the context; tokens that are chosen are appended
	Sequence *pages.Sequence // has the pages of a beginning of Tokens
	Space    string          // namespace of the prefix tree
	Caching  Caching
	Most     int           // number of tokens to choose, at least 1
	Bound    time.Duration // bound of the time of submissions
	Priority int           // larger ones rank first
	// Speculate says that drafts may be verified. The tokens do not change.
	Speculate bool
	Reads     *Reads        // not nil: values of positions are read and no token is chosen; Most is then 0
	Resumed   bool          // the request continues an earlier one: it is not refused because many wait
	Arrival   time.Duration // times are since any fixed moment
	Deadline  time.Duration // of the first token; 0 means none

	Number   int             // sequence number on the device while the request runs, otherwise -1
	Chosen   int             // tokens chosen so far
	Admitted time.Duration   // time of the first admission
	Hit      int             // tokens of the prompt whose pages were there at the first admission
	Filled   int             // positions that were prefilled, those after setting back included
	Restored int             // positions whose pages were read back from copies
	SetBacks int             // number of times that the request was set back
	Drafted  int             // tokens of drafts that were verified
	Accepted int             // tokens of them that were right
	Trust    speculate.Trust // in the next draft
	Pin      *pages.Pin      // with Pinned, once the prompt has been prefilled

	state   state
	rank    time.Duration
	prompt  int // tokens of the prompt
	matched uint64
	waits   *pages.Sequence // computes the beginning of the prompt

	restoring *restoring // not nil: the request waits for pages that are read back
}

// Reads selects the positions of a request whose values are read. The request must compute them itself.
type Reads struct {
	From int // first position; the scheduler sets it to the first one that has not been computed yet
	Most int // largest number of such positions in a chunk
}

// shared returns the number of tokens whose pages may come from other requests.
func (r *Request) shared() int {
	if r.Reads != nil {
		return r.Reads.From
	}
	return len(r.Tokens) - 1
}

// decodes reports whether the request is a row that decodes: only its last token is to be computed.
func (r *Request) decodes() bool { return r.Reads == nil && r.left() == 1 }

type state int

const (
	absent state = iota
	waiting
	running
)

// Running reports whether the request has a sequence number.
func (r *Request) Running() bool { return r.state == running }

// left returns the number of positions that must be computed before the next token is chosen. A
// request with one such position decodes.
func (r *Request) left() int { return len(r.Tokens) - r.Sequence.Len() }

// before compares ranks.
func before(a, b *Request) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.ID, b.ID))
}

// end returns the number of positions after the last token of the request.
func (r *Request) end() int { return r.prompt + max(0, r.Most-1) }

// valid reports whether the request asks for tokens or reads positions that it has.
func (r *Request) valid() bool {
	if d := r.Reads; d != nil {
		return r.Most == 0 && d.Most > 0 && d.From >= r.Sequence.Len() && d.From < len(r.Tokens)
	}
	return r.Most > 0
}

// Scheduler plans the submissions of a model.
type Scheduler struct {
	c       Config
	waiting []*Request // in the order of ranks
	running []*Request // in the order of ranks
	numbers []int      // that are free
	idle    []*pages.Sequence
	owed    bool          // the last submission had no room for prompts
	left    bool          // the last submission had no rows although some decode
	idled   time.Duration // about how long the device is idle between submissions; 0 if that is unknown
	hits    Hits
	doubts  int  // steps that were not joint because of a doubtful prediction
	joined  bool // see Join
}

// Hits are counts of the requests that were admitted and did not ask for Private, and of the drafts of all.
type Hits struct {
	Requests, Tokens int // requests, and tokens of their contexts
	Found            int // requests of whose context a beginning was there when they were admitted
	FoundTokens      int // tokens of these beginnings
	RestoredTokens   int // tokens whose pages were read back from copies
	Drafted          int // tokens of drafts that were verified
	Accepted         int // tokens of them that were right
}

// count counts a request that has just been admitted.
func (h *Hits) count(r *Request) {
	if r.Caching == Private {
		return
	}
	h.Requests++
	h.Tokens += len(r.Tokens)
	if r.Hit > 0 {
		h.Found++
		h.FoundTokens += r.Hit
	}
}

// Hits returns the counts so far.
func (s *Scheduler) Hits() Hits { return s.hits }

// New returns a scheduler without requests.
func New(c Config) (*Scheduler, error) {
	if c.Store == nil || c.Cost == nil || c.Sequences < 1 || c.Context < 1 || c.Chunk < 1 || c.Joint < 0 || c.Heads < 0 || c.Budget < 0 || c.Chain < 0 || c.Queue < 0 || c.Age < 0 || c.Share < 0 ||
		!slices.IsSorted(c.Passes) || len(c.Passes) > 0 && c.Passes[len(c.Passes)-1] != c.Joint {
		return nil, fmt.Errorf("schedule: invalid configuration: %d sequences, context %d, chunk %d, joint %d, passes %d, heads %d, budget %d, chain %d, queue %d, age %v, share %v",
			c.Sequences, c.Context, c.Chunk, c.Joint, c.Passes, c.Heads, c.Budget, c.Chain, c.Queue, c.Age, c.Share)
	}
	c.Budget = cmp.Or(c.Budget, c.Sequences+c.Chunk)
	c.Heads = cmp.Or(c.Heads, c.Sequences)
	c.Age = cmp.Or(c.Age, DefaultAge)
	c.Share = cmp.Or(c.Share, 1)
	s := &Scheduler{c: c}
	for i := c.Sequences - 1; i >= 0; i-- {
		s.numbers = append(s.numbers, i)
	}
	return s, nil
}

// Load is the number of requests that run and that wait.
type Load struct{ Running, Waiting int }

// Load returns the number of requests.
func (s *Scheduler) Load() Load { return Load{len(s.running), len(s.waiting)} }

// Join makes every step with rows of prompts a joint pass of as many rows as it may have, whatever time is
// predicted, where the device has such passes, or returns to the choice by time. What the package promises about
// bounds does not hold meanwhile. It is for profiles of these passes, which must not depend on measured times.
func (s *Scheduler) Join(on bool) { s.joined = on }

// Running returns the requests that run, in the order of ranks. The list is valid until the next call.
func (s *Scheduler) Running() []*Request { return s.running }

// Add adds a request. The error is an *OverloadError, ErrPages or ErrDeadline, or says that the
// request is invalid; the request is then not added.
func (s *Scheduler) Add(r *Request) error {
	if n := len(r.Tokens); r.state != absent || r.Sequence == nil || n < 1 || n > s.c.Context || r.Sequence.Len() >= n || !r.valid() || r.Bound <= 0 {
		return fmt.Errorf("schedule: invalid request %d: %d tokens in a context of %d, %d to choose, bound %v", r.ID, n, s.c.Context, r.Most, r.Bound)
	}
	if len(s.waiting) >= s.c.Queue+len(s.numbers) && !r.Resumed {
		return &OverloadError{len(s.waiting), s.c.Queue, s.backlog()}
	}
	for kind := range s.c.Store.Kinds() {
		if u := s.c.Store.Usage(kind); s.wants(kind, len(r.Tokens)) > u.Pages {
			return fmt.Errorf("%w: %d tokens", ErrPages, len(r.Tokens))
		}
	}
	r.Number, r.state, r.prompt, r.matched = -1, waiting, len(r.Tokens), 0
	r.rank = r.Arrival - time.Duration(r.Priority)*s.c.Age
	r.Most = min(r.Most, s.c.Context+1-len(r.Tokens))
	s.wake(r.Sequence)
	s.rest(r.Sequence)
	s.enqueue(r)
	return nil
}

// wants returns the number of pages of a kind that n positions need at most at a time.
func (s *Scheduler) wants(kind, n int) int {
	all := (n + pages.Size - 1) / pages.Size
	k := s.c.Store.Kind(kind)
	if k.Window == 0 {
		return all
	}
	return min(all, (k.Sinks+k.Window+s.c.Chunk)/pages.Size+3)
}

// backlog returns the predicted time of the prompts that wait.
func (s *Scheduler) backlog() (d time.Duration) {
	for _, r := range s.waiting {
		d += s.prefill(r.Sequence.Len(), r.left())
	}
	return d
}

// prefill returns the predicted time of a range of positions in the largest chunks.
func (s *Scheduler) prefill(at, n int) (d time.Duration) {
	for n > 0 {
		rows := min(n, s.c.Chunk)
		d += s.c.Cost.Prefill(at, rows)
		at, n = at+rows, n-rows
	}
	return d
}

func (s *Scheduler) enqueue(r *Request) {
	i, _ := slices.BinarySearchFunc(s.waiting, r, before)
	s.waiting = slices.Insert(s.waiting, i, r)
}

func remove(list []*Request, r *Request) []*Request {
	return slices.DeleteFunc(list, func(o *Request) bool { return o == r })
}

// Cancel removes a request. Its tokens and pages stay as they were after the last submission; the
// sequence becomes idle.
func (s *Scheduler) Cancel(r *Request) {
	switch r.state {
	case running:
		s.leave(r)
		s.rest(r.Sequence)
	case waiting:
		s.waiting = remove(s.waiting, r)
	}
	r.state = absent
}

// leave takes the sequence number from a request.
func (s *Scheduler) leave(r *Request) {
	s.running = remove(s.running, r)
	s.numbers = append(s.numbers, r.Number)
	r.Number = -1
	r.stopRestoring()
	r.Sequence.Abandon()
	r.Sequence.Truncate(r.Sequence.Len())
}

// rest makes a sequence idle: its pages are released when others need them.
func (s *Scheduler) rest(q *pages.Sequence) {
	if q.Len() > 0 && !slices.Contains(s.idle, q) {
		s.idle = append(s.idle, q)
	}
}

// wake makes a sequence not idle and reports whether it was.
func (s *Scheduler) wake(q *pages.Sequence) bool {
	n := len(s.idle)
	s.idle = slices.DeleteFunc(s.idle, func(o *pages.Sequence) bool { return o == q })
	return len(s.idle) < n
}

// Rest makes a sequence idle that belongs to no request, such as a fork.
func (s *Scheduler) Rest(q *pages.Sequence) { s.rest(q) }

// Drop releases the pages of a sequence that belongs to no request.
func (s *Scheduler) Drop(q *pages.Sequence) {
	s.wake(q)
	q.Release()
}

// reclaim releases the pages of the sequence that has been idle longest, and reports whether there
// was one.
func (s *Scheduler) reclaim() bool {
	if len(s.idle) == 0 {
		return false
	}
	q := s.idle[0]
	s.idle = slices.Delete(s.idle, 0, 1)
	q.Release()
	return true
}

// setBack makes a running request wait again. Its pages stay in the prefix tree only as long as
// nobody needs them.
func (s *Scheduler) setBack(r *Request, step *Step) {
	s.publish(r, true)
	s.leave(r)
	r.Sequence.Release()
	r.state, r.matched = waiting, 0
	r.SetBacks++
	s.enqueue(r)
	step.SetBack = append(step.SetBack, r)
}

// publish enters what a request has computed in the prefix tree.
func (s *Scheduler) publish(r *Request, last bool) {
	if r.Caching != Private {
		r.Sequence.Publish(r.Space, r.Tokens, last)
	}
}
