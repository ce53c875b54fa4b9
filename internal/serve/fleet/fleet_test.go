package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// garage makes fake models, and checks their memory.
type garage struct {
	t      *testing.T
	sizes  map[string]int64
	takes  time.Duration // of a load
	closes time.Duration
	budget int64

	mu     sync.Mutex
	loads  map[string]int
	live   map[string]bool
	bytes  int64
	fail   map[string]error
	events []string
}

// car is a fake model.
type car struct {
	garage *garage
	id     string
	mu     sync.Mutex
	closed bool
}

func (g *garage) size(_ context.Context, e Entry) (int64, error) { return g.sizes[e.ID], nil }

func (g *garage) load(ctx context.Context, e Entry) (*car, error) {
	g.mu.Lock()
	g.loads[e.ID]++
	g.bytes += g.sizes[e.ID]
	if g.live[e.ID] {
		g.t.Errorf("%s is loaded twice", e.ID)
	}
	if g.budget > 0 && g.bytes > g.budget {
		g.t.Errorf("%d bytes are used, of %d", g.bytes, g.budget)
	}
	g.live[e.ID] = true
	err := g.fail[e.ID]
	g.mu.Unlock()
	select {
	case <-time.After(g.takes):
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		g.gone(e.ID)
		return nil, err
	}
	return &car{garage: g, id: e.ID}, nil
}

// gone returns the memory of a model.
func (g *garage) gone(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.bytes -= g.sizes[id]
	g.live[id] = false
}

func (g *garage) event(e Event) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.events = append(g.events, fmt.Sprintf("%s %s", e.Kind, e.Entry.ID))
}

// told returns the events since the last call.
func (g *garage) told() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := strings.Join(g.events, ", ")
	g.events = nil
	return s
}

func (c *car) Close() error {
	time.Sleep(c.garage.closes)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		c.garage.t.Errorf("%s is closed twice", c.id)
	}
	c.closed = true
	c.garage.gone(c.id)
	return nil
}

// drive checks that the model is there.
func (c *car) drive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		c.garage.t.Errorf("%s is used after it was closed", c.id)
	}
}

// newGarage returns a fleet of three models, a, b and c, of 40, 50 and 60 bytes.
func newGarage(t *testing.T, o Options[*car], entries ...Entry) (*garage, *Fleet[*car]) {
	t.Helper()
	g := &garage{
		t: t, sizes: map[string]int64{"a": 40, "b": 50, "c": 60}, takes: time.Second, budget: o.Budget,
		loads: map[string]int{}, live: map[string]bool{}, fail: map[string]error{},
	}
	if entries == nil {
		entries = []Entry{{ID: "a", Aliases: []string{"org/a:Q4"}}, {ID: "b"}, {ID: "c"}}
	}
	o.Size, o.Load, o.Event = g.size, g.load, g.event
	f, err := New(o, entries)
	if err != nil {
		t.Fatal(err)
	}
	return g, f
}

// take acquires a model that must be available.
func take(t *testing.T, f *Fleet[*car], name string) *Lease[*car] {
	t.Helper()
	l, err := f.Acquire(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	l.Model().drive()
	return l
}

// later acquires a model in another goroutine, and sends the lease.
func later(t *testing.T, f *Fleet[*car], name string) chan *Lease[*car] {
	got := make(chan *Lease[*car], 1)
	go func() {
		l, err := f.Acquire(t.Context(), name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got <- l
	}()
	synctest.Wait()
	return got
}

func isEmpty(got chan *Lease[*car]) bool { synctest.Wait(); return len(got) == 0 }

func closeAll(t *testing.T, g *garage, f *Fleet[*car]) {
	t.Helper()
	if err := f.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if g.bytes != 0 || f.used != 0 {
		t.Errorf("after Close: %d bytes, counted %d", g.bytes, f.used)
	}
	if _, err := f.Acquire(t.Context(), f.all[0].entry.ID); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestOneLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, f := newGarage(t, Options[*car]{})
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() { take(t, f, []string{"a", "org/a:Q4"}[i%2]).Release() })
		}
		all.Wait()
		if g.loads["a"] != 1 {
			t.Errorf("%d loads", g.loads["a"])
		}
		if _, err := f.Acquire(t.Context(), "A"); !errors.Is(err, ErrUnknown) {
			t.Errorf("an unknown name: %v", err)
		}
		closeAll(t, g, f)
	})
}

func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, f := newGarage(t, Options[*car]{Keep: time.Minute}, Entry{ID: "a"}, Entry{ID: "b", Pinned: true})
		take(t, f, "b").Release()
		first := take(t, f, "a")
		time.Sleep(time.Hour) // in use
		first.Release()
		first.Release() // has no effect
		time.Sleep(59 * time.Second)
		take(t, f, "a").Release() // begins the time again
		time.Sleep(59 * time.Second)
		f.Visit(func(_ Entry, c *car) { c.drive() }) // does not
		synctest.Wait()
		if got := g.told(); got != "loaded b, loaded a" {
			t.Error(got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := g.told(); got != "evicted a" {
			t.Error(got)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := g.told(); got != "" {
			t.Errorf("the pinned model: %s", got)
		}
		take(t, f, "a").Release()
		if g.loads["a"] != 2 {
			t.Errorf("%d loads", g.loads["a"])
		}
		closeAll(t, g, f)
	})
}

// TestVisitExpires lets the idle time end during a visit.
func TestVisitExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, f := newGarage(t, Options[*car]{Keep: time.Minute})
		take(t, f, "a").Release()
		f.Visit(func(_ Entry, c *car) { time.Sleep(time.Hour); c.drive() })
		if got := f.Status()[0]; got.State != "ready" || got.Users != 0 {
			t.Errorf("after the visit: %+v", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := g.told(); got != "loaded a, evicted a" {
			t.Error(got)
		}
		closeAll(t, g, f)
	})
}

func TestForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, f := newGarage(t, Options[*car]{Keep: -1})
		take(t, f, "a").Release()
		time.Sleep(10000 * time.Hour)
		if got := g.told(); got != "loaded a" {
			t.Error(got)
		}
		closeAll(t, g, f)
	})
}

// TestBudget evicts the least recently used of the idle models, and only as many as necessary.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, f := newGarage(t, Options[*car]{Budget: 110})
		take(t, f, "a").Release()
		time.Sleep(time.Second)
		take(t, f, "b").Release()
		time.Sleep(time.Second)
		take(t, f, "a").Release() // now b is older
		take(t, f, "c").Release()
		if got := g.told(); got != "loaded a, loaded b, evicted b, loaded c" {
			t.Error(got)
		}
		if s := f.Status(); s[0].State != "ready" || s[1].State != "absent" || s[1].Bytes != 0 || s[2].Bytes != 60 {
			t.Errorf("status: %+v", s)
		}
		closeAll(t, g, f)
	})
}

func TestTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, f := newGarage(t, Options[*car]{Budget: 90}, Entry{ID: "a", Pinned: true}, Entry{ID: "b"}, Entry{ID: "c"})
		take(t, f, "c").Release()
		take(t, f, "a").Release()
		take(t, f, "b").Release()
		_, err := f.Acquire(t.Context(), "c")
		var large *TooLargeError
		if !errors.As(err, &large) || *large != (TooLargeError{"c", 60, 50}) {
			t.Errorf("too large beside the pinned model: %v", err)
		}
		g.sizes["c"] = -1
		if _, err := f.Acquire(t.Context(), "c"); err == nil {
			t.Error("a negative size was accepted")
		}
		take(t, f, "b").Release()
		if g.loads["b"] != 1 {
			t.Error("b was evicted for a model that does not fit")
		}
		closeAll(t, g, f)
	})
}

func TestFailedLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, f := newGarage(t, Options[*car]{Budget: 100})
		broken := errors.New("broken")
		g.fail["b"] = broken
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if _, err := f.Acquire(t.Context(), "b"); !errors.Is(err, broken) {
					t.Errorf("got %v", err)
				}
			})
		}
		all.Wait()
		if g.loads["b"] != 1 || f.used != 0 {
			t.Errorf("%d loads, %d bytes", g.loads["b"], f.used)
		}
		g.fail["b"] = nil
		take(t, f, "b").Release() // the next caller tries again
		if got := g.told(); got != "failed b, loaded b" {
			t.Error(got)
		}
		closeAll(t, g, f)
	})
}

// TestCancelLoad cancels a load when its last caller has gone.
func TestCancelLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, f := newGarage(t, Options[*car]{})
		gone := errors.New("the client has gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		ask := func() error { _, err := f.Acquire(ctx, "a"); return err }
		first, second := make(chan error, 1), later(t, f, "a")
		go func() { first <- ask() }()
		synctest.Wait()
		cancel(gone)
		if err := <-first; !errors.Is(err, gone) {
			t.Errorf("got %v", err)
		}
		(<-second).Release() // has got the model nevertheless
		if err := ask(); !errors.Is(err, gone) {
			t.Errorf("with a context that has ended: %v", err)
		}

		ctx, cancel = context.WithCancelCause(t.Context())
		other := make(chan error, 1)
		go func() { _, err := f.Acquire(ctx, "b"); other <- err }()
		synctest.Wait()
		cancel(gone)
		synctest.Wait()
		if err := <-other; !errors.Is(err, gone) || g.live["b"] {
			t.Errorf("got %v; loading goes on: %t", err, g.live["b"])
		}
		take(t, f, "b").Release()
		closeAll(t, g, f)
	})
}

// TestCallerAfterCancel asks for a model whose load has been cancelled but has not ended yet.
func TestCallerAfterCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, f := newGarage(t, Options[*car]{})
		f.o.Load = func(ctx context.Context, e Entry) (*car, error) {
			<-time.After(time.Second) // not interrupted
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			return g.load(ctx, e)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		if _, err := f.Acquire(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		take(t, f, "a").Release()
		closeAll(t, g, f)
	})
}

// TestWaits lets a load wait for a model in use. It gets the memory before callers who come later.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, f := newGarage(t, Options[*car]{Budget: 100, Patience: time.Hour})
		g.closes = time.Second
		a, b := take(t, f, "a"), take(t, f, "b")
		c := later(t, f, "c")
		take(t, f, "a").Release() // the models in use are available to others
		b.Release()
		if !isEmpty(c) {
			t.Fatal("c was loaded beside a and b")
		}
		time.Sleep(10 * time.Second)
		if got := g.told(); got != "loaded a, loaded b, evicted b, loaded c" {
			t.Error(got)
		}
		second := later(t, f, "b") // does not fit beside a and c
		if !isEmpty(second) || isEmpty(c) {
			t.Error("b was loaded beside a and c, or c was not loaded")
		}
		(<-c).Release()
		(<-second).Release()
		a.Release()
		closeAll(t, g, f)
	})
}

// TestPatience keeps a model in use by overlapping callers. A load that waits makes new callers wait.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, f := newGarage(t, Options[*car]{Budget: 60, Patience: 10 * time.Second})
		a := take(t, f, "a")
		c := later(t, f, "c")
		for range 9 {
			time.Sleep(time.Second)
			next := take(t, f, "a")
			a.Release()
			a = next
		}
		time.Sleep(2 * time.Second)
		again := later(t, f, "a")
		if !isEmpty(again) || !isEmpty(c) {
			t.Fatal("the patience is over, but a has a new user")
		}
		a.Release()
		lease := <-c
		time.Sleep(10 * time.Second) // now a drains c
		if !isEmpty(again) {
			t.Fatal("a was loaded beside c")
		}
		lease.Release()
		(<-again).Release()
		if got := g.told(); got != "loaded a, evicted a, loaded c, evicted c, loaded a" {
			t.Error(got)
		}
		closeAll(t, g, f)
	})
}

// TestPatienceEnds cancels a load for which a model drains: the callers of the model go on.
func TestPatienceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, f := newGarage(t, Options[*car]{Budget: 60, Patience: 10 * time.Second})
		a := take(t, f, "a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		gone := make(chan error, 1)
		go func() { _, err := f.Acquire(ctx, "c"); gone <- err }()
		time.Sleep(11 * time.Second)
		again := later(t, f, "a")
		if !isEmpty(again) {
			t.Fatal("a does not drain")
		}
		if err := <-gone; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		(<-again).Release()
		a.Release()
		if got := g.told(); got != "loaded a, failed c" {
			t.Error(got)
		}
		closeAll(t, g, f)
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, f := newGarage(t, Options[*car]{Budget: 100})
		a := take(t, f, "a")
		take(t, f, "b").Release()
		waits := make(chan error, 1)
		go func() { _, err := f.Acquire(t.Context(), "c"); waits <- err }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go func() { time.Sleep(30 * time.Second); a.Model().drive(); a.Release() }()
		start := time.Now()
		if err := f.Close(ctx); err != nil || time.Since(start) != 30*time.Second {
			t.Errorf("Close took %s: %v", time.Since(start), err)
		}
		if err := <-waits; !errors.Is(err, ErrClosed) {
			t.Errorf("got %v", err)
		}
		closeAll(t, g, f)
	})
}

// TestCloseInUse closes a model whose user does not release it in time.
func TestCloseInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, f := newGarage(t, Options[*car]{})
		a := take(t, f, "a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := f.Close(ctx); err != nil || g.live["a"] {
			t.Errorf("got %v", err)
		}
		a.Release()
		closeAll(t, g, f)
	})
}

// TestRandom has callers for models that do not fit together, who use them, give up, or find them
// broken. The fakes check the memory, and that nothing is used after it was closed.
func TestRandom(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			var entries []Entry
			for i := range 8 {
				entries = append(entries, Entry{ID: fmt.Sprint("m", i), Pinned: i == 0})
			}
			g, f := newGarage(t, Options[*car]{Budget: 100, Keep: 3 * time.Second, Patience: 2 * time.Second}, entries...)
			for i, e := range entries {
				g.sizes[e.ID] = int64(10 * (i + 1))
			}
			g.closes = 100 * time.Millisecond
			g.fail["m3"] = errors.New("broken")
			var callers sync.WaitGroup
			served := make([]int, len(entries))
			for i := range 40 {
				callers.Go(func() { g.caller(f, rand.New(rand.NewPCG(seed, uint64(i))), served) })
			}
			stop := make(chan struct{})
			go func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(70 * time.Millisecond):
						f.Visit(func(_ Entry, c *car) { c.drive() })
					}
				}
			}()
			callers.Wait()
			close(stop)
			for i, n := range served {
				if (n == 0) != (i == 3) {
					t.Errorf("m%d was used %d times", i, n)
				}
			}
			closeAll(t, g, f)
		})
	}
}

// caller uses random models.
func (g *garage) caller(f *Fleet[*car], r *rand.Rand, served []int) {
	for range 30 {
		i := r.IntN(len(served))
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.IntN(60_000))*time.Millisecond)
		l, err := f.Acquire(ctx, fmt.Sprint("m", i))
		cancel()
		if err != nil {
			if i != 3 && !errors.Is(err, context.DeadlineExceeded) {
				g.t.Errorf("m%d: %v", i, err)
			}
			continue
		}
		g.mu.Lock()
		served[i]++
		g.mu.Unlock()
		for range r.IntN(10) {
			l.Model().drive()
			time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
		}
		l.Model().drive()
		l.Release()
	}
}

// TestRace is TestRandom in real time, for the race detector.
func TestRace(t *testing.T) {
	g, f := newGarage(t, Options[*car]{Budget: 100, Keep: 2 * time.Millisecond, Patience: time.Millisecond})
	g.takes = 100 * time.Microsecond
	var callers sync.WaitGroup
	for i := range 16 {
		callers.Go(func() {
			for j := range 50 {
				l, err := f.Acquire(t.Context(), string("abc"[(i+j)%3]))
				if err != nil {
					t.Error(err)
					return
				}
				l.Model().drive()
				f.Status()
				l.Release()
			}
		})
	}
	callers.Wait()
	closeAll(t, g, f)
}

func TestNew(t *testing.T) {
	load := func(context.Context, Entry) (*car, error) { return nil, nil }
	size := func(context.Context, Entry) (int64, error) { return 0, nil }
	for i, c := range []struct {
		o       Options[*car]
		entries []Entry
		want    string
	}{
		{Options[*car]{}, nil, "want a function"},
		{Options[*car]{Load: load, Budget: 1}, nil, "want a function"},
		{Options[*car]{Load: load, Size: size, Budget: -1}, nil, "want a function"},
		{Options[*car]{Load: load}, []Entry{{ID: "a", Path: "x/a"}, {ID: "b", Aliases: []string{"a"}, Path: "y/b"}}, "y/b and x/a have the same name"},
		{Options[*car]{Load: load}, []Entry{{ID: ""}}, "needs a name"},
		{Options[*car]{Load: load}, []Entry{{ID: "a", Aliases: []string{"../a"}}}, "empty part"},
		{Options[*car]{Load: load}, make([]Entry, maxEntries+1), "at most 10000"},
		{Options[*car]{Load: load}, []Entry{{ID: "a", Aliases: []string{"a", "b", "b"}}}, ""},
	} {
		_, err := New(c.o, c.entries)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d: got %v, want %s", i, err, c.want)
		}
	}
}

func sorted(entries []Entry) []string {
	var ids []string
	for _, e := range entries {
		ids = append(ids, strings.Join(append([]string{e.ID}, e.Aliases...), "="))
	}
	slices.Sort(ids)
	return ids
}
