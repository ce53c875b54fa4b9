package cpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"

	"github.com/pianola-engine/pianola/table"
)

// Options are the settings of a device. The zero value is what most want.
type Options struct {
	Threads  int  // workers, 1 to GOMAXPROCS; 0: GOMAXPROCS
	Portable bool // kernels in Go alone, the reference that all others equal
	Pin      bool // bind each worker to a processor, where the system can
}

// Device is the processor as a device that replays tables. Its methods are
// those of replay.Device, and are described there.
type Device struct {
	ops     *ops
	threads int
	cpus    []int // to bind workers to, or nil

	// Set by Load, and not changed after.
	table    *table.Table
	model    [][]byte // by slot, of model and executor scope
	team     *team
	weights  uint64
	mapped   uint64
	executor uint64

	mu          sync.Mutex
	work        sync.Cond // there is a job, or the device closes
	loading     bool
	loaded      bool
	closed      bool
	sessions    map[table.SessionID]*session
	lastID      table.SessionID
	first, tail *job // the queue
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
	d := &Device{ops: fastest(), threads: o.Threads, sessions: map[table.SessionID]*session{}}
	d.work.L = &d.mu
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

// Memory says what the device holds.
func (d *Device) Memory() table.Memory {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.loaded || d.closed {
		return table.Memory{}
	}
	m := table.Memory{Weights: d.weights, Mapped: d.mapped, Executor: d.executor}
	for _, s := range d.sessions {
		m.Sessions += s.size
	}
	return m
}

// Close cancels what is in flight, waits for it, ends the threads and frees
// everything.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.loading {
		d.mu.Unlock()
		return errors.New("cpu: Close during Load")
	}
	d.closed = true
	for _, s := range d.sessions {
		s.job.cancelled.Store(true)
	}
	d.work.Broadcast()
	team := d.team
	d.mu.Unlock()
	if team != nil {
		team.done.Wait()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.model, d.team = nil, nil
	for _, s := range d.sessions {
		s.free()
	}
	return nil
}

// usable returns why the device cannot be used, or nil. d.mu must be held.
func (d *Device) usable() error {
	switch {
	case d.closed:
		return ErrClosed
	case !d.loaded:
		return ErrNotLoaded
	}
	return d.team.failure()
}
