//go:build cgo && (darwin || softmetal)

package main

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"github.com/progrium/darwinkit/macos/metal"
	"github.com/progrium/darwinkit/objc"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/examples/darwinkit"
)

//go:embed choose.metal
var source string

// threads is the number of threads in the kernel's threadgroup.
const threads = 256

// never is the bias of a token that must not be chosen. It is finite because the kernel is
// compiled with fast math, which does not support infinities.
const never = -1e30

// chooser chooses the tokens of a session instead of the model's table. It chooses the token
// with the largest sum of logit and bias.
type chooser struct {
	kernel         metal.ComputePipelineStateObject
	bias           metal.BufferObject // [vocab] float32
	vocab          int
	logits, tokens darwinkit.Span
}

// newChooser compiles the kernel.
func newChooser(device metal.DeviceObject) (*chooser, error) {
	kernel, err := darwinkit.NewPipeline(device, source, "choose", threads)
	return &chooser{kernel: kernel}, err
}

// use makes the chooser choose the tokens of a session. bias has one element for each token of
// the vocabulary.
func (c *chooser) use(device metal.DeviceObject, s *pianola.Session, bias []float32) (err error) {
	if c.logits, err = darwinkit.Slot(s, "logits"); err != nil {
		return err
	}
	if c.tokens, err = darwinkit.Slot(s, "tokens"); err != nil {
		return err
	}
	c.vocab = len(bias)
	objc.WithAutoreleasePool(func() {
		c.bias = device.NewBufferWithLengthOptions(uint(4*len(bias)), metal.ResourceStorageModeShared|metal.ResourceHazardTrackingModeUntracked)
	})
	if c.bias.IsNil() {
		return fmt.Errorf("cannot create a buffer of %d bytes", 4*len(bias))
	}
	to := unsafe.Slice((*byte)(c.bias.Contents()), 4*len(bias))
	for i, v := range bias {
		binary.LittleEndian.PutUint32(to[4*i:], math.Float32bits(v))
	}
	return nil
}

// after encodes the choice of a token after the commands that compute its logits. It does
// nothing if the command buffer ends within the prompt or within a token.
func (c *chooser) after(p darwinkit.Pass) error {
	switch {
	case p.Program == "prefill" || p.Program == "prefill_few" || p.Tokens == 0:
		return nil
	case p.Program == "decode" && p.Tokens != 1:
		return fmt.Errorf("the command buffer has %d tokens: the session's Chain must be 1", p.Tokens)
	case p.Program != "decode" && p.Program != "head":
		return fmt.Errorf("the chooser does not support program %s", p.Program)
	}
	return p.Compute(func(e metal.ComputeCommandEncoderObject) error {
		darwinkit.SetPipeline(e, c.kernel)
		c.logits.Bind(e, 0)
		darwinkit.SetBuffer(e, c.bias, 0, 1)
		c.tokens.Bind(e, 2)
		choice := [2]uint32{uint32(c.vocab), p.Position + 1}
		e.SetBytesLengthAtIndex(unsafe.Pointer(&choice), uint(unsafe.Sizeof(choice)), 3)
		e.SetThreadgroupMemoryLengthAtIndex(threads/32*8, 0)
		e.DispatchThreadgroupsThreadsPerThreadgroup(metal.Size{Width: 1, Height: 1, Depth: 1}, metal.Size{Width: threads, Height: 1, Depth: 1})
		return nil
	})
}

// close releases the kernel and the bias. It must be called after the session is closed.
func (c *chooser) close() {
	c.kernel.Release()
	if !c.bias.IsNil() {
		c.bias.Release()
	}
}
