package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pianola-engine/pianola/internal/cuda/cubin"
	"github.com/pianola-engine/pianola/internal/cuda/driver"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// name is the prefix of this package's errors.
const name = "cuda"

// Options are the settings of a device. Modules is required.
type Options struct {
	GPU int // ordinal of the GPU
	// Capability makes the device treat the GPU as one of a lower compute capability, such as 70 for 7.0,
	// so that the kernels and the limits of older GPUs can be tested. 0 means the GPU's own.
	Capability int
	Mode       string // "encode", "record" or "resident"; "" selects the fastest mode that the GPU supports
	Library    string // path of the driver library; "" selects the system's library
	Modules    *Modules
	// Cache is a directory that keeps the code that the driver assembles from Modules, so that
	// later processes need not assemble it again. "" keeps nothing. A directory that cannot be
	// read or written is not an error.
	Cache string

	graphTokens []int // replaces graphTokens in tests
}

// base is the part that all devices share.
type base = device.Base[*session]

// Device is an NVIDIA GPU as a device that replays tables. Its methods implement replay.Device
// and are documented there.
type Device struct {
	base
	queue   *device.Queue[*session]
	drv     *driver.Driver
	gpu     *GPU
	mode    mode
	modules *Modules
	cache   *cubin.Cache
	// Numbers of tokens of the graphs of mode record, in descending order; the last is 1.
	graphTokens []int

	prepared struct {
		sync.Mutex
		ctx chan retained // nil if Prepare has not been called since Load or Unload
	}

	// Set by Load and constant until Unload.
	table    *table.Table
	caches   *device.Caches
	ctx      driver.Context
	own      owned
	mem      []driver.Ptr // address of each slot that is not a cache that grows; of session scope, in current
	kernels  []kernel     // kernel of each command
	patch    kernel
	programs []program
	overlap  bool // a kernel may begin before the preceding one has ended
	pooled   bool // the table is pooled
	// Used by mode resident: the interpreter of each program; nil for programs that are replayed
	// as graphs.
	interpreters []*interpreter
	walks        []*walk         // of mode resident: command array of each program, or nil
	args         []arguments     // arguments of each command
	launches     []driver.Launch // launch of each command
	current      current
	recordings   recordings
	secondary    driver.Ptr    // secondary bytes: 16 per command
	transfer     driver.Stream // stream of Write, Read and Load
	cancels      driver.Stream // stream that writes stop flags
	stop         []byte        // pinned memory, the byte that Cancel writes
	exec         *executor
	warming      atomic.Bool // sessions opened now are brief
}

// New returns the GPU as a device. It uses no GPU memory before Load. The error wraps
// ErrNoDriver, ErrDriverTooOld, ErrNoGPU or ErrNoKernels.
func New(o Options) (*Device, error) {
	m, err := modeNamed(o.Mode)
	if err != nil {
		return nil, err
	}
	drv, gpu, err := find(o.Library, o.GPU)
	if err != nil {
		return nil, err
	}
	if err := gpu.lower(o.Capability); err != nil {
		return nil, err
	}
	if o.Modules == nil || !o.Modules.supports(gpu.capability()) {
		return nil, fmt.Errorf("cuda: %s, compute capability %d.%d: %w", gpu.Name, gpu.Major, gpu.Minor, ErrNoKernels)
	}
	d := &Device{drv: drv, gpu: gpu, mode: m, modules: o.Modules, cache: cubin.New(o.Cache)}
	d.queue = device.New(name, backend{d})
	d.base = d.queue.Base()
	if d.graphTokens = o.graphTokens; d.graphTokens == nil {
		d.graphTokens = graphTokens()
	}
	return d, nil
}

// Prepare begins to create the GPU's context, so that Load finds it or waits for less time. A
// device that is prepared must be closed even if nothing is loaded.
func (d *Device) Prepare() {
	d.prepared.Lock()
	defer d.prepared.Unlock()
	if d.prepared.ctx != nil {
		return
	}
	made := make(chan retained, 1)
	d.prepared.ctx = made
	go func() {
		c, err := d.drv.PrimaryCtxRetain(d.gpu.dev)
		made <- retained{c, err}
	}()
}

// retained is the result of retaining the GPU's primary context.
type retained struct {
	ctx driver.Context
	err error
}

// takePrepared returns what Prepare began, once.
func (d *Device) takePrepared() (r retained, ok bool) {
	d.prepared.Lock()
	defer d.prepared.Unlock()
	if d.prepared.ctx == nil {
		return r, false
	}
	r = <-d.prepared.ctx
	d.prepared.ctx = nil
	return r, true
}

// retain returns the GPU's primary context, which must be released.
func (d *Device) retain() (driver.Context, error) {
	if r, ok := d.takePrepared(); ok {
		return r.ctx, r.err
	}
	return d.drv.PrimaryCtxRetain(d.gpu.dev)
}

// Mode returns the name of the mode in which submissions are replayed.
func (d *Device) Mode() string { return d.mode.name() }

// GPU describes the GPU.
func (d *Device) GPU() GPU { return *d.gpu }

// FreeMemory returns the number of free bytes of GPU memory. It creates the context if there is
// none, which is slow.
func (d *Device) FreeMemory() (free uint64, err error) {
	c, err := d.drv.PrimaryCtxRetain(d.gpu.dev)
	if err != nil {
		return 0, fmt.Errorf("cuda: %w", err)
	}
	defer func() {
		if e := d.drv.PrimaryCtxRelease(d.gpu.dev); e != nil {
			err = errors.Join(err, fmt.Errorf("cuda: %w", e))
		}
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := d.drv.CtxPush(c); err != nil {
		return 0, fmt.Errorf("cuda: %w", err)
	}
	free, err = d.drv.MemGetInfo()
	if err = errors.Join(err, d.drv.CtxPop()); err != nil {
		return 0, fmt.Errorf("cuda: %w", err)
	}
	return free, nil
}

// Info describes the device.
func (d *Device) Info() replay.Info {
	return replay.Info{Device: "cuda", Name: d.gpu.Name, Modes: Modes(), Detail: d.gpu.detail(), Moves: d.mode.name() != encode{}.name()}
}

// mode is a way to replay. Modes differ in where commands are patched and in what the host
// submits to the stream for each token.
type mode interface {
	name() string
	// overlaps reports whether a kernel may begin before the preceding one has ended, if GPU and
	// driver support it.
	overlaps() bool
	// modules returns the modules that the mode needs besides the kernels'. It is called after
	// the kernels' instances are chosen.
	modules(l *loader) ([]*module, error)
	// load finds the mode's kernels. It is called after the modules are loaded.
	load(l *loader) error
	// arrays allocates the command arrays and returns their size. It is called after the commands are
	// bound.
	arrays(d *Device) (size uint64, err error)
	// ready prepares a program, unless it is prepared already. The first session does this for the
	// programs that every session runs (early), and a submission for the others. If brief, single
	// tokens will be replayed.
	ready(d *Device, program int, brief bool) error
	// run submits a run to the executor's stream until the job is cancelled. first reports
	// whether the step block already holds the run's step.
	run(e *executor, j *job, r *replay.Run, first bool) error
	// timed is like run for the last run of a submission and adds the commands' times to times.
	// It may use another mode.
	timed(e *executor, j *job, r *replay.Run, times []time.Duration) error
}

// modes lists the modes, the fastest first, as measured on an H200 (docs/BENCHMARKS.md).
func modes() []mode { return []mode{record{}, resident{}, encode{}} }

// Modes returns the names of the modes, the fastest first.
func Modes() []string {
	var names []string
	for _, m := range modes() {
		names = append(names, m.name())
	}
	return names
}

func modeNamed(name string) (mode, error) {
	all := modes()
	if name == "" {
		return all[0], nil
	}
	i := slices.IndexFunc(all, func(m mode) bool { return m.name() == name })
	if i < 0 {
		return nil, fmt.Errorf("cuda: unknown mode %.20q: want one of %s", name, strings.Join(Modes(), ", "))
	}
	return all[i], nil
}
