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

// name is the prefix of this package's errors.
const name = "cpu"

// Options are the settings of a device. The zero value suits most uses.
type Options struct {
	// Threads is the number of workers, from 1 to GOMAXPROCS. 0 selects GOMAXPROCS, or one less with
	// RealTime. Without RealTime, decode then uses fewer of them if Load measures that this is
	// faster.
	Threads int

	Portable bool // use only kernels in Go, the reference that all others equal bit for bit
	Pin      bool // bind each worker to a processor, if the system supports it

	// RealTime keeps the scheduler from interrupting submissions of up to 5 ms. Workers are bound
	// to processors if the system supports it, they do not yield their threads while they wait
	// for each other, and the memory of sessions is touched in advance.
	RealTime bool
}

// base is the part that all devices share.
type base = device.Base[*session]

// Device is the CPU as a device that replays tables. Its methods implement replay.Device and are
// documented there.
type Device struct {
	base
	queue   *device.Queue[*session]
	ops     *ops
	threads int
	chooses bool  // measure how many workers decode is to use
	cpus    []int // processors to bind workers to, or nil
	waits   waits
	touch   bool // write to all of a session's memory when it is opened

	// Set by Load and constant afterwards.
	table  *table.Table
	caches []table.KVCache // nil if caches do not grow
	model  [][]byte        // memory of each slot of model and executor scope
	team   *team
	moves  []bool // for each program: it is self-advancing
}

// New returns a device. Before Load it has no threads and no memory.
func New(o Options) (*Device, error) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return nil, errors.New("cpu: big-endian machines are not supported: tables and weights are little-endian")
	}
	most := runtime.GOMAXPROCS(0)
	if o.Threads < 0 || o.Threads > most {
		// Workers spin. More workers than run at once would wait for each other's preemption.
		return nil, fmt.Errorf("cpu: %d threads: want 1 to %d (GOMAXPROCS)", o.Threads, most)
	}
	chooses := o.Threads == 0 && !o.RealTime
	if o.Threads == 0 {
		o.Threads = most
		if o.RealTime && o.Threads > 1 {
			o.Threads-- // leave a processor for the rest of the process and the system
		}
	}
	d := &Device{ops: fastest(), threads: o.Threads, chooses: chooses, waits: sharing, touch: o.RealTime}
	d.queue = device.New(name, backend{d})
	d.base = d.queue.Base()
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
			slices.Reverse(cpus) // the first processors serve most interrupts
		}
		d.cpus = cpus
	}
	return d, nil
}

// Threads returns the number of workers.
func (d *Device) Threads() int { return d.threads }

// Features returns the processor features that the kernels use, or "portable" if they are written
// in Go only.
func Features() []string { return fastest().features }

// Info describes the device.
func (d *Device) Info() replay.Info {
	return replay.Info{
		Device: "cpu",
		Name:   machineName(),
		Modes:  []string{"encode"},
		Detail: fmt.Sprintf("%s, %s", d.threadsText(), strings.Join(d.ops.features, " ")),
		Moves:  true,
	}
}

// threadsText describes the team.
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
