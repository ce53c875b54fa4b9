package conform

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/recurrent"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/cpu"
	"github.com/pianola-engine/pianola/shaders"
	"github.com/pianola-engine/pianola/table"
)

// contextRows is the context of the tests' tables, unless a command sets another one.
const contextRows = 1 << 18

// command is one kernel with its arguments.
type command struct {
	kernel  decl.ID
	specs   []uint32
	params  interface{ Put(*table.Cmd) }
	second  pianolaSecond
	step    table.Step        // current position, for commands that advance it
	rows    []sequence.Row    // row records, for commands of a batch
	pool    int               // sequences of a pooled table
	pages   int               // pages of a pooled table; 0: one
	entries [][]uint32        // page tables of the sequences
	one     uint32            // sequence of all rows, without row records
	context uint32            // context; 0: contextRows
	threads uint32            // threads per threadgroup; 0: 32
	apple   bool              // there is no PTX
	absent  []string          // absent bindings, besides those that the constants make absent
	input   map[string][]byte // contents of bindings; others are random
}

// pianolaSecond are the secondary fields.
type pianolaSecond struct{ index, kvLen, behind, rows uint32 }

// outcome is the memory after a command.
type outcome struct {
	bindings [decl.MaxBindings][]byte
	count    uint32
	stopped  bool
	step     []byte // step block, for commands that advance it
}

// tableOf returns a table with only this command and the indexes of its slots. Each binding has
// a slot that is exactly as long as its extent.
func (c *command) tableOf(tb testing.TB) (*table.Table, [decl.MaxBindings]uint32) {
	tb.Helper()
	k, _ := decl.Lookup(c.kernel)
	context := cmp.Or(c.context, contextRows)
	t := &table.Table{Header: table.Header{Vocab: 1, Width: 1, Layers: 1, Context: context, Chunk: max(64, c.second.rows)}}
	slot := func(name string, kind table.SlotKind, size uint64) uint32 {
		t.Slots = append(t.Slots, table.Slot{Name: name, Kind: kind, Scope: table.ScopeSession, Size: size})
		return uint32(len(t.Slots) - 1)
	}
	slot("tokens", table.SlotTokens, 4*(uint64(context)+1))
	slot("logits", table.SlotLogits, 4)
	slot("stops", table.SlotStops, 4)
	n := uint64(max(c.pool, 1))
	layout := sequence.Layout{Sequences: c.pool, Pages: max(c.pages, 1), Rows: max(len(c.rows), 1), Table: int((context + sequence.PagePositions - 1) / sequence.PagePositions), Kinds: 1}
	if c.pages > 0 && has(*c, decl.StateBinding) {
		layout.States = c.pages
	}
	step := uint64(table.StepSize)
	if c.pool > 0 {
		t.Header.Options, step = layout.Words(), layout.Size()
	}
	slot("step", table.SlotStep, step)
	t.Slots[0].Size *= n
	t.Slots[2].Size *= n

	cmd := table.Cmd{Kernel: c.kernel, Bindings: uint8(len(k.Bindings)), PatchOffset: [2]uint8{table.NoPatch, table.NoPatch}, Threadgroup: [3]uint32{cmp.Or(c.threads, 32), 1, 1}}
	c.params.Put(&cmd)
	for off, v := range map[int]uint32{
		decl.SecondIndex: c.second.index, decl.SecondKVLen: c.second.kvLen, decl.SecondBehind: c.second.behind, decl.SecondRows: c.second.rows,
	} {
		if k.HasSecond(off) {
			cmd.PutSecond(off, v)
		}
	}
	spec := table.Spec{Kernel: c.kernel}
	copy(spec.Values[:], c.specs)
	t.Specs = []table.Spec{spec}
	var flags table.Flags
	if k.Step {
		flags = table.FlagChooses
	}
	t.Programs = []table.Program{{Name: table.ProgramDecode, Count: 1, MaxRows: max(64, c.second.rows), Flags: flags}}
	if len(c.rows) > 0 {
		t.Programs[0].MaxRows, t.Programs[0].Flags = uint32(len(c.rows)), flags|table.FlagBatch
		if k.Step {
			t.Slots[1].Size *= uint64(len(c.rows)) // the logits
		}
	}
	if c.moves() {
		t.Programs[0] = table.Program{Name: table.ProgramVerify, Count: 1, MaxRows: max(c.step.Rows, c.second.rows), Flags: flags | table.FlagAdvances}
		t.Slots[1].Size *= uint64(t.Programs[0].MaxRows) // the logits
	}
	env, err := t.NewEnv(&cmd, &t.Programs[0])
	if err != nil {
		tb.Fatal(err)
	}
	live, recurs := env.Value("live")
	if saved, ok := env.Value("saved"); recurs && ok && c.pool == 0 {
		t.Header.Options = recurrent.Ring{Live: int(live), Saved: int(saved)}.Words()
	}
	var slots [decl.MaxBindings]uint32
	for i := range cmd.Bind {
		slots[i] = table.NoSlot
		if i < len(k.Bindings) && !slices.Contains(c.absent, k.Bindings[i].Name) && k.Bindings[i].Present(env) {
			n, err := env.Extent(i)
			if err != nil {
				tb.Fatal(err)
			}
			kind := table.SlotKV
			if k.Bindings[i].Name == decl.StateBinding {
				kind = table.SlotState
			}
			slots[i] = slot("binding."+k.Bindings[i].Name, kind, n)
		}
		cmd.Bind[i].Slot = slots[i]
	}
	grid, err := k.GridSize(env)
	if err != nil {
		tb.Fatal(err)
	}
	cmd.Grid = [3]uint32{uint32(grid[0]), uint32(grid[1]), uint32(grid[2])}
	t.Cmds, t.Labels = []table.Cmd{cmd}, []string{k.Name}
	if c.moves() { // such a table also needs the program decode
		add := table.Cmd{Kernel: kernels.Add, Bindings: 2, PatchOffset: cmd.PatchOffset, Threadgroup: cmd.Threadgroup, Grid: [3]uint32{1, 1, 1}}
		kernels.AddParams{N: 1}.Put(&add)
		add.PutSecond(decl.SecondRows, 1)
		for i := range add.Bind {
			add.Bind[i].Slot = table.NoSlot
		}
		add.Bind[0].Slot, add.Bind[1].Slot = slot("x", table.SlotKV, 4), slot("delta", table.SlotKV, 4)
		add.Spec = 1
		t.Specs = append(t.Specs, table.Spec{Kernel: kernels.Add})
		t.Programs = append(t.Programs, table.Program{Name: table.ProgramDecode, First: 1, Count: 1, MaxRows: 1})
		t.Cmds, t.Labels = append(t.Cmds, add), append(t.Labels, "add")
	}
	return t, slots
}

// moves reports whether the command advances the step block.
func (c *command) moves() bool {
	return c.kernel == kernels.Accept || c.kernel == kernels.Draft
}

// contents returns the initial contents of the bindings.
func (c *command) contents(tb testing.TB, t *table.Table, slots [decl.MaxBindings]uint32, r *rand.Rand) [decl.MaxBindings][]byte {
	tb.Helper()
	k, _ := decl.Lookup(c.kernel)
	var all [decl.MaxBindings][]byte
	for i, s := range slots {
		if s == table.NoSlot {
			continue
		}
		all[i] = make([]byte, t.Slots[s].Size)
		if in, ok := c.input[k.Bindings[i].Name]; ok {
			if copy(all[i], in) != len(in) || len(in) != len(all[i]) {
				tb.Fatalf("%s has %d bytes, want %d", k.Bindings[i].Name, len(in), len(all[i]))
			}
			continue
		}
		for j := range all[i] {
			all[i][j] = byte(r.Uint32())
		}
	}
	return all
}

// onCPU runs the command on the CPU device.
func (c *command) onCPU(tb testing.TB, t *table.Table, slots [decl.MaxBindings]uint32, contents [decl.MaxBindings][]byte) *outcome {
	tb.Helper()
	fatal := func(err error) {
		if err != nil {
			tb.Helper()
			tb.Fatal(err)
		}
	}
	dev, err := cpu.New(cpu.Options{Threads: 1, Portable: true})
	fatal(err)
	defer dev.Close()
	fatal(t.PlaceBarriers())
	fatal(dev.Load(context.Background(), t, nil, replay.LoadOptions{}))
	id, err := dev.NewSession()
	fatal(err)
	out := &outcome{bindings: contents}
	for i, s := range slots {
		if s != table.NoSlot {
			fatal(dev.Write(id, s, 0, contents[i]))
		}
	}
	sub := &replay.Submission{Session: id, Runs: []replay.Run{{Count: 1, Step: table.Step{KVLen: 1, Rows: 1}}}}
	if c.moves() {
		sub.Runs[0].Step = c.step
	}
	_, step, _ := t.Slot(table.SlotStep)
	sub.Runs[0].Step.Sequence = c.one
	if len(c.rows) > 0 {
		sub.Runs[0].Step.Rows = uint32(len(c.rows))
	}
	if c.pool > 0 {
		fatal(dev.Write(id, step, table.StepSize, c.behind()))
	}
	ticket, err := dev.Submit(sub)
	fatal(err)
	result, err := dev.Wait(ticket)
	fatal(err)
	out.count, out.stopped = uint32(result.Count), result.Stopped
	if c.moves() {
		out.step = make([]byte, table.StepSize)
		fatal(dev.Read(id, step, 0, out.step))
	}
	if len(c.rows) > 0 {
		out.step = c.records()
		fatal(dev.Read(id, step, table.StepSize, out.step))
	}
	for i, s := range slots {
		if s != table.NoSlot {
			out.bindings[i] = make([]byte, len(contents[i]))
			fatal(dev.Read(id, s, 0, out.bindings[i]))
		}
	}
	return out
}

// launch selects how a command is emulated.
type launch struct {
	threads int
	extra   uint32 // threadgroups for inactive rows
	order   emu.Order
	seed    uint64
	stop    uint32
}

// emulated runs the command on the emulator.
func (c *command) emulated(tb testing.TB, p *emu.Program, t *table.Table, contents [decl.MaxBindings][]byte, l launch) *outcome {
	tb.Helper()
	cmd := &t.Cmds[0]
	k, _ := decl.Lookup(c.kernel)
	made, err := shaders.Made()
	if err != nil {
		tb.Fatal(err)
	}
	m, ok := made.Kernel(k.Name)
	if !ok {
		tb.Fatalf("no kernel %s in the manifest", k.Name)
	}
	if _, ok := m.Entry(t.Specs[0].Values[:]); !ok && !c.apple && !p.Apple() {
		tb.Fatalf("no entry of %s for %v", k.Name, t.Specs[0].Values)
	}
	env, err := t.NewEnv(cmd, &t.Programs[0])
	if err != nil {
		tb.Fatal(err)
	}
	tgmem, err := k.ThreadgroupBytes(env, l.threads)
	if err != nil {
		tb.Fatal(err)
	}
	d := &emu.Dispatch{
		Kernel: k.Name, Grid: cmd.Grid, Threads: uint32(l.threads), TGMem: uint32(tgmem), Order: l.order, Seed: l.seed,
		Specs: t.Specs[0].Values, Params: cmd.Param, Second: cmd.Second,
	}
	// Nothing runs before the command here, so it may read early, which its table, in which it is the first, may not say.
	if offset, ok := k.SettledParam(); ok && k.MaySettle(env) && l.seed%2 == 1 {
		d.Params[offset] = 1
	}
	for i, g := range k.Grid {
		if strings.Contains(g, "rows") {
			d.Grid[i] += l.extra
		}
	}
	for i, b := range contents {
		d.Buffers[i] = slices.Clone(b)
	}
	if c.moves() {
		device.PutStep(d.Step[:], &c.step)
	}
	if c.pool > 0 {
		device.PutStep(d.Step[:], &table.Step{Sequence: c.one})
		d.Behind = c.behind()
	}
	binary.LittleEndian.PutUint32(d.Step[32:], l.stop)
	if err := p.Run(d); err != nil {
		tb.Fatal(err)
	}
	out := &outcome{bindings: d.Buffers, count: binary.LittleEndian.Uint32(d.Step[36:]), stopped: binary.LittleEndian.Uint32(d.Step[32:])&device.StopID != 0}
	if c.moves() {
		out.step = d.Step[:]
	}
	if len(c.rows) > 0 {
		out.step = d.Behind[:len(c.rows)*sequence.RowBytes]
	}
	return out
}

// records encodes the row records.
func (c *command) records() (b []byte) {
	for i := range c.rows {
		var one [sequence.RowBytes]byte
		c.rows[i].Put(&one)
		b = append(b, one[:]...)
	}
	return b
}

// behind returns what follows the step record in the step block: row records and page tables.
func (c *command) behind() []byte {
	b := c.records()
	if len(b) == 0 {
		b = make([]byte, sequence.RowBytes)
	}
	for _, entries := range c.entries {
		b = append(b, u32(entries...)...)
	}
	return b
}

func f32(x []float32) []byte {
	b := make([]byte, 0, 4*len(x))
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func u32(x ...uint32) []byte {
	b := make([]byte, 0, 4*len(x))
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

func floats(b []byte) []float64 {
	x := make([]float64, len(b)/4)
	for i := range x {
		x[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])))
	}
	return x
}

// normal returns n normal values times scale.
func normal(r *rand.Rand, n int, scale float64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64() * scale)
	}
	return x
}

// tiny is the bound below which values count as 0, because fast functions flush subnormal
// numbers to 0 or bound exponents.
const tiny = 1e-30

// near returns an error unless each element of got is within tol of want, relative to the
// larger of the element and the norm per element of the surrounding width elements: a row,
// or a head.
func near(got, want []float64, width int, tol float64) error {
	for from := 0; from < len(want); from += width {
		row := want[from:min(from+width, len(want))]
		var norm float64
		for _, v := range row {
			norm += v * v
		}
		norm = math.Sqrt(norm / float64(len(row)))
		for i, w := range row {
			g := got[from+i]
			if g == w || math.IsNaN(g) && math.IsNaN(w) {
				continue
			}
			if d := math.Abs(g - w); !(d <= max(tol*max(norm, math.Abs(w)), tiny)) {
				return fmt.Errorf("element %d: %v, want %v (norm %v)", from+i, g, w, norm)
			}
		}
	}
	return nil
}
