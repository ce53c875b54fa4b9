package pianola

import (
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/cpu"
	"github.com/pianola-engine/pianola/replay/cuda"
	"github.com/pianola-engine/pianola/weights"
)

// DeviceError says that a device, or a mode of it, is not there.
type DeviceError struct {
	Device, Mode, Why string
	Err               error // of the device, nil if it was not asked
}

// Error implements error.
func (e *DeviceError) Error() string {
	if e.Mode != "" {
		return fmt.Sprintf("pianola: device %s has no mode %s: %s", e.Device, e.Mode, e.Why)
	}
	return fmt.Sprintf("pianola: device %s: %s", e.Device, e.Why)
}

// Unwrap returns the device's own error.
func (e *DeviceError) Unwrap() error { return e.Err }

// target is a device and what to compile for it.
type target struct {
	dev   replay.Device
	chip  *chip.Chip
	mode  string
	stays bool // weights may stay where the file has them

	chipNote string // what is not known of the chip
}

// newDevice returns the device that the options ask for. auto is the GPU, Apple's
// or NVIDIA's, if one can be used and no threads are asked for, else the CPU.
func newDevice(o Options) (*target, error) {
	switch o.Mode {
	case "", "encode", "record", "resident":
	default:
		return nil, &DeviceError{Device: deviceName(o.Device), Mode: o.Mode, Why: "the modes are encode, record, resident"}
	}
	if o.Metal.Shared != nil && (o.Threads != 0 || !slices.Contains([]string{"", "auto", "metal"}, o.Device)) {
		return nil, &DeviceError{Device: deviceName(o.Device), Why: "Options.Metal.Shared is a GPU, of device metal"}
	}
	switch o.Device {
	case "", "auto":
		if o.Metal.Shared != nil {
			return newMetal(o.Mode, o.Metal)
		}
		if o.Threads == 0 && metalFirst {
			if t, err := newMetal(o.Mode, o.Metal); err == nil {
				return t, nil
			}
		}
		if o.Threads == 0 {
			if t, err := newCUDA(o.Mode, cuda.Options{Modules: cudaModules()}); err == nil {
				return t, nil
			}
		}
		return newCPU(o)
	case "cpu":
		return newCPU(o)
	case "cuda":
		if o.Threads != 0 {
			return nil, &DeviceError{Device: "cuda", Why: "threads are for the CPU device"}
		}
		return newCUDA(o.Mode, cuda.Options{Modules: cudaModules()})
	case "metal":
		if o.Threads != 0 {
			return nil, &DeviceError{Device: "metal", Why: "threads are for the CPU device"}
		}
		return newMetal(o.Mode, o.Metal)
	}
	return nil, &DeviceError{Device: o.Device, Why: "unknown; the devices are auto, cpu, metal, cuda"}
}

// deviceName returns the device that a mode is missing from.
func deviceName(asked string) string {
	if asked == "" || asked == "auto" {
		return "cpu"
	}
	return asked
}

func newCPU(o Options) (*target, error) {
	if o.Mode == "record" || o.Mode == "resident" {
		return nil, &DeviceError{Device: "cpu", Mode: o.Mode, Why: "it walks the table itself, in mode encode"}
	}
	d, err := cpu.New(cpu.Options{Threads: o.Threads, RealTime: o.RealTime})
	if err != nil {
		return nil, err
	}
	c, err := chip.Lookup("cpu")
	return &target{dev: d, chip: c, mode: "encode", stays: true}, err
}

// newCUDA returns the NVIDIA GPU. o has no mode.
func newCUDA(mode string, o cuda.Options) (*target, error) {
	o.Mode = mode
	d, err := cuda.New(o)
	if err != nil {
		return nil, &DeviceError{Device: "cuda", Why: err.Error(), Err: err}
	}
	c, err := cudaChip(d.GPU())
	return &target{dev: d, chip: c, mode: d.Mode()}, err
}

// cudaChip returns the data of a GPU: its own file where there is one, else
// those of any GPU with what the driver says.
func cudaChip(g cuda.GPU) (*chip.Chip, error) {
	if c, err := chip.Lookup("h200"); err != nil || isH200(g, c) {
		return c, err
	}
	c, err := chip.Lookup("cuda")
	if err != nil {
		return nil, err
	}
	c.Title = g.Name
	c.Cores, c.MaxBufferBytes = max(1, g.Multiprocessors), max(1, g.Memory)
	c.MaxThreads, c.ThreadgroupMemory = min(c.MaxThreads, g.MaxThreads), max(1, g.SharedMemory)
	if g.BandwidthGBs > 0 {
		c.BandwidthGBs = g.BandwidthGBs
	}
	// As for the H200: the kernels are made for its processor.
	if g.Major == 9 && g.Minor == 0 {
		c.GEMMHalves = true
		if c.Validate() != nil {
			c.GEMMHalves = false
		}
	}
	return c, c.Validate()
}

// isH200 reports whether a GPU is a whole H200, and not a part of one.
func isH200(g cuda.GPU, c *chip.Chip) bool {
	return strings.Contains(g.Name, "H200") && g.Major == 9 && g.Minor == 0 && g.Multiprocessors == c.Cores
}

// DeviceStatus is a device, or why it is not there.
type DeviceStatus struct {
	replay.Info
	Available bool
	Why       string // if not available
	Memory    uint64 // bytes that are free for it, 0 if unknown
	Limits    string
}

// Devices lists the devices that this program knows.
func Devices() []DeviceStatus {
	return []DeviceStatus{cpuStatus(), metalStatus(), cudaStatus(cuda.Options{Modules: cudaModules()})}
}

func cpuStatus() DeviceStatus {
	d, err := cpu.New(cpu.Options{})
	if err != nil {
		return DeviceStatus{Info: replay.Info{Device: "cpu"}, Why: err.Error()}
	}
	free, _ := weights.AvailableMemory()
	return DeviceStatus{
		Info: d.Info(), Available: true, Memory: free,
		Limits: fmt.Sprintf("1 to %d threads", runtime.GOMAXPROCS(0)),
	}
}

func cudaStatus(o cuda.Options) DeviceStatus {
	d, err := cuda.New(o)
	if err != nil {
		return DeviceStatus{Info: replay.Info{Device: "cuda"}, Why: err.Error()}
	}
	free, err := d.FreeMemory()
	if err != nil {
		return DeviceStatus{Info: d.Info(), Why: err.Error()}
	}
	g := d.GPU()
	return DeviceStatus{
		Info: d.Info(), Available: true, Memory: free,
		Limits: fmt.Sprintf("threadgroups of %d threads and %d KiB", g.MaxThreads, g.SharedMemory>>10),
	}
}
