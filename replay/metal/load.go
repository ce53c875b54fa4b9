package metal

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/metal/driver"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// Load compiles the table's kernels, executes the upload section and starts the executor.
func (d backend) Load(ctx context.Context, t *table.Table, src replay.Source, o replay.LoadOptions) (m replay.Memory, err error) {
	if !d.o.unchecked {
		if err := device.CheckTable(name, t); err != nil {
			return m, err
		}
	}
	if err := device.CheckChip(name, t); err != nil {
		return m, err
	}
	// Checks that need no GPU come first, and weights last, so that a table that cannot run is
	// rejected before weights are read.
	l := &loader{d: d.Device, t: t}
	d.own, d.memory, d.caches = owned{drv: d.drv}, m, device.NewCaches(t)
	if err := l.choose(); err != nil {
		return m, err
	}
	u, err := device.NewUpload(ctx, name, t, src, o)
	if err != nil {
		return m, err
	}
	if err := l.pipelines(); err != nil {
		return m, err
	}
	d.model = make([]place, len(t.Slots))
	if err := l.inPlace(u, src); err != nil {
		return m, err
	}
	more, size, err := d.slots(&d.own, t, table.ScopeModel, d.model)
	if err != nil {
		return m, err
	}
	d.weights, d.memory.Weights = append(d.weights, more...), size
	if d.scratch, d.memory.Executor, err = d.slots(&d.own, t, table.ScopeExecutor, d.model); err != nil {
		return m, err
	}
	if err := l.tables(); err != nil {
		return m, err
	}
	if d.o.Mode == modeRecord {
		if err := d.newRecordings(t); err != nil {
			return m, err
		}
	}
	if d.exec, err = newExecutor(d.Device, t); err != nil {
		return m, err
	}
	if err := d.exec.stayAwake(d.o.KeepAlive); err != nil {
		return m, err
	}
	if err := u.Fill(ctx, func(slot uint32) []byte { return d.model[slot].mem }); err != nil {
		return m, err
	}
	d.table = t
	d.warm.Store(o.NoWarm) // there is no warm-up to wait for
	d.exec.start()
	return d.memory, nil
}

// Warm makes the GPU read all weights and replays every program. It replays programs for one row
// twice and measures the second replay; the others are measured when they are used.
func (d backend) Warm(run func(runs ...replay.Run) error) error {
	defer d.warm.Store(true)
	if d.o.cold {
		return nil
	}
	if err := d.touch(); err != nil {
		return fmt.Errorf("metal: warm-up: %w", err)
	}
	for i := range d.table.Programs {
		warm := device.WarmRun(d.table, i)
		if err := run(warm); err != nil {
			return err
		}
		if d.table.Programs[i].MaxRows > 1 {
			continue
		}
		d.exec.forget(i)
		if err := run(warm); err != nil {
			return err
		}
	}
	return nil
}

// Unload frees everything.
func (d backend) Unload(left []*session) error {
	for _, s := range left {
		s.free()
	}
	d.own.free()
	d.sessions.Store(0)
	d.warm.Store(false)
	d.exec = nil
	return nil
}

// loader brings a table to the GPU.
type loader struct {
	d *Device
	t *table.Table
}

// kernel is a pipeline with the sizes for one command.
type kernel struct {
	pipeline driver.Pipeline
	name     string
	specs    [decl.MaxSpecs]uint32
	threads  int // threads in a threadgroup
	memory   uint32
	params   uint64   // offset of the parameters
	sized    []uint64 // offset of the parameters for each capacity of the caches; nil if they do not depend on it
	label    driver.Label
}

// program is the device's form of a program.
type program struct {
	label    driver.Label
	ranged   bool
	lists    uint64 // offset in params of the patch list, or of the first token's list
	listSize uint64 // distance between the tokens' lists
	params   uint64 // offset of the parameters of the kernel patch
	patch    int    // index of its first patch in a recording
	patched  bool   // there is a patch kernel
}

// choose finds the kernel of every command and checks that the GPU can dispatch it with the
// command's sizes.
func (l *loader) choose() error {
	d, t := l.d, l.t
	d.kernels = make([]kernel, len(t.Cmds))
	err := device.EachCmd(name, t, func(i int, p *table.Program, c *table.Cmd) error {
		declared, ok := decl.Lookup(c.Kernel)
		if !ok || int(c.Spec) >= len(t.Specs) {
			return fmt.Errorf("kernel %d or its specialisation constants are unknown", c.Kernel)
		}
		k, ok := d.o.Kernels.find(declared.Name)
		if !ok {
			return &device.KernelError{Kernel: declared.Name}
		}
		if err := device.CheckBody(t, p, c, true); err != nil {
			return err
		}
		memory, err := threadgroupMemory(t, p, c, k)
		if err != nil {
			return err
		}
		if err := device.CheckAlign(c, d.o.Kernels.BindingAlign); err != nil {
			return err
		}
		d.kernels[i] = kernel{name: k.Name, specs: t.Specs[c.Spec].Values, memory: uint32(memory), threads: int(min(threads(c), math.MaxInt32))}
		return d.fits(c, k, memory)
	})
	if err != nil || d.o.Mode != modeRecord {
		return err
	}
	k, ok := d.o.Kernels.find(kernelPatch)
	if !ok {
		return fmt.Errorf("metal: %w", &device.KernelError{Kernel: kernelPatch})
	}
	d.patch = kernel{name: k.Name, threads: min(patchThreads, k.MaxThreads)}
	if k.TGMem != nil {
		n, err := k.TGMem(nil, d.patch.threads)
		if err != nil {
			return fmt.Errorf("metal: kernel patch: %w", err)
		}
		d.patch.memory = uint32(round(n))
	}
	return nil
}

func threads(c *table.Cmd) uint64 {
	return uint64(c.Threadgroup[0]) * uint64(c.Threadgroup[1]) * uint64(c.Threadgroup[2])
}

// round rounds a length of threadgroup memory up to one that Metal accepts.
func round(n uint64) uint64 { return (min(n, math.MaxUint32-15) + 15) &^ 15 }

// threadgroupMemory returns the threadgroup memory of a command in bytes.
func threadgroupMemory(t *table.Table, p *table.Program, c *table.Cmd, k *Kernel) (uint64, error) {
	if k.TGMem == nil {
		return round(uint64(c.TGMem)), nil
	}
	env, err := t.NewEnv(c, p)
	if err != nil {
		return 0, err
	}
	n, err := k.TGMem(env, int(threads(c)))
	return round(max(uint64(c.TGMem), n)), err
}

const simdWidth = 32

// fits returns an error if the GPU cannot dispatch a command.
func (d *Device) fits(c *table.Cmd, k *Kernel, memory uint64) error {
	n := threads(c)
	most := uint64(min(k.MaxThreads, d.properties.MaxThreads))
	switch {
	case n == 0 || n > most:
		return fmt.Errorf("threadgroup of %d threads: want 1 to %d for kernel %s", n, most, k.Name)
	case n%simdWidth != 0:
		return fmt.Errorf("threadgroup of %d threads: want a multiple of %d", n, simdWidth)
	case memory > d.properties.ThreadgroupMemory:
		return fmt.Errorf("%d bytes of threadgroup memory exceed the GPU's %d", memory, d.properties.ThreadgroupMemory)
	case c.Grid[0] == 0 || c.Grid[1] == 0 || c.Grid[2] == 0:
		return fmt.Errorf("grid %v is empty", c.Grid)
	}
	return nil
}

// pipelines compiles the library and creates a pipeline for each specialisation and number of
// threads. Metal assigns registers for the number of threads that a pipeline may be launched with.
func (l *loader) pipelines() error {
	d := l.d
	library, hash, err := d.library()
	if err != nil {
		return err
	}
	archive := d.openArchive(d.o.Archive, hash)
	defer archive.close()
	made := map[string]driver.Pipeline{}
	pipeline := func(k *kernel) error {
		declared, _ := d.o.Kernels.find(k.name)
		key := fmt.Sprint(k.name, k.threads, k.specs[:len(declared.Constants)])
		p, ok := made[key]
		if !ok {
			var constants []driver.Constant
			for i, number := range declared.Constants {
				constants = append(constants, driver.Constant{Index: number, Value: k.specs[i]})
			}
			var err error
			if p, err = d.drv.Pipeline(library, archive.object, k.name, constants, k.threads, d.o.Mode == modeRecord); err != nil {
				return err
			}
			d.own.add(p.Handle)
			archive.note(&p)
			made[key] = p
		}
		k.pipeline = p
		switch {
		case k.threads > p.MaxThreads:
			return fmt.Errorf("threadgroup of %d threads: the pipeline of %[3]s supports at most %[2]d", k.threads, p.MaxThreads, k.name)
		case p.SIMDWidth != simdWidth:
			return fmt.Errorf("SIMD groups of %d threads: the kernels require %d", p.SIMDWidth, simdWidth)
		case uint64(k.memory)+p.ThreadgroupMemory > d.properties.ThreadgroupMemory:
			return fmt.Errorf("%d + %d bytes of threadgroup memory exceed the GPU's %d", k.memory, p.ThreadgroupMemory, d.properties.ThreadgroupMemory)
		}
		return nil
	}
	if d.o.Mode == modeRecord {
		if err := pipeline(&d.patch); err != nil {
			return fmt.Errorf("metal: %w", err)
		}
	}
	err = device.EachCmd(name, l.t, func(i int, _ *table.Program, _ *table.Cmd) (err error) {
		if err := pipeline(&d.kernels[i]); err != nil {
			return err
		}
		d.kernels[i].label, err = d.own.label(l.t.Label(i))
		return err
	})
	if err == nil {
		archive.save()
	}
	return err
}

// tables stores the parameters of all commands and the patch lists in one buffer (equal ones only
// once), and creates the records of mode record.
func (l *loader) tables() error {
	d, t := l.d, l.t
	at := map[string]uint64{}
	var b []byte
	put := func(p []byte) uint64 {
		if offset, ok := at[string(p)]; ok {
			return offset
		}
		for len(b)%patchAlign != 0 {
			b = append(b, 0)
		}
		offset := uint64(len(b))
		at[string(p)] = offset
		b = append(b, p...)
		return offset
	}
	put(make([]byte, decl.ParamBytes)) // zeros at offset 0, for commands without parameters
	for i := range t.Cmds {
		d.kernels[i].params = put(t.Cmds[i].Param[:])
	}
	for _, capacity := range d.caches.Capacities() {
		for _, i := range d.caches.Cmds {
			p := d.caches.Params(i, capacity)
			d.kernels[i].sized = append(d.kernels[i].sized, put(p[:]))
		}
	}
	d.programs = make([]program, len(t.Programs))
	for i := range t.Programs {
		var err error
		if d.programs[i].label, err = d.own.label(t.Programs[i].Name); err != nil {
			return err
		}
		if d.o.Mode == modeRecord {
			l.lists(&d.programs[i], &t.Programs[i], put)
		}
	}
	var mem []byte
	var err error
	if d.params, mem, err = d.own.buffer(uint64(len(b))); err != nil {
		return fmt.Errorf("metal: parameters: %w", err)
	}
	copy(mem, b)
	d.memory.Executor += uint64(len(b))
	if d.o.Mode != modeRecord {
		return nil
	}
	records := len(t.Cmds) * decl.SecondBytes
	for i := range flights {
		if d.secondary[i], mem, err = d.own.buffer(uint64(records + d.o.tokens*driver.RangeBytes)); err != nil {
			return fmt.Errorf("metal: secondary bytes: %w", err)
		}
		for c := range t.Cmds {
			copy(mem[c*decl.SecondBytes:], t.Cmds[c].Second[:])
		}
		d.ranges[i] = mem[records:]
		d.memory.Executor += uint64(len(mem))
	}
	return nil
}

// lists creates a program's patches: one list, or one per token of a command buffer.
func (l *loader) lists(p *program, of *table.Program, put func([]byte) uint64) {
	base := device.AppendPatches(nil, l.t, of)
	p.patched, p.ranged = true, ranged(l.t, of)
	count := len(base) / device.PatchSize
	if p.ranged {
		count++
		for token := range l.d.o.tokens {
			list := appendRange(bytes.Clone(base), uint32(len(l.t.Cmds)+token))
			offset := put(list)
			if token == 0 {
				p.lists = offset
			} else if token == 1 {
				p.listSize = offset - p.lists
			}
		}
	} else if count > 0 {
		p.lists = put(base)
	}
	params := make([]byte, decl.ParamBytes)
	binary.LittleEndian.PutUint32(params[0:], uint32(count))
	binary.LittleEndian.PutUint32(params[4:], uint32(len(l.t.Cmds)+l.d.o.tokens))
	p.params = put(params)
}
