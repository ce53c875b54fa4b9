package cpu

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// testKernel is a kernel with as many units as workers.
type testKernel func(w *worker, unit int)

func (k testKernel) units(w *worker) int { return len(w.team.workers) }
func (k testKernel) run(w *worker, lo, hi int) {
	for i := lo; i < hi; i++ {
		k(w, i)
	}
}

// replace replaces the kernel of a command in a session. Workers may still look at the old phases,
// so it makes new ones.
func replace(tb testing.TB, d *Device, id replay.SessionID, cmd int, k kernel) {
	tb.Helper()
	if err := d.queue.Hold(id, func(s *session) error {
		var cmds []command
		for i := range s.phases {
			for j := range s.phases[i].single {
				cmds = append(cmds, s.phases[i].single[j].items[0].cmds[0])
			}
		}
		cmds[cmd].kernel, cmds[cmd].tiles = k, len(d.team.workers)
		s.phases = divided(d.table, cmds)
		return nil
	}); err != nil {
		tb.Fatal(err)
	}
}

func TestStop(t *testing.T) {
	for threads := 1; threads <= runtime.GOMAXPROCS(0); threads++ {
		d := chainModel(t).load(Options{Threads: threads})
		id := newSession(t, d, 3)
		_, want := decode(t, d, id, 30)
		stop := want[12]
		first := slices.Index(want[1:], stop) + 1 // tokens up to and including it
		_, slot, _ := d.table.Slot(table.SlotStops)
		stops := make([]byte, 12)
		putU32s(stops, 2, 5000, stop)
		if err := d.Write(id, slot, 0, stops); err != nil {
			t.Fatal(err)
		}
		_, tokens, _ := d.table.Slot(table.SlotTokens)
		if err := d.Write(id, tokens, 4, make([]byte, 4*(chainCtx-1))); err != nil {
			t.Fatal(err)
		}
		res, got := decode(t, d, id, 30)
		if res.Count != first || !res.Stopped {
			t.Errorf("%d threads: %+v, want %d tokens", threads, res, first)
		}
		if !slices.Equal(got[:first+1], want[:first+1]) || slices.Max(append(got[first+1:], 0)) != 0 {
			t.Errorf("%d threads: %v after a stop at %d of %v", threads, got, first, want)
		}
		// The stop flag belongs to the submission: the next one runs.
		if res, _ := decode(t, d, id, 3); res.Count != min(first, 3) {
			t.Errorf("the submission after a stop: %+v", res)
		}
	}
}

func TestRunsFollow(t *testing.T) {
	d := chainModel(t).load(Options{})
	id := newSession(t, d, 3)
	_, want := decode(t, d, id, 20)
	id = newSession(t, d, 3)
	sub := &replay.Submission{Session: id}
	for at := uint32(0); at < 20; at += 5 {
		sub.Runs = append(sub.Runs, replay.Run{Count: 5, Step: table.Step{Position: at, KVLen: at + 1, TokenIndex: at, Rows: 1}})
	}
	if res := submit(t, d, sub); res.Count != 20 {
		t.Errorf("%+v", res)
	}
	if got := ring(t, d, id, 21); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestCancel(t *testing.T) {
	d := chainModel(t).load(Options{})
	id := newSession(t, d, 3)
	started := make(chan bool, chainCtx)
	var held atomic.Bool // the chain, at its first token
	held.Store(true)
	replace(t, d, id, 1, testKernel(func(_ *worker, unit int) {
		if unit == 0 {
			started <- true
			for held.Load() {
				time.Sleep(100 * time.Microsecond)
			}
		}
	}))
	sub := &replay.Submission{Session: id, Runs: []replay.Run{{Count: 200, Step: chainStep()}}}
	ticket, err := d.Submit(sub)
	if err != nil {
		t.Fatal(err)
	}
	<-started
	d.Cancel(ticket + 1<<32) // unknown
	d.Cancel(ticket + 1)     // not submitted yet
	d.Cancel(ticket)
	held.Store(false)
	res, err := d.Wait(ticket)
	if err != nil || res.Count >= 200 || res.Stopped {
		t.Errorf("%+v, %v", res, err)
	}
	d.Cancel(ticket) // ended
	if res := submit(t, d, &replay.Submission{Session: id, Runs: []replay.Run{{Count: 2, Step: chainStep()}}}); res.Count != 2 {
		t.Errorf("after a cancel: %+v", res)
	}
	// A submission that is cancelled in the queue does nothing at all.
	other := newSession(t, d, 3)
	held.Store(true)
	first, err := d.Submit(sub)
	if err != nil {
		t.Fatal(err)
	}
	second, err := d.Submit(&replay.Submission{Session: other, Runs: []replay.Run{{Count: 200, Step: chainStep()}}})
	if err != nil {
		t.Fatal(err)
	}
	d.Cancel(second)
	d.Cancel(first)
	held.Store(false)
	for _, ticket := range []replay.Ticket{second, first} {
		if res, err := d.Wait(ticket); err != nil || res.Count == 200 {
			t.Errorf("%+v, %v", res, err)
		}
	}
}

// TestSessions runs chains of several sessions at once and compares them with chains run one at a
// time.
func TestSessions(t *testing.T) {
	d := chainModel(t).load(Options{})
	want := make([][]uint32, 8)
	for i := range want {
		_, want[i] = decode(t, d, newSession(t, d, uint32(i)), 30)
	}
	var wg sync.WaitGroup
	for i := range want {
		wg.Go(func() {
			for range 5 {
				id := newSession(t, d, uint32(i))
				if _, got := decode(t, d, id, 30); !slices.Equal(got, want[i]) {
					t.Errorf("session %d: %v, want %v", i, got, want[i])
				}
				if err := d.CloseSession(id); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// checkBroken expects that a submission fails at command 1 and that the device then refuses
// submissions.
func checkBroken(t *testing.T, d *Device, id replay.SessionID) {
	t.Helper()
	sub := &replay.Submission{Session: id, Runs: []replay.Run{{Count: 50, Step: chainStep()}}}
	ticket, err := d.Submit(sub)
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Wait(ticket)
	var at *device.CommandError
	var panicked *device.PanicError
	if !errors.As(err, &at) || at.Command != 1 || at.Label != "rmsnorm.1" || !errors.As(err, &panicked) {
		t.Errorf("error %v", err)
	}
	if _, err := d.Submit(sub); !errors.As(err, &panicked) {
		t.Errorf("Submit after it: %v", err)
	}
	if _, err := d.NewSession(); !errors.As(err, &panicked) {
		t.Errorf("NewSession after it: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestPanic(t *testing.T) {
	threads := runtime.GOMAXPROCS(0)
	for who := range threads {
		d := chainModel(t).load(Options{Threads: threads})
		id := newSession(t, d, 3)
		// The others wait with a piece of theirs, so that each worker gets one.
		var panics atomic.Bool
		replace(t, d, id, 1, testKernel(func(w *worker, _ int) {
			if w.id == who {
				panics.Store(true)
				panic("a fault of the test")
			}
			for !panics.Load() {
				runtime.Gosched()
			}
		}))
		checkBroken(t, d, id)
	}
}

func TestClose(t *testing.T) {
	d := chainModel(t).load(Options{})
	id, other := newSession(t, d, 3), newSession(t, d, 3)
	replace(t, d, id, 1, testKernel(func(*worker, int) { // does not end before Close is called
		for !errors.Is(d.Read(id, 0, 0, nil), device.ErrClosed) {
			time.Sleep(100 * time.Microsecond)
		}
		time.Sleep(time.Millisecond)
	}))
	var tickets []replay.Ticket
	for _, id := range []replay.SessionID{id, other} {
		ticket, err := d.Submit(&replay.Submission{Session: id, Runs: []replay.Run{{Count: 250, Step: chainStep()}}})
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, ticket)
	}
	if err := errors.Join(d.Close(), d.Close()); err != nil {
		t.Fatal(err)
	}
	for _, ticket := range tickets {
		if res, err := d.Wait(ticket); !errors.Is(err, device.ErrClosed) || res.Count == 250 {
			t.Errorf("%+v, %v", res, err)
		}
	}
	if _, err := d.NewSession(); !errors.Is(err, device.ErrClosed) {
		t.Errorf("NewSession: %v", err)
	}
	if err := d.CloseSession(id); !errors.Is(err, device.ErrClosed) {
		t.Errorf("CloseSession: %v", err)
	}
}

// TestMany makes many submissions of one or a few commands, so that workers sleep and wake all
// the time.
func TestMany(t *testing.T) {
	n := exhaustive.Pick(10_000, 1_000)
	d := chainModel(t).load(Options{})
	id := newSession(t, d, 3)
	sub := &replay.Submission{Session: id, Runs: []replay.Run{{Count: 1, Step: chainStep()}}}
	for i := range n {
		sub.Dry = i%3 == 0
		if res := submit(t, d, sub); res.Count != 1 && !sub.Dry {
			t.Fatalf("submission %d: %+v", i, res)
		}
	}
}

func TestAllocations(t *testing.T) {
	d := chainModel(t).load(Options{})
	id := newSession(t, d, 3)
	sub := &replay.Submission{Session: id, Runs: []replay.Run{{Count: 4, Step: chainStep()}}}
	// The runtime itself allocates at times, for example when it starts a thread. An allocation
	// by the submission itself shows in every round.
	least := ^uint64(0)
	for range 20 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 100 {
			submit(t, d, sub)
		}
		runtime.ReadMemStats(&after)
		least = min(least, after.Mallocs-before.Mallocs)
		if least == 0 {
			return
		}
	}
	t.Errorf("at least %d allocations in 100 submissions", least)
}

func TestTimings(t *testing.T) {
	d := chainModel(t).load(Options{})
	id := newSession(t, d, 3)
	_, want := decode(t, d, id, 10)
	id = newSession(t, d, 3)
	sub := &replay.Submission{Session: id, Runs: []replay.Run{{Count: 10, Step: chainStep()}}, Timings: make([]time.Duration, 4)}
	res := submit(t, d, sub)
	if got := ring(t, d, id, 11); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	var sum time.Duration
	for i, v := range sub.Timings {
		if v <= 0 {
			t.Errorf("command %d took %v", i, v)
		}
		sum += v
	}
	if sum > res.Elapsed {
		t.Errorf("commands took %v of %v", sum, res.Elapsed)
	}
}

func TestDry(t *testing.T) {
	d := chainModel(t).load(Options{})
	id := newSession(t, d, 3)
	res := submit(t, d, &replay.Submission{Session: id, Dry: true, Runs: []replay.Run{{Count: 10, Step: chainStep()}}})
	if res.Count != 0 || res.Elapsed <= 0 {
		t.Errorf("%+v", res)
	}
	if got := ring(t, d, id, 3); !slices.Equal(got, []uint32{3, 0, 0}) {
		t.Errorf("a dry run wrote %v", got)
	}
}

// TestWholeModel compares a model's tokens and logits across implementations, threads, chunks and
// fusion: all must have the same bits.
func TestWholeModel(t *testing.T) {
	type kind struct {
		t      dtype.Type
		act    uint32
		window int
		splits int
	}
	for _, k := range []kind{
		{dtype.Q8_0, decl.ActQ8, 0, 0}, {dtype.Q4_0, decl.ActQ8, 40, 0}, {dtype.F16, decl.ActF32, 0, 3},
		{dtype.BF16, decl.ActF32, 0, 0}, {dtype.F32, decl.ActF32, 20, 0}, {dtype.Q8_0, decl.ActF32, 0, 0},
	} {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			var tokens []uint32
			var logits []float32
			variant := 0
			for _, fused := range []bool{true, false} {
				for _, portable := range []bool{true, false} {
					for threads := 1; threads <= min(runtime.GOMAXPROCS(0), 4); threads++ {
						for _, chunk := range []int{1, 7, 16} {
							if variant++; !exhaustive.On && variant%7 != 1 {
								continue
							}
							s := smallShape
							s.weight, s.act, s.window, s.splits, s.fused = k.t, k.act, k.window, k.splits, fused
							d := transformer(t, s).load(Options{Portable: portable, Threads: threads})
							gotTokens, gotLogits := generate(t, d, s, 70, 12, chunk)
							d.Close()
							if tokens == nil {
								tokens, logits = gotTokens, gotLogits
							}
							what := fmt.Sprintf("fused %t, portable %t, %d threads, chunk %d", fused, portable, threads, chunk)
							if !slices.Equal(tokens, gotTokens) {
								t.Errorf("%s: %v, want %v", what, gotTokens, tokens)
							}
							same(t, what, gotLogits, logits)
						}
					}
				}
			}
		})
	}
}

func TestInfo(t *testing.T) {
	d, err := New(Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	info := d.Info()
	if info.Device != "cpu" || info.Name == "" || !slices.Equal(info.Modes, []string{"encode"}) || !strings.Contains(info.Detail, Features()[0]) {
		t.Errorf("%+v", info)
	}
}
