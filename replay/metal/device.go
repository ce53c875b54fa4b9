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

// name is the prefix of this package's errors.
const name = "metal"

// Options are the settings of a device. Kernels is required.
type Options struct {
	Mode    string // "encode", which is the default, or "record"
	Kernels *Kernels
	// ChainTime limits the duration of the work in flight, which is two command buffers, and
	// therefore the time for which a cancelled submission continues. If it is 0, the limit is
	// 50 ms.
	ChainTime time.Duration
	// Archive is a directory in which compiled pipelines are kept, so that later processes need
	// not compile them again. If it is "", pipelines are not kept.
	Archive string
	// Serial makes the GPU run commands one after another. No barriers are encoded then.
	Serial bool
	// Shared makes the device use a GPU and a queue that the program already uses, so that chains
	// run between the program's own work. If it is nil, the device uses the system's default GPU
	// and creates its own queue.
	Shared *Shared
	// KeepAlive gives the GPU a little work whenever it has been idle for this time, so that its
	// clocks stay high and weights stay resident. If it is 0, the GPU may idle.
	KeepAlive time.Duration
	// Labels puts each command into a debug group with the command's label, which GPU captures in
	// Xcode show. It applies to mode encode and takes two more Metal calls per command.
	Labels bool

	tokens    int  // for tests: largest number of tokens in a command buffer, replaces maxTokens
	unchecked bool // for tests: tables need not validate
	cold      bool // for tests: Load does not warm up
	whole     bool // for tests: command buffers contain whole tokens and chunks, however long they take
}

// The modes.
const (
	modeEncode = "encode"
	modeRecord = "record"
)

// Modes returns the names of the modes, the default first.
func Modes() []string { return []string{modeEncode, modeRecord} }

// defaultChainTime is the default of Options.ChainTime.
const defaultChainTime = 50 * time.Millisecond

// base is the implementation that all devices share.
type base = device.Base[*session]

// Properties are the limits and features of a GPU.
type Properties = driver.Properties

// Timestamps are the places where a GPU can take the time.
type Timestamps = driver.Timestamps

// Device is an Apple GPU as a device that replays tables. Its methods implement replay.Device and
// are documented there.
type Device struct {
	base
	queue      *device.Queue[*session]
	drv        driver.Device
	releasing  sync.Mutex // guards released
	released   bool       // drv has been released
	properties driver.Properties
	o          Options
	calls      atomic.Uint64          // number of Metal calls
	warm       atomic.Bool            // Load has finished the warm-up
	predicted  atomic.Pointer[prices] // of the loaded table

	// Set by Load and constant until Unload.
	table     *table.Table
	caches    *device.Caches
	own       owned
	model     []place // place of each slot of model and executor scope
	kernels   []kernel
	patch     kernel
	programs  []program
	params    driver.Buffer // parameters of all commands, patch lists, zeros
	weights   []driver.Buffer
	scratch   []driver.Buffer
	secondary [flights]driver.Buffer // of mode record: the secondary bytes of all commands, then the execution ranges
	ranges    [flights][]byte        // the execution ranges

	recordings [flights]recording // of mode record
	read       []driver.Object    // what recorded commands read
	bindings   atomic.Uint64      // number of bindings so far
	sessions   atomic.Int64       // number of open sessions
	exec       *executor
	memory     replay.Memory
}

// New opens the system's GPU and returns it as a device. It uses little memory before Load. The
// error wraps ErrNoMetal or ErrNoKernels.
func New(o Options) (*Device, error) {
	if o.Mode == "" {
		o.Mode = modeEncode
	}
	if !slices.Contains(Modes(), o.Mode) {
		return nil, fmt.Errorf("metal: unknown mode %.20q: want one of %s", o.Mode, strings.Join(Modes(), ", "))
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
	d.base = d.queue.Base()
	return d, nil
}

// Mode returns the name of the mode in which submissions are replayed.
func (d *Device) Mode() string { return d.o.Mode }

// SetChainTime sets Options.ChainTime. Call it before Load.
func (d *Device) SetChainTime(bound time.Duration) {
	if bound > 0 {
		d.o.ChainTime = bound
	}
}

// SetSerial sets Options.Serial. Call it before Load.
func (d *Device) SetSerial(on bool) { d.o.Serial = on }

// Properties returns the GPU's properties.
func (d *Device) Properties() Properties { return d.properties }

// Calls returns the number of Metal messages that replaying has sent so far.
func (d *Device) Calls() uint64 { return d.calls.Load() }

// Info describes the device.
func (d *Device) Info() replay.Info {
	return replay.Info{Device: "metal", Name: d.properties.Name, Modes: Modes(), Detail: Detail(d.properties), Moves: d.o.Mode == modeRecord}
}

// Close cancels the submissions in flight, waits for them and frees everything.
func (d *Device) Close() error {
	if err := d.base.Close(); err != nil {
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
