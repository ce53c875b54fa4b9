//go:build darwin && cgo

package darwinkit_test

import (
	"context"
	"fmt"
	"log"

	"github.com/progrium/darwinkit/macos/metal"
	"github.com/progrium/darwinkit/objc"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/replay/metal/darwinkit"
)

// A program's kernel, bias, changes the logits of each token on the GPU, before
// the host has seen them and samples. (The most likely token is chosen in the
// chain itself: with a temperature of 0 nobody reads them.)
func Example() {
	err := run(context.Background(), "model.gguf", "func main() {")
	if err != nil {
		log.Print(err)
	}
}

func run(ctx context.Context, path, prompt string) (err error) {
	device, err := darwinkit.SystemDevice()
	if err != nil {
		return err
	}
	defer device.Release()
	queue := device.NewCommandQueue()
	defer queue.Release()
	var bias metal.ComputePipelineStateObject // made as the program makes its kernels

	var logits darwinkit.Span
	m, err := pianola.Open(ctx, path, pianola.Options{
		Metal: pianola.MetalOptions{Shared: darwinkit.Share(device, queue, darwinkit.Passes{After: func(p darwinkit.Pass) error {
			if p.Program == "prefill" {
				return nil
			}
			return p.Compute(func(e metal.ComputeCommandEncoderObject) error {
				darwinkit.SetPipeline(e, bias)
				logits.Bind(e, 0)
				e.DispatchThreadgroupsThreadsPerThreadgroup(metal.Size{Width: uint64(logits.Size/4+255) / 256, Height: 1, Depth: 1}, metal.Size{Width: 256, Height: 1, Depth: 1})
				return nil
			})
		}})},
	})
	if err != nil {
		return err
	}
	defer m.Close()
	s, err := m.NewSession(pianola.SessionOptions{Chain: 1})
	if err != nil {
		return err
	}
	defer s.Close()
	if logits, err = darwinkit.Slot(s, "logits"); err != nil {
		return err
	}
	for token, err := range s.Generate(ctx, prompt, pianola.GenerateOptions{MaxTokens: 64, Sampling: pianola.Sampling{Temperature: 0.8}}) {
		if err != nil {
			return err
		}
		fmt.Print(token.Text)
	}
	return nil
}

// Work on the model's queue between calls of a session, in a command buffer of
// the program's.
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

// What "pianola devices" prints of a device that a program has.
func ExampleStatus() {
	device, err := darwinkit.SystemDevice()
	if err != nil {
		log.Fatal(err)
	}
	defer device.Release()
	status := darwinkit.Status(device)
	fmt.Println(status.Name, status.Detail, status.Limits)
}
