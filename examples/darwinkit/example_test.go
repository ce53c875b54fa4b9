//go:build cgo && (darwin || softmetal)

package darwinkit_test

import (
	"context"
	"fmt"
	"log"

	"github.com/progrium/darwinkit/macos/metal"
	"github.com/progrium/darwinkit/objc"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/examples/darwinkit"
)

// A pass counts the tokens that the model's command buffers replay. In the program lipogram, a
// pass encodes a kernel that chooses the tokens.
func ExampleShare() {
	device, err := darwinkit.SystemDevice()
	if err != nil {
		log.Fatal(err)
	}
	defer device.Release()
	queue := device.NewCommandQueue()
	defer queue.Release()
	tokens := 0
	count := func(p darwinkit.Pass) error { tokens += p.Tokens; return nil }
	m, err := pianola.Open(context.Background(), "model.gguf", pianola.Options{
		Metal: pianola.MetalOptions{Shared: darwinkit.Share(device, queue, darwinkit.Passes{After: count})},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
}

// A program uses the model's queue between calls of a session, in a separate command buffer.
func ExampleCompute() {
	var m *pianola.Model
	var s *pianola.Session
	var kernel metal.ComputePipelineStateObject
	objc.WithAutoreleasePool(func() {
		gpu, err := darwinkit.Of(m)
		if err != nil {
			log.Fatal(err)
		}
		cache, err := darwinkit.Slot(s, "kv.0.k")
		if err != nil {
			log.Fatal(err)
		}
		buffer := gpu.Queue.CommandBuffer()
		err = darwinkit.Compute(buffer, gpu.Fence, func(e metal.ComputeCommandEncoderObject) error {
			darwinkit.SetPipeline(e, kernel)
			cache.Bind(e, 0)
			e.DispatchThreadgroupsThreadsPerThreadgroup(metal.Size{Width: 1, Height: 1, Depth: 1}, metal.Size{Width: 32, Height: 1, Depth: 1})
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
		buffer.Commit()
	})
}

// Status returns the information that "pianola devices" prints about a device.
func ExampleStatus() {
	device, err := darwinkit.SystemDevice()
	if err != nil {
		log.Fatal(err)
	}
	defer device.Release()
	status := darwinkit.Status(device)
	fmt.Println(status.Name, status.Detail, status.Limits)
}
