//go:build softmetal

package metal_test

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/metal/soft"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/metal"
	"github.com/pianola-engine/pianola/table"
)

// TestStop ends chains with a stop id on the device, in the middle of a chain. The stop flag
// must not affect the next submission, and the recorded commands after the stop must not run.
func TestStop(t *testing.T) {
	m := tiny(t, "llama")
	for _, mode := range metal.Modes() {
		checked(t)
		d := load(t, options(t, mode), m)
		free := chains(t, d, m.t, begun(t, d), 40, 40)
		at := slices.IndexFunc(free, func(id uint32) bool { return slices.Index(free, id) > 5 })
		if at < 0 {
			t.Fatal("no token first occurs after the fifth")
		}
		for _, length := range []int{1, 4, 40} {
			id := begun(t, d, 9999, free[at])
			before := soft.Dispatches()
			if got := chains(t, d, m.t, id, 40, length); !slices.Equal(got, free[:at+1]) {
				t.Errorf("%s, chains of %d: %v, want %v", mode, length, got, free[:at+1])
			}
			p, _, _ := m.t.Program(table.ProgramDecode)
			// Of the tokens after the stop, only the patches run.
			if n := soft.Dispatches() - before; mode == "record" && n > at*int(p.Count+1)+40 {
				t.Errorf("chains of %d: %d commands for %d tokens of %d", length, n, at, p.Count)
			}
			res, err := submit(d, decode(m.t, id, at, 1))
			if err != nil || res.Count != 1 {
				t.Errorf("%s: after a stop: %+v, %v", mode, res, err)
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestCancel cancels chains at several times. The tokens decoded until then must equal those of
// an undisturbed run, and the session must continue with the right tokens.
func TestCancel(t *testing.T) {
	m := tiny(t, "llama")
	const n = 40
	for _, mode := range metal.Modes() {
		checked(t)
		d := load(t, options(t, mode).ForTest(2, false, true), m)
		start := time.Now()
		want := chains(t, d, m.t, begun(t, d), n, n)
		all, cut := time.Since(start), 0
		times := []time.Duration{0, all / 8, all / 4, all / 2}
		for i := 0; i < len(times) || cut == 0 && i < 10*len(times); i++ { // other load may disturb some attempts
			after := times[i%len(times)]
			id := begun(t, d)
			ticket, err := d.Submit(decode(m.t, id, 0, n))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(after)
			d.Cancel(ticket)
			res, err := d.Wait(ticket)
			if err != nil || res.Stopped || res.Count > n {
				t.Fatalf("%s: %+v, %v", mode, res, err)
			}
			if res.Count > 0 && res.Count < n {
				cut++
			}
			d.Cancel(ticket) // has no effect: the submission has ended
			if got := ring(t, d, m.t, id, res.Count+1); !slices.Equal(got, want[:len(got)]) {
				t.Errorf("%s: %d tokens before the cancellation are not those of a free run", mode, res.Count)
			}
			more := min(5, n-res.Count)
			if r, err := submit(d, decode(m.t, id, res.Count, more)); err != nil || r.Count != more {
				t.Errorf("%s: after a cancellation: %+v, %v", mode, r, err)
			}
			if got := ring(t, d, m.t, id, res.Count+more+1); !slices.Equal(got, want[:len(got)]) {
				t.Errorf("%s: after a cancellation the session continues with wrong tokens", mode)
			}
		}
		if cut == 0 {
			t.Errorf("%s: no chain was cut in the middle", mode)
		}
		a, b := begun(t, d), begun(t, d)
		first, err := d.Submit(decode(m.t, a, 0, 10))
		if err != nil {
			t.Fatal(err)
		}
		second, err := d.Submit(decode(m.t, b, 0, 40))
		if err != nil {
			t.Fatal(err)
		}
		d.Cancel(second)
		if res, err := d.Wait(second); err != nil || res.Count > 4 {
			t.Errorf("%s, queued: %+v, %v", mode, res, err)
		}
		if res, err := d.Wait(first); err != nil || res.Count != 10 {
			t.Errorf("%s: %+v, %v", mode, res, err)
		}
		d.Cancel(12345)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestDry replays with the stop flag set. Nothing may be written.
func TestDry(t *testing.T) {
	m := tiny(t, "llama")
	for _, mode := range metal.Modes() {
		checked(t)
		d := load(t, options(t, mode), m)
		id := begun(t, d)
		sub := decode(m.t, id, 0, 10)
		sub.Dry = true
		res, err := submit(d, sub)
		if err != nil || res.Count != 0 || res.Stopped || res.Elapsed <= 0 {
			t.Errorf("%s: %+v, %v", mode, res, err)
		}
		if got := ring(t, d, m.t, id, 4); !slices.Equal(got, []uint32{7, 0, 0, 0}) {
			t.Errorf("%s: a dry run wrote %v", mode, got)
		}
		chains(t, d, m.t, id, 3, 3) // the flag is cleared
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestTimings measures the time of each command, on GPUs whose encoders can take timestamps and
// on others.
func TestTimings(t *testing.T) {
	m := tiny(t, "llama")
	for _, mode := range metal.Modes() {
		checked(t)
		d := load(t, options(t, mode), m)
		want := chains(t, d, m.t, begun(t, d), 8, 8)
		for _, samples := range []int{2, 1, 0} {
			soft.SetTimestamps(samples)
			id := begun(t, d)
			before := soft.Calls()
			if res, err := submit(d, decode(m.t, id, 0, 2)); err != nil || res.Count != 2 {
				t.Fatalf("%s: %+v, %v", mode, res, err)
			}
			sub := decode(m.t, id, 2, 3)
			sub.Timings = make([]time.Duration, m.t.Programs[sub.Runs[0].Program].Count)
			if res, err := submit(d, sub); err != nil || res.Count != 3 || res.Elapsed <= 0 {
				t.Fatalf("%s: %+v, %v", mode, res, err)
			}
			calls := soft.Calls()
			if n := calls["commit"] - before["commit"]; (samples > 0) != (n <= 6) {
				t.Errorf("%s, samples %d: %d command buffers", mode, samples, n)
			}
			if n := calls["sampleCountersInBuffer:atSampleIndex:withBarrier:"] - before["sampleCountersInBuffer:atSampleIndex:withBarrier:"]; (samples == 2) != (n > 0) {
				t.Errorf("%s, samples %d: %d between commands", mode, samples, n)
			}
			if slices.Min(sub.Timings) <= 0 {
				t.Errorf("%s: %v", mode, sub.Timings)
			}
			if res, err := submit(d, decode(m.t, id, 5, 3)); err != nil || res.Count != 3 {
				t.Fatalf("%s: %+v, %v", mode, res, err)
			}
			if got := ring(t, d, m.t, id, 9); !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", mode, got, want)
			}
			if res, err := submit(d, &replay.Submission{Session: id}); err != nil || res.Count != 0 {
				t.Errorf("%s: an empty submission: %+v, %v", mode, res, err)
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestInfo checks the device's description and that Memory accounts for all Metal memory.
func TestInfo(t *testing.T) {
	checked(t)
	m := tiny(t, "llama")
	_, before := soft.Live()
	d := load(t, options(t, ""), m)
	if d.Mode() != "encode" || !slices.Equal(d.Info().Modes, []string{"encode", "record"}) || d.Info().Device != "metal" ||
		d.Info().Name != "Apple M4 Pro (software)" || d.Info().Detail != "family Apple 9" {
		t.Errorf("%s, %+v", d.Mode(), d.Info())
	}
	begun(t, d)
	mem := d.Memory()
	_, live := soft.Live()
	if mem.Weights+mem.Mapped == 0 || mem.Sessions == 0 || mem.Executor == 0 || int(mem.Weights+mem.Sessions+mem.Executor) > live-before {
		t.Errorf("%+v, Metal has %d bytes", mem, live-before)
	}
	if _, err := metal.New(metal.Options{Mode: "other", Kernels: options(t, "").Kernels}); err == nil || !strings.Contains(err.Error(), `unknown mode "other": want one of encode, record`) {
		t.Errorf("%v", err)
	}
	if _, err := metal.New(metal.Options{}); !errors.Is(err, metal.ErrNoKernels) {
		t.Errorf("%v", err)
	}
}

// TestClose closes a device while sessions decode. Each submission must end soon.
func TestClose(t *testing.T) {
	m := tiny(t, "llama")
	for _, mode := range metal.Modes() {
		checked(t)
		d := load(t, options(t, mode), m)
		var wg sync.WaitGroup
		for range 3 {
			id := begun(t, d)
			wg.Go(func() {
				for {
					_, err := submit(d, decode(m.t, id, 0, 100))
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
		time.Sleep(20 * time.Millisecond)
		before := time.Now()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if took := time.Since(before); took > time.Minute {
			t.Errorf("%s: closing took %v", mode, took)
		}
	}
}

// TestNoAllocation decodes without allocating, in every mode.
func TestNoAllocation(t *testing.T) {
	m := tiny(t, "llama")
	for _, mode := range metal.Modes() {
		checked(t)
		d := load(t, options(t, mode), m)
		id := begun(t, d)
		sub := decode(m.t, id, 0, 6)
		best := ^uint64(0)
		for range 8 { // the runtime's own background work may allocate
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := submit(d, sub)
			runtime.ReadMemStats(&after)
			if err != nil {
				t.Fatal(err)
			}
			if best = min(best, after.Mallocs-before.Mallocs); best == 0 {
				break
			}
		}
		if best != 0 {
			t.Errorf("%s: %d allocations", mode, best)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}
