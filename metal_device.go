package pianola

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/replay/metal"
	"github.com/pianola-engine/pianola/replay/metal/driver"
	"github.com/pianola-engine/pianola/replay/metal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// metalFirst says that auto takes an Apple GPU before anything else.
const metalFirst = runtime.GOOS == "darwin"

// MetalOptions are settings of the Metal device.
type MetalOptions struct {
	// NoArchive compiles pipelines each time, instead of keeping them in the
	// folder pianola/metal of the user's cache.
	NoArchive bool
}

// archive returns the folder for pipelines, "" for none.
func (o *MetalOptions) archive() string {
	cache, err := os.UserCacheDir()
	if o.NoArchive || err != nil {
		return ""
	}
	return filepath.Join(cache, "pianola", "metal")
}

// newMetal returns the Apple GPU.
func newMetal(mode string, o MetalOptions) (*target, error) {
	k, err := kernels.Embedded()
	if err != nil {
		return nil, &DeviceError{Device: "metal", Why: err.Error(), Err: err}
	}
	if mode == "resident" {
		return nil, &DeviceError{Device: "metal", Mode: mode, Why: "the modes are " + strings.Join(metal.Modes(), ", ")}
	}
	d, err := metal.New(metal.Options{Mode: mode, Kernels: k, Archive: o.archive()})
	if err != nil {
		return nil, &DeviceError{Device: "metal", Why: err.Error(), Err: err}
	}
	c, note, err := metalChip(d.Properties())
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	d.SetChainTime(time.Duration(c.ChainMS * float64(time.Millisecond)))
	return &target{dev: d, chip: c, chipNote: note, mode: d.Mode(), stays: true}, nil
}

// metalChip returns the data of a GPU, with smaller limits if the GPU says so,
// and what is not known of it.
func metalChip(p driver.Properties) (*chip.Chip, string, error) {
	c, note, err := chip.ForGPU(chip.GPU{Name: p.Name, Family: p.Family, Cores: p.Cores})
	if err != nil {
		return nil, "", err
	}
	c.MaxBufferBytes = min(c.MaxBufferBytes, max(1, p.MaxBuffer))
	c.ThreadgroupMemory = min(c.ThreadgroupMemory, max(1, p.ThreadgroupMemory))
	c.MaxThreads = min(c.MaxThreads, p.MaxThreads)
	return c, note, c.Validate()
}

func metalStatus() DeviceStatus {
	on, err := newMetal("", MetalOptions{NoArchive: true})
	if err != nil {
		why := err.Error()
		var missing *DeviceError
		if errors.As(err, &missing) {
			why = missing.Why
		}
		return DeviceStatus{Info: table.Info{Device: "metal"}, Why: why}
	}
	d, _ := on.dev.(*metal.Device)
	p, info := d.Properties(), d.Info()
	if err := d.Close(); err != nil {
		return DeviceStatus{Info: info, Why: err.Error()}
	}
	cores := ""
	if p.Cores > 0 {
		cores = fmt.Sprintf("%d cores, ", p.Cores)
	}
	limits := fmt.Sprintf("%sthreadgroups of %d threads and %d KiB, buffers of %d MiB, chip %s", cores, p.MaxThreads, p.ThreadgroupMemory>>10, p.MaxBuffer>>20, on.chip.Name)
	if on.chipNote != "" {
		limits += " (" + on.chipNote + ")"
	}
	return DeviceStatus{Info: info, Available: true, Memory: p.WorkingSet - min(p.Allocated, p.WorkingSet), Limits: limits}
}
