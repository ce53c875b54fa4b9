// Package darwinkit connects a model with Go programs that use Metal through
// github.com/progrium/darwinkit. The model runs on the program's device and queue, and the
// program can use the model's buffers and command buffers. The package is compiled only with
// cgo on macOS, or in tests with the build tag softmetal; otherwise it is empty.
//
//	m, err := pianola.Open(ctx, "model.gguf", pianola.Options{
//		Metal: pianola.MetalOptions{Shared: darwinkit.Share(device, queue, darwinkit.Passes{After: after})},
//	})
//	...
//	logits, err := darwinkit.Slot(s, "logits")
//
// after encodes work of the program after each chain, in the chain's command buffer. The GPU
// can thus read the logits without a copy and without waiting for the host.
//
// # Choosing tokens
//
// The chain chooses the next token before the work of after begins, and stores it in slot
// "tokens" at Pass.Position + 1. A kernel can overwrite it there. Chain and Generate then
// return the new token, and the next chain begins with it. Command buffers must have one token
// (SessionOptions.Chain = 1). The session must ignore the model's stop tokens
// (SessionOptions.IgnoreStops), because the chain checks its own choice for them. The program
// in folder lipogram works in this way.
//
// # Ownership
//
// The model retains the device and queue that it receives and releases them in Close; the
// program keeps its own references. The objects in GPU, Span and Pass belong to the model and
// are not retained for the program. A span's buffer is valid until the session is closed; a
// buffer with weights is valid until the model is closed. Retain objects that must live
// longer. This does not work for weights that are used in their file: they are unmapped when
// the model is closed, even if the buffer is retained. Only SystemDevice returns an object
// that the caller owns and must release.
//
// # Order on the GPU
//
// A queue starts command buffers in the order of their commits but lets them overlap, and
// Metal does not track hazards on the model's buffers. Every encoder that reads or writes such
// a buffer must first wait for the fence and update it at its end; Compute does both. Without
// a fence, wait until a call of the session has returned, and let your work complete before
// the next call.
//
// # Threads
//
// darwinkit's objects are autoreleased, and a goroutine can move between threads. Send
// messages within objc.WithAutoreleasePool, which locks the goroutine to its thread. Before
// and After are called in such a pool.
//
// # Operations without darwinkit
//
// Replaying and querying a device's features do not use darwinkit: Status calls C.
//
// # Methods to avoid
//
// This package avoids two kinds of methods of darwinkit 0.5.0, and programs should avoid them
// too. Methods with a Metal object as an argument, such as WaitForFence,
// SetComputePipelineState and SetBufferOffsetAtIndex_, panic, because objc.WrapAsProtocol does
// not accept structures. Instead use objc.Call with the selector and the same arguments, as
// Compute, NewPipeline, SetPipeline and SetBuffer do. Methods whose result has less than 8
// bytes, such as a BOOL, write 8 bytes over the Go variable that holds the result.
package darwinkit
