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
	Modes  []Mode // supported modes, the fastest first
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
	for _, b := range backends(func(b *backend) int { return b.listed }) {
		list = append(list, b.status())
	}
	return list
}

// backend is a device as its file of this package supplies it.
type backend struct {
	device  Device
	listed  int  // place in the list of Devices
	chosen  int  // place in the choice of DeviceAuto, 0: not by itself
	threads bool // it runs on threads of this process: Options.Threads
	// claimed returns the name of an option that only this device can fulfil, if it is
	// set; may be nil.
	claimed func(o *Options) string
	open    func(o *Options) (*target, error)
	status  func() DeviceStatus
}

// registered has the devices of this build. Their files fill it when the program starts,
// and nothing changes it after that.
var registered []*backend

// backends returns the devices of this build in an order.
func backends(place func(b *backend) int) []*backend {
	return slices.SortedFunc(slices.Values(registered), func(a, b *backend) int { return cmp.Compare(place(a), place(b)) })
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
	if err := new(Device).UnmarshalText([]byte(o.Device)); err != nil {
		return nil, err
	}
	if err := new(Mode).UnmarshalText([]byte(o.Mode)); err != nil {
		return nil, err
	}
	auto := o.Device == DeviceAuto || o.Device == ""
	for _, b := range registered {
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
	for _, b := range registered {
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
	for _, b := range backends(func(b *backend) int { return b.chosen }) {
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
