package pianola

import (
	"errors"
	"fmt"
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

// newMetal returns the Apple GPU.
func newMetal(mode string) (*target, error) {
	k, err := kernels.Embedded()
	if err != nil {
		return nil, &DeviceError{Device: "metal", Why: err.Error(), Err: err}
	}
	if mode == "resident" {
		return nil, &DeviceError{Device: "metal", Mode: mode, Why: "the modes are " + strings.Join(metal.Modes(), ", ")}
	}
	d, err := metal.New(metal.Options{Mode: mode, Kernels: k})
	if err != nil {
		return nil, &DeviceError{Device: "metal", Why: err.Error(), Err: err}
	}
	c, err := metalChip(d.Properties())
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	d.SetChainTime(time.Duration(c.ChainMS * float64(time.Millisecond)))
	return &target{dev: d, chip: c, mode: d.Mode(), stays: true}, nil
}

// metalChip returns the data of a GPU: the file of its name, else that of the
// first chip of its family; with smaller limits, if the GPU says so.
func metalChip(p driver.Properties) (*chip.Chip, error) {
	name := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(p.Name, "Apple ")), " ", "-")
	best := ""
	for _, known := range chip.Names() { // m4-max is no m4
		if rest, ok := strings.CutPrefix(name, known); ok && (rest == "" || rest[0] == '-') && len(known) > len(best) {
			best = known
		}
	}
	known := best != ""
	if !known {
		switch {
		case p.Family >= 9:
			best = "m3"
		case p.Family == 8:
			best = "m2"
		default:
			best = "m1"
		}
	}
	c, err := chip.Lookup(best)
	if err != nil {
		return nil, err
	}
	if c.Device != chip.Metal {
		return nil, fmt.Errorf("pianola: %s is no chip for Metal", c.Name)
	}
	if !known {
		c.Title = p.Name
	}
	c.MaxBufferBytes = min(c.MaxBufferBytes, max(1, p.MaxBuffer))
	c.ThreadgroupMemory = min(c.ThreadgroupMemory, max(1, p.ThreadgroupMemory))
	c.MaxThreads = min(c.MaxThreads, p.MaxThreads)
	return c, c.Validate()
}

func metalStatus() DeviceStatus {
	on, err := newMetal("")
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
	return DeviceStatus{
		Info: info, Available: true, Memory: p.WorkingSet - min(p.Allocated, p.WorkingSet),
		Limits: fmt.Sprintf("threadgroups of %d threads and %d KiB, buffers of %d MiB, chip %s", p.MaxThreads, p.ThreadgroupMemory>>10, p.MaxBuffer>>20, on.chip.Name),
	}
}
