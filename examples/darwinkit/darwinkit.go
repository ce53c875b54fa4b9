//go:build cgo && (darwin || softmetal)

package darwinkit

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/progrium/darwinkit/macos/foundation"
	"github.com/progrium/darwinkit/macos/metal"
	"github.com/progrium/darwinkit/objc"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/metal/driver"
	"github.com/pianola-engine/pianola/replay"
	metaldevice "github.com/pianola-engine/pianola/replay/metal"
)

// Passes are functions that encode work of the program into each command buffer of a chain,
// before and after the replayed commands. Either function may be nil.
//
// The model calls them one at a time, on one of its goroutines, in an autorelease pool. They
// must end the encoders that they create. They must not commit the command buffer, and must
// not call methods that run or close a session or the model. The command buffer does not
// retain objects, so an object that a function binds must live until the buffer has completed.
// An error ends the session's call that submitted the chain.
type Passes struct {
	Before, After func(Pass) error
}

// Pass describes a command buffer of a chain before it is committed.
type Pass struct {
	CommandBuffer metal.CommandBufferObject
	Fence         metal.FenceObject
	Session       replay.SessionID // the result of replay.Session.ID
	Program       string           // program of the command buffer's last tokens: "decode", "prefill", "prefill_few" or "head"
	Position      uint32           // position of the last row, which has the logits after "decode" and "head"
	Tokens        int              // number of tokens whose last commands the command buffer contains: 0 within a long token
}

// Compute encodes kernels of the caller's program into the command buffer. They are ordered
// with the kernels of the chain.
func (p Pass) Compute(encode func(metal.ComputeCommandEncoderObject) error) error {
	return Compute(p.CommandBuffer, p.Fence, encode)
}

// ErrNoEncoder reports that Metal could not create a compute encoder.
var ErrNoEncoder = errors.New("darwinkit: no compute encoder")

// Compute encodes kernels of the caller's program into a separate command buffer on the
// model's queue. They run after the command buffers committed before and before those
// committed later. encode must not end the encoder.
func Compute(buffer metal.CommandBufferObject, fence metal.FenceObject, encode func(metal.ComputeCommandEncoderObject) error) error {
	encoder := buffer.ComputeCommandEncoderWithDispatchType(metal.DispatchTypeSerial)
	if encoder.IsNil() {
		return ErrNoEncoder
	}
	objc.Call[objc.Void](encoder, objc.Sel("waitForFence:"), fence)
	defer func() { // releasing an encoder that has not ended aborts the process
		objc.Call[objc.Void](encoder, objc.Sel("updateFence:"), fence)
		metal.CommandEncoderObject{Object: encoder.Object}.EndEncoding()
	}()
	return encode(encoder)
}

// SetPipeline selects the kernel of the following dispatches. Use it instead of darwinkit's
// method, which panics; see the package comment.
func SetPipeline(encoder metal.ComputeCommandEncoderObject, kernel metal.ComputePipelineStateObject) {
	objc.Call[objc.Void](encoder, objc.Sel("setComputePipelineState:"), kernel)
}

// SetBuffer binds a buffer at an offset in bytes. Use it instead of darwinkit's method, which
// panics; see the package comment.
func SetBuffer(encoder metal.ComputeCommandEncoderObject, buffer metal.BufferObject, offset, index uint) {
	objc.Call[objc.Void](encoder, objc.Sel("setBuffer:offset:atIndex:"), buffer, offset, index)
}

// languageVersion is Metal 3.1, for which darwinkit 0.5.0 has no name.
const languageVersion metal.LanguageVersion = 3<<16 + 1

// NewPipeline compiles a Metal source and returns a pipeline for one of its kernels, which the
// caller must release. threads is the largest number of threads in a threadgroup. The error
// contains Metal's message.
func NewPipeline(device metal.DeviceObject, source, kernel string, threads uint) (pipeline metal.ComputePipelineStateObject, err error) {
	objc.WithAutoreleasePool(func() {
		var failure unsafe.Pointer // an NSError
		failed := func(what string) error {
			if failure == nil {
				return fmt.Errorf("darwinkit: %s", what)
			}
			return fmt.Errorf("darwinkit: %s: %s", what, foundation.ErrorFrom(failure).LocalizedDescription())
		}
		options := metal.NewCompileOptions()
		options.SetLanguageVersion(languageVersion)
		library := device.NewLibraryWithSourceOptionsError(source, options, unsafe.Pointer(&failure))
		if library.IsNil() {
			err = failed("the Metal source does not compile")
			return
		}
		defer library.Release()
		function := library.NewFunctionWithName(kernel)
		if function.IsNil() {
			err = failed("the Metal source has no kernel " + kernel)
			return
		}
		defer function.Release()
		descriptor := metal.NewComputePipelineDescriptor()
		objc.Call[objc.Void](descriptor, objc.Sel("setComputeFunction:"), function)
		descriptor.SetMaxTotalThreadsPerThreadgroup(threads)
		pipeline = objc.Call[metal.ComputePipelineStateObject](device, objc.Sel("newComputePipelineStateWithDescriptor:options:reflection:error:"),
			descriptor, metal.PipelineOption(0), unsafe.Pointer(nil), unsafe.Pointer(&failure))
		if pipeline.IsNil() {
			err = failed("cannot create a pipeline for kernel " + kernel)
		}
	})
	return pipeline, err
}

// Share makes a model use the caller's device and a queue of that device. Pass the result as
// pianola.MetalOptions.Shared.
func Share(device metal.DeviceObject, queue metal.CommandQueueObject, p Passes) *metaldevice.Shared {
	return &metaldevice.Shared{Device: device.Ptr(), Queue: queue.Ptr(), Before: pass(p.Before), After: pass(p.After)}
}

// pass converts f to the form that the device calls.
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

// GPU holds the Metal objects that a model uses. They are shared by the caller or created by
// the model.
type GPU struct {
	Device metal.DeviceObject
	Queue  metal.CommandQueueObject
	Fence  metal.FenceObject
}

// Of returns a model's Metal objects. The error is a *pianola.DeviceError if the model is not on
// Metal.
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

// Span is the place of a slot in memory: Size bytes at Offset of a buffer that is shared with
// the host.
type Span struct {
	Buffer       metal.BufferObject
	Offset, Size uint
}

// Slot returns the buffer and the offset at which a session's slot is stored. The name is the one
// in the table's dump: "logits", [rows, vocab] float32; "tokens", [context+1] uint32; "kv.0.k" and
// "kv.0.v", the KV cache of a layer, [heads, capacity, headDim] float16; or a weight. Buffer and
// offset do not change while the session is open. Weights must not be modified.
func Slot(s *pianola.Session, name string) (Span, error) {
	at, err := s.MetalSpan(name)
	if err != nil {
		return Span{}, err
	}
	return Span{Buffer: metal.BufferObject{Object: objc.ObjectFrom(at.Buffer)}, Offset: uint(at.Offset), Size: uint(at.Size)}, nil
}

// Bind binds the slot to a buffer index for the following kernels.
func (s Span) Bind(encoder metal.ComputeCommandEncoderObject, index uint) {
	SetBuffer(encoder, s.Buffer, s.Offset, index)
}

// Bytes returns the slot's memory, which is valid as long as the buffer. The GPU must not use
// the slot at the same time.
func (s Span) Bytes() []byte {
	return unsafe.Slice((*byte)(s.Buffer.Contents()), s.Offset+s.Size)[s.Offset:]
}

// SystemDevice returns the system's default device, for which darwinkit has no function. The
// caller must release it.
func SystemDevice() (metal.DeviceObject, error) {
	native, err := driver.SystemDevice()
	return metal.DeviceObject{Object: objc.ObjectFrom(native)}, err
}

// Status returns the information that the command "pianola devices" prints about a device.
func Status(device metal.DeviceObject) pianola.DeviceStatus {
	return pianola.MetalStatus(device.Ptr())
}
