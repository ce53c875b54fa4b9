package device_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// TestGrow submits at growing positions: the caches must have grown before the submission is
// queued, and the memory account must agree.
func TestGrow(t *testing.T) {
	d := loaded(t)
	id := session(t, d)
	kv := func() replay.Usage { return d.Memory().Kinds[table.SlotKV] }
	at := func(position int) *replay.Submission {
		s := tokens(id, 2)
		s.Runs[0].Step.Position, s.Runs[0].Step.KVLen = uint32(position), uint32(position+1)
		return s
	}
	for _, c := range []struct {
		position     int
		active, peak uint64
	}{{0, 80, 80}, {6, 80, 80}, {7, 160, 200}, {30, 320, 400}, {0, 320, 400}} {
		if _, err := d.Wait(submit(t, d, at(c.position))); err != nil {
			t.Fatal(err)
		}
		if got := kv(); got != (replay.Usage{Active: c.active, Peak: c.peak}) || d.Memory().Sessions != 16+c.active {
			t.Errorf("position %d: %+v, %d of sessions, want %d and a peak of %d", c.position, got, d.Memory().Sessions, c.active, c.peak)
		}
	}
	if err := d.Reserve(id, 40); err != nil || kv().Active != 400 {
		t.Errorf("%v, %+v", err, kv())
	}
	if err := d.Reserve(id, 65); err == nil || err.Error() != "fake: 65 positions are past the context of 64" {
		t.Errorf("past the context: %v", err)
	}
	d.growErr = errors.New("fault")
	if _, err := d.Submit(at(60)); err != d.growErr || kv().Active != 400 {
		t.Errorf("growing fails: %v, %+v", err, kv())
	}
	if _, err := d.Wait(submit(t, d, at(20))); err != nil {
		t.Errorf("after that: %v", err)
	}
	d.growErr = nil
	if err := d.CloseSession(id); err != nil || kv().Active != 0 || d.Memory().Sessions != 0 {
		t.Errorf("%v, %+v after closing", err, d.Memory())
	}
}

// TestFork forks a session, and checks that sessions in use, closed, or with too few rows cannot
// be forked.
func TestFork(t *testing.T) {
	d := loaded(t)
	id := session(t, d)
	if err := errors.Join(d.Write(id, 0, 0, []byte("text")), d.Reserve(id, 20)); err != nil {
		t.Fatal(err)
	}
	fork, err := d.Fork(id, 10)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	if err := d.Read(fork, 0, 0, got); err != nil || string(got) != "text" || fork == id {
		t.Errorf("session %d of %d has %q, %v", fork, id, got, err)
	}
	if f := d.open[1]; f.copied != 10 || f.room != 16 {
		t.Errorf("%d positions are copied, there is room for %d", f.copied, f.room)
	}
	if m := d.Memory(); m.Sessions != 32+240+160 {
		t.Errorf("%+v", m)
	}
	if _, err := d.Fork(id, 25); err == nil {
		t.Error("forked more rows than the session has")
	}
	for _, fault := range []*error{&d.openErr, &d.growErr, &d.copyErr} {
		*fault = errors.New("fault")
		if _, err := d.Fork(id, 3); err != *fault || d.open[len(d.open)-1].freed != 1 || d.Memory().Sessions != 32+240+160 {
			t.Errorf("%v, %+v", err, d.Memory())
		}
		*fault = nil
	}
	gate := hold(t, d, id)
	ticket := submit(t, d, tokens(id, 1))
	<-gate
	if _, err := d.Fork(id, 3); !errors.Is(err, device.ErrBusy) {
		t.Errorf("in flight: %v", err)
	}
	gate <- true
	if _, err := d.Wait(ticket); err != nil {
		t.Error(err)
	}
	if err := errors.Join(d.CloseSession(id), d.CloseSession(fork)); err != nil {
		t.Error(err)
	}
	if _, err := d.Fork(id, 3); !errors.Is(err, device.ErrSession) {
		t.Errorf("closed: %v", err)
	}
}

// TestForkClose forks while the device is closed: each fork must be freed once.
func TestForkClose(t *testing.T) {
	for range 20 {
		d := newFake()
		if err := d.Load(bg, small(), nil, replay.LoadOptions{}); err != nil {
			t.Fatal(err)
		}
		id := session(t, d)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for {
					if _, err := d.Fork(id, 0); err != nil {
						if !errors.Is(err, device.ErrClosed) && !errors.Is(err, device.ErrSession) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		for i, s := range d.open {
			if s.freed != 1 {
				t.Errorf("session %d was freed %d times", i, s.freed)
			}
		}
		if d.Memory() != (replay.Memory{}) {
			t.Errorf("%+v", d.Memory())
		}
	}
}
