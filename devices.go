package pianola

import (
	"fmt"
	"runtime"

	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/cpu"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

// DeviceError says that a device, or a mode of it, is not there.
type DeviceError struct{ Device, Mode, Why string }

// Error implements error.
func (e *DeviceError) Error() string {
	if e.Mode != "" {
		return fmt.Sprintf("pianola: device %s has no mode %s: %s", e.Device, e.Mode, e.Why)
	}
	return fmt.Sprintf("pianola: device %s: %s", e.Device, e.Why)
}

// missing are the devices that this build does not have, with the reason.
var missing = []struct{ device, why string }{
	{"metal", "this build has no Metal device"},
	{"cuda", "this build has no NVIDIA device"},
}

// newDevice returns the device that the options ask for and the chip to compile
// for.
func newDevice(o Options) (replay.Device, string, error) {
	switch o.Device {
	case "", "auto", "cpu":
	default:
		for _, m := range missing {
			if o.Device == m.device {
				return nil, "", &DeviceError{Device: o.Device, Why: m.why}
			}
		}
		return nil, "", &DeviceError{Device: o.Device, Why: "unknown; the devices are auto, cpu, metal, cuda"}
	}
	switch o.Mode {
	case "", "encode":
	case "record", "resident":
		return nil, "", &DeviceError{Device: "cpu", Mode: o.Mode, Why: "it walks the table itself, in mode encode"}
	default:
		return nil, "", &DeviceError{Device: "cpu", Mode: o.Mode, Why: "the modes are encode, record, resident"}
	}
	d, err := cpu.New(cpu.Options{Threads: o.Threads})
	if err != nil {
		return nil, "", err
	}
	return d, "cpu", nil
}

// DeviceStatus is a device, or why it is not there.
type DeviceStatus struct {
	table.Info
	Available bool
	Why       string // if not available
	Memory    uint64 // bytes that are free for it, 0 if unknown
	Limits    string
}

// Devices lists the devices that this program knows.
func Devices() []DeviceStatus {
	var list []DeviceStatus
	if d, err := cpu.New(cpu.Options{}); err != nil {
		list = append(list, DeviceStatus{Info: table.Info{Device: "cpu"}, Why: err.Error()})
	} else {
		free, _ := weights.AvailableMemory()
		list = append(list, DeviceStatus{
			Info: d.Info(), Available: true, Memory: free,
			Limits: fmt.Sprintf("1 to %d threads", runtime.GOMAXPROCS(0)),
		})
	}
	for _, m := range missing {
		list = append(list, DeviceStatus{Info: table.Info{Device: m.device}, Why: m.why})
	}
	return list
}
