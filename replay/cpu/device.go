package cpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// name begins the errors of this package.
const name = "cpu"

// Options are the settings of a device. The zero value is what most want.
type Options struct {
	Threads  int  // workers, 1 to GOMAXPROCS; 0: GOMAXPROCS, in real time one less
	Portable bool // kernels in Go alone, the reference that all others equal
	Pin      bool // bind each worker to a processor, where the system can

	// RealTime keeps the scheduler out of submissions of up to 5 ms: workers are
	// bound to processors where the system can, wait for one another without
	// giving their threads up, and find the memory of sessions touched.
	RealTime bool
}

// Device is the processor as a device that replays tables. Its methods are
// those of replay.Device, and are described there.
type Device struct {
	device.Base[*session]
	queue   *device.Queue[*session]
	ops     *ops
	threads int
	cpus    []int // to bind workers to, or nil
	waits   waits
	touch   bool // write to a session's memory before it is used

	// Set by Load, and not changed after.
	table  *table.Table
	caches []table.KVCache // nil if they do not grow
	model  [][]byte        // by slot, of model and executor scope
	team   *team
	moves  []bool // by program: the step block says how far it has come
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
		if o.RealTime && o.Threads > 1 {
			o.Threads-- // for everything else that the process and the system do
		}
	}
	d := &Device{ops: fastest(), threads: o.Threads, waits: sharing, touch: o.RealTime}
	d.queue = device.New(name, backend{d})
	d.Base = d.queue.Base()
	if o.Portable {
		d.ops = portable()
	}
	if o.RealTime {
		d.waits = owning
	}
	if o.Pin || o.RealTime && canPin {
		cpus, err := allowedCPUs()
		if err != nil {
			return nil, err
		}
		if o.RealTime {
			slices.Reverse(cpus) // the first ones serve most interrupts
		}
		d.cpus = cpus
	}
	return d, nil
}

// Threads returns how many workers the device has.
func (d *Device) Threads() int { return d.threads }

// Features returns the processor's features that kernels use, or "portable" if
// they are in Go alone.
func Features() []string { return fastest().features }

// Info says what the device is.
func (d *Device) Info() replay.Info {
	return replay.Info{
		Device: "cpu",
		Name:   machineName(),
		Modes:  []string{"encode"},
		Detail: fmt.Sprintf("%s, %s", d.threadsText(), strings.Join(d.ops.features, " ")),
		Moves:  true,
	}
}

// threadsText says how the team is made up.
func (d *Device) threadsText() string {
	s := fmt.Sprintf("%d threads", d.threads)
	if d.waits == owning {
		s += " in real time"
	}
	if d.cpus != nil {
		s += ", bound to processors"
	}
	return s
}
