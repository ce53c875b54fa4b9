package cpu

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"runtime/trace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/exectrace"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/replay"
)

// traced replays a chain n times under an execution trace and returns the events of each worker
// in each chain.
func traced(t *testing.T, d *Device, sub *replay.Submission, n int) []exectrace.Region {
	t.Helper()
	submit(t, d, sub)
	var b bytes.Buffer
	if err := trace.Start(&b); err != nil {
		t.Fatal(err)
	}
	for range n {
		submit(t, d, sub)
	}
	trace.Stop()
	list, err := exectrace.Read(&b, TraceRegion)
	if err != nil {
		t.Fatal(err)
	}
	// A worker that comes too late for a submission has no part in it.
	if len(list) < n || len(list) > n*len(d.team.workers) {
		t.Fatalf("%d regions in %d submissions of %d workers", len(list), n, len(d.team.workers))
	}
	return list
}

// ownProcs sets GOMAXPROCS so that a team of n workers and the test have enough processors.
func ownProcs(t *testing.T, n int) {
	before := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(before + n)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

// realTime returns a real-time device and a chain on it.
func realTime(t *testing.T, b *builder, tokens uint32, threads int) (*Device, *replay.Submission) {
	t.Helper()
	ownProcs(t, threads)
	d := b.load(Options{RealTime: true, Threads: threads})
	id, err := d.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	return d, &replay.Submission{Session: id, Runs: []replay.Run{{Count: tokens, Step: chainStep()}}}
}

func gopherModel(tb testing.TB) *builder { return transformer(tb, gopherShape) }

// timed skips a test that depends on time unless all tests run exhaustively. Processors that
// are emulated, run other tests, or run the race detector are slower.
func timed(t *testing.T) {
	t.Helper()
	exhaustive.Only(t, "it measures times, which other work on the processors disturbs")
}

// undisturbed is the longest duration of an undisturbed real-time chain. In a longer one the
// system took a worker off its processor.
const undisturbed = 8 * time.Millisecond

// TestRealTimeTrace reads execution traces: in real time nothing switches a worker within a
// chain, and replaying causes no garbage collection. Allocations elsewhere cause none either
// while the process defers collections.
func TestRealTimeTrace(t *testing.T) {
	timed(t)
	for _, c := range []struct {
		model                  string
		b                      func(testing.TB) *builder
		tokens                 uint32
		chains                 int // enough for the runtime to preempt a worker that never yields
		threads, percent, load int
	}{
		{"chain", chainModel, 250, 200, 1, 100, 0}, {"chain", chainModel, 250, 200, 2, 100, 0}, {"chain", chainModel, 250, 200, 2, -1, 1},
		{"gopher", gopherModel, 8, 50, 1, 100, 0}, {"gopher", gopherModel, 8, 50, 1, -1, 1},
	} {
		t.Run(fmt.Sprintf("%s, %d threads, GOGC %d, %d others", c.model, c.threads, c.percent, c.load), func(t *testing.T) {
			d, sub := realTime(t, c.b(t), c.tokens, c.threads)
			runtime.GC() // collect the test's own garbage
			defer debug.SetGCPercent(debug.SetGCPercent(c.percent))
			defer allocating(c.load)()
			// Other load on the machine may disturb a trace, for example at the border between
			// two parts of the trace.
			var faults []string
			seen := 0
			for range 8 {
				faults = nil
				short := 0
				for _, r := range traced(t, d, sub, c.chains) {
					if r.Took > undisturbed {
						continue
					}
					if short++; !r.Quiet() {
						faults = append(faults, fmt.Sprintf("goroutine %d in %v: %.300q, %q", r.Goroutine, r.Took, r.Switches, r.Collections))
					}
				}
				seen = max(seen, short)
				if len(faults) == 0 && short >= 10 {
					return
				}
			}
			if seen < 10 {
				t.Skipf("only %d of %d chains ran undisturbed in less than %v", seen, c.chains, undisturbed)
			}
			t.Errorf("%d faults\n%s", len(faults), strings.Join(faults, "\n"))
		})
	}
}

// allocating starts n goroutines that allocate until stop is called.
func allocating(n int) (stop func()) {
	var ends atomic.Bool
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			var keep [64][]*[16]uint64
			for i := 0; !ends.Load(); i++ {
				keep[i%len(keep)] = nil
				for range 256 {
					keep[i%len(keep)] = append(keep[i%len(keep)], new([16]uint64))
				}
				time.Sleep(50 * time.Microsecond)
			}
		})
	}
	return func() {
		ends.Store(true)
		all.Wait()
	}
}

// TestTraceCatches disturbs one command of a chain and checks that the trace shows it. This
// proves that the other tests could find a fault.
func TestTraceCatches(t *testing.T) {
	timed(t)
	var asked, collected atomic.Int32
	gate := make(chan bool)
	for _, c := range []struct {
		name       string
		disturb    func()
		switches   string // part of a switch's description
		collection string
	}{
		{"a yield", runtime.Gosched, "Running to Runnable", ""},
		{"a sleep", func() { time.Sleep(10 * time.Microsecond) }, "Running to Waiting: sleep", ""},
		{"a wait", func() {
			go func() {
				time.Sleep(10 * time.Millisecond) // the worker waits before there is a value
				gate <- true
			}()
			<-gate
		}, "Running to Waiting: chan receive", ""},
		{"a collection", runtime.GC, "Running to ", "GC concurrent mark phase"},
		{"another's collection", func() {
			n := asked.Add(1)
			go func() { runtime.GC(); collected.Store(n) }()
			for collected.Load() < n { // the worker itself does not wait
			}
		}, "", "GC concurrent mark phase"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, sub := realTime(t, chainModel(t), 250, 1)
			calls := 0
			replace(t, d, sub.Session, 1, testKernel(func(*worker, int) {
				if calls++; calls%250 == 100 {
					c.disturb()
				}
			}))
			for i, r := range traced(t, d, sub, 5) {
				if !strings.Contains(strings.Join(r.Switches, "\n"), c.switches) || !strings.Contains(strings.Join(r.Collections, "\n"), c.collection) {
					t.Errorf("chain %d: switches %.300q, collections %q; want %q and %q", i, r.Switches, r.Collections, c.switches, c.collection)
				}
				if r.Quiet() {
					t.Errorf("chain %d shows no disturbance", i)
				}
			}
		})
	}
}

func TestRealTimeThreads(t *testing.T) {
	timed(t)
	most := min(runtime.GOMAXPROCS(0), runtime.NumCPU())
	for _, c := range []struct {
		o    Options
		want int
	}{{Options{}, most}, {Options{RealTime: true}, max(1, most-1)}, {Options{RealTime: true, Threads: most}, most}} {
		d, err := New(c.o)
		if err != nil {
			t.Fatal(err)
		}
		if d.Threads() != c.want {
			t.Errorf("%+v: %d threads, want %d", c.o, d.Threads(), c.want)
		}
	}
}

// TestRenew checks that a worker yields its thread before a chain if, and only if, the runtime
// would otherwise preempt it during the chain.
func TestRenew(t *testing.T) {
	timed(t)
	for _, c := range []struct {
		waits  waits
		since  time.Duration
		yields bool
	}{{owning, time.Hour, true}, {owning, owning.last, true}, {owning, -time.Minute, false}, {sharing, time.Hour, false}} {
		w := &worker{team: &team{waits: c.waits}, slice: time.Now().Add(-c.since)}
		var b bytes.Buffer
		if err := trace.Start(&b); err != nil {
			t.Fatal(err)
		}
		trace.WithRegion(context.Background(), "renew", w.renew)
		trace.Stop()
		list, err := exectrace.Read(&b, "renew")
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		if yields := strings.Contains(strings.Join(list[0].Switches, " "), "runtime.Gosched"); yields != c.yields {
			t.Errorf("after %v with %+v: %q", c.since, c.waits, list[0].Switches)
		}
		if fresh := time.Since(w.slice) < time.Minute; fresh != (c.yields || c.since < time.Minute) {
			t.Errorf("after %v with %+v the slice began %v ago", c.since, c.waits, time.Since(w.slice))
		}
	}
	if bound := 10*time.Millisecond - owning.last; bound <= 5*time.Millisecond {
		t.Errorf("%v are left for a chain of 5 ms", bound)
	}
}
