package cuda

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/pianola-engine/pianola/internal/cuda/driver"
	"github.com/pianola-engine/pianola/internal/cuda/ptx"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// Load loads the table's kernels, executes the upload section and starts the executor.
func (d backend) Load(ctx context.Context, t *table.Table, src replay.Source, o replay.LoadOptions) (m replay.Memory, err error) {
	if err := device.CheckTable(name, t); err != nil {
		return m, err
	}
	if err := device.CheckChip(name, t); err != nil {
		return m, err
	}
	if err := checkPooled(d.modules, t); err != nil {
		return m, err
	}
	// Checks that need no GPU come first, and weights last, so that a table that cannot run is
	// rejected before weights are read.
	l := &loader{d: d.Device, t: t}
	if err := l.choose(); err != nil {
		return m, err
	}
	u, err := device.NewUpload(ctx, name, t, src, o)
	if err != nil {
		return m, err
	}
	if d.ctx, err = d.retain(); err != nil {
		return m, fmt.Errorf("cuda: %w", err)
	}
	if err := d.enter(); err != nil {
		return m, err
	}
	defer d.leave(&err)
	d.own, d.caches, d.table = owned{drv: d.drv}, device.NewCaches(t), t
	_, d.pooled = sequence.Of(t.Header.Options, int(t.Header.Context))
	d.current, d.recordings = current{}, recordings{of: make([][]graph, len(t.Programs))}
	if err := l.modules(ctx); err != nil {
		return m, err
	}
	if err := d.mode.load(l); err != nil {
		return m, err
	}
	if err := d.streams(); err != nil {
		return m, err
	}
	d.mem = make([]driver.Ptr, len(t.Slots))
	if _, m.Weights, err = d.slots(&d.own, t, table.ScopeModel, d.mem); err != nil {
		return m, err
	}
	if _, m.Executor, err = d.slots(&d.own, t, table.ScopeExecutor, d.mem); err != nil {
		return m, err
	}
	size, err := d.tables(t)
	if err != nil {
		return m, err
	}
	m.Executor += size
	if d.exec, err = newExecutor(d.Device, t); err != nil {
		return m, err
	}
	if size, err = d.bindAll(t); err != nil {
		return m, err
	}
	m.Executor += size
	if size, err = d.mode.arrays(d.Device); err != nil {
		return m, err
	}
	m.Executor += size
	if err := d.upload(ctx, u); err != nil {
		return m, err
	}
	return m, d.exec.start()
}

// Warm replays every program once, in a session without long graphs. Programs that decode a batch are
// submissions of their own, since they end when all rows have stopped.
func (d backend) Warm(run func(runs ...replay.Run) error) error {
	d.warming.Store(true)
	defer d.warming.Store(false)
	var runs []replay.Run
	for i := range d.table.Programs {
		one := device.WarmRun(d.table, i)
		if !d.table.Programs[i].Flags.Has(table.FlagBatch) {
			runs = append(runs, one)
		} else if err := run(one); err != nil {
			return err
		}
	}
	return run(runs...)
}

// Unload frees everything and releases the context.
func (d backend) Unload(left []*session) error {
	if r, ok := d.takePrepared(); ok { // Load has not come to the context
		d.ctx = r.ctx
	}
	if d.ctx == 0 {
		return nil
	}
	err := d.enter()
	if err == nil {
		for _, s := range left {
			err = errors.Join(err, s.free())
		}
		err = errors.Join(err, d.recordings.made.free(), d.own.free())
		d.leave(&err)
	}
	if e := d.drv.PrimaryCtxRelease(d.gpu.dev); e != nil && !errors.Is(e, ErrDeviceLost) {
		err = errors.Join(err, fmt.Errorf("cuda: %w", e))
	}
	d.ctx, d.exec = 0, nil
	return err
}

// streams creates the streams that goroutines other than the executor's use, and the pinned byte
// that Cancel copies.
func (d *Device) streams() (err error) {
	if d.transfer, err = d.own.stream(); err != nil {
		return fmt.Errorf("cuda: %w", err)
	}
	if d.cancels, err = d.own.stream(); err != nil {
		return fmt.Errorf("cuda: %w", err)
	}
	if d.stop, err = d.own.pinned(1); err != nil {
		return fmt.Errorf("cuda: %w", err)
	}
	d.stop[0] = 1
	return nil
}

// program is the device's form of a program.
type program struct {
	patched     []int      // indices in the table of the commands whose secondary bytes change
	patches     driver.Ptr // one pianola_patch for each
	patchedEnds [2]int     // the first of them, and the one after the last
}

// patches returns the secondary bytes of all commands, then each program's patch list, and the
// offsets of the lists.
func patches(t *table.Table) (b []byte, at []int) {
	b = secondaryBytes(t)
	for i := range t.Programs {
		at = append(at, len(b))
		b = device.AppendPatches(b, t, &t.Programs[i])
	}
	return b, at
}

// tables copies the secondary bytes and the patch lists to the GPU and returns their size.
func (d *Device) tables(t *table.Table) (size uint64, err error) {
	b, at := patches(t)
	d.programs = make([]program, len(t.Programs))
	for i := range t.Programs {
		p, prog := &t.Programs[i], &d.programs[i]
		for c := range t.ProgramCmds(p) {
			if t.Cmds[int(p.First)+c].Patch != table.PatchNone {
				prog.patched = append(prog.patched, int(p.First)+c)
			}
		}
		if n := len(prog.patched); n > 0 {
			prog.patchedEnds = [2]int{prog.patched[0], prog.patched[n-1] + 1}
		}
	}
	// A program without patches needs an address too: the one after all lists.
	size = uint64(len(b) + device.PatchSize)
	base, err := d.own.memory(size)
	if err == nil {
		err = d.send(base, b)
	}
	if err != nil {
		return 0, fmt.Errorf("cuda: patches: %w", err)
	}
	d.secondary = base
	for i := range d.programs {
		d.programs[i].patches = base + driver.Ptr(at[i])
	}
	return size, nil
}

// send copies b to the GPU and waits, because a copy from pageable memory may return before the
// GPU has the bytes.
func (d *Device) send(to driver.Ptr, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if err := d.drv.MemcpyHtoDAsync(to, b, d.transfer); err != nil {
		return err
	}
	return d.drv.StreamSynchronize(d.transfer)
}

// kernel is an entry that is ready to launch.
type kernel struct {
	f      driver.Function
	grid   [3]uint32
	block  [3]uint32
	shared uint32
	specs  [decl.MaxSpecs]uint32
	maps   bool // the entry copies the declaration's matrices with the copy unit
	// cluster is the number of threadgroups of a cluster. It is 1 on GPUs without clusters.
	cluster uint32
}

// loader finds the kernels of a table.
type loader struct {
	d         *Device
	t         *table.Table
	instances []*Instance // instance of each command
	patch     *Instance
	assembled []*assembled
}

// choose selects the instance of every command and checks that the GPU can launch it with the
// command's sizes.
func (l *loader) choose() error {
	d, t := l.d, l.t
	l.instances = make([]*Instance, len(t.Cmds))
	d.kernels = make([]kernel, len(t.Cmds))
	err := device.EachCmd(name, t, func(i int, p *table.Program, c *table.Cmd) error {
		if err := device.CheckBody(t, p, c, d.modules.Apple); err != nil {
			return err
		}
		in, err := d.modules.instance(t, c)
		if err != nil {
			return err
		}
		l.instances[i] = in
		k := &d.kernels[i]
		k.grid, k.block, k.specs = c.Grid, c.Threadgroup, t.Specs[c.Spec].Values
		if k.shared, err = threadgroupMemory(t, p, c, in); err != nil {
			return err
		}
		if k.cluster, err = d.cluster(t, p, c, in); err != nil {
			return err
		}
		if err := device.CheckAlign(c, d.modules.BindingAlign); err != nil {
			return err
		}
		return d.gpu.fits(k)
	})
	if err != nil {
		return err
	}
	in, ok := d.modules.choose(kernelPatch, [decl.MaxSpecs]uint32{})
	if !ok {
		return fmt.Errorf("cuda: %w", &device.KernelError{Kernel: kernelPatch})
	}
	l.patch = in
	d.patch = kernel{grid: [3]uint32{1, 1, 1}, block: [3]uint32{patchThreads, 1, 1}}
	if in.TGMem != nil {
		n, err := in.TGMem(nil, patchThreads)
		if err != nil {
			return fmt.Errorf("cuda: kernel patch: %w", err)
		}
		d.patch.shared = uint32(n)
	}
	return nil
}

// threadgroupMemory returns the threadgroup memory of a command in bytes.
func threadgroupMemory(t *table.Table, p *table.Program, c *table.Cmd, in *Instance) (uint32, error) {
	if in.TGMem == nil {
		return c.TGMem, nil
	}
	env, err := t.NewEnv(c, p)
	if err != nil {
		return 0, err
	}
	n, err := in.TGMem(env, int(c.Threadgroup[0]*c.Threadgroup[1]*c.Threadgroup[2]))
	return max(c.TGMem, uint32(min(n, math.MaxUint32))), err
}

// clusters is the first compute capability of GPUs with clusters.
const clusters = 90

// cluster returns the number of threadgroups of a command's clusters on this GPU.
func (d *Device) cluster(t *table.Table, p *table.Program, c *table.Cmd, in *Instance) (uint32, error) {
	if in.Cluster == nil || d.gpu.capability() < clusters || !d.drv.CanCluster() {
		return 1, nil
	}
	env, err := t.NewEnv(c, p)
	if err != nil {
		return 0, err
	}
	n, err := in.Cluster(env)
	return uint32(min(n, math.MaxUint32)), err
}

// fits returns an error if the GPU cannot launch a kernel.
func (g *GPU) fits(k *kernel) error {
	threads := uint64(k.block[0]) * uint64(k.block[1]) * uint64(k.block[2])
	switch {
	case k.block[0] > 1024 || k.block[1] > 1024 || k.block[2] > 64 || threads == 0 || threads > uint64(g.MaxThreads):
		return fmt.Errorf("threadgroup of %v threads: want 1 to %d", k.block, g.MaxThreads)
	case threads%simdWidth != 0:
		return fmt.Errorf("threadgroup of %d threads: want a multiple of %d", threads, simdWidth)
	case uint64(k.shared) > g.SharedMemory:
		return fmt.Errorf("%d bytes of threadgroup memory exceed the GPU's %d", k.shared, g.SharedMemory)
	}
	if k.cluster > 1 && k.grid[0]%k.cluster != 0 {
		return fmt.Errorf("grid %v: want clusters of %d threadgroups", k.grid, k.cluster)
	}
	for i, n := range k.grid {
		if n == 0 || n > g.MaxGrid[i] {
			return fmt.Errorf("grid %v: want 1 to %v", k.grid, g.MaxGrid)
		}
	}
	return nil
}

// assembled is a text with the entries that the table needs, and its module.
type assembled struct {
	text    *Text
	info    TextInfo
	parsed  func() (*ptx.Text, error)
	names   []string // names of the entries
	module  *module
	entries []entry
}

// entry is a function of a module.
type entry struct {
	name    string
	f       driver.Function
	threads int    // largest number of threads in a threadgroup
	shared  uint32 // threadgroup memory that it may use
}

// modules loads the entries that the table needs, and the mode's modules. Each text becomes one
// module, because the driver needs tens of milliseconds to assemble even a small one.
func (l *loader) modules(ctx context.Context) error {
	d := l.d
	needed := append([]*Instance{l.patch}, l.instances...)
	for _, in := range needed {
		if in == nil {
			continue
		}
		a, err := l.assembledOf(in.Text)
		if err != nil {
			return err
		}
		if !slices.Contains(a.names, in.Entry) {
			a.names = append(a.names, in.Entry)
		}
	}
	d.overlap = d.mode.overlaps() && d.drv.CanOverlap()
	for _, a := range l.assembled {
		d.overlap = d.overlap && ptx.CanOverlap(a.info.Version, a.info.Target)
	}
	all, err := d.mode.modules(l) // first, because the resident kernel takes longest to assemble
	if err != nil {
		return err
	}
	for _, a := range l.assembled {
		a.module = l.entriesModule(a)
		all = append(all, a.module)
	}
	if err := l.loadModules(ctx, all); err != nil {
		return err
	}
	if err := l.function(l.patch, &d.patch); err != nil {
		return fmt.Errorf("cuda: %w", err)
	}
	return device.EachCmd(name, l.t, func(i int, _ *table.Program, _ *table.Cmd) error {
		return l.function(l.instances[i], &d.kernels[i])
	})
}

// entriesModule returns the module of the entries of a text.
func (l *loader) entriesModule(a *assembled) *module {
	names, overlap := slices.Sorted(slices.Values(a.names)), l.d.overlap
	h := l.d.newKey("entries", a.info.Target)
	h.Add(a.info.Hash[:])
	h.Strings(fmt.Sprint(overlap))
	h.Strings(names...)
	return &module{
		key: h.Key(), exact: ptx.Exact(a.info.Target),
		text: func() ([]byte, error) {
			parsed, err := a.parsed()
			if err != nil {
				return nil, err
			}
			return parsed.Select(names, overlap), nil
		},
		place: func(err error) error { return fmt.Errorf("cuda: kernels %s, sm_%d: %w", a.text.Name, a.text.Arch, err) },
	}
}

// assembledOf returns the named text for the GPU.
func (l *loader) assembledOf(name string) (*assembled, error) {
	for _, a := range l.assembled {
		if a.text.Name == name {
			return a, nil
		}
	}
	text := l.d.modules.text(name, l.d.gpu.capability(), l.d.drv.Version())
	if text == nil {
		return nil, fmt.Errorf("cuda: kernels %s: %w", name, ErrNoKernels)
	}
	info, err := text.info()
	if err != nil {
		return nil, fmt.Errorf("cuda: kernels %s, sm_%d: %w", name, text.Arch, err)
	}
	a := &assembled{text: text, info: info, parsed: sync.OnceValues(func() (*ptx.Text, error) {
		b, err := text.Read()
		if err != nil {
			return nil, err
		}
		return ptx.Parse(b)
	})}
	l.assembled = append(l.assembled, a)
	return a, nil
}

// function sets the function that kernel k launches for an instance.
func (l *loader) function(in *Instance, k *kernel) error {
	drv := l.d.drv
	a, err := l.assembledOf(in.Text)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(a.entries, func(e entry) bool { return e.name == in.Entry })
	if i < 0 {
		e := entry{name: in.Entry}
		if e.f, err = drv.ModuleFunction(a.module.handle, in.Entry); err != nil {
			return fmt.Errorf("entry %s: %w", in.Entry, err)
		}
		if e.threads, err = drv.FunctionMaxThreads(e.f); err != nil {
			return fmt.Errorf("entry %s: %w", in.Entry, err)
		}
		i, a.entries = len(a.entries), append(a.entries, e)
	}
	e := &a.entries[i]
	if n := int(k.block[0] * k.block[1] * k.block[2]); n > e.threads {
		return fmt.Errorf("threadgroup of %d threads: entry %[3]s supports at most %[2]d", n, e.threads, in.Entry)
	}
	if k.shared > e.shared {
		if err := drv.FunctionAllowShared(e.f, k.shared); err != nil {
			return fmt.Errorf("entry %s, %d bytes of threadgroup memory: %w", in.Entry, k.shared, err)
		}
		e.shared = k.shared
	}
	k.f, k.maps = e.f, a.text.Exact
	return nil
}
