package metal

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/metal/driver"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// name begins the errors of this package.
const name = "metal"

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
	// Shared is a GPU of the program's, on a queue of which chains run among its
	// own work; nil: the system's GPU, and a queue of the device's own.
	Shared *Shared
	// KeepAlive makes the GPU do a little after so much time without work, again
	// and again, so that its clocks stay up and weights resident; 0: it rests.
	KeepAlive time.Duration
	// Labels makes commands of mode encode debug groups, which captures show, at
	// two more calls of Metal each.
	Labels bool

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
	device.Base[*session]
	queue      *device.Queue[*session]
	drv        driver.Device
	releasing  sync.Mutex // guards the next
	released   bool       // drv is given back
	properties driver.Properties
	o          Options
	calls      atomic.Uint64 // of Metal
	warm       atomic.Bool   // Load has replayed what it replays

	// Set by Load, and not changed until it is taken back.
	table    *table.Table
	caches   *device.Caches
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
	memory   replay.Memory
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
	drv, err := o.open()
	if err != nil {
		return nil, fmt.Errorf("metal: %w", err)
	}
	d := &Device{drv: drv, properties: drv.Properties(), o: o}
	d.queue = device.New(name, backend{d})
	d.Base = d.queue.Base()
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

// SetSerial sets Options.Serial, before Load.
func (d *Device) SetSerial(on bool) { d.o.Serial = on }

// Properties are what the GPU says of itself.
func (d *Device) Properties() driver.Properties { return d.properties }

// Calls counts the messages to Metal that replaying took so far.
func (d *Device) Calls() uint64 { return d.calls.Load() }

// Info says what the device is.
func (d *Device) Info() replay.Info {
	return replay.Info{Device: "metal", Name: d.properties.Name, Modes: Modes(), Detail: Detail(d.properties), Moves: d.o.Mode == modeRecord}
}

// Close cancels what is in flight, waits for it and frees everything.
func (d *Device) Close() error {
	if err := d.Base.Close(); err != nil {
		return err
	}
	d.releasing.Lock()
	defer d.releasing.Unlock()
	if !d.released {
		d.released = true
		d.drv.Close()
	}
	return nil
}
