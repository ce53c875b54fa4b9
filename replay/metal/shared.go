package metal

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/metal/driver"
	"github.com/pianola-engine/pianola/replay"
)

// Shared is a GPU that the program already uses, with a queue on which chains run between the
// program's own work. Programs that use darwinkit can use the adapter in examples/darwinkit.
//
// New retains the device and the queue, and Close releases them; the program keeps its own
// references. A queue runs command buffers in the order of their commits but lets them overlap, and
// the device's buffers are not tracked. Other work that uses them must wait for the fence of
// Objects and update it.
type Shared struct {
	Device, Queue unsafe.Pointer // an id<MTLDevice>, and an id<MTLCommandQueue> of it

	// Before and After encode work of the program into each command buffer of a chain, before and
	// after the replayed commands; they may be nil. They are called on a goroutine of the device,
	// one at a time, while others wait: they must not submit, wait for a submission or close
	// anything. They own the command buffer until they return. They must end their encoders and
	// must not commit the buffer. They must keep alive what they bind until the buffer has
	// completed, since it retains nothing, and send messages within an autorelease pool of their
	// own. An error ends the submission, and the command buffer is not committed.
	//
	// They are not called for Load's warm-up, dry runs and profiles.
	Before, After func(*Pass) error
}

// Pass is a command buffer before its commit.
type Pass struct {
	CommandBuffer unsafe.Pointer // id<MTLCommandBuffer>
	Fence         unsafe.Pointer // id<MTLFence>: encoders that use the device's buffers wait for it and update it
	Session       replay.SessionID
	Program       string // program of the last tokens that the command buffer replays
	Position      uint32 // position of their last row; if the program computes logits, they are that row's
	Tokens        int    // tokens, of all programs, whose last commands the command buffer contains: 0 within a long token
}

// Objects are the Metal objects of a device.
type Objects = driver.Objects

// Objects returns the GPU, the queue and the fence. The device owns them: retain those that must
// outlive Close.
func (d *Device) Objects() (Objects, error) {
	d.releasing.Lock()
	defer d.releasing.Unlock()
	if d.released {
		return Objects{}, fmt.Errorf("metal: %w", device.ErrClosed)
	}
	return d.drv.Objects(), nil
}

// Span is the place of a slot on the GPU: Size bytes of a buffer beginning at Offset.
type Span struct {
	Buffer       unsafe.Pointer // id<MTLBuffer>, shared with the host, not tracked
	Offset, Size uint64
}

// Span returns the place of a session's slot, even while a submission of the session is in
// flight. The buffer belongs to the device and contains other slots too. It is valid until the
// session is closed, or for slots of the model until the device is closed; a retained buffer
// lives longer, but weights in their mapped file do not. A KV cache moves when it grows; Reserve
// the positions to keep a submission from moving it. It has rows only for the reserved positions
// of each head, and none before the first submission or Reserve. Weights must not be written to.
func (d *Device) Span(id replay.SessionID, slot uint32) (at Span, err error) {
	err = d.queue.View(id, func(s *session) error {
		if uint64(slot) >= uint64(len(s.mem)) {
			return fmt.Errorf("metal: slot %d: the table has %d slots", slot, len(s.mem))
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

// open opens the GPU that the options select.
func (o *Options) open() (driver.Device, error) {
	if o.Shared == nil {
		return driver.Open()
	}
	return driver.OpenWith(o.Shared.Device, o.Shared.Queue)
}

// send encodes a flight and submits it to the GPU, with the passes that the program encodes
// before and after it.
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

// call calls f, if it is not nil. It returns a panic in f as an error, so that the device
// survives.
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

// ErrPass reports an error of Shared.Before or Shared.After.
var ErrPass = errors.New("the program's own pass")

// Detail describes further properties of a GPU, as in Info.
func Detail(p driver.Properties) string {
	if p.Family == 0 {
		return ""
	}
	return fmt.Sprintf("family Apple %d", p.Family)
}
