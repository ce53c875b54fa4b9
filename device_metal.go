package pianola

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/metal/driver"
	"github.com/pianola-engine/pianola/internal/metal/kernels"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/metal"
	"github.com/pianola-engine/pianola/table"
)

// metalDevice returns the Metal device. Other systems than macOS and iOS list it as unavailable.
func metalDevice() *backend {
	b := &backend{
		device: DeviceMetal,
		claimed: func(o *Options) string {
			if o.Metal.Shared == nil {
				return ""
			}
			return "Options.Metal.Shared"
		},
		open:   func(o *Options) (*target, error) { return newMetal(o.Mode, o.Metal) },
		status: metalStatus,
	}
	if runtime.GOOS == "darwin" || runtime.GOOS == "ios" {
		b.chosen = 1
	}
	return b
}

// MetalOptions are the settings of the Metal device.
type MetalOptions struct {
	// NoArchive compiles pipelines on every Open instead of keeping them in the directory
	// pianola/metal of the user's cache directory.
	NoArchive bool
	// Shared supplies the program's own Metal device and command queue, on which chains then
	// run between the program's own work. It requires Options.Device "", "auto" or "metal".
	// The module examples/darwinkit makes one from darwinkit's objects.
	Shared *metal.Shared
	// KeepAlive gives an idle GPU a small piece of work at this interval until Close, so that
	// it stays at full clock speed and the first token after a pause is not slower. It costs
	// power. 0 lets the GPU rest.
	KeepAlive time.Duration
	// Labels names the commands in GPU captures in ModeEncode. Each command then takes two
	// more Metal calls.
	Labels bool
}

// archive returns the directory for pipelines, or "" for none.
func (o *MetalOptions) archive() string {
	cache, err := os.UserCacheDir()
	if o.NoArchive || err != nil {
		return ""
	}
	return filepath.Join(cache, "pianola", "metal")
}

// newMetal opens the Apple GPU, either the program's own Metal device or the system's default.
func newMetal(mode Mode, o MetalOptions) (*target, error) {
	k, err := kernels.Embedded()
	if err != nil {
		return nil, unavailable(DeviceMetal, err)
	}
	if mode != ModeAuto && !slices.Contains(metal.Modes(), string(mode)) {
		return nil, &DeviceError{Device: DeviceMetal, Mode: mode, Why: "supported modes: " + strings.Join(metal.Modes(), ", ")}
	}
	d, err := metal.New(metal.Options{Mode: string(mode), Kernels: k, Archive: o.archive(), KeepAlive: o.KeepAlive, Labels: o.Labels, Shared: o.Shared})
	if err != nil {
		return nil, unavailable(DeviceMetal, err)
	}
	c, note, err := metalChip(d.Properties())
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	d.SetSerial(c.Serial)
	d.SetChainTime(time.Duration(c.ChainMS * float64(time.Millisecond)))
	free := func() (uint64, error) {
		p := d.Properties()
		return p.WorkingSet - min(p.Allocated, p.WorkingSet), nil
	}
	return &target{dev: d, device: DeviceMetal, chip: c, chipNote: note, mode: Mode(d.Mode()), stays: true, free: free}, nil
}

// metalChip returns the chip data of a GPU, with the GPU's own limits where they are smaller, and
// a note about unknown data.
func metalChip(p driver.Properties) (*chip.Chip, string, error) {
	c, note, err := chip.ForGPU(chip.GPU{Name: p.Name, Family: p.Family, Cores: p.Cores})
	if err != nil {
		return nil, "", err
	}
	c.MaxBufferBytes = min(c.MaxBufferBytes, max(1, p.MaxBuffer))
	c.ThreadgroupMemory = min(c.ThreadgroupMemory, max(1, p.ThreadgroupMemory))
	c.MaxThreads = min(c.MaxThreads, p.MaxThreads)
	if c.Validate() != nil { // every GPU that is known has the memory that gemm_halves needs
		c.GEMMHalves, c.PrefillFew = 0, 0
	}
	return c, note, c.Validate()
}

func metalStatus() DeviceStatus {
	native, err := driver.SystemDevice()
	if err != nil {
		return absent(DeviceMetal, err)
	}
	defer driver.Release(native)
	return MetalStatus(native)
}

// MetalStatus returns the status of a Metal device that the program supplies, an id<MTLDevice>.
// Devices returns the status of the system's default device.
func MetalStatus(native unsafe.Pointer) DeviceStatus {
	info := deviceInfo(replay.Info{Device: string(DeviceMetal), Modes: metal.Modes()})
	p, err := driver.Describe(native)
	if err != nil {
		return absent(DeviceMetal, err)
	}
	info.Name, info.Detail = p.Name, metal.Detail(p)
	c, note, err := metalChip(p)
	if err == nil {
		_, err = kernels.Embedded()
	}
	if err != nil {
		return DeviceStatus{DeviceInfo: info, Why: err.Error()}
	}
	cores := ""
	if p.Cores > 0 {
		cores = fmt.Sprintf("%d cores, ", p.Cores)
	}
	limits := fmt.Sprintf("%sthreadgroups of %d threads and %d KiB, buffers of %d MiB, chip %s", cores, p.MaxThreads, p.ThreadgroupMemory>>10, p.MaxBuffer>>20, c.Name)
	if note != "" {
		limits += " (" + note + ")"
	}
	return DeviceStatus{DeviceInfo: info, Available: true, Memory: p.WorkingSet - min(p.Allocated, p.WorkingSet), Limits: limits}
}

// MetalObjects returns the Metal objects that the model uses, for programs with Metal work of their
// own: the device, the command queue, and the fence that work on the model's buffers must wait for
// and update. The error is a *DeviceError if the model runs on another device.
func (m *Model) MetalObjects() (metal.Objects, error) {
	d, err := m.metal()
	if err != nil {
		return metal.Objects{}, err
	}
	return d.Objects()
}

func (m *Model) metal() (*metal.Device, error) {
	d, ok := m.dev.(*metal.Device)
	if !ok {
		return nil, &DeviceError{Device: DeviceMetal, Why: "the model runs on device " + m.dev.Info().Device}
	}
	return d, nil
}

// MetalSpan returns the buffer and the offset at which a slot of the model's table is stored:
// "logits", [rows, vocab] float32; "tokens", a ring of [context+1] uint32; "kv.0.k", the K cache of
// layer 0; or a weight by its name in the dump. The Span method of metal.Device documents how long
// it stays valid. The error is a *DeviceError if the model runs on another device.
func (s *Session) MetalSpan(slot string) (metal.Span, error) {
	d, err := s.m.metal()
	if err != nil {
		return metal.Span{}, err
	}
	i := slices.IndexFunc(s.m.t.Slots, func(of table.Slot) bool { return of.Name == slot })
	if i < 0 {
		return metal.Span{}, fmt.Errorf("pianola: the table has no slot %.40q", slot)
	}
	return d.Span(s.s.ID(), uint32(i))
}
