package pianola

import (
	"fmt"
	"runtime"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/replay/cpu"
	"github.com/pianola-engine/pianola/weights"
)

// cpuDevice returns the CPU device, which every build contains.
func cpuDevice() *backend {
	return &backend{device: DeviceCPU, chosen: 3, threads: true, open: newCPU, status: cpuStatus}
}

// newCPU opens the CPU device.
func newCPU(o *Options) (*target, error) {
	if o.Mode != ModeAuto && o.Mode != ModeEncode {
		return nil, &DeviceError{Device: DeviceCPU, Mode: o.Mode, Why: "supported modes: encode"}
	}
	d, err := cpu.New(cpu.Options{Threads: o.Threads, RealTime: o.RealTime})
	if err != nil {
		return nil, err
	}
	c, err := chip.Lookup(string(DeviceCPU))
	return &target{dev: d, device: DeviceCPU, chip: c, mode: ModeEncode, stays: true, free: freeMemory}, err
}

// freeMemory returns the number of free bytes of the machine's memory, or 0 if it is unknown.
func freeMemory() (uint64, error) {
	free, _ := weights.AvailableMemory()
	return free, nil
}

func cpuStatus() DeviceStatus {
	d, err := cpu.New(cpu.Options{})
	if err != nil {
		return absent(DeviceCPU, err)
	}
	free, _ := freeMemory()
	return DeviceStatus{
		DeviceInfo: deviceInfo(d.Info()), Available: true, Memory: free,
		Limits: fmt.Sprintf("1 to %d threads", runtime.GOMAXPROCS(0)),
	}
}
