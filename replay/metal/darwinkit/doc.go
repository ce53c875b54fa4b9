// Package darwinkit is the border to Go programs that use Metal through
// github.com/progrium/darwinkit: a model runs on a device and a queue of theirs,
// and its buffers and command buffers are theirs to work with. It exists in
// builds with cgo for macOS; elsewhere it is empty.
//
//	m, err := pianola.Open(ctx, "model.gguf", pianola.Options{
//		Metal: pianola.MetalOptions{Shared: darwinkit.Share(device, queue, darwinkit.Passes{After: after})},
//	})
//	...
//	logits, err := darwinkit.Slot(s, "logits")
//
// after encodes work of the program behind each chain, in the chain's command
// buffer: it sees the logits on the GPU, without a copy and without the host.
//
// # Who owns what
//
// The model retains the device and the queue that it is given and releases them
// in Close; the program's references stay its own. What this package hands out,
// GPU, Span and Pass, are the model's objects, not retained. A span's buffer is
// there until the session is closed, one with weights until the model is. Retain
// what is to live longer, but not weights: those that stay in their file are
// unmapped with the model, whoever holds the buffer. SystemDevice alone returns
// what is the caller's, to be released.
//
// # Order on the GPU
//
// A queue begins command buffers in the order of their commits but lets them
// overlap, and Metal does not track the model's buffers. Every encoder that
// reads or writes one waits for the fence first and updates it at its end:
// Compute does both. Without a fence, wait until a call of the session has
// returned, and let your work complete before the next one.
//
// # Threads
//
// darwinkit's objects are autoreleased, and a goroutine moves between threads.
// Send messages within objc.WithAutoreleasePool, in which the goroutine stays on
// its thread; Before and After are called so.
//
// # What does not go through darwinkit
//
// Replaying, and asking a device what it can do: Status asks in C.
//
// Of darwinkit 0.5.0 this package leaves out two kinds of methods, as programs
// should. Those with a Metal object as an argument, such as WaitForFence,
// SetComputePipelineState and SetBufferOffsetAtIndex_, panic: objc.WrapAsProtocol
// takes no structures. objc.Call with the selector and the same arguments works,
// as Compute, SetPipeline and SetBuffer do it. And a message that returns less
// than 8 bytes, such as a BOOL, has 8 written over the Go variable that is its
// result.
package darwinkit
