//go:build softmetal

package darwinkit

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"
	"unsafe"

	"github.com/progrium/darwinkit/macos/metal"
	"github.com/progrium/darwinkit/objc"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/metal/driver"
	metalkernels "github.com/pianola-engine/pianola/internal/metal/kernels"
	"github.com/pianola-engine/pianola/internal/metal/soft"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/table"
)

// added is the kernel add, x += delta. It stands for a program's own kernel.
type added struct {
	drv    driver.Device
	kernel driver.Pipeline
}

func newAdded(t *testing.T, device metal.DeviceObject, queue metal.CommandQueueObject) *added {
	t.Helper()
	drv, err := driver.OpenWith(device.Ptr(), queue.Ptr())
	if err != nil {
		t.Fatal(err)
	}
	k, err := metalkernels.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	source, err := k.Source()
	if err != nil {
		t.Fatal(err)
	}
	library, err := drv.LibrarySource(source)
	if err != nil {
		t.Fatal(err)
	}
	defer drv.Release(library)
	a := &added{drv: drv}
	if a.kernel, err = drv.Pipeline(library, 0, "add", nil, 256, false); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *added) encode(e metal.ComputeCommandEncoderObject, x metal.BufferObject, delta Span) {
	SetPipeline(e, metal.ComputePipelineStateObject{Object: objc.ObjectFrom(a.kernel.Handle.Pointer())})
	SetBuffer(e, x, 0, 0)
	delta.Bind(e, 1)
	n := delta.Size / 4
	var cmd table.Cmd
	kernels.AddParams{N: uint32(n)}.Put(&cmd)
	second, step := [4]uint32{3: 1}, [64]byte{}
	e.SetBytesLengthAtIndex(unsafe.Pointer(&cmd.Param), uint(len(cmd.Param)), driver.IndexParams)
	e.SetBytesLengthAtIndex(unsafe.Pointer(&second), 16, driver.IndexSecond)
	e.SetBytesLengthAtIndex(unsafe.Pointer(&step), 64, driver.IndexStep)
	e.DispatchThreadgroupsThreadsPerThreadgroup(metal.Size{Width: 1, Height: 1, Depth: 1}, metal.Size{Width: 256, Height: 1, Depth: 1})
}

func (a *added) close() {
	a.drv.Release(a.kernel.Handle)
	a.drv.Close()
}

// TestBorder runs a model on darwinkit's device and queue. A kernel of the program runs after
// the chains' commands and in separate command buffers. Both read the logits. Darwinkit's Go
// code is unchanged.
func TestBorder(t *testing.T) {
	if err := soft.Start("../.."); err != nil {
		t.Fatal(err)
	}
	objects, bytes := soft.Live()
	device, err := SystemDevice()
	if err != nil {
		t.Fatal(err)
	}
	var queue metal.CommandQueueObject
	var passed, asked metal.BufferObject
	const options = metal.ResourceStorageModeShared | metal.ResourceHazardTrackingModeUntracked
	objc.WithAutoreleasePool(func() {
		queue = device.NewCommandQueue()
		passed, asked = device.NewBufferWithLengthOptions(4096, options), device.NewBufferWithLengthOptions(4096, options)
	})
	add := newAdded(t, device, queue)

	var logits Span
	mine := errors.New("stopped by the pass")
	refuse, passes := false, 0
	m, err := pianola.Open(context.Background(), testmodels.Path(t, "../../testdata/tiny/llama/model.gguf"), pianola.Options{
		Table: pianola.TableOptions{Context: 16},
		Metal: pianola.MetalOptions{NoArchive: true, Shared: Share(device, queue, Passes{
			Before: func(Pass) error {
				if refuse {
					return mine
				}
				return nil
			},
			After: func(p Pass) error {
				if passes++; p.Program == "prefill" {
					return nil
				}
				return p.Compute(func(e metal.ComputeCommandEncoderObject) error {
					add.encode(e, passed, logits)
					return nil
				})
			},
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := m.NewSession(pianola.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if logits, err = Slot(s, "logits"); err != nil {
		t.Fatal(err)
	}
	gpu, err := Of(m)
	if err != nil || gpu.Device != device || gpu.Queue != queue || gpu.Fence.IsNil() {
		t.Fatalf("%+v, %v", gpu, err)
	}
	if _, _, err := s.Prompt(context.Background(), []int32{5, 6, 7}); err != nil {
		t.Fatal(err)
	}
	objc.WithAutoreleasePool(func() {
		b := gpu.Queue.CommandBuffer()
		err := Compute(b, gpu.Fence, func(e metal.ComputeCommandEncoderObject) error {
			add.encode(e, asked, logits)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		b.Commit()
		b.WaitUntilCompleted()
	})
	row := make([]float32, m.Config().Vocab)
	if err := s.NextLogits(row); err != nil {
		t.Fatal(err)
	}
	for i, v := range row {
		if got := math.Float32frombits(binary.LittleEndian.Uint32(logits.Bytes()[4*i:])); got != v {
			t.Fatalf("logit %d: %v in its span, %v", i, got, v)
		}
		for what, buffer := range map[string]metal.BufferObject{"pass": passed, "command buffer": asked} {
			if got := math.Float32frombits(*(*uint32)(unsafe.Add(buffer.Contents(), 4*i))); got != v {
				t.Fatalf("logit %d: %v in the program's %s, %v", i, got, what, v)
			}
		}
	}
	if passes == 0 {
		t.Error("no pass was called")
	}
	refuse = true
	if _, _, err := s.Chain(context.Background(), 1); !errors.Is(err, mine) {
		t.Errorf("refused: %v", err)
	}
	if status := Status(device); !status.Available || status.Name != "Apple M4 Pro (software)" {
		t.Errorf("%+v", status)
	}
	if err := errors.Join(s.Close(), m.Close()); err != nil {
		t.Error(err)
	}
	add.close()
	for _, o := range []interface{ Release() }{passed, asked, queue, device} {
		o.Release()
	}
	if o, b := soft.Live(); o != objects || b != bytes {
		t.Errorf("%d objects and %d bytes were not released", o-objects, b-bytes)
	}
	if err := soft.Violation(); err != nil {
		t.Error(err)
	}
}

// TestArguments checks that darwinkit's own methods still panic, which is why SetPipeline and
// SetBuffer exist.
func TestArguments(t *testing.T) {
	if err := soft.Start("../.."); err != nil {
		t.Fatal(err)
	}
	device, err := SystemDevice()
	if err != nil {
		t.Fatal(err)
	}
	defer device.Release()
	objc.WithAutoreleasePool(func() {
		queue, fence := device.NewCommandQueue(), device.NewFence()
		e := queue.CommandBuffer().ComputeCommandEncoderWithDispatchType(metal.DispatchTypeSerial)
		defer func() {
			if v := recover(); v == nil {
				t.Error("WaitForFence does not panic: this package can call it")
			}
			metal.CommandEncoderObject{Object: e.Object}.EndEncoding()
			fence.Release()
			queue.Release()
		}()
		e.WaitForFence(fence)
	})
}

// TestNewPipeline checks the errors for sources that do not compile or lack the kernel, and
// for a pipeline that the GPU does not support.
func TestNewPipeline(t *testing.T) {
	if err := soft.Start("../.."); err != nil {
		t.Fatal(err)
	}
	device, err := SystemDevice()
	if err != nil {
		t.Fatal(err)
	}
	defer device.Release()
	for _, c := range []struct {
		source  string
		threads uint
		fail    int
		want    string
	}{
		{"kernel void mine(", 32, 0, "the Metal source has no kernel mine"},
		{"kernel void add(", 32, 1, "the Metal source does not compile: injected"},
		{"kernel void add(", 4096, 0, "cannot create a pipeline for kernel add: 4096 threads"},
		{"kernel void add(", 256, 0, ""},
	} {
		name := "mine"
		if c.source == "kernel void add(" {
			name = "add"
		}
		soft.FailAt(c.fail, 0)
		p, err := NewPipeline(device, c.source, name, c.threads)
		soft.FailAt(0, 0)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %d threads: %v, want %q", c.source, c.threads, err, c.want)
		}
		if err == nil {
			p.Release()
		}
	}
	if err := soft.Violation(); err != nil {
		t.Error(err)
	}
}
