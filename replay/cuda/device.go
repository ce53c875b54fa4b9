package cuda

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pianola-engine/pianola/replay/cuda/driver"
	"github.com/pianola-engine/pianola/table"
)

// Options are the settings of a device. Modules are needed.
type Options struct {
	GPU     int    // its ordinal
	Mode    string // "encode", "record" or "resident"; "": the fastest that the GPU can do
	Library string // file of the driver's library; "": the system's
	Modules *Modules

	graphTokens []int // of tests, in place of graphTokens
}

// Device is an NVIDIA GPU as a device that replays tables. Its methods are
// those of replay.Device, and are described there.
type Device struct {
	drv     *driver.Driver
	gpu     *GPU
	mode    mode
	modules *Modules
	// How many tokens a graph of mode record has, the most first; the last is 1.
	graphTokens []int

	// Set by Load, and not changed until it is taken back.
	table    *table.Table
	ctx      driver.Context
	own      owned
	model    []driver.Ptr // by slot, of model and executor scope
	kernels  []kernel     // by command
	patch    kernel
	programs []program
	overlap  bool // kernels begin before the one ahead of them has ended
	// Of mode resident, by program; nil for those that are replayed as graphs.
	interpreters []*interpreter
	seconds      driver.Ptr    // 16 bytes a command
	transfer     driver.Stream // for Write and Read, and at load
	cancels      driver.Stream // writes stop flags
	stop         []byte        // pinned, the byte that Cancel writes
	exec         *executor
	weights      uint64
	scratch      uint64

	// life is held for reading while the context is used outside of the
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

// New finds the GPU and returns it as a device. It uses no memory of it before
// Load. The error is ErrNoDriver, ErrDriverTooOld, ErrNoGPU or ErrNoKernels,
// with the reason.
func New(o Options) (*Device, error) {
	m, err := modeNamed(o.Mode)
	if err != nil {
		return nil, err
	}
	drv, gpu, err := find(o.Library, o.GPU)
	if err != nil {
		return nil, err
	}
	if o.Modules == nil || !o.Modules.supports(gpu.capability()) {
		return nil, fmt.Errorf("cuda: %s, compute capability %d.%d: %w", gpu.Name, gpu.Major, gpu.Minor, ErrNoKernels)
	}
	d := &Device{drv: drv, gpu: gpu, mode: m, modules: o.Modules, sessions: map[table.SessionID]*session{}}
	d.work.L = &d.mu
	if d.graphTokens = o.graphTokens; d.graphTokens == nil {
		d.graphTokens = graphTokens()
	}
	return d, nil
}

// Mode returns the name of the mode that submissions are replayed in.
func (d *Device) Mode() string { return d.mode.name() }

// GPU describes the GPU.
func (d *Device) GPU() GPU { return *d.gpu }

// FreeMemory returns how many bytes of the GPU's memory are free. It makes the
// context for as long as it takes, which is not quick.
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

// Info says what the device is.
func (d *Device) Info() table.Info {
	return table.Info{Device: "cuda", Name: d.gpu.Name, Modes: Modes(), Detail: d.gpu.detail()}
}

// Memory says what the device holds of the GPU's memory.
func (d *Device) Memory() table.Memory {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.loaded || d.closed {
		return table.Memory{}
	}
	m := table.Memory{Weights: d.weights, Executor: d.scratch}
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
		return errors.New("cuda: Close during Load")
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
	return d.unload()
}

// unload ends the executor and frees what Load and sessions have allocated.
func (d *Device) unload() error {
	d.mu.Lock()
	d.ending = true
	d.work.Broadcast()
	exec := d.exec
	d.mu.Unlock()
	if exec != nil {
		<-exec.done
	}
	d.life.Lock()
	defer d.life.Unlock()
	err := d.release()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.exec, d.loaded, d.ending = nil, false, false
	return err
}

// release frees everything and gives the context back. d.life must be held.
func (d *Device) release() error {
	if d.ctx == 0 {
		return nil
	}
	d.mu.Lock()
	open := slices.Collect(maps.Values(d.sessions))
	d.mu.Unlock()
	err := d.enter()
	if err == nil {
		for _, s := range open {
			err = errors.Join(err, s.free())
		}
		err = errors.Join(err, d.own.free())
		d.leave(&err)
	}
	if e := d.drv.PrimaryCtxRelease(d.gpu.dev); e != nil && !errors.Is(e, ErrDeviceLost) {
		err = errors.Join(err, fmt.Errorf("cuda: %w", e))
	}
	d.ctx = 0
	return err
}

// mode is a way to replay: who patches, and what the host gives to the stream
// for each token.
type mode interface {
	name() string
	// overlaps reports whether kernels begin before the one ahead has ended,
	// where GPU and driver can do it.
	overlaps() bool
	// load makes what all sessions share. The kernels are loaded.
	load(l *loader) error
	// prepare makes what a session needs. What it allocates is the session's.
	prepare(d *Device, s *session) error
	// run gives a run to the executor's stream, as far as the job is not
	// cancelled. first says that the step block holds the run's step.
	run(e *executor, j *job, r *table.Run, first bool) error
	// timed does the same for a submission's last run, and adds the commands'
	// times to times. It may do so in another mode.
	timed(e *executor, j *job, r *table.Run, times []time.Duration) error
}

// modes are the modes there are, the fastest first, as measured on an H200
// (docs/BENCHMARKS.md).
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
		return nil, fmt.Errorf("cuda: there is no mode %.20q; the modes are %s", name, strings.Join(Modes(), ", "))
	}
	return all[i], nil
}
