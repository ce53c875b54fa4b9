package e2e_test

import (
	"errors"
	"slices"
	"sync"
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
	for range 20 { // the long request may end before the others wait, if this goroutine is late
		if order, both := requestOrder(t, m); both {
			if want := []int{1000, 900, 0}; !slices.Equal(order, want) {
				t.Errorf("the requests of priority %v begin, want %v", order, want)
			}
			return
		}
	}
	t.Error("two requests never waited at the same time")
}

// requestOrder runs a long request of priority 1000, and then one of priority 0 and one of 900 on a model for
// one sequence. It returns the priorities in the order of the first tokens, and whether the last two
// requests waited at the same time.
func requestOrder(t *testing.T, m *pianola.Model) (order []int, both bool) {
	t.Helper()
	var all sync.WaitGroup
	defer all.Wait()
	first := make(chan int, 3)
	start := func(priority, most int) {
		s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true})
		all.Go(func() {
			n := 0
			for _, err := range s.GenerateIDs(t.Context(), counting(priority, 20), pianola.GenerateOptions{
				MaxTokens: most, Request: pianola.RequestOptions{Priority: priority},
			}) {
				if err != nil {
					t.Error(err)
				}
				if n++; n == 1 {
					first <- priority
				}
			}
		})
	}
	// waiting waits until n requests wait, unless a further one has begun.
	waiting := func(n int) bool {
		for m.Load().Waiting < n {
			if len(first) > 0 {
				return false
			}
			time.Sleep(50 * time.Microsecond)
		}
		return true
	}
	start(1000, 3000)
	order = append(order, <-first)
	start(0, 3)
	both = waiting(1)
	start(900, 3)
	both = both && waiting(2)
	return append(order, <-first, <-first), both
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
