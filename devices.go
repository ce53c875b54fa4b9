package pianola

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/replay"
)

// DeviceError reports a device that cannot be used as asked.
type DeviceError struct {
	Device Device
	Mode   Mode   // the unsupported mode, or "" if the mode is not the reason
	Why    string // the reason, such as "unavailable (requires macOS)"
	Err    error  // the device's own error, or nil
}

// Error implements error.
func (e *DeviceError) Error() string {
	if e.Mode != "" {
		return fmt.Sprintf("pianola: device %s does not support mode %s: %s", e.Device, e.Mode, e.Why)
	}
	return fmt.Sprintf("pianola: device %s: %s", e.Device, e.Why)
}

// Unwrap returns the device's own error.
func (e *DeviceError) Unwrap() error { return e.Err }

// DeviceInfo describes a device.
type DeviceInfo struct {
	Device Device
	Name   string // name of the GPU or the processor
	Modes  []Mode // supported modes; ModeAuto selects the first one
	Detail string // features and threads, for people to read
}

// DeviceStatus describes a device of this machine and reports whether it can be used.
type DeviceStatus struct {
	DeviceInfo
	Available bool
	Why       string // the reason if the device is not available
	Memory    uint64 // free bytes, or 0 if unknown
	Limits    string // limits for people to read, such as "1 to 8 threads"
}

// Devices returns the status of each device that this program was built with, available or not.
func Devices() []DeviceStatus {
	var list []DeviceStatus
	for _, b := range backends() {
		list = append(list, b.status())
	}
	return list
}

// backend is a device as its file of this package supplies it.
type backend struct {
	device  Device
	chosen  int  // order in which DeviceAuto tries the devices; 0 if it does not try this one
	threads bool // whether the device runs on threads of this process, see Options.Threads
	// claimed returns the name of an option that is set and that only this device supports,
	// or "". It may be nil.
	claimed func(o *Options) string
	open    func(o *Options) (*target, error)
	status  func() DeviceStatus
}

// backends returns the devices of this build in the order of Devices. The function of a device that
// is left out of the build returns nil.
func backends() []*backend {
	list := []*backend{cpuDevice(), metalDevice(), cudaDevice()}
	return slices.DeleteFunc(list, func(b *backend) bool { return b == nil })
}

// target is a device and what to compile for it.
type target struct {
	dev      replay.Device
	device   Device
	chip     *chip.Chip
	chipNote string // the data of the chip that is unknown
	mode     Mode
	stays    bool // weights may stay where the file has them
	free     func() (uint64, error)
}

// info describes the target's device.
func (t *target) info() DeviceInfo { return deviceInfo(t.dev.Info()) }

// deviceInfo converts a device's description of itself to a DeviceInfo.
func deviceInfo(i replay.Info) DeviceInfo {
	d := DeviceInfo{Device: Device(i.Device), Name: i.Name, Detail: i.Detail}
	for _, m := range i.Modes {
		d.Modes = append(d.Modes, Mode(m))
	}
	return d
}

// unavailable returns the error of a device that could not be opened.
func unavailable(d Device, err error) error {
	return &DeviceError{Device: d, Why: strings.TrimPrefix(err.Error(), string(d)+": "), Err: err}
}

// absent describes a device that could not be opened.
func absent(d Device, err error) DeviceStatus {
	return DeviceStatus{DeviceInfo: DeviceInfo{Device: d}, Why: strings.TrimPrefix(err.Error(), string(d)+": ")}
}

// newDevice opens the device that the options select. DeviceAuto selects the first available device
// that supports the options.
func newDevice(o Options) (*target, error) {
	t, err := openDevice(o)
	if err == nil && o.Table.Chip != nil {
		t.chip, t.chipNote = o.Table.Chip, ""
	}
	return t, err
}

func openDevice(o Options) (*target, error) {
	if err := new(Device).UnmarshalText([]byte(o.Device)); err != nil {
		return nil, err
	}
	if err := new(Mode).UnmarshalText([]byte(o.Mode)); err != nil {
		return nil, err
	}
	auto := o.Device == DeviceAuto || o.Device == ""
	built := backends()
	for _, b := range built {
		if b.claimed == nil || b.claimed(&o) == "" {
			continue
		}
		if !auto && o.Device != b.device || o.Threads != 0 && !b.threads {
			return nil, &DeviceError{Device: cmp.Or(o.Device, DeviceAuto), Why: fmt.Sprintf("%s requires device %s and no Options.Threads", b.claimed(&o), b.device)}
		}
		return b.open(&o)
	}
	if auto {
		return chooseDevice(&o)
	}
	for _, b := range built {
		if b.device != o.Device {
			continue
		}
		if o.Threads != 0 && !b.threads {
			return nil, &DeviceError{Device: o.Device, Why: "Options.Threads is for the CPU device"}
		}
		return b.open(&o)
	}
	return nil, &DeviceError{Device: o.Device, Why: "not included in this build"}
}

// chooseDevice opens the first available device. It returns the error of the last one if none is.
func chooseDevice(o *Options) (*target, error) {
	var last error
	for _, b := range slices.SortedFunc(slices.Values(backends()), func(a, b *backend) int { return a.chosen - b.chosen }) {
		if b.chosen == 0 || o.Threads != 0 && !b.threads {
			continue
		}
		t, err := b.open(o)
		if err == nil {
			return t, nil
		}
		last = err
	}
	return nil, last
}
