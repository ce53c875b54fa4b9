package cpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"

	"github.com/pianola-engine/pianola/replay/device"
	"github.com/pianola-engine/pianola/table"
)

// name begins the errors of this package.
const name = "cpu"

// Options are the settings of a device. The zero value is what most want.
type Options struct {
	Threads  int  // workers, 1 to GOMAXPROCS; 0: GOMAXPROCS
	Portable bool // kernels in Go alone, the reference that all others equal
	Pin      bool // bind each worker to a processor, where the system can
}

// Device is the processor as a device that replays tables. Its methods are
// those of replay.Device, and are described there.
type Device struct {
	device.Base[*session]
	queue   *device.Queue[*session]
	ops     *ops
	threads int
	cpus    []int // to bind workers to, or nil

	// Set by Load, and not changed after.
	table *table.Table
	model [][]byte // by slot, of model and executor scope
	team  *team
}

// New returns a device. It has no threads and no memory before Load.
func New(o Options) (*Device, error) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return nil, errors.New("cpu: big-endian machines are not supported: tables and weights are little-endian")
	}
	most := runtime.GOMAXPROCS(0)
	if o.Threads < 0 || o.Threads > most {
		// Workers spin: more of them than run at once would wait for each
		// other's preemption.
		return nil, fmt.Errorf("cpu: %d threads are not within 1 to GOMAXPROCS, which is %d", o.Threads, most)
	}
	if o.Threads == 0 {
		o.Threads = most
	}
	d := &Device{ops: fastest(), threads: o.Threads}
	d.queue = device.New(name, backend{d})
	d.Base = d.queue.Base()
	if o.Portable {
		d.ops = portable()
	}
	if o.Pin {
		cpus, err := allowedCPUs()
		if err != nil {
			return nil, err
		}
		d.cpus = cpus
	}
	return d, nil
}

// Features returns the processor's features that kernels use, or "portable" if
// they are in Go alone.
func Features() []string { return fastest().features }

// Info says what the device is.
func (d *Device) Info() table.Info {
	return table.Info{
		Device: "cpu",
		Name:   machineName(),
		Modes:  []string{"encode"},
		Detail: fmt.Sprintf("%d threads, %s", d.threads, strings.Join(d.ops.features, " ")),
	}
}
