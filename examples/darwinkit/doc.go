// Package darwinkit connects Go programs that use Metal through github.com/progrium/darwinkit
// with a model: the model runs on the program's device and queue, and the program can use the
// model's buffers and command buffers. The package exists in builds with cgo for macOS, and in tests
// with the build tag softmetal; elsewhere it is empty.
//
//	m, err := pianola.Open(ctx, "model.gguf", pianola.Options{
//		Metal: pianola.MetalOptions{Shared: darwinkit.Share(device, queue, darwinkit.Passes{After: after})},
//	})
//	...
//	logits, err := darwinkit.Slot(s, "logits")
//
// after encodes work of the program after each chain, in the chain's command buffer: it sees the
// logits on the GPU, without a copy and without the host.
//
// # Choosing tokens
//
// The chain chooses the next token before after's work begins, and stores it in slot "tokens" at
// Pass.Position + 1. A kernel can store another token there, which then is the one that Chain and
// Generate return and that the next chain begins with. The command buffer must have one token
// (SessionOptions.Chain = 1), and the session must not end at the model's stop tokens
// (SessionOptions.IgnoreStops), because the chain looks for them in its own choice. The program in
// folder lipogram works so.
//
// # Ownership
//
// The model retains the device and the queue that it is given and releases them in Close; the
// program's references stay its own. The objects that this package returns in GPU, Span and Pass
// belong to the model and are not retained. A span's buffer is valid until the session is closed;
// a buffer with weights, until the model is. Retain objects that must live longer, but not
// weights: weights that are used in their file are unmapped with the model, even if the buffer is
// retained. Only SystemDevice returns an object that the caller owns and must release.
//
// # Order on the GPU
//
// A queue begins command buffers in the order of their commits but lets them overlap, and Metal
// does not track the model's buffers. Every encoder that reads or writes one must wait for the
// fence first and update it at its end; Compute does both. Without a fence, wait until a call of
// the session has returned, and let your work complete before the next call.
//
// # Threads
//
// darwinkit's objects are autoreleased, and a goroutine moves between threads. Send messages
// within objc.WithAutoreleasePool, which locks the goroutine to its thread. Before and After are
// called this way.
//
// # What does not use darwinkit
//
// Replaying, and querying a device's features: Status calls C.
//
// # Methods to avoid
//
// This package avoids two kinds of methods of darwinkit 0.5.0, and programs should too. Methods
// with a Metal object as an argument, such as WaitForFence, SetComputePipelineState and
// SetBufferOffsetAtIndex_, panic, because objc.WrapAsProtocol does not accept structures.
// objc.Call with the selector and the same arguments works; Compute, NewPipeline, SetPipeline and
// SetBuffer use it. And a message that returns less than 8 bytes, such as a BOOL, writes 8 bytes over the
// Go variable that holds its result.
package darwinkit
