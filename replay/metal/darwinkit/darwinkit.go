//go:build darwin && cgo

package darwinkit

import (
	"errors"
	"unsafe"

	"github.com/progrium/darwinkit/macos/metal"
	"github.com/progrium/darwinkit/objc"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/metal/driver"
	"github.com/pianola-engine/pianola/replay"
	metaldevice "github.com/pianola-engine/pianola/replay/metal"
)

// Passes are work of the program that is encoded into each command buffer of a
// chain, before what is replayed and behind it; either may be nil.
//
// They are called one at a time, on a goroutine of the model, in an autorelease
// pool. They must end the encoders that they make, and must not commit the
// command buffer, nor call what runs or closes a session or the model. The
// command buffer retains nothing: what they bind must live until it has
// completed. An error ends the call of the session whose chain it was.
type Passes struct {
	Before, After func(Pass) error
}

// Pass is a command buffer of a chain, not committed yet.
type Pass struct {
	CommandBuffer metal.CommandBufferObject
	Fence         metal.FenceObject
	Session       replay.SessionID // of replay.Session's ID
	Program       string           // of the last tokens in it: "decode", "prefill", "head"
	Position      uint32           // of the last row of them; behind "decode" and "head", of the logits
	Tokens        int              // that it replays
}

// Compute encodes kernels of the program into the command buffer, ordered with
// the chain's.
func (p Pass) Compute(encode func(metal.ComputeCommandEncoderObject) error) error {
	return Compute(p.CommandBuffer, p.Fence, encode)
}

// ErrNoEncoder says that Metal has made none.
var ErrNoEncoder = errors.New("darwinkit: no compute encoder")

// Compute encodes kernels of the program into a command buffer of its own on the
// model's queue: behind what has been committed before it, and before what comes
// after. encode must not end the encoder.
func Compute(buffer metal.CommandBufferObject, fence metal.FenceObject, encode func(metal.ComputeCommandEncoderObject) error) error {
	encoder := buffer.ComputeCommandEncoderWithDispatchType(metal.DispatchTypeSerial)
	if encoder.IsNil() {
		return ErrNoEncoder
	}
	objc.Call[objc.Void](encoder, objc.Sel("waitForFence:"), fence)
	defer func() { // an encoder that is dropped without an end aborts the process
		objc.Call[objc.Void](encoder, objc.Sel("updateFence:"), fence)
		metal.CommandEncoderObject{Object: encoder.Object}.EndEncoding()
	}()
	return encode(encoder)
}

// SetPipeline makes a kernel that of the dispatches that follow. Darwinkit's own
// method panics, see the package comment.
func SetPipeline(encoder metal.ComputeCommandEncoderObject, kernel metal.ComputePipelineStateObject) {
	objc.Call[objc.Void](encoder, objc.Sel("setComputePipelineState:"), kernel)
}

// SetBuffer binds bytes of a buffer from an offset on, likewise.
func SetBuffer(encoder metal.ComputeCommandEncoderObject, buffer metal.BufferObject, offset, index uint) {
	objc.Call[objc.Void](encoder, objc.Sel("setBuffer:offset:atIndex:"), buffer, offset, index)
}

// Share makes a program's device, and a queue of it, those of a model: it is for
// pianola.MetalOptions.Shared.
func Share(device metal.DeviceObject, queue metal.CommandQueueObject, p Passes) *metaldevice.Shared {
	return &metaldevice.Shared{Device: device.Ptr(), Queue: queue.Ptr(), Before: pass(p.Before), After: pass(p.After)}
}

// pass returns f as the device calls it.
func pass(f func(Pass) error) func(*metaldevice.Pass) error {
	if f == nil {
		return nil
	}
	return func(p *metaldevice.Pass) (err error) {
		objc.WithAutoreleasePool(func() {
			err = f(Pass{
				CommandBuffer: metal.CommandBufferObject{Object: objc.ObjectFrom(p.CommandBuffer)},
				Fence:         metal.FenceObject{Object: objc.ObjectFrom(p.Fence)},
				Session:       p.Session, Program: p.Program, Position: p.Position, Tokens: p.Tokens,
			})
		})
		return err
	}
}

// GPU are the objects that a model works with, shared or its own.
type GPU struct {
	Device metal.DeviceObject
	Queue  metal.CommandQueueObject
	Fence  metal.FenceObject
}

// Of returns a model's objects. The error is a *pianola.DeviceError if the model
// is not on Metal.
func Of(m *pianola.Model) (GPU, error) {
	o, err := m.MetalObjects()
	if err != nil {
		return GPU{}, err
	}
	return GPU{
		Device: metal.DeviceObject{Object: objc.ObjectFrom(o.Device)},
		Queue:  metal.CommandQueueObject{Object: objc.ObjectFrom(o.Queue)},
		Fence:  metal.FenceObject{Object: objc.ObjectFrom(o.Fence)},
	}, nil
}

// Span is where a slot is: Size bytes of a buffer, shared with the host, from
// Offset on.
type Span struct {
	Buffer       metal.BufferObject
	Offset, Size uint
}

// Slot returns where a slot of a session is, by its name in the dump: "logits",
// [rows, vocab] float32; "tokens", [context+1] uint32; "kv.0.k" and "kv.0.v", a
// layer's cache, [heads, capacity, headDim] float16; a weight. It is the same as
// long as the session is open. Weights must not be written to.
func Slot(s *pianola.Session, name string) (Span, error) {
	at, err := s.MetalSpan(name)
	if err != nil {
		return Span{}, err
	}
	return Span{Buffer: metal.BufferObject{Object: objc.ObjectFrom(at.Buffer)}, Offset: uint(at.Offset), Size: uint(at.Size)}, nil
}

// Bind makes the slot buffer argument index of the kernels that follow.
func (s Span) Bind(encoder metal.ComputeCommandEncoderObject, index uint) {
	SetBuffer(encoder, s.Buffer, s.Offset, index)
}

// Bytes returns the slot's memory. Nothing on the GPU may be using it, and it is
// there as long as the buffer is.
func (s Span) Bytes() []byte {
	return unsafe.Slice((*byte)(s.Buffer.Contents()), s.Offset+s.Size)[s.Offset:]
}

// SystemDevice returns the system's device, which darwinkit has no function for.
// The caller releases it.
func SystemDevice() (metal.DeviceObject, error) {
	native, err := driver.SystemDevice()
	return metal.DeviceObject{Object: objc.ObjectFrom(native)}, err
}

// Status describes a device as the command "pianola devices" does.
func Status(device metal.DeviceObject) pianola.DeviceStatus {
	return pianola.MetalStatus(device.Ptr())
}
