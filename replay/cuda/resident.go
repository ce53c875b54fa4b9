package cuda

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/pianola-engine/pianola/internal/cuda/driver"
	"github.com/pianola-engine/pianola/internal/cuda/ptx"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// resident is the mode in which one launch replays a chain. The resident kernel, a persistent
// kernel, walks the command array in device memory, token after token. It contains the bodies
// of all entries that the program's commands use. The GPU runs all of its threadgroups at the
// same time. They divide a command's threadgroups among themselves and synchronize at grid
// barriers, which are counters in memory.
//
// If a command's threadgroups are smaller than the kernel's, the other threads are idle.
//
// Programs for several rows are replayed as in mode record, and so are programs with kernels for
// chunks, which all programs of a table for batching have.
type resident struct{ record }

func (resident) name() string { return "resident" }

// interpreter is the resident kernel of a program.
type interpreter struct {
	module *module
	f      driver.Function
	grid   [3]uint32
	block  [3]uint32
	shared uint32
	bodies []uint32 // body of each command of the program; the kernel patch has body 0

	threads []uint32 // number of threads of each command
}

// aheadBytes is the largest size of the next product's weights that are prefetched while a
// command ends: the space that the cache has besides the command's own data. For larger weights
// each threadgroup already prefetches the first bytes of its own share; the first bytes of the
// matrix would be the shares of only a few threadgroups.
const aheadBytes = 8 << 20

// residentBlocks is the number of threadgroups per multiprocessor. With more, grid barriers
// would take longer. The compiler divides products for the same number.
const residentBlocks = 1

// residentThreads is the number of threads of the resident kernel, if no command needs more. With 512, a thread could
// have only 128 registers, and decoding would take up to twice as long.
const residentThreads = 256

// walked returns the instance and the number of threads with which the resident kernel executes command c: those of the
// table, or of gemv's form for one row half as many paired SIMD groups, which compute the same bits.
func (l *loader) walked(c int) (*Instance, uint32) {
	cmd, n := &l.t.Cmds[c], l.d.kernels[c].block[0]
	values := l.t.Specs[cmd.Spec].Values
	if cmd.Kernel == kernels.GEMV && n == 2*residentThreads && values[kernels.GEMVSpecSingle] == decl.SingleOn {
		values[kernels.GEMVSpecSingle] = decl.SinglePaired
		if in, ok := l.d.modules.choose(l.instances[c].Kernel, values); ok {
			return in, residentThreads
		}
	}
	return l.instances[c], n
}

// overlaps is false: programs for several rows are graphs of the kernels of mode encode.
func (resident) overlaps() bool { return false }

// modules returns the modules of the interpreters.
func (resident) modules(l *loader) (all []*module, err error) {
	d := l.d
	if !d.gpu.Cooperative {
		return nil, fmt.Errorf("cuda: %s does not support cooperative launches, which mode resident requires: use mode record", d.gpu.Name)
	}
	d.interpreters = make([]*interpreter, len(l.t.Programs))
	for i := range l.t.Programs {
		p := &l.t.Programs[i]
		if !d.stays(l.t, p) {
			continue
		}
		if d.interpreters[i], err = l.interpreter(p); err != nil {
			return nil, fmt.Errorf("cuda: program %s: %w", p.Name, err)
		}
		all = append(all, d.interpreters[i].module)
	}
	return all, nil
}

// load finds the interpreters' kernels.
func (resident) load(l *loader) error {
	for i, in := range l.d.interpreters {
		if in == nil {
			continue
		}
		if err := in.ready(l.d); err != nil {
			return fmt.Errorf("cuda: program %s: %w", l.t.Programs[i].Name, err)
		}
	}
	return nil
}

// stays reports whether the resident kernel can replay a program. The program must have one
// row and no kernel for chunks, and its threadgroups must have one dimension and at least 64
// threads, which copy a record.
func (d *Device) stays(t *table.Table, p *table.Program) bool {
	if p.MaxRows != 1 || p.Count == 0 {
		return false
	}
	cmds := t.ProgramCmds(p)
	for i := range cmds {
		if k, ok := decl.Lookup(cmds[i].Kernel); !ok || k.Chunk {
			return false
		}
		if b := d.kernels[int(p.First)+i].block; b[0] < ptx.RecordBytes/4 || b[1] != 1 || b[2] != 1 {
			return false
		}
	}
	return true
}

// interpreter describes the resident kernel of a program.
func (l *loader) interpreter(p *table.Program) (*interpreter, error) {
	d := l.d
	in := &interpreter{block: [3]uint32{patchThreads, 1, 1}, shared: d.patch.shared}
	instances := []*Instance{l.patch}
	for i := range l.t.ProgramCmds(p) {
		c := int(p.First) + i
		instance, threads := l.walked(c)
		at := slices.Index(instances, instance)
		if at < 0 {
			at, instances = len(instances), append(instances, instance)
		}
		in.bodies, in.threads = append(in.bodies, uint32(at)), append(in.threads, threads)
		in.shared = max(in.shared, d.kernels[c].shared)
		in.block[0] = max(in.block[0], threads)
	}
	var texts []*assembled // text of each instance
	for _, i := range instances {
		a, err := l.assembledOf(i.Text)
		if err != nil {
			return nil, err
		}
		texts = append(texts, a)
	}
	info, threads := texts[len(texts)-1].info, int(in.block[0])
	h := d.newKey("resident", info.Target)
	h.Strings(info.Version)
	h.Numbers(threads)
	for i, a := range texts {
		h.Add(a.info.Hash[:])
		h.Strings(instances[i].Entry)
	}
	in.module = &module{
		key: h.Key(), exact: ptx.Exact(info.Target),
		text: func() ([]byte, error) {
			var bodies []*ptx.Entry
			for i, a := range texts {
				parsed, err := a.parsed()
				if err != nil {
					return nil, fmt.Errorf("kernels %s, sm_%d: %w", a.text.Name, a.text.Arch, err)
				}
				e, ok := parsed.Entry(instances[i].Entry)
				if !ok {
					return nil, fmt.Errorf("kernels %s have no entry %s", a.text.Name, instances[i].Entry)
				}
				bodies = append(bodies, e)
			}
			return ptx.Interpreter(info.Version, info.Target, bodies, threads)
		},
		place: func(err error) error { return fmt.Errorf("cuda: program %s: %w", p.Name, err) },
	}
	return in, nil
}

// ready finds the kernel of an interpreter's module and sets its grid.
func (in *interpreter) ready(d *Device) (err error) {
	if in.f, err = d.drv.ModuleFunction(in.module.handle, ptx.Resident); err != nil {
		return err
	}
	if err := d.drv.FunctionAllowShared(in.f, in.shared); err != nil {
		return fmt.Errorf("%d bytes of threadgroup memory: %w", in.shared, err)
	}
	blocks, err := d.drv.FunctionBlocks(in.f, int(in.block[0]), in.shared)
	if err != nil {
		return err
	}
	if blocks == 0 {
		return fmt.Errorf("a multiprocessor cannot run %d threads with %d bytes of threadgroup memory", in.block[0], in.shared)
	}
	in.grid = [3]uint32{uint32(min(blocks, residentBlocks) * max(1, d.gpu.Multiprocessors)), 1, 1}
	return nil
}

// walk is the command array of a program.
type walk struct {
	args    arguments
	launch  driver.Cooperative
	base    driver.Ptr
	filled  bool
	counter driver.Ptr
	trace   driver.Ptr // a count of clock cycles for each record
}

// arrays allocates the command arrays.
func (resident) arrays(d *Device) (all uint64, err error) {
	d.walks = make([]*walk, len(d.table.Programs))
	for i := range d.table.Programs {
		if d.interpreters[i] == nil {
			continue
		}
		_, _, size := d.walkPlaces(i)
		base, err := d.own.memory(size)
		if err != nil {
			return 0, fmt.Errorf("cuda: program %s: %w", d.table.Programs[i].Name, err)
		}
		all += size
		d.walks[i] = &walk{base: base}
	}
	return all, nil
}

func (m resident) ready(d *Device, program int, brief bool) error {
	w := d.walks[program]
	if w == nil {
		return m.record.ready(d, program, brief)
	}
	d.recordings.mu.Lock()
	defer d.recordings.mu.Unlock()
	if w.filled {
		return nil
	}
	if err := d.walk(program, w); err != nil {
		return fmt.Errorf("program %s: %w", d.table.Programs[program].Name, err)
	}
	return nil
}

// walkPlaces returns the offsets of the counter and the trace in a program's command array, after
// the records, and the array's size.
func (d *Device) walkPlaces(program int) (counter, trace driver.Ptr, size uint64) {
	n := uint64(len(d.table.ProgramCmds(&d.table.Programs[program]))) + 1 // with patch
	counter = driver.Ptr(ptx.RecordBytes * n)
	trace = counter + align
	return counter, trace, uint64(trace) + 8*n
}

// walk fills in a command array.
func (d *Device) walk(program int, w *walk) error {
	p, in := &d.table.Programs[program], d.interpreters[program]
	n := len(d.table.ProgramCmds(p))
	records, err := d.records(program)
	if err != nil {
		return err
	}
	if err := d.send(w.base, records); err != nil {
		return err
	}
	counter, trace, _ := d.walkPlaces(program)
	w.counter, w.trace = w.base+counter, w.base+trace
	w.args.bindings[0] = w.base
	w.args.bindings[1] = d.secondary + driver.Ptr(decl.SecondBytes*p.First)
	w.args.bindings[2] = w.counter
	w.args.step = d.current.step
	w.args.second = d.secondary
	binary.LittleEndian.PutUint32(w.args.params[ptx.ResidentLast:], uint32(n))
	offsets := make([]int, ptx.ParamCount)
	for i := range offsets {
		offsets[i] = ptx.ParamOffset(i)
	}
	w.launch.Init(in.f, in.grid, in.block, in.shared, d.exec.stream, w.args.bytes(), offsets)
	w.filled = true
	return nil
}

// records returns the command array of a program, beginning with the kernel patch.
func (d *Device) records(program int) ([]byte, error) {
	t, in := d.table, d.interpreters[program]
	p := &t.Programs[program]
	n := len(t.ProgramCmds(p))
	b := make([]byte, ptx.RecordBytes*(n+1))
	put := func(record int, a *arguments, body uint32, grid [3]uint32, threads uint32, barrier bool) {
		r := b[ptx.RecordBytes*record:]
		copy(r, a.bytes())
		le := binary.LittleEndian
		le.PutUint32(r[ptx.RecordBody:], body)
		le.PutUint32(r[ptx.RecordGridX:], grid[0])
		le.PutUint32(r[ptx.RecordGridY:], grid[1])
		le.PutUint32(r[ptx.RecordTiles:], grid[0]*grid[1]*grid[2])
		le.PutUint32(r[ptx.RecordThreads:], threads)
		if barrier {
			le.PutUint32(r[ptx.RecordBarrier:], 1)
		}
	}
	// The kernel patch changes values that the last token's commands read. The threadgroup that
	// executes the last command may run it, if that command has one threadgroup and a barrier
	// before it: then no other work is left.
	last := &t.Cmds[int(p.First)+n-1]
	alone := last.Barrier != 0 && last.Grid == [3]uint32{1, 1, 1}
	put(0, d.patchArguments(program), 0, d.patch.grid, patchThreads, !alone)
	var ahead []int // records whose successor is a product to prefetch
	for i := range n {
		c := int(p.First) + i
		cmd := &t.Cmds[c]
		// A barrier follows the kernel patch.
		put(i+1, &d.args[c], in.bodies[i], cmd.Grid, in.threads[i], cmd.Barrier != 0 || i == 0)
		at, size, err := d.weightsOf(p, cmd)
		if err != nil {
			return nil, device.NewCommandError(name, t, c, err)
		}
		if size > 0 {
			for _, r := range ahead {
				if size > aheadBytes {
					break
				}
				binary.LittleEndian.PutUint64(b[ptx.RecordBytes*r+ptx.RecordPrefetch:], uint64(at))
				binary.LittleEndian.PutUint32(b[ptx.RecordBytes*r+ptx.RecordAhead:], uint32(size))
			}
			ahead = append(ahead[:0], i+1)
		}
	}
	return b, nil
}

// weightsOf returns the weights that a command reads sequentially.
func (d *Device) weightsOf(p *table.Program, c *table.Cmd) (driver.Ptr, uint64, error) {
	if c.Kernel != kernels.GEMV {
		return 0, 0, nil
	}
	env, err := d.table.NewEnv(c, p)
	if err != nil {
		return 0, 0, err
	}
	size, err := env.Extent(kernels.GEMVBindW)
	b := c.Bind[kernels.GEMVBindW]
	return d.mem[b.Slot] + driver.Ptr(b.Offset), size, err
}

// run launches the program's kernel once.
func (m resident) run(e *executor, j *job, r *replay.Run, first bool) error {
	w := e.d.walks[r.Program]
	if w == nil {
		return m.record.run(e, j, r, first)
	}
	if j.Cancelled() || r.Count == 0 {
		return nil
	}
	if !first {
		if err := e.sendStep(&r.Step); err != nil {
			return err
		}
	}
	return e.stay(w, int(r.Count))
}

// stay launches the resident kernel for the given number of tokens.
func (e *executor) stay(w *walk, tokens int) error {
	drv := e.d.drv
	if err := drv.MemsetD8Async(w.counter, 0, 4, e.stream); err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(w.args.params[ptx.ResidentTokens:], uint32(tokens))
	return drv.LaunchCooperative(&w.launch)
}

// timed makes the kernel count a multiprocessor's cycles from barrier to barrier.
func (m resident) timed(e *executor, j *job, r *replay.Run, times []time.Duration) error {
	w, drv := e.d.walks[r.Program], e.d.drv
	if w == nil {
		return m.record.timed(e, j, r, times)
	}
	if j.Cancelled() || r.Count == 0 {
		return nil
	}
	cycles := make([]byte, 8*(len(times)+1))
	if err := drv.MemsetD8Async(w.trace, 0, uint64(len(cycles)), e.stream); err != nil {
		return err
	}
	w.args.bindings[3] = w.trace
	defer func() { w.args.bindings[3] = 0 }()
	if err := drv.EventRecord(e.times[0], e.stream); err != nil {
		return err
	}
	if err := e.stay(w, int(r.Count)); err != nil {
		return err
	}
	if err := drv.EventRecord(e.times[1], e.stream); err != nil {
		return err
	}
	if err := drv.MemcpyDtoHAsync(cycles, w.trace, e.stream); err != nil {
		return err
	}
	if err := drv.StreamSynchronize(e.stream); err != nil {
		return err
	}
	if err := drv.EventElapsedTime(&e.ms, e.times[0], e.times[1]); err != nil {
		return err
	}
	var total uint64
	for i := range len(times) + 1 {
		total += binary.LittleEndian.Uint64(cycles[8*i:])
	}
	// The kernel patch counts only in the total.
	for i := range times {
		share := float64(binary.LittleEndian.Uint64(cycles[8*(i+1):])) / max(1, float64(total))
		times[i] += max(1, time.Duration(share*float64(milliseconds(e.ms))))
	}
	return nil
}
