package metal

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pianola-engine/pianola/replay/metal/driver"
	"github.com/pianola-engine/pianola/table"
)

// Options are the settings of a device. Kernels are needed.
type Options struct {
	Mode    string // "encode" or "record"; "": encode
	Kernels *Kernels
	// ChainTime bounds what is in flight: two command buffers, and so what is
	// left of a submission that is cancelled. 0 is 50 ms.
	ChainTime time.Duration
	// Archive is the folder where compiled pipelines are kept for other processes
	// and later ones; "": nowhere.
	Archive string
	// Serial makes encoders run commands one after another, without barriers.
	Serial bool

	tokens    int  // of tests: in a command buffer at most, in place of maxTokens
	unchecked bool // of tests: tables need not validate
	cold      bool // of tests: nothing is replayed at load
}

// The modes.
const (
	modeEncode = "encode"
	modeRecord = "record"
)

// Modes returns the names of the modes, the default first.
func Modes() []string { return []string{modeEncode, modeRecord} }

// defaultChainTime bounds what is in flight.
const defaultChainTime = 50 * time.Millisecond

// Device is an Apple GPU as a device that replays tables. Its methods are those
// of replay.Device, and are described there.
type Device struct {
	drv        driver.Device // nil once closed
	properties driver.Properties
	o          Options
	calls      atomic.Uint64 // of Metal

	// Set by Load, and not changed until it is taken back.
	table    *table.Table
	own      owned
	model    []place // by slot, of model and executor scope
	kernels  []kernel
	patch    kernel
	programs []program
	params   driver.Buffer // parameters of all commands, lists of patches, zeros
	weights  []driver.Buffer
	scratch  []driver.Buffer
	seconds  [flights]driver.Buffer // of mode record: a record for each command, and the execution ranges
	ranges   [flights][]byte        // the execution ranges
	exec     *executor
	memory   table.Memory

	// life is held for reading while what Load made is used outside of the
	// executor, so that Close does not take it away.
	life sync.RWMutex

	mu          sync.Mutex
	work        sync.Cond // there is a job, or the executor ends
	loading     bool
	loaded      bool
	closed      bool
	ending      bool  // the executor ends
	failed      error // what lost the device
	sessions    map[table.SessionID]*session
	lastID      table.SessionID
	first, tail *job // the queue
}

// New opens the system's GPU and returns it as a device. It uses little memory
// before Load. The error is ErrNoMetal or ErrNoKernels, with the reason.
func New(o Options) (*Device, error) {
	if o.Mode == "" {
		o.Mode = modeEncode
	}
	if !slices.Contains(Modes(), o.Mode) {
		return nil, fmt.Errorf("metal: there is no mode %.20q; the modes are %s", o.Mode, strings.Join(Modes(), ", "))
	}
	if o.ChainTime <= 0 {
		o.ChainTime = defaultChainTime
	}
	if o.tokens <= 0 {
		o.tokens = maxTokens
	}
	if o.Kernels == nil || o.Kernels.Data == nil && o.Kernels.Source == nil {
		return nil, fmt.Errorf("metal: %w", ErrNoKernels)
	}
	drv, err := driver.Open()
	if err != nil {
		return nil, fmt.Errorf("metal: %w", err)
	}
	d := &Device{drv: drv, properties: drv.Properties(), o: o, sessions: map[table.SessionID]*session{}}
	d.work.L = &d.mu
	return d, nil
}

// Mode returns the name of the mode that submissions are replayed in.
func (d *Device) Mode() string { return d.o.Mode }

// SetChainTime sets Options.ChainTime, before Load.
func (d *Device) SetChainTime(bound time.Duration) {
	if bound > 0 {
		d.o.ChainTime = bound
	}
}

// Properties are what the GPU says of itself.
func (d *Device) Properties() driver.Properties { return d.properties }

// Calls counts the messages to Metal that replaying took so far.
func (d *Device) Calls() uint64 { return d.calls.Load() }

// Info says what the device is.
func (d *Device) Info() table.Info {
	var detail []string
	if d.properties.Family > 0 {
		detail = append(detail, fmt.Sprintf("family Apple %d", d.properties.Family))
	}
	return table.Info{Device: "metal", Name: d.properties.Name, Modes: Modes(), Detail: strings.Join(detail, ", ")}
}

// Memory says what the device holds.
func (d *Device) Memory() table.Memory {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.loaded || d.closed {
		return table.Memory{}
	}
	m := d.memory
	for _, s := range d.sessions {
		m.Sessions += s.size
	}
	return m
}

// usable returns why the device cannot be used, or nil. d.mu must be held.
func (d *Device) usable() error {
	switch {
	case d.closed:
		return ErrClosed
	case !d.loaded:
		return ErrNotLoaded
	}
	return d.failed
}

// lose notes what lost the device; every later call returns it.
func (d *Device) lose(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failed == nil {
		d.failed = err
	}
}

// Close cancels what is in flight, waits for it and frees everything.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.loading {
		d.mu.Unlock()
		return errors.New("metal: Close during Load")
	}
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	open := slices.Collect(maps.Values(d.sessions))
	d.mu.Unlock()
	for _, s := range open {
		s.mu.Lock()
		t := s.ticket()
		s.mu.Unlock()
		d.Cancel(t)
	}
	d.unload()
	d.drv.Close()
	return nil
}

// unload ends the executor and frees what Load and sessions have made.
func (d *Device) unload() {
	d.mu.Lock()
	d.ending = true
	d.work.Broadcast()
	exec := d.exec
	d.mu.Unlock()
	if exec != nil {
		exec.wait()
	}
	d.life.Lock()
	defer d.life.Unlock()
	d.mu.Lock()
	open := slices.Collect(maps.Values(d.sessions))
	d.mu.Unlock()
	for _, s := range open {
		s.free()
	}
	d.own.free()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.exec, d.loaded, d.ending = nil, false, false
}
