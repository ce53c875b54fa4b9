package cuda

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/cuda/fake"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// TestStop ends chains with a stop id on the device, in the middle of a chain. The stop flag
// must not affect the next submission.
func TestStop(t *testing.T) {
	m := tiny(t, "llama")
	for _, mode := range Modes() {
		d := load(t, fake.New(t), mode, m)
		free := chains(t, d, begun(t, d), 60, 60)
		at := slices.IndexFunc(free, func(id uint32) bool { return slices.Index(free, id) > 5 })
		if at < 0 {
			t.Fatal("no token first occurs after the fifth")
		}
		for _, length := range []int{1, 4, 60} {
			id := begun(t, d, 9999, free[at])
			if got := chains(t, d, id, 60, length); !slices.Equal(got, free[:at+1]) {
				t.Errorf("%s, chains of %d: %v, want %v", mode, length, got, free[:at+1])
			}
			res, err := submit(d, decode(d, id, at, 1))
			if err != nil || res.Count != 1 {
				t.Errorf("%s: after a stop: %+v, %v", mode, res, err)
			}
		}
	}
}

// TestCancel cancels chains at several times. The tokens decoded until then must equal those of
// an undisturbed run, and the session must continue with the right tokens.
func TestCancel(t *testing.T) {
	m := tiny(t, "llama")
	const n = 120
	for _, mode := range Modes() {
		for _, eager := range []bool{false, true} {
			drv := fake.New(t)
			if eager {
				drv.SetEager()
			}
			d := load(t, drv, mode, m)
			want := chains(t, d, begun(t, d), n, n)
			drv.SetDelay(20)
			start := time.Now()
			chains(t, d, begun(t, d), n, n)
			whole, cut := time.Since(start), 0
			times := []time.Duration{0, whole / 16, whole / 8, whole / 4, whole / 2}
			for i := 0; i < len(times) || cut == 0 && i < 10*len(times); i++ { // other load may disturb some attempts
				after := times[i%len(times)]
				id := begun(t, d)
				ticket, err := d.Submit(decode(d, id, 0, n))
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(after)
				before := time.Now()
				d.Cancel(ticket)
				res, err := d.Wait(ticket)
				if err != nil || res.Stopped || res.Count > n {
					t.Fatalf("%s: %+v, %v", mode, res, err)
				}
				if took := time.Since(before); took > 30*time.Second {
					t.Errorf("%s: cancelling took %v", mode, took)
				}
				if res.Count > 0 && res.Count < n {
					cut++
				}
				d.Cancel(ticket) // has no effect: the submission has ended
				got := chains(t, d, id, 1, 1)[:1]
				if res.Count > 0 {
					got = mustTokens(t, d, id, res.Count+1)
				}
				if !slices.Equal(got, want[:len(got)]) {
					t.Errorf("%s: %d tokens before the cancellation are not those of a free run", mode, res.Count)
				}
				next := decode(d, id, res.Count, 5)
				if r, err := submit(d, next); err != nil || r.Count != 5 {
					t.Errorf("%s: after a cancellation: %+v, %v", mode, r, err)
				}
				if got := mustTokens(t, d, id, res.Count+6); !slices.Equal(got[res.Count+1:], want[res.Count+1:][:min(5, n-res.Count)]) && res.Count+6 <= n {
					t.Errorf("%s: after a cancellation the session continues with wrong tokens", mode)
				}
			}
			if cut == 0 {
				t.Errorf("%s, eager %t: no chain was cut in the middle", mode, eager)
			}
			drv.SetDelay(0)
		}
	}
}

func mustTokens(t *testing.T, d *Device, id replay.SessionID, n int) []uint32 {
	t.Helper()
	out, err := tokens(d, id, n)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestCancelQueued cancels a submission that waits for another one. It must never run.
func TestCancelQueued(t *testing.T) {
	drv := fake.New(t)
	d := load(t, drv, "record", tiny(t, "llama"))
	a, b := begun(t, d), begun(t, d)
	drv.SetDelay(50)
	first, err := d.Submit(decode(d, a, 0, 40))
	if err != nil {
		t.Fatal(err)
	}
	second, err := d.Submit(decode(d, b, 0, 40))
	if err != nil {
		t.Fatal(err)
	}
	d.Cancel(second)
	if res, err := d.Wait(second); err != nil || res.Count != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	if res, err := d.Wait(first); err != nil || res.Count != 40 {
		t.Errorf("%+v, %v", res, err)
	}
	d.Cancel(first)
	d.Cancel(12345)
}

// TestDry replays with the stop flag set: everything is launched and nothing is computed.
func TestDry(t *testing.T) {
	for _, mode := range Modes() {
		drv := fake.New(t)
		d := load(t, drv, mode, tiny(t, "llama"))
		id := begun(t, d)
		before := drv.Kernels()
		sub := decode(d, id, 0, 10)
		sub.Dry = true
		res, err := submit(d, sub)
		if err != nil || res.Count != 0 || res.Stopped || res.Elapsed <= 0 {
			t.Errorf("%s: %+v, %v", mode, res, err)
		}
		// The resident kernel ends after the first token.
		want := 10 * int(d.table.Programs[0].Count)
		if mode == "resident" {
			want = 1
		}
		if drv.Kernels()-before < want {
			t.Errorf("%s: %d launches", mode, drv.Kernels()-before)
		}
		if got := mustTokens(t, d, id, 4); !slices.Equal(got, []uint32{7, 0, 0, 0}) {
			t.Errorf("%s: a dry run wrote %v", mode, got)
		}
		chains(t, d, id, 3, 3) // the flag is cleared
	}
}

// TestTimings measures the time of each command.
func TestTimings(t *testing.T) {
	for _, mode := range Modes() {
		d := load(t, fake.New(t), mode, tiny(t, "llama"))
		id := begun(t, d)
		want := chains(t, d, begun(t, d), 6, 6)
		sub := decode(d, id, 0, 6)
		sub.Timings = make([]time.Duration, d.table.Programs[sub.Runs[0].Program].Count)
		for range 2 {
			if res, err := submit(d, sub); err != nil || res.Count != 6 {
				t.Fatalf("%s: %+v, %v", mode, res, err)
			}
		}
		if slices.Min(sub.Timings) <= 0 {
			t.Errorf("%s: %v", mode, sub.Timings)
		}
		if got := mustTokens(t, d, id, 7); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", mode, got, want)
		}
		if res, err := submit(d, &replay.Submission{Session: id}); err != nil || res.Count != 0 {
			t.Errorf("%s: an empty submission: %+v, %v", mode, res, err)
		}
	}
}

// TestMemory checks the device's description and that Memory accounts for all GPU memory.
func TestMemory(t *testing.T) {
	drv := fake.New(t)
	d := load(t, drv, "", tiny(t, "llama"))
	if d.Mode() != "record" || !slices.Equal(d.Info().Modes, []string{"record", "resident", "encode"}) || d.Info().Device != "cuda" ||
		!strings.Contains(d.Info().Detail, "compute capability 9.0, 132 multiprocessors, driver for CUDA 13.0") {
		t.Errorf("%s, %+v", d.Mode(), d.Info())
	}
	id := begun(t, d)
	mem := d.Memory()
	if mem.Weights == 0 || mem.Sessions == 0 || mem.Executor == 0 || mem.Mapped != 0 || int(mem.Weights+mem.Sessions+mem.Executor) != drv.Used() {
		t.Errorf("%+v, the driver has %d", mem, drv.Used())
	}
	_, ring, _ := d.table.Slot(table.SlotTokens)
	if err := d.Read(id, ring, d.table.Slots[ring].Size, nil); err != nil {
		t.Errorf("no bytes at the end: %v", err)
	}
}

// TestClose closes a device while sessions decode. Each submission must end soon.
func TestClose(t *testing.T) {
	m := tiny(t, "llama")
	for _, mode := range Modes() {
		drv := fake.New(t)
		d := open(t, drv, mode)
		if err := d.Load(context.Background(), m.t, m.src, replay.LoadOptions{}); err != nil {
			t.Fatal(err)
		}
		drv.SetDelay(20)
		var wg sync.WaitGroup
		for range 4 {
			id := begun(t, d)
			wg.Go(func() {
				for {
					ticket, err := d.Submit(decode(d, id, 0, 400))
					if err == nil {
						_, err = d.Wait(ticket)
					}
					if err != nil {
						if !errors.Is(err, device.ErrClosed) && !errors.Is(err, device.ErrSession) {
							t.Errorf("%s: %v", mode, err)
						}
						return
					}
				}
			})
			wg.Go(func() {
				for {
					other, err := d.NewSession()
					if err == nil {
						err = d.CloseSession(other)
					}
					if err != nil {
						if !errors.Is(err, device.ErrClosed) {
							t.Errorf("%s: %v", mode, err)
						}
						return
					}
				}
			})
		}
		time.Sleep(5 * time.Millisecond)
		before := time.Now()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if took := time.Since(before); took > 30*time.Second {
			t.Errorf("%s: closing took %v", mode, took)
		}
		drv.Check()
	}
}

// TestNoAllocation decodes without allocating, in every mode.
func TestNoAllocation(t *testing.T) {
	if fake.Race() {
		t.Skip("the race detector makes pools forget what they hold")
	}
	for _, mode := range Modes() {
		d := load(t, fake.New(t), mode, tiny(t, "llama"))
		id := begun(t, d)
		sub := decode(d, id, 0, 16)
		best := ^uint64(0)
		for range 5 { // the runtime's own background work may allocate
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := submit(d, sub)
			runtime.ReadMemStats(&after)
			if err != nil {
				t.Fatal(err)
			}
			best = min(best, after.Mallocs-before.Mallocs)
		}
		if best != 0 {
			t.Errorf("%s: %d allocations", mode, best)
		}
	}
}
