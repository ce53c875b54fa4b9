package e2e_test

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pianola-engine/pianola"
)

// generateIDs returns the tokens that a session generates after ids.
func generateIDs(t *testing.T, s *pianola.Session, ids []int32, o pianola.GenerateOptions) (tokens []int32, err error) {
	t.Helper()
	for token, err := range s.GenerateIDs(t.Context(), ids, o) {
		if err != nil {
			return tokens, err
		}
		tokens = append(tokens, token.ID)
	}
	return tokens, nil
}

// counting returns n token ids that begin with first.
func counting(first, n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(1 + (first+i)%400)
	}
	return ids
}

// TestDeadline checks that a request whose first token cannot come in time ends with ErrDeadline, and
// that a deadline that is met changes nothing.
func TestDeadline(t *testing.T) {
	table := pianola.TableOptions{Context: 512, Batching: true}
	alone := open(t, "testdata/tiny/llama", pianola.Options{Device: pianola.DeviceCPU, Threads: teamThreads, Table: table})
	m := open(t, "testdata/tiny/llama", pianola.Options{Device: pianola.DeviceCPU, Threads: teamThreads, Parallel: 2, Table: table})
	ids, o := counting(0, 300), pianola.GenerateOptions{MaxTokens: 10}
	want, err := generateIDs(t, newSession(t, alone, pianola.SessionOptions{}), ids, o)
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(t, m, pianola.SessionOptions{})
	o.Request.Within = time.Minute // before anything has been measured
	if got, err := generateIDs(t, s, ids, o); err != nil || !slices.Equal(got, want) {
		t.Errorf("within a minute: %v, %v, want %v", got, err, want)
	}
	o.Request.Within = 1
	before := s.Len()
	if got, err := generateIDs(t, s, counting(7, 100), o); !errors.Is(err, pianola.ErrDeadline) || len(got) > 0 || s.Len() != before {
		t.Errorf("within a nanosecond: %v, %v, %d positions after %d", got, err, s.Len(), before)
	}
	if _, err := generateIDs(t, newSession(t, alone, pianola.SessionOptions{}), ids, o); err == nil {
		t.Error("sessions that take turns accept a deadline")
	}
	for _, r := range []pianola.RequestOptions{{Within: -1}, {Prefix: "sometimes"}} {
		if err := s.SetRequest(r); err == nil {
			t.Errorf("%+v is accepted", r)
		}
	}
	if l := m.Load(); l.Running+l.Waiting > 0 {
		t.Errorf("%+v", l)
	}
}

// TestPrefix checks what requests share: everything by default, nothing with PrefixOff, and what was
// pinned even after others have used all pages.
func TestPrefix(t *testing.T) {
	m := open(t, "testdata/tiny/llama", pianola.Options{Device: pianola.DeviceCPU, Parallel: 2, Table: pianola.TableOptions{Context: 256, Pages: 8}})
	ids := counting(3, 150)
	reused := func(prefix pianola.PrefixCache) int {
		s := newSession(t, m, pianola.SessionOptions{})
		if _, err := generateIDs(t, s, ids, pianola.GenerateOptions{MaxTokens: 3, Request: pianola.RequestOptions{Prefix: prefix}}); err != nil {
			t.Fatal(err)
		}
		n := s.Counters().Reused
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		return n
	}
	churn := func() { // prompts that need all pages one after another
		for i := range 5 {
			s := newSession(t, m, pianola.SessionOptions{})
			if _, err := generateIDs(t, s, counting(20+10*i, 190), pianola.GenerateOptions{MaxTokens: 3}); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := reused(pianola.PrefixOff); n != 0 {
		t.Errorf("the first prompt found %d tokens", n)
	}
	if n := reused(pianola.PrefixOn); n != 0 {
		t.Errorf("a prompt found %d tokens of one that shares nothing", n)
	}
	if n := reused(""); n < 128 {
		t.Errorf("a prompt found %d tokens of an equal one", n)
	}
	if n := reused(pianola.PrefixOff); n != 0 {
		t.Errorf("a prompt that shares nothing found %d tokens", n)
	}
	churn()
	if n := reused(""); n != 0 {
		t.Errorf("a prompt found %d tokens after others have used all pages", n)
	}
	pin := newSession(t, m, pianola.SessionOptions{})
	for range 2 { // the second finds all its pages, and pins them too
		if _, err := generateIDs(t, pin, ids, pianola.GenerateOptions{Whole: true, MaxTokens: 3, Request: pianola.RequestOptions{Prefix: pianola.PrefixPinned}}); err != nil {
			t.Fatal(err)
		}
		churn()
		if n := reused(""); n < 128 {
			t.Errorf("a prompt found %d tokens of one that is pinned", n)
		}
	}
	if err := pin.Close(); err != nil {
		t.Fatal(err)
	}
	churn()
	if n := reused(""); n != 0 {
		t.Errorf("a prompt found %d tokens after the pin has been released", n)
	}
}

// TestRequestPriority checks that a request of higher priority goes before one that waits longer.
func TestRequestPriority(t *testing.T) {
	m := open(t, "testdata/tiny/llama", pianola.Options{Device: pianola.DeviceCPU, Parallel: 1, Table: pianola.TableOptions{Context: 4096, KVWindow: 64}})
	for range 20 { // the first request may end before the others wait, if this goroutine is late
		low, high, both := requestsInTurn(t, m)
		if !both {
			continue
		}
		// The request of low priority came first. If it was also served last, then it has waited longer than
		// the other by at least the time that the other took.
		if low.Queue < high.Queue+high.Device/2 {
			t.Errorf("the request of priority 0 waited %v; that of 900, which came later, waited %v and took %v", low.Queue, high.Queue, high.Device)
		}
		return
	}
	t.Error("two requests never waited at the same time")
}

// requestsInTurn runs a request of priority 1000 on a model for one sequence, and meanwhile asks for one of
// priority 0 and then for one of 900. It returns the figures of the last two, and whether they waited at the
// same time. They have long prompts and few tokens, so that none is paused because its caller is late.
func requestsInTurn(t *testing.T, m *pianola.Model) (low, high pianola.GenerateStats, both bool) {
	t.Helper()
	var all sync.WaitGroup
	var ended atomic.Int32
	start := func(priority int, st *pianola.GenerateStats) {
		s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true})
		all.Go(func() {
			for _, err := range s.GenerateIDs(t.Context(), counting(priority, 4000), pianola.GenerateOptions{
				MaxTokens: 3, Request: pianola.RequestOptions{Priority: priority, Prefix: pianola.PrefixOff},
			}) {
				if err != nil {
					t.Error(err)
				}
			}
			*st = s.Stats()
			ended.Add(1)
		})
	}
	// waiting waits until the first request runs and n others wait, unless one has ended before.
	waiting := func(n int) bool {
		for l := m.Load(); l.Running != 1 || l.Waiting != n; l = m.Load() {
			if ended.Load() > 0 {
				return false
			}
			time.Sleep(50 * time.Microsecond)
		}
		return true
	}
	start(1000, new(pianola.GenerateStats))
	both = waiting(0)
	start(0, &low)
	both = both && waiting(1)
	start(900, &high)
	both = both && waiting(2)
	all.Wait()
	return low, high, both
}

// TestRequestStats checks the figures of generations that end regularly and that are left early.
func TestRequestStats(t *testing.T) {
	m := open(t, "testdata/tiny/llama", pianola.Options{Device: pianola.DeviceCPU, Parallel: 2, Table: pianola.TableOptions{Context: 256}})
	ids, last := counting(0, 100), uint64(0)
	for i, stop := range []int{20, 20, 5, 1} {
		s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true})
		n := 0
		for _, err := range s.GenerateIDs(t.Context(), ids, pianola.GenerateOptions{MaxTokens: 20, Request: pianola.RequestOptions{Within: time.Minute}}) {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n == stop {
				break
			}
		}
		st := s.Stats()
		if st.Request <= last || st.BatchRows < 1 || st.Submissions < 1 || st.Device <= 0 || st.Tokens != stop {
			t.Errorf("generation %d: %+v", i, st)
		}
		if found := st.Reused >= 64; found != (i > 0) || st.Prefilled+st.Reused < len(ids)-1 {
			t.Errorf("generation %d: %d tokens prefilled, %d found", i, st.Prefilled, st.Reused)
		}
		last = st.Request
	}
}
