package schedule

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/pages"
)

// linear is a Cost in which each part has a constant and a time for each row.
type linear struct {
	step, row   time.Duration // of decoding
	chunk, each time.Duration // of prefilling
}

func (c linear) Decode(rows, depth int) time.Duration {
	return c.step + time.Duration(rows)*(c.row+time.Duration(depth)*c.row/1000)
}

func (c linear) Prefill(position, rows int) time.Duration {
	return c.chunk + time.Duration(rows)*(c.each+time.Duration(position)*c.each/1000)
}

func (c linear) Joint(rows, heads, depth int) time.Duration {
	return c.step + time.Duration(heads)*c.row + time.Duration(rows-heads)*c.each + time.Duration(rows*depth)*c.row/1000
}

// sim runs a scheduler under a simulated clock.
type sim struct {
	*Scheduler
	store    *pages.Store
	now      time.Duration
	timeline strings.Builder
	next     uint64
	live     []*Request
	token    func(at int) int32    // that a row chooses
	stop     func(r *Request) bool // whether the token just chosen ends a request

	first   map[*Request]time.Duration // time of the first token
	ended   map[*Request]error
	repeats time.Duration // time of prefilling again what was set back
	high    map[*Request]int
	missed  map[*Request]int // submissions without a row that decodes
	passes  int              // joint passes with rows that decode
}

func newSim(t testing.TB, c Config, kinds ...pages.Kind) *sim {
	t.Helper()
	store, err := pages.New(kinds)
	if err != nil {
		t.Fatal(err)
	}
	c.Store = store
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return &sim{
		Scheduler: s, store: store, first: map[*Request]time.Duration{}, ended: map[*Request]error{}, high: map[*Request]int{}, missed: map[*Request]int{},
		stop: func(*Request) bool { return false }, token: func(int) int32 { return 1 },
	}
}

// add adds a request with a prompt of n tokens that differ from those of other prompts, and returns
// it.
func (s *sim) add(n, most int, change func(*Request)) (*Request, error) {
	s.next++
	r := &Request{ID: s.next, Most: most, Bound: 50 * time.Millisecond, Arrival: s.now, Sequence: s.store.NewSequence()}
	for i := range n {
		r.Tokens = append(r.Tokens, int32(s.next)<<16|int32(i))
	}
	if change != nil {
		change(r)
	}
	if err := s.Add(r); err != nil {
		fmt.Fprintf(&s.timeline, "%8.1f  refuse %d: %v\n", milliseconds(s.now), r.ID, err)
		return r, err
	}
	s.live = append(s.live, r)
	return r, nil
}

// end records that a request has ended.
func (s *sim) end(r *Request, err error) {
	s.ended[r] = err
	s.live = remove(s.live, r)
	s.Drop(r.Sequence)
	if r.Pin != nil {
		r.Pin.Release()
	}
}

// step makes one submission and reports whether there was anything to do.
func (s *sim) step() (*Step, error) {
	step := s.Next(s.now)
	s.timeline.WriteString(step.Timeline(s.now))
	s.store.TakeCopies()
	for _, r := range step.Refused {
		s.end(r.Request, r.Err)
	}
	if step.Empty() {
		return step, nil
	}
	if err := s.checkStep(step); err != nil {
		return step, err
	}
	var outcomes []Outcome
	for _, row := range step.Decode {
		var o Outcome
		for len(o.Tokens) < row.Tokens && !o.Stopped {
			if n := len(o.Tokens); n > 0 && len(row.Draft) > 0 && row.Draft[n-1] != o.Tokens[n-1] {
				break
			}
			o.Tokens = append(o.Tokens, s.token(len(row.Request.Tokens)+len(o.Tokens)))
			o.Stopped = s.stop(row.Request)
		}
		outcomes = append(outcomes, o)
	}
	for _, c := range step.Chunks {
		var o Outcome
		if c.Last {
			o.Tokens = []int32{1}
			o.Stopped = s.stop(c.Request)
		}
		outcomes = append(outcomes, o)
		if again := min(s.high[c.Request], c.At+c.Rows) - c.At; again > 0 {
			s.repeats += s.c.Cost.Prefill(c.At, c.Rows)
		}
		s.high[c.Request] = max(s.high[c.Request], c.At+c.Rows)
	}
	s.now += step.Predicted
	ended, err := s.Done(step, outcomes)
	for _, r := range step.Requests() {
		if r.Chosen > 0 && s.first[r] == 0 {
			s.first[r] = s.now
		}
		s.high[r] = max(s.high[r], r.Sequence.Len())
	}
	for _, r := range ended {
		s.end(r, nil)
	}
	return step, err
}

// drain steps until nothing is left.
func (s *sim) drain(t testing.TB) {
	t.Helper()
	for len(s.live) > 0 {
		step, err := s.step()
		if err != nil {
			t.Fatal(err)
		}
		if step.Empty() && len(step.Refused)+len(step.SetBack)+len(step.Admitted) == 0 {
			t.Fatalf("nothing to do for %d requests:\n%s", len(s.live), s.timeline.String())
		}
	}
}

// leaks returns an error if pages, numbers or requests are left.
func (s *sim) leaks() error {
	s.store.TakeCopies()
	s.store.Clear()
	for kind := range s.store.Kinds() {
		if u := s.store.Usage(kind); u.Free != u.Pages {
			return fmt.Errorf("%s: %d of %d pages are free", s.store.Kind(kind).Name, u.Free, u.Pages)
		}
	}
	if s.Load() != (Load{}) || len(s.numbers) != s.c.Sequences || len(s.idle) > 0 {
		return fmt.Errorf("%+v, %d numbers, %d idle sequences", s.Load(), len(s.numbers), len(s.idle))
	}
	numbers := slices.Sorted(slices.Values(s.numbers))
	if len(slices.Compact(numbers)) != s.c.Sequences {
		return fmt.Errorf("numbers %v", numbers)
	}
	return nil
}

// checkStep returns an error if a step breaks a promise of the package.
func (s *sim) checkStep(step *Step) error {
	tokens := 0
	served := map[*Request]bool{}
	heads := 0
	for _, r := range step.Decode {
		tokens += 1 + len(r.Draft)
		heads += 1 + len(r.Draft)
		served[r.Request] = true
		if r.Tokens < 1 || len(r.Draft) == 0 && r.Tokens > step.Chain || len(r.Draft) > 0 && (r.Tokens != 1+len(r.Draft) || !step.Joint || !r.Request.Speculate) || !r.Request.Running() {
			return fmt.Errorf("row of %d with %d tokens of %d", r.Request.ID, r.Tokens, step.Chain)
		}
	}
	for _, c := range step.Chunks {
		tokens += c.Rows
		if c.Last {
			heads++
		}
		if c.Rows < 1 || c.Rows > s.c.Chunk || c.Rows < LeastChunk && !c.Last {
			return fmt.Errorf("chunk of %d rows", c.Rows)
		}
	}
	for _, r := range step.Decode {
		if step.Bound > r.Request.Bound {
			return fmt.Errorf("the bound is %v, that of %d, which decodes, is %v", step.Bound, r.Request.ID, r.Request.Bound)
		}
	}
	for _, c := range step.Chunks {
		if step.Bound > quietBounds*c.Request.Bound {
			return fmt.Errorf("the bound is %v, that of %d is %v", step.Bound, c.Request.ID, c.Request.Bound)
		}
	}
	alone := len(step.Chunks) == 0 && step.Chain == 1 || len(step.Decode) == 0 && len(step.Chunks) == 1 && step.Chunks[0].Rows <= LeastChunk
	longer := step.Predicted > step.Bound && !step.Again && !s.joined
	if longer && !alone {
		return fmt.Errorf("predicted %v, more than %v", step.Predicted, step.Bound)
	}
	if step.Joint {
		if tokens > s.c.Joint || heads > s.c.Heads || step.Chain > 1 || len(step.Chunks) == 0 && heads == len(step.Decode) || longer {
			return fmt.Errorf("a joint pass of %d rows, %d chunks and chains of %d takes %v, the bound is %v", tokens, len(step.Chunks), step.Chain, step.Predicted, step.Bound)
		}
		if len(step.Decode) > 0 {
			s.passes++
		}
	}
	if tokens > s.c.Budget && len(step.Chunks) != 1 {
		return fmt.Errorf("%d tokens, more than %d", tokens, s.c.Budget)
	}
	for _, r := range step.Admitted {
		s.missed[r] = 0
	}
	for _, r := range s.running {
		if r.left() > 1 || served[r] {
			s.missed[r] = 0
		} else if s.missed[r]++; s.missed[r] > 1 {
			return fmt.Errorf("request %d decodes and was left out twice", r.ID)
		}
	}
	seen := map[int]bool{}
	for _, r := range step.Requests() {
		if r.Number < 0 || r.Number >= s.c.Sequences || seen[r.Number] {
			return fmt.Errorf("request %d has the number %d", r.ID, r.Number)
		}
		seen[r.Number] = true
	}
	return nil
}

// TestRandom runs random loads: arrivals, lengths, bounds, priorities, deadlines, common prefixes,
// cancellations, forks and failing submissions, with few pages. Every step must keep the promises of the
// package, every request must end, and no page may be left.
func TestRandom(t *testing.T) {
	var setBacks, hits, refused, served, passes, accepted int
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 9))
		kinds := []pages.Kind{{Name: "full", Pages: 30 + r.IntN(100)}}
		if seed%3 == 0 {
			kinds = append(kinds, pages.Kind{Name: "window", Pages: 16 + r.IntN(60), Window: 130, Sinks: 4})
		}
		c := Config{
			Cost:      linear{time.Duration(r.IntN(8000)) * time.Microsecond, 100 * time.Microsecond, time.Millisecond, time.Duration(20+r.IntN(400)) * time.Microsecond},
			Sequences: 1 + r.IntN(16), Context: 1000, Chunk: 256, Queue: 40,
		}
		if seed%2 == 0 {
			c.Joint, c.Heads = 32+r.IntN(300), c.Sequences+r.IntN(40)
		}
		s := newSim(t, c, kinds...)
		s.stop = func(*Request) bool { return r.IntN(60) == 0 }
		s.token = func(at int) int32 { return int32(at % 7 * (1 + r.IntN(20)/19)) } // a period of 7, with faults
		if err := randomLoad(s, r, 1500); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, tail(s.timeline.String()))
		}
		s.drain(t)
		if err := s.leaks(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		hits += s.Hits().FoundTokens
		passes += s.passes
		for r, err := range s.ended {
			setBacks += r.SetBacks
			accepted += r.Accepted
			if err != nil {
				refused++
			} else {
				served++
			}
		}
	}
	t.Logf("%d requests served, %d refused, set back %d times, %d tokens found, %d joint passes with rows, %d tokens of drafts accepted", served, refused, setBacks, hits, passes, accepted)
	if accepted < 1000 || passes < 100 || setBacks < 100 || hits < 1000 || refused < 10 || served < 1000 {
		t.Error("the load did not reach everything")
	}
}

// tail returns the last lines of a timeline.
func tail(s string) string {
	lines := strings.Split(s, "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}

// randomLoad makes random events between steps.
func randomLoad(s *sim, r *rand.Rand, events int) error {
	for range events {
		switch e := r.IntN(10); {
		case e < 4 && len(s.live) < 30:
			_, err := s.add(1+r.IntN(400), 1+r.IntN(200), func(q *Request) { randomRequest(s, r, q) })
			var over *OverloadError
			if err != nil && !errors.Is(err, ErrPages) && !errors.As(err, &over) {
				return err
			}
		case e == 4 && len(s.live) > 0 && r.IntN(4) == 0:
			q := s.live[r.IntN(len(s.live))]
			s.Cancel(q)
			s.end(q, errors.New("cancelled"))
		case e == 5 && len(s.live) > 0 && r.IntN(3) == 0: // a fork, which shares pages and is continued or rests
			q := s.live[r.IntN(len(s.live))]
			f := &Request{ID: s.next + 1, Most: 20, Bound: 30 * time.Millisecond, Arrival: s.now, Sequence: q.Sequence.Fork(), Tokens: slices.Clone(q.Tokens)}
			s.next++
			if err := s.Add(f); err != nil {
				f.Sequence.Release()
				continue
			}
			s.live = append(s.live, f)
		case e == 6 && r.IntN(20) == 0:
			step := s.Next(s.now)
			s.store.TakeCopies()
			for _, x := range step.Refused {
				s.end(x.Request, x.Err)
			}
			for _, x := range s.Fail(step) {
				s.end(x, errors.New("failed"))
			}
		default:
			step, err := s.step()
			if err != nil {
				return err
			}
			if step.Empty() {
				s.now += time.Duration(r.IntN(10)) * time.Millisecond
			}
		}
	}
	return nil
}

// randomRequest changes a request.
func randomRequest(s *sim, r *rand.Rand, q *Request) {
	q.Bound = time.Duration(2+r.IntN(50)) * time.Millisecond
	q.Priority = r.IntN(3)
	q.Speculate = r.IntN(2) == 0
	q.Caching = Caching(r.IntN(3))
	if r.IntN(10) == 0 {
		q.Deadline = s.now + time.Duration(r.IntN(300))*time.Millisecond
	}
	if r.IntN(2) == 0 { // a common beginning
		for i := range min(len(q.Tokens), 20+r.IntN(300)) {
			q.Tokens[i] = int32(i)
		}
	}
}

// TestNothingStarves checks the bound of the time until the first token that the package states,
// under loads with priorities and set backs.
func TestNothingStarves(t *testing.T) {
	var closest float64
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 77))
		c := Config{
			Cost:      linear{time.Duration(1+r.IntN(5)) * time.Millisecond, 50 * time.Microsecond, time.Millisecond, 100 * time.Microsecond},
			Sequences: 2 + r.IntN(8), Context: 1000, Chunk: 256, Queue: 1000, Age: 100 * time.Millisecond,
		}
		if seed%2 == 0 {
			c.Joint = 256
		}
		s := newSim(t, c, pages.Kind{Name: "full", Pages: 40})
		type wait struct {
			r     *Request
			delay map[*Request]bool // requests that may delay it
		}
		var waits []*wait
		alone := func(q *Request) (d time.Duration) {
			for at := 0; at < q.prompt; at += LeastChunk {
				d += s.c.Cost.Prefill(at, min(LeastChunk, q.prompt-at))
			}
			return d + time.Duration(q.Most)*s.c.Cost.Decode(1, len(q.Tokens))
		}
		for range 800 {
			if r.IntN(4) == 0 {
				q, err := s.add(1+r.IntN(300), 1+r.IntN(100), func(q *Request) { q.Priority, q.Bound = r.IntN(3), 10*time.Millisecond })
				if err != nil {
					t.Fatal(err)
				}
				w := &wait{q, map[*Request]bool{q: true}}
				for _, o := range s.running {
					w.delay[o] = true
				}
				for _, o := range waits {
					if before(o.r, q) < 0 {
						w.delay[o.r] = true
					} else {
						o.delay[q] = true
					}
				}
				waits = append(waits, w)
			}
			if _, err := s.step(); err != nil {
				t.Fatal(err)
			}
		}
		s.drain(t)
		for _, w := range waits {
			bound := s.repeats + 2*10*time.Millisecond
			for o := range w.delay {
				bound += alone(o)
			}
			took := s.first[w.r] - w.r.Arrival
			closest = max(closest, float64(took)/float64(bound))
			if took > bound {
				t.Errorf("seed %d: request %d waited %v, the bound is %v", seed, w.r.ID, took, bound)
			}
		}
	}
	t.Logf("the longest wait was %.0f %% of its bound", 100*closest)
}

// TestPriorities checks that under a steady load of high priority a request of low priority is
// served once it has waited for Age for each level.
func TestPriorities(t *testing.T) {
	c := Config{Cost: linear{time.Millisecond, 0, time.Millisecond, 100 * time.Microsecond}, Sequences: 1, Context: 1000, Chunk: 256, Queue: 1000, Age: 100 * time.Millisecond}
	s := newSim(t, c, pages.Kind{Name: "full", Pages: 40})
	low, err := s.add(50, 10, func(r *Request) { r.Priority = -3 })
	if err != nil {
		t.Fatal(err)
	}
	for s.now < time.Second {
		if len(s.live) < 4 {
			if _, err := s.add(50, 10, nil); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.step(); err != nil {
			t.Fatal(err)
		}
	}
	if at := s.first[low]; at < 300*time.Millisecond || at > 400*time.Millisecond {
		t.Errorf("the first token of low priority came after %v, want 300 ms to 400 ms", at)
	}
}
