package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/pianola-engine/pianola/internal/cuda/driver"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// name begins the errors of this package.
const name = "cuda"

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
	device.Base[*session]
	queue   *device.Queue[*session]
	drv     *driver.Driver
	gpu     *GPU
	mode    mode
	modules *Modules
	// How many tokens a graph of mode record has, the most first; the last is 1.
	graphTokens []int

	// Set by Load, and not changed until it is taken back.
	table    *table.Table
	caches   *device.Caches
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
	d := &Device{drv: drv, gpu: gpu, mode: m, modules: o.Modules}
	d.queue = device.New(name, backend{d})
	d.Base = d.queue.Base()
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
func (d *Device) Info() replay.Info {
	return replay.Info{Device: "cuda", Name: d.gpu.Name, Modes: Modes(), Detail: d.gpu.detail(), Moves: d.mode.name() != encode{}.name()}
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
	// prepare makes what a session needs of its launches as they are. What it
	// allocates is the session's made.
	prepare(d *Device, s *session) error
	// ready does that for a program, unless it is done: prepare does it for those that
	// every session runs (early), and a submission for the others.
	ready(d *Device, s *session, program int) error
	// run gives a run to the executor's stream, as far as the job is not
	// cancelled. first says that the step block holds the run's step.
	run(e *executor, j *job, r *replay.Run, first bool) error
	// timed does the same for a submission's last run, and adds the commands'
	// times to times. It may do so in another mode.
	timed(e *executor, j *job, r *replay.Run, times []time.Duration) error
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
