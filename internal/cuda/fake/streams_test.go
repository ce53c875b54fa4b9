package fake_test

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/cuda/driver"
	"github.com/pianola-engine/pianola/internal/cuda/fake"
)

// gpu is the fake driver with a context.
type gpu struct {
	*driver.Driver
	fake *fake.Driver
	ctx  driver.Context
}

func newGPU(t *testing.T) *gpu {
	t.Helper()
	f := fake.New(t)
	d, err := driver.Open(f.Path)
	if err != nil {
		t.Fatal(err)
	}
	g := &gpu{Driver: d, fake: f}
	if g.ctx, err = d.PrimaryCtxRetain(0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			return // a thread may still execute driver code
		}
		if err := d.PrimaryCtxRelease(0); err != nil {
			t.Error(err)
		}
		f.Check()
	})
	return g
}

// TestFailedPops opens and closes a context 40 times on one thread, and popping it fails each time. Contexts that
// do not exist any more take no place on the thread's stack.
func TestFailedPops(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	f := fake.New(t)
	d, err := driver.Open(f.Path)
	if err != nil {
		t.Fatal(err)
	}
	for range 40 {
		ctx, err := d.PrimaryCtxRetain(0)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.CtxPush(ctx); err != nil {
			t.Fatal(err)
		}
		f.FailAt(1, 2)
		if err := d.CtxPop(); err == nil {
			t.Error("popping did not fail")
		}
		if err := d.PrimaryCtxRelease(0); err != nil {
			t.Fatal(err)
		}
	}
	f.Check()
}

// within calls f on a separate thread with the context current. It fails the test if f takes
// longer than a minute.
func (g *gpu) within(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.current(t, f)
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("the fake driver hangs")
	}
}

// current calls f with the context current.
func (g *gpu) current(t *testing.T, f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := g.CtxPush(g.ctx); err != nil {
		t.Error(err)
		return
	}
	defer func() {
		if err := g.CtxPop(); err != nil {
			t.Error(err)
		}
	}()
	f()
}

// must fails the test on an error, from any goroutine.
func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		if err != nil {
			t.Error(err)
		}
		return v
	}
}

func ok(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
}

// TestWait checks that a stream that waits for another stream's event does not block other
// streams, regardless of the order in which the streams were created and are synchronized.
func TestWait(t *testing.T) {
	for name, order := range map[string][3]int{"waiter first": {0, 1, 2}, "waiter second": {1, 0, 2}, "waiter last": {2, 1, 0}} {
		for sync := range 4 {
			t.Run(name+"/"+[]string{"first", "second", "third", "event"}[sync], func(t *testing.T) {
				g := newGPU(t)
				g.within(t, func() {
					var created [3]driver.Stream
					for i := range created {
						created[i] = must[driver.Stream](t)(g.StreamCreate())
					}
					// b waits for a, and c waits for b.
					a, b, c := created[order[0]], created[order[1]], created[order[2]]
					mem := must[driver.Ptr](t)(g.MemAlloc(4))
					fromA, fromB := must[driver.Event](t)(g.EventCreate(false)), must[driver.Event](t)(g.EventCreate(false))
					ok(t,
						g.MemsetD8Async(mem, 1, 2, a),
						g.EventRecord(fromA, a),
						g.StreamWaitEvent(b, fromA),
						g.MemsetD8Async(mem+1, 2, 2, b),
						g.EventRecord(fromB, b),
						g.StreamWaitEvent(c, fromB),
						g.MemsetD8Async(mem+2, 3, 2, c),
					)
					want := []byte{1, 2, 3, 3}
					switch sync {
					case 3:
						ok(t, g.EventSynchronize(fromB))
					default:
						ok(t, g.StreamSynchronize(created[sync]))
					}
					got := make([]byte, 4)
					ok(t, g.MemcpyDtoHAsync(got, mem, c))
					if !bytes.Equal(got, want) {
						t.Errorf("memory is %v, not %v", got, want)
					}
					ok(t, g.MemFree(mem), g.EventDestroy(fromA), g.EventDestroy(fromB), g.StreamDestroy(a), g.StreamDestroy(b), g.StreamDestroy(c))
				})
			})
		}
	}
}

// TestWaitForBlockedStream checks that a stream advances past a wait without the streams that
// wait for it: the first operation of w waits for an event that a records after its own wait.
func TestWaitForBlockedStream(t *testing.T) {
	g := newGPU(t)
	g.within(t, func() {
		stream, event := must[driver.Stream](t), must[driver.Event](t)
		w, a, c := stream(g.StreamCreate()), stream(g.StreamCreate()), stream(g.StreamCreate())
		fromA, fromC := event(g.EventCreate(false)), event(g.EventCreate(false))
		ok(t,
			g.EventRecord(fromC, c),
			g.StreamWaitEvent(a, fromC),
			g.EventRecord(fromA, a),
			g.StreamWaitEvent(w, fromA),
			g.StreamSynchronize(a),
			g.StreamSynchronize(w),
			g.EventDestroy(fromA), g.EventDestroy(fromC), g.StreamDestroy(w), g.StreamDestroy(a), g.StreamDestroy(c),
		)
	})
}

// TestLate checks that a stream executes operations only when the host waits for them. A wait
// for another stream's event must not make it execute more.
func TestLate(t *testing.T) {
	g := newGPU(t)
	g.within(t, func() {
		stream, event := must[driver.Stream](t), must[driver.Event](t)
		a, b := stream(g.StreamCreate()), stream(g.StreamCreate())
		e := event(g.EventCreate(false))
		mem, pinned := must[driver.Ptr](t)(g.MemAlloc(1)), must[[]byte](t)(g.MemHostAlloc(3))
		copy(pinned, []byte{1, 7, 7})
		ok(t,
			g.MemcpyHtoDAsync(mem, pinned[:1], a),
			g.MemcpyDtoHAsync(pinned[1:2], mem, a),
			g.EventRecord(e, a),
			g.MemcpyDtoHAsync(pinned[2:3], mem, a), // after the record
			g.StreamWaitEvent(b, e),
		)
		if !bytes.Equal(pinned, []byte{1, 7, 7}) {
			t.Errorf("a stream executed before the host waited for it: %v", pinned)
		}
		ok(t, g.StreamSynchronize(b))
		if !bytes.Equal(pinned, []byte{1, 1, 7}) {
			t.Errorf("a wait for an event gives %v, not what precedes its record alone", pinned)
		}
		ok(t, g.StreamSynchronize(a))
		if !bytes.Equal(pinned, []byte{1, 1, 1}) {
			t.Errorf("a stream that was synchronised gives %v", pinned)
		}
		ok(t, g.MemFree(mem), g.MemFreeHost(pinned), g.EventDestroy(e), g.StreamDestroy(a), g.StreamDestroy(b))
	})
}

// TestStreamsConcurrently uses several threads that submit to their own streams, wait for each
// other's events, synchronize, allocate and free in any order.
func TestStreamsConcurrently(t *testing.T) {
	const threads, rounds = 6, 200
	g := newGPU(t)
	g.fake.SetDelay(1)
	var streams [threads]driver.Stream
	var events [threads]driver.Event
	g.within(t, func() {
		for i := range streams {
			streams[i] = must[driver.Stream](t)(g.StreamCreate())
			events[i] = must[driver.Event](t)(g.EventCreate(false))
		}
	})
	g.within(t, func() {
		var wg sync.WaitGroup
		for i := range streams {
			wg.Go(func() {
				g.current(t, func() {
					r := rand.New(rand.NewPCG(1, uint64(i)))
					mem := must[driver.Ptr](t)(g.MemAlloc(8))
					for range rounds {
						switch r.IntN(6) {
						case 0, 1:
							ok(t, g.StreamWaitEvent(streams[i], events[r.IntN(threads)]))
						case 2:
							ok(t, g.EventSynchronize(events[r.IntN(threads)]))
						case 3:
							ok(t, g.StreamSynchronize(streams[i]))
						case 4:
							ok(t, g.MemFree(mem))
							mem = must[driver.Ptr](t)(g.MemAlloc(8))
						}
						value := byte(r.Uint32())
						got := make([]byte, 8)
						ok(t, g.MemsetD8Async(mem, value, 8, streams[i]), g.EventRecord(events[i], streams[i]), g.MemcpyDtoHAsync(got, mem, streams[i]))
						if !bytes.Equal(got, bytes.Repeat([]byte{value}, 8)) {
							t.Errorf("stream %d read %v, not %d", i, got, value)
						}
					}
					ok(t, g.MemFree(mem))
				})
			})
		}
		wg.Wait()
	})
	g.within(t, func() {
		for i := range streams {
			ok(t, g.EventDestroy(events[i]), g.StreamDestroy(streams[i]))
		}
	})
}
