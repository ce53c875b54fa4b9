//go:build softmetal

package metal_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/metal/soft"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/metal"
	"github.com/pianola-engine/pianola/table"
)

// program is a program that does Metal work of its own.
type program struct {
	device, queue unsafe.Pointer
	counts        [2]int
}

// ownGPU creates a device and a queue. At the end of the test it checks that their reference
// counts are unchanged.
func ownGPU(t *testing.T) *program {
	t.Helper()
	p := &program{}
	p.device, p.queue = soft.GPU()
	p.counts = [2]int{soft.References(p.device), soft.References(p.queue)}
	t.Cleanup(func() {
		if got := [2]int{soft.References(p.device), soft.References(p.queue)}; got != p.counts {
			t.Errorf("%v references to the program's device and queue, were %v", got, p.counts)
		}
		soft.Release(p.queue)
		soft.Release(p.device)
	})
	return p
}

// copied copies bytes on the program's queue in a separate command buffer and waits for it.
func (p *program) copied(fence, from unsafe.Pointer, offset uint64, to unsafe.Pointer, size uint64) {
	b := soft.CommandBuffer(p.queue)
	soft.Copy(b, fence, from, offset, to, 0, size)
	soft.Commit(b)
	soft.Wait(b)
	soft.Release(b)
}

func slotOf(t *testing.T, tab *table.Table, kind table.SlotKind) uint32 {
	t.Helper()
	_, i, ok := tab.Slot(kind)
	if !ok {
		t.Fatalf("no slot of kind %v", kind)
	}
	return i
}

func span(t *testing.T, d *metal.Device, id replay.SessionID, slot uint32) metal.Span {
	t.Helper()
	s, err := d.Span(id, slot)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestOwnQueue replays on a program's queue and reads logits on the GPU. The program's copy
// must equal the result of Read, and the program can use its queue afterwards.
func TestOwnQueue(t *testing.T) {
	m := tiny(t, "llama")
	for _, mode := range metal.Modes() {
		t.Run(mode, func(t *testing.T) {
			checked(t)
			own := ownGPU(t)
			want := func() []uint32 {
				d := load(t, options(t, mode), m)
				return chains(t, d, m.t, begun(t, d), 8, 3)
			}()
			o := options(t, mode)
			o.Shared = &metal.Shared{Device: own.device, Queue: own.queue}
			d := load(t, o, m)
			id := begun(t, d)
			if got := chains(t, d, m.t, id, 8, 3); !slices.Equal(got, want) {
				t.Errorf("%v on a program's queue, %v on its own", got, want)
			}
			objects, err := d.Objects()
			if err != nil || objects.Device != own.device || objects.Queue != own.queue {
				t.Errorf("%+v, %v", objects, err)
			}
			logits := slotOf(t, m.t, table.SlotLogits)
			at := span(t, d, id, logits)
			read := make([]byte, at.Size)
			if err := d.Read(id, logits, 0, read); err != nil {
				t.Fatal(err)
			}
			mine, mem := soft.Buffer(own.device, len(read))
			before := soft.References(at.Buffer)
			own.copied(objects.Fence, at.Buffer, at.Offset, mine, at.Size)
			if !bytes.Equal(mem, read) || soft.References(at.Buffer) != before {
				t.Error("the logits on the GPU differ")
			}
			// Weights are in the mapped file or in a buffer.
			for i, s := range m.t.Slots {
				if at := span(t, d, id, uint32(i)); at.Size != s.Size || at.Buffer == nil {
					t.Errorf("slot %s: %+v", s.Name, at)
				}
			}
			if _, err := d.Span(id, uint32(len(m.t.Slots))); err == nil {
				t.Error("Span of a missing slot succeeds")
			}
			if err := errors.Join(d.CloseSession(id), d.Close()); err != nil {
				t.Error(err)
			}
			if _, err := d.Span(id, logits); !errors.Is(err, device.ErrClosed) {
				t.Errorf("closed: %v", err)
			}
			if _, err := d.Objects(); !errors.Is(err, device.ErrClosed) {
				t.Errorf("closed: %v", err)
			}
			// The program can still use its GPU.
			other, copied := soft.Buffer(own.device, len(read))
			own.copied(nil, mine, 0, other, uint64(len(read)))
			if !bytes.Equal(copied, read) {
				t.Error("the program's queue does not work any more")
			}
			soft.Release(mine)
			soft.Release(other)
		})
	}
}

// TestPasses encodes copies of the logits after each token in the chain's own command buffers.
// In every order that Metal permits, they must be the logits of each position.
func TestPasses(t *testing.T) {
	m := tiny(t, "llama")
	const n = 6
	logits := slotOf(t, m.t, table.SlotLogits)
	var want []byte // by position
	func() {
		checked(t)
		d := load(t, options(t, "encode"), m)
		id := begun(t, d)
		for i := range n {
			if _, err := submit(d, decode(m.t, id, i, 1)); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, m.t.Header.Vocab*4)
			if err := d.Read(id, logits, 0, b); err != nil {
				t.Fatal(err)
			}
			want = append(want, b...)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}()
	for _, mode := range metal.Modes() {
		for seed := range uint64(10) {
			own := ownGPU(t)
			mine, mem := soft.Buffer(own.device, len(want))
			size := uint64(m.t.Header.Vocab) * 4
			var d *metal.Device
			var positions []uint32
			begins := 0
			o := options(t, mode).ForTest(1, false, true)
			o.Shared = &metal.Shared{Device: own.device, Queue: own.queue}
			o.Shared.Before = func(*metal.Pass) error { begins++; return nil }
			o.Shared.After = func(p *metal.Pass) error {
				at, err := d.Span(p.Session, logits)
				if err != nil {
					return err
				}
				if p.Program != table.ProgramDecode || p.Tokens != 1 {
					t.Errorf("%+v", p)
				}
				positions = append(positions, p.Position)
				soft.Copy(p.CommandBuffer, p.Fence, at.Buffer, at.Offset, mine, uint64(p.Position)*size, size)
				return nil
			}
			d = load(t, o, m)
			soft.SetRandomOrder(seed)
			chains(t, d, m.t, begun(t, d), n, 3)
			soft.SetOrder()
			if begins != n || !slices.Equal(positions, []uint32{0, 1, 2, 3, 4, 5}) {
				t.Errorf("%s: %d and %v", mode, begins, positions)
			}
			if !bytes.Equal(mem, want) {
				t.Errorf("%s, seed %d: the logits are not those of each position", mode, seed)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			soft.Release(mine)
		}
	}
}

// TestUnorderedPass omits the fence. Some order must give other results, which proves that the
// test above can fail.
func TestUnorderedPass(t *testing.T) {
	checked(t)
	m := tiny(t, "llama")
	logits := slotOf(t, m.t, table.SlotLogits)
	size := uint64(m.t.Header.Vocab) * 4
	for seed := range uint64(50) {
		own := ownGPU(t)
		ordered, a := soft.Buffer(own.device, int(size)*4)
		other, b := soft.Buffer(own.device, int(size)*4)
		var d *metal.Device
		o := options(t, "encode").ForTest(1, false, true)
		o.Shared = &metal.Shared{Device: own.device, Queue: own.queue, After: func(p *metal.Pass) error {
			at, err := d.Span(p.Session, logits)
			soft.Copy(p.CommandBuffer, p.Fence, at.Buffer, at.Offset, ordered, uint64(p.Position)*size, size)
			soft.Copy(p.CommandBuffer, nil, at.Buffer, at.Offset, other, uint64(p.Position)*size, size)
			return err
		}}
		d = load(t, o, m)
		soft.SetRandomOrder(seed)
		chains(t, d, m.t, begun(t, d), 4, 4)
		soft.SetOrder()
		differ := !bytes.Equal(a, b)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		soft.Release(ordered)
		soft.Release(other)
		if differ {
			return
		}
	}
	t.Error("no order shows that a fence is missing")
}

// TestPassErrors ends submissions with errors and panics of the program's passes, and with
// Metal errors between them. The session must stay usable, and nothing may stay allocated.
func TestPassErrors(t *testing.T) {
	checked(t)
	m := tiny(t, "llama")
	own := ownGPU(t)
	mine := errors.New("no more")
	var fail func() error
	o := options(t, "record")
	o.Shared = &metal.Shared{Device: own.device, Queue: own.queue}
	step := func(*metal.Pass) error {
		if fail == nil {
			return nil
		}
		return fail()
	}
	for _, c := range []struct {
		what          string
		before, after bool
		fail          func() error
		want          error
		text          string
	}{
		{"before", true, false, func() error { return mine }, mine, "metal: run 0 (decode), tokens 0 to 0: the program's own pass: no more"},
		{"after", false, true, func() error { return mine }, mine, "no more"},
		{"panic", false, true, func() error { panic("at the program") }, metal.ErrPass, "panic: at the program"},
	} {
		s := *o.Shared
		s.Before, s.After = nil, nil
		if c.before {
			s.Before = step
		}
		if c.after {
			s.After = step
		}
		o := o
		o.Shared = &s
		d := load(t, o, m)
		id := begun(t, d)
		fail = c.fail
		_, err := submit(d, decode(m.t, id, 0, 1))
		var run *device.RunError
		if !errors.Is(err, c.want) || !errors.Is(err, metal.ErrPass) || !errors.As(err, &run) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", c.what, err)
		}
		if fail = nil; err == nil {
			continue
		}
		if got := chains(t, d, m.t, id, 3, 3); len(got) != 4 {
			t.Errorf("%s: %v", c.what, got)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	// Calls of Metal fail between the two passes.
	s := *o.Shared
	s.Before, s.After = step, step
	o.Shared = &s
	d := load(t, o, m)
	id := begun(t, d)
	for n := 1; ; n++ {
		soft.FailAt(n, 0)
		_, err := submit(d, decode(m.t, id, 0, 1))
		if soft.Failed() == "" {
			soft.FailAt(0, 0)
			if err != nil {
				t.Error(err)
			}
			break
		}
		if err == nil && soft.Failed() != "commit" {
			t.Errorf("%s failed without an error", soft.Failed())
		}
	}
}

// TestQueueRefused opens devices with invalid combinations of options.
func TestQueueRefused(t *testing.T) {
	checked(t)
	a, b := ownGPU(t), ownGPU(t)
	for _, s := range []metal.Shared{{Device: a.device, Queue: b.queue}, {Device: a.device}, {Queue: a.queue}, {}} {
		o := options(t, "")
		o.Shared = &s
		if d, err := metal.New(o); err == nil {
			t.Errorf("New accepts %+v", s)
			_ = d.Close()
		}
	}
	// A failing Load must leave the program's objects unchanged.
	m := tiny(t, "llama")
	o := options(t, "encode")
	o.Shared = &metal.Shared{Device: a.device, Queue: a.queue}
	d, err := metal.New(o)
	if err != nil {
		t.Fatal(err)
	}
	soft.FailAt(3, 0)
	if err := d.Load(context.Background(), m.t, m.src, replay.LoadOptions{}); err == nil {
		t.Error("loaded in spite of a fault")
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
