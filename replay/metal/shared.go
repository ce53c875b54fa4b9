package metal

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/metal/driver"
	"github.com/pianola-engine/pianola/replay"
)

// Shared is a GPU that the program has already, with a queue of it on which
// chains run among the program's own work. Programs that use darwinkit get one
// from package darwinkit beside this one.
//
// New retains the device and the queue, and Close releases them: the program's
// own references stay its own. A queue runs command buffers in the order of
// their commits, but lets them overlap: the buffers of a device are not tracked.
// What else works with them waits for the fence of Objects and updates it.
type Shared struct {
	Device, Queue unsafe.Pointer // an id<MTLDevice>, and an id<MTLCommandQueue> of it

	// Before and After encode work of the program into each command buffer of a
	// chain, before what is replayed and behind it; may be nil. They are called on
	// a goroutine of the device, one at a time, while others wait: they must not
	// submit, wait for a submission or close anything. The command buffer is theirs
	// until they return. They must end their encoders and not commit it, keep
	// alive what they bind until it has completed, since it retains nothing, and
	// send messages within an autorelease pool of their own. An error ends the
	// submission: the command buffer is not committed.
	//
	// They are not called for what Load replays, for dry runs and for profiles.
	Before, After func(*Pass) error
}

// Pass is a command buffer that is not committed yet.
type Pass struct {
	CommandBuffer unsafe.Pointer // id<MTLCommandBuffer>
	Fence         unsafe.Pointer // id<MTLFence>: encoders that touch the device's buffers wait for it and update it
	Session       replay.SessionID
	Program       string // of the last tokens that the command buffer replays
	Position      uint32 // of the last row of the last of them: Logits are of it where the program computes them
	Tokens        int    // that it replays, of all programs
}

// Objects are the Metal objects of a device.
type Objects = driver.Objects

// Objects returns the GPU, the queue and the fence. They are the device's:
// retain what is to outlive Close.
func (d *Device) Objects() (Objects, error) {
	d.releasing.Lock()
	defer d.releasing.Unlock()
	if d.released {
		return Objects{}, fmt.Errorf("metal: %w", device.ErrClosed)
	}
	return d.drv.Objects(), nil
}

// Span is where a slot is on the GPU: Size bytes of a buffer from Offset on.
type Span struct {
	Buffer       unsafe.Pointer // id<MTLBuffer>, shared with the host, not tracked
	Offset, Size uint64
}

// Span returns where a slot of a session is, also while a submission of it is in
// flight. The buffer is the device's and holds other slots too. It is there
// until the session is closed, or for slots of the model until the device is;
// retained, it lasts longer, but not the bytes of weights that stay in their
// file. A KV cache moves when it grows, which Reserve keeps a submission from; it has
// the rows that there is room for, of each head, and none before the first submission
// or Reserve. Weights must not be written to.
func (d *Device) Span(id replay.SessionID, slot uint32) (at Span, err error) {
	err = d.queue.View(id, func(s *session) error {
		if uint64(slot) >= uint64(len(s.mem)) {
			return fmt.Errorf("metal: slot %d of %d", slot, len(s.mem))
		}
		p := &s.mem[slot]
		if p.buffer == 0 {
			return fmt.Errorf("metal: slot %s has no bytes", d.table.Slots[slot].Name)
		}
		at = Span{Buffer: p.buffer.Pointer(), Offset: p.offset, Size: d.table.Slots[slot].Size}
		if d.caches.Has(int(slot)) {
			at.Size = uint64(len(p.mem))
		}
		return nil
	})
	return at, err
}

// open opens the GPU that the options ask for.
func (o *Options) open() (driver.Device, error) {
	if o.Shared == nil {
		return driver.Open()
	}
	return driver.OpenWith(o.Shared.Device, o.Shared.Queue)
}

// send encodes a flight and gives it to the GPU, with what the program encodes
// around it.
func (e *executor) send(f *flight) error {
	d, s := e.d, e.d.o.Shared
	if s == nil || s.Before == nil && s.After == nil || f.job.Submission.Dry || !d.warm.Load() {
		return d.drv.Commit(f.chain)
	}
	if err := d.drv.Begin(f.chain); err != nil {
		return err
	}
	last := &f.runs[f.used-1]
	pass := Pass{
		CommandBuffer: f.chain.CommandBuffer.Pointer(), Fence: d.drv.Objects().Fence, Session: f.job.ID(), Program: d.table.Programs[f.last].Name,
		Position: last.Place.Position + last.Place.Rows*last.Tokens - 1, Tokens: f.tokens,
	}
	err := call(s.Before, pass)
	if err == nil {
		err = d.drv.Encode(f.chain)
	}
	if err == nil {
		err = call(s.After, pass)
	}
	if err != nil {
		d.drv.Drop(f.chain)
		return err
	}
	d.drv.Send(f.chain)
	return nil
}

// call calls a function of the program's, if there is one. What panics there is
// its fault alone.
func call(f func(*Pass) error, p Pass) (err error) {
	if f == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = errors.Join(ErrPass, &device.PanicError{Value: v})
		}
	}()
	if err := f(&p); err != nil {
		return fmt.Errorf("%w: %w", ErrPass, err)
	}
	return nil
}

// ErrPass is an error of Shared.Before or Shared.After.
var ErrPass = errors.New("the program's own pass")

// Detail says what else is known of a GPU, as Info does.
func Detail(p driver.Properties) string {
	if p.Family == 0 {
		return ""
	}
	return fmt.Sprintf("family Apple %d", p.Family)
}
