package batch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/pages"
	"github.com/pianola-engine/pianola/internal/schedule"
)

// guess is a cost that tests correct by measurements.
type guess struct{}

func (guess) Decode(rows, depth int) time.Duration {
	return time.Duration(rows) * 20 * time.Microsecond
}
func (guess) Prefill(position, rows int) time.Duration {
	return time.Duration(rows) * 10 * time.Microsecond
}

func (guess) Joint(rows, heads, depth int) time.Duration {
	return time.Duration(rows) * 8 * time.Microsecond
}

var bg = context.Background()

func open(t *testing.T, kinds []pages.Kind, sequences int, change func(*Options)) (*Engine, *fake) {
	t.Helper()
	const context = 512
	d := newFake(kinds, sequences, context)
	o := Options{
		Device: d, Kinds: kinds,
		Schedule: schedule.Config{Cost: guess{}, Sequences: sequences, Context: context, Chunk: 128, Joint: joint, Queue: 10000},
	}
	if change != nil {
		change(&o)
	}
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e, d
}

// collect fetches all tokens of a stream.
func collect(ctx context.Context, st *Stream) (tokens []int32, err error) {
	for more := true; more && err == nil; {
		var some []int32
		var ranks []byte
		some, ranks, _, more, err = st.Next(ctx)
		for i, id := range some {
			if ranks[i] != byte(id) {
				return nil, errors.New("the ranks are those of other tokens")
			}
		}
		tokens = append(tokens, some...)
	}
	return tokens, err
}

func ask(tokens []int32, most int, s settings) Ask {
	return Ask{Tokens: tokens, Most: most, Bound: 5 * time.Millisecond, Settings: s}
}

// run continues a context and returns the tokens.
func run(c *Context, a Ask) ([]int32, error) {
	st, err := c.Start(a)
	if err != nil {
		return nil, err
	}
	tokens, err := collect(bg, st)
	st.Close(len(tokens))
	return tokens, err
}

// released checks that all pages are free once nobody uses any, but for those of the prefix tree.
func released(t *testing.T, e *Engine) {
	t.Helper()
	l := e.Load()
	for kind, u := range l.Pages {
		if u.Used > 0 || u.Pinned > 0 || u.Free+u.Cached != u.Pages {
			t.Errorf("kind %d: %+v", kind, u)
		}
	}
	if l.Running+l.Waiting > 0 {
		t.Errorf("%d requests run, %d wait", l.Running, l.Waiting)
	}
}

func numbers(from, n int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32((from + i) % vocab)
	}
	return tokens
}

var plenty = []pages.Kind{{Name: "full", Pages: 400}}

// TestAlone runs one context through several requests.
func TestAlone(t *testing.T) {
	e, _ := open(t, plenty, 4, nil)
	c := e.NewContext("")
	var tokens []int32
	for i, n := range []int{100, 1, 64} {
		tokens = append(tokens, numbers(100*i, n)...)
		got, err := run(c, ask(numbers(100*i, n), 30, settings{seed: 7}))
		if err != nil {
			t.Fatal(err)
		}
		if want := alone(plenty, tokens, 30, settings{seed: 7}); !slices.Equal(got, want) {
			t.Fatalf("request %d: %v, want %v", i, got, want)
		}
		tokens = append(tokens, got...)
		if !slices.Equal(c.Tokens(), tokens) {
			t.Fatalf("request %d: the context is %v", i, c.Tokens())
		}
	}
	c.Close()
	c.Close()
	if _, err := c.Start(ask(nil, 1, settings{})); err != ErrClosed {
		t.Errorf("after Close: %v", err)
	}
	released(t, e)
}

// TestInvariance runs 2,000 requests with random arrivals, lengths, samplers, forks, rewinds and
// cancellations from 40 goroutines, with so few pages that requests are set back. Each must get the
// tokens that it gets alone.
func TestInvariance(t *testing.T) {
	for _, kinds := range [][]pages.Kind{
		{{Name: "full", Pages: 26}},
		{{Name: "full", Pages: 60}, {Name: "window", Pages: 30, Window: 100, Sinks: 4}},
	} {
		t.Run(kinds[len(kinds)-1].Name, func(t *testing.T) {
			t.Parallel()
			e, d := open(t, kinds, 12, func(o *Options) { o.Ahead, o.Schedule.Chain = 24, 10 })
			v := &invariance{e: e, d: d, kinds: kinds}
			reached := func() bool {
				return v.setBacks > 0 && v.hits > 0 && v.cancelled > 0 && v.forks > 0 && v.rewinds > 0
			}
			for round := 0; round == 0 || round < 10 && !reached(); round++ { // few pages may suffice for a round
				v.left = 1000
				v.all(t, 20)
				released(t, e)
			}
			if !reached() {
				t.Errorf("the load did not reach everything: %+v", v.counts)
			}
			t.Logf("%+v", v.counts)
		})
	}
}

type counts struct{ requests, setBacks, hits, cancelled, forks, rewinds, slow, failed int }

// invariance is a load of random requests.
type invariance struct {
	e     *Engine
	d     *fake
	kinds []pages.Kind
	fails error // that requests may end with, if it is not nil

	mu   sync.Mutex
	left int
	counts
}

// all runs the load from several goroutines.
func (v *invariance) all(t *testing.T, goroutines int) {
	var all sync.WaitGroup
	for i := range goroutines {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 3))
			for v.take() {
				if err := v.caller(r); err != nil {
					t.Errorf("goroutine %d: %v", i, err)
					return
				}
			}
		})
	}
	all.Wait()
	if v.d.broken != nil {
		t.Error(v.d.broken)
	}
}

func (v *invariance) take() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.left--
	return v.left >= 0
}

func (v *invariance) count(f func(c *counts)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	f(&v.counts)
}

// caller uses a context for several requests, and then forks of it.
func (v *invariance) caller(r *rand.Rand) error {
	c := v.e.NewContext([]string{"", "adapter"}[r.IntN(2)])
	defer func() { c.Close() }()
	var tokens []int32
	for range 1 + r.IntN(3) {
		if r.IntN(3) == 0 {
			time.Sleep(time.Duration(r.IntN(2000)) * time.Microsecond)
		}
		more := numbers(r.IntN(3)*100, 1+r.IntN(150))
		if len(tokens)+len(more) > 300 {
			return nil
		}
		got, err := v.request(r, c, slices.Concat(tokens, more), more)
		if err != nil {
			return err
		}
		tokens = got
		if !slices.Equal(c.Tokens(), tokens) {
			return fmt.Errorf("the context is %v, want %v", c.Tokens(), tokens)
		}
		switch r.IntN(4) {
		case 0:
			f, err := c.Fork()
			if err != nil {
				return err
			}
			if r.IntN(2) == 0 {
				c, f = f, c
			}
			f.Close()
			v.count(func(c *counts) { c.forks++ })
		case 1:
			tokens = slices.Clone(tokens[:r.IntN(len(tokens)+1)])
			if err := c.Set(tokens); err != nil {
				return err
			}
			v.count(func(c *counts) { c.rewinds++ })
		}
	}
	return nil
}

// request makes one request and returns the tokens of the context after it, of which more are new.
func (v *invariance) request(r *rand.Rand, c *Context, tokens, more []int32) ([]int32, error) {
	s := settings{seed: r.Uint64N(5), stops: r.Uint64N(3) * 40}
	a := ask(more, 1+r.IntN(60), s)
	a.Priority, a.Caching, a.Once = r.IntN(3), schedule.Caching(r.IntN(2)), r.IntN(6) == 0
	a.Bound = time.Duration(1+r.IntN(20)) * time.Millisecond
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	if r.IntN(6) == 0 {
		time.AfterFunc(time.Duration(r.IntN(1000))*time.Microsecond, cancel)
	}
	st, err := c.Start(a)
	if err != nil {
		return nil, err
	}
	if r.IntN(8) == 0 {
		if _, _, _, _, err := st.Next(ctx); err == nil && r.IntN(2) == 0 {
			st.Close(0)
			return tokens, nil
		}
		st.Close(-1)
		return tokens[:len(tokens)-len(more)], nil
	}
	limited := r.IntN(8) == 0
	if limited {
		a.Most = 1 + r.IntN(a.Most)
		st.Limit(a.Most)
	}
	if r.IntN(8) == 0 {
		time.Sleep(time.Duration(r.IntN(30)) * time.Millisecond)
		v.count(func(c *counts) { c.slow++ })
	}
	got, err := collect(ctx, st)
	if limited { // the submission that was running may choose more
		got = got[:min(len(got), a.Most)]
	}
	want := alone(v.kinds, tokens, a.Most, s)
	keep := len(got)
	if keep > 0 && r.IntN(5) == 0 {
		keep = r.IntN(keep)
	}
	if err != nil && r.IntN(2) == 0 {
		keep = -1
	}
	st.Close(keep)
	f := st.Figures()
	v.count(func(c *counts) { c.requests++; c.setBacks += f.SetBacks; c.hits += f.Hit })
	switch {
	case errors.Is(err, context.Canceled):
		v.count(func(c *counts) { c.cancelled++ })
	case err != nil && v.fails != nil && errors.Is(err, v.fails):
		v.count(func(c *counts) { c.failed++ })
	case err != nil:
		return nil, err
	case a.Once && len(got) > 0:
	case len(got) != len(want):
		return nil, fmt.Errorf("%d tokens, want %d", len(got), len(want))
	}
	if len(got) > len(want) || !slices.Equal(got, want[:len(got)]) {
		return nil, fmt.Errorf("request %d after %d tokens: %v, want %v", f.ID, len(tokens), got, want)
	}
	if keep < 0 {
		return tokens[:len(tokens)-len(more)], nil
	}
	return append(tokens, got[:keep]...), nil
}

// TestFaults lets calls of the device fail. The requests concerned end with the error, others get
// their tokens, and no page is lost.
func TestFaults(t *testing.T) {
	errFault := errors.New("injected")
	kinds := []pages.Kind{{Name: "full", Pages: 60}, {Name: "window", Pages: 50, Window: 100}}
	for _, call := range []string{"place", "copy", "run"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			e, d := open(t, kinds, 8, nil)
			n, every := 0, map[string]int{"place": 7, "copy": 3, "run": 11}[call]
			d.fault = func(c string) error {
				if c != call {
					return nil
				}
				if n++; n%every == 0 {
					return errFault
				}
				return nil
			}
			v := &invariance{e: e, d: d, kinds: kinds, left: 300, fails: errFault}
			v.all(t, 10)
			released(t, e)
			if v.failed == 0 {
				t.Error("no request failed")
			}
			t.Logf("%+v", v.counts)
		})
	}
}

// TestCommonPrefix starts 64 requests with a common beginning at once. It is prefilled once.
func TestCommonPrefix(t *testing.T) {
	e, d := open(t, plenty, 64, nil)
	common := numbers(0, 400)
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			c := e.NewContext("")
			defer c.Close()
			tokens := slices.Concat(common, numbers(500+i, 20))
			got, err := run(c, ask(tokens, 10, settings{seed: uint64(i)}))
			if want := alone(plenty, tokens, 10, settings{seed: uint64(i)}); err != nil || !slices.Equal(got, want) {
				t.Errorf("request %d: %v, %v", i, got, err)
			}
		})
	}
	all.Wait()
	if want := 420 + 63*20; d.filled != want {
		t.Errorf("%d positions were prefilled, want %d", d.filled, want)
	}
	if h := e.Load().Hits; h.Found != 63 || h.FoundTokens != 63*400 {
		t.Errorf("%+v", h)
	}
}

// TestFigures checks that a request counts the submissions of its prompt, too.
func TestFigures(t *testing.T) {
	e, _ := open(t, []pages.Kind{{Name: "full", Pages: 40}}, 2, nil)
	c := e.NewContext("")
	st, err := c.Start(ask(numbers(0, 500), 1, settings{}))
	if err != nil {
		t.Fatal(err)
	}
	got, err := collect(bg, st)
	st.Close(len(got))
	if f := st.Figures(); err != nil || len(got) != 1 || f.Steps < 2 || f.Rows != f.Steps || f.Filled != 500 {
		t.Errorf("%d tokens, %v: %+v", len(got), err, f)
	}
	c.Close()
	released(t, e)
}

// TestSlowCaller checks that a request whose caller fetches nothing is paused, that its pages can be
// used by others meanwhile, and that it loses nothing.
func TestSlowCaller(t *testing.T) {
	kinds := []pages.Kind{{Name: "full", Pages: 8}}
	e, _ := open(t, kinds, 2, func(o *Options) { o.Ahead, o.Schedule.Chain = 8, 4 })
	slow := e.NewContext("")
	st, err := slow.Start(ask(numbers(0, 200), 250, settings{}))
	if err != nil {
		t.Fatal(err)
	}
	for e.Load().Running > 0 || !st.behind(1) {
		time.Sleep(time.Millisecond)
	}
	c := e.NewContext("")
	if _, err := run(c, ask(numbers(500, 400), 20, settings{})); err != nil {
		t.Fatal(err)
	}
	c.Close()
	got, err := collect(bg, st)
	st.Close(len(got))
	if want := alone(kinds, numbers(0, 200), 250, settings{}); err != nil || !slices.Equal(got, want) {
		t.Errorf("%d tokens, %v", len(got), err)
	}
	if f := st.Figures(); f.Filled < 300 {
		t.Errorf("%d positions were prefilled: the pages were not used by others", f.Filled)
	}
	slow.Close()
	released(t, e)
}

// TestClose closes an engine with requests in all states.
func TestClose(t *testing.T) {
	e, d := open(t, []pages.Kind{{Name: "full", Pages: 40}}, 2, func(o *Options) { o.Ahead, o.Schedule.Chain = 4, 4 })
	var all sync.WaitGroup
	var paused *Stream
	held := make(chan struct{})
	for i := range 8 {
		c := e.NewContext("")
		defer c.Close()
		st, err := c.Start(ask(numbers(i, 50), 400, settings{seed: uint64(i)}))
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			paused = st
			for !st.behind(4) {
				time.Sleep(time.Millisecond)
			}
			// Of the others, the engine runs a few submissions, and no more until it is closed.
			d.hold(3, held, d.cancelled.Load)
			continue
		}
		all.Go(func() {
			if _, err := collect(bg, st); err != ErrClosed {
				t.Errorf("request %d: %v", i, err)
			}
			st.Close(0)
		})
	}
	<-held
	e.Close()
	all.Wait()
	if _, err := collect(bg, paused); err != ErrClosed {
		t.Errorf("the paused request: %v", err)
	}
	paused.Close(0)
	if c := e.NewContext(""); c.Set(numbers(0, 3)) != ErrClosed {
		t.Error("a context of a closed engine was changed")
	}
	e.Close()
}

// TestCloseContext closes a context while its request runs.
func TestCloseContext(t *testing.T) {
	e, d := open(t, plenty, 2, nil)
	c := e.NewContext("")
	d.hold(1, make(chan struct{}), func() bool { // the request cannot end before
		e.mu.Lock()
		defer e.mu.Unlock()
		return c.closed || e.closed
	})
	st, err := c.Start(ask(numbers(0, 50), 400, settings{}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Fork(); err != errInUse {
		t.Errorf("a fork during a request: %v", err)
	}
	if _, _, _, _, err := st.Next(bg); err != nil {
		t.Fatal(err)
	}
	c.Close()
	released(t, e)
	if _, err := collect(bg, st); err != ErrClosed {
		t.Errorf("the request: %v", err)
	}
	st.Close(3)
	released(t, e)
}

// TestRefused checks the errors of requests that cannot be served.
func TestRefused(t *testing.T) {
	var lines []string
	e, d := open(t, []pages.Kind{{Name: "full", Pages: 5}}, 1, func(o *Options) {
		o.Schedule.Queue = 1
		o.Timeline = func(s string) { lines = append(lines, s) }
	})
	c := e.NewContext("")
	if _, err := c.Start(ask(numbers(0, 400), 1, settings{})); !errors.Is(err, schedule.ErrPages) {
		t.Errorf("a prompt for more pages than there are: %v", err)
	}
	got, err := run(c, ask(numbers(0, 100), 400, settings{}))
	if !errors.Is(err, schedule.ErrPages) || len(got) != 5*64+1-100 {
		t.Errorf("a generation that needs more pages than there are: %d tokens, %v", len(got), err)
	}
	if err := c.Set(nil); err != nil {
		t.Error(err)
	}
	// While a submission runs, the engine refuses nobody.
	held := make(chan struct{})
	var release atomic.Bool
	d.hold(0, held, func() bool { return release.Load() || d.cancelled.Load() })
	st, err := c.Start(ask(numbers(0, 50), 200, settings{}))
	if err != nil {
		t.Fatal(err)
	}
	<-held
	if err := c.Set(nil); err != errInUse {
		t.Errorf("a change during a request: %v", err)
	}
	late := e.NewContext("")
	a := ask(numbers(0, 50), 2, settings{})
	a.Within = time.Nanosecond
	other, err := late.Start(a)
	if err != nil {
		t.Fatal(err)
	}
	third := e.NewContext("")
	var over *schedule.OverloadError
	if _, err := third.Start(a); !errors.As(err, &over) {
		t.Errorf("one that waits too many: %v", err)
	}
	release.Store(true)
	if _, err := collect(bg, other); !errors.Is(err, schedule.ErrDeadline) {
		t.Errorf("the late one: %v", err)
	}
	other.Close(0)
	st.Close(0)
	e.Close()
	if !strings.Contains(strings.Join(lines, ""), "refuse") {
		t.Error("the timeline has no refusal")
	}
}
