package pianola_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"time"
	"unsafe"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/table"
)

func ExampleDevices() {
	for _, d := range pianola.Devices() {
		var status pianola.DeviceStatus = d
		var info pianola.DeviceInfo = status.DeviceInfo
		switch info.Device {
		case pianola.DeviceCPU:
			fmt.Println("CPU:", status.Available, info.Modes[0] == pianola.ModeEncode, info.Detail != "", status.Limits != "")
		case pianola.DeviceCUDA, pianola.DeviceMetal:
			if !status.Available && status.Why == "" {
				fmt.Println("no reason given")
			}
		}
	}
	// Output: CPU: true true true true
}

// The typed options as flags of a command.
func ExampleMode_UnmarshalText() {
	var device pianola.Device
	var mode pianola.Mode
	var kv pianola.KVType
	flags := flag.NewFlagSet("decode", flag.ContinueOnError)
	flags.TextVar(&device, "device", pianola.DeviceAuto, "the device")
	flags.TextVar(&mode, "mode", pianola.ModeAuto, "the replay mode")
	flags.TextVar(&kv, "kv", pianola.KVF16, "the element type of the KV cache")
	if err := flags.Parse([]string{"-device", "cuda", "-mode", "record", "-kv", "q8_0"}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(device == pianola.DeviceCUDA, mode == pianola.ModeRecord, mode == pianola.ModeResident, kv == pianola.KVQ8)

	var invalid *pianola.ValueError
	fmt.Println(errors.As(mode.UnmarshalText([]byte("fast")), &invalid), invalid.What, invalid.Value, invalid.Valid)
	// Output:
	// true true false true
	// true mode fast [encode record resident]
}

// A service in a container gives memory back before the container's limit is reached.
func ExamplePressure() {
	m, err := pianola.Open(context.Background(), "testdata/gopher-q8_0.gguf", pianola.Options{Device: pianola.DeviceCPU, Pressure: &pianola.Pressure{
		Idle: time.Minute,
		Notify: func(e pianola.PressureEvent) {
			log.Printf("%d of %d bytes in use: %d released (critical: %v, %v)", e.Used, e.Limit, e.Released, e.Critical, e.Err)
		},
	}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.Close())
	// Output: <nil>
}

// What an opened model reports about itself.
func ExampleModel() {
	m, err := pianola.Open(context.Background(), "testdata/gopher-q8_0.gguf", pianola.Options{Device: pianola.DeviceCPU, Threads: 1, RealTime: true})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	s, err := m.NewSession(pianola.SessionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.Device().Device, m.Mode(), m.Threads(), m.RealTime(), s.ChainTime() == pianola.RealTimeChain)
	var times pianola.LoadTimes = m.LoadTimes()
	fmt.Println(times.Total > times.Header+times.Touch, len(m.StopIDs()) > 0, m.Directory().Path())
	var memory pianola.Memory = m.Memory()
	var kv pianola.MemoryUse = memory.Kinds[table.SlotKV]
	fmt.Println(kv.Active > 0, kv.Peak >= kv.Active)
	released, err := m.ReleaseIdle(time.Minute)
	m.ResetPeaks()
	fmt.Println(released, err)
	fmt.Println(m.State(), m.State() == pianola.StateClosed)
	// Output:
	// cpu encode 1 true true
	// true true testdata/gopher-q8_0.gguf
	// true true
	// 0 <nil>
	// ready false
}

// On a GPU, a service can keep the assembled kernels beside its model. Other devices ignore the
// option.
func ExampleCUDAOptions() {
	o := pianola.Options{Device: pianola.DeviceCPU, CUDA: pianola.CUDAOptions{CacheDir: "/var/cache/service/kernels"}}
	m, err := pianola.Open(context.Background(), "testdata/gopher-q8_0.gguf", o)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	times := m.LoadTimes()
	fmt.Println(times.Kernels+times.Upload+times.Warm < times.Total)
	// Output: true
}

// A model on the CPU has no Metal objects.
func ExampleModel_MetalObjects() {
	m, err := pianola.Open(context.Background(), "testdata/gopher-q8_0.gguf", pianola.Options{Device: pianola.DeviceCPU, Metal: pianola.MetalOptions{Labels: true}})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	s, err := m.NewSession(pianola.SessionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	_, err = m.MetalObjects()
	fmt.Println(err)
	_, err = s.MetalSpan("logits")
	fmt.Println(err)
	// Output:
	// pianola: device metal: the model runs on device cpu
	// pianola: device metal: the model runs on device cpu
}

func ExampleMetalStatus() {
	var native unsafe.Pointer // an id<MTLDevice> that the program uses
	if status := pianola.MetalStatus(native); !status.Available {
		fmt.Println(status.Why)
	}
}

// A plan of the memory of a model, by the kind of slot.
func ExampleMemoryPlan() {
	var p *pianola.MemoryPlan
	p, err := pianola.Plan("testdata/gopher-q8_0.gguf", pianola.Options{Device: pianola.DeviceCPU, Threads: 1, Table: pianola.TableOptions{Context: 1024, KV: pianola.KVQ8}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(p.Context, p.Kind(table.SlotKV, 2)>>10, "KiB", p.Total(2) > p.Total(1))
	fmt.Println("more sessions fit:", p.Free > p.Session.Sessions, p.Loaded.Weights > 0)
	// Output:
	// 1024 4352 KiB true
	// more sessions fit: true true
}
