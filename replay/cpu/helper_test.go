package cpu

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// params is a generated parameter struct.
type params interface{ Put(*table.Cmd) }

// builder assembles small tables by hand.
type builder struct {
	tb      testing.TB
	t       *table.Table
	tensors tensors
	slots   map[string]uint32
}

// tensors is a source in memory.
type tensors map[string][]byte

func (s tensors) Tensor(name string) ([]byte, error) {
	b, ok := s[name]
	if !ok {
		return nil, fmt.Errorf("no tensor %s", name)
	}
	return b, nil
}

// newBuilder starts a table with the slots that every table has.
func newBuilder(tb testing.TB, vocab, width, ctx, chunk, stops int) *builder {
	b := &builder{tb: tb, tensors: tensors{}, slots: map[string]uint32{}, t: &table.Table{Header: table.Header{
		Vocab: uint32(vocab), Width: uint32(width), Layers: 1, Context: uint32(ctx), Chunk: uint32(chunk), MaxStops: uint32(stops),
	}}}
	b.slot("tokens", table.SlotTokens, table.ScopeSession, 4*(ctx+1))
	b.slot("logits", table.SlotLogits, table.ScopeSession, 4*vocab)
	b.slot("stops", table.SlotStops, table.ScopeSession, 4*(stops+1))
	b.slot("step", table.SlotStep, table.ScopeSession, table.StepSize)
	return b
}

func (b *builder) slot(name string, kind table.SlotKind, scope table.Scope, size int) {
	b.slots[name] = uint32(len(b.t.Slots))
	b.t.Slots = append(b.t.Slots, table.Slot{Name: name, Kind: kind, Scope: scope, Size: uint64(size)})
}

// weight adds a weight slot with a tensor's bytes.
func (b *builder) weight(name string, t dtype.Type, data []byte) {
	b.slot(name, table.SlotWeight, table.ScopeModel, len(data))
	b.tensors[name] = data
	b.t.Uploads = append(b.t.Uploads, table.Upload{Op: table.UploadCopy, Type: t, Slot: b.slots[name], Tensor: name, SrcSize: uint64(len(data))})
}

// at is a binding of a named slot; "" is an absent binding.
type at struct {
	slot   string
	offset int
}

// program starts a program; the commands that follow belong to it.
func (b *builder) program(name string, rows int) {
	b.t.Programs = append(b.t.Programs, table.Program{Name: name, First: uint32(len(b.t.Cmds)), MaxRows: uint32(rows)})
}

// cmd adds a command to the last program. rows is patched if it is above 1.
func (b *builder) cmd(id decl.ID, specs []uint32, p params, patch table.Patch, second map[int]uint32, binds ...at) {
	b.tb.Helper()
	k, _ := decl.Lookup(id)
	program := &b.t.Programs[len(b.t.Programs)-1]
	if k.Step {
		program.Flags |= table.FlagChooses
	}
	if patch.Kind() == table.PatchRow {
		program.Flags |= table.FlagReadsRow
	}
	c := table.Cmd{Kernel: id, Bindings: uint8(len(k.Bindings)), Patch: patch,
		PatchOffset: [2]uint8{table.NoPatch, table.NoPatch}, Threadgroup: [3]uint32{32, 1, 1}}
	switch id { // the only declared sizes
	case kernels.GEMMHalves:
		c.Threadgroup[0] = 384
	case kernels.GEMMFew:
		c.Threadgroup[0] = 256
	}
	p.Put(&c)
	switch patch.Kind() {
	case table.PatchToken, table.PatchPosition, table.PatchArgmax, table.PatchRow:
		c.PatchOffset[0] = decl.SecondIndex
	case table.PatchKVLen:
		c.PatchOffset[0] = decl.SecondKVLen
	}
	for off, v := range second {
		if k.HasSecond(off) {
			c.PutSecond(off, v)
		}
	}
	c.SecondSize = decl.SecondBytes
	for i := range c.Bind {
		c.Bind[i].Slot = table.NoSlot
	}
	for i, a := range binds {
		if a.slot == "" {
			continue
		}
		slot, ok := b.slots[a.slot]
		if !ok {
			b.tb.Fatalf("no slot %s", a.slot)
		}
		c.Bind[i] = table.Binding{Slot: slot, Offset: uint64(a.offset)}
	}
	spec := table.Spec{Kernel: id}
	copy(spec.Values[:], specs)
	c.Spec = uint16(len(b.t.Specs))
	b.t.Specs = append(b.t.Specs, spec)
	prog := &b.t.Programs[len(b.t.Programs)-1]
	prog.Count++
	env, err := b.t.NewEnv(&c, prog)
	if err != nil {
		b.tb.Fatal(err)
	}
	grid, err := k.GridSize(env)
	if err != nil {
		b.tb.Fatal(err)
	}
	c.Grid = [3]uint32{uint32(grid[0]), uint32(grid[1]), uint32(grid[2])}
	b.t.Cmds = append(b.t.Cmds, c)
	b.t.Labels = append(b.t.Labels, fmt.Sprintf("%s.%d", k.Name, len(b.t.Cmds)-1))
}

// load finishes the table and loads it on a new device.
func (b *builder) load(o Options) *Device {
	b.tb.Helper()
	if err := b.t.PlaceBarriers(); err != nil {
		b.tb.Fatal(err)
	}
	d, err := New(o)
	if err != nil {
		b.tb.Fatal(err)
	}
	b.tb.Cleanup(func() { d.Close() })
	if err := d.Load(context.Background(), b.t, b.tensors, replay.LoadOptions{}); err != nil {
		b.tb.Fatal(err)
	}
	return d
}

// bytesOf returns float32 as little-endian bytes, aligned.
func bytesOf(tb testing.TB, x []float32) []byte {
	b, err := allocate(uint64(4 * len(x)))
	if err != nil {
		tb.Fatal(err)
	}
	copy(float32s(b), x)
	return b
}

// random returns n normal values times scale.
func random(r *rand.Rand, n int, scale float64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64() * scale)
	}
	return x
}

// randomBytes returns n elements of a type, aligned.
func randomBytes(tb testing.TB, r *rand.Rand, t dtype.Type, n int, scale float64) []byte {
	tb.Helper()
	size, ok := t.Bytes(uint64(n))
	if !ok {
		tb.Fatalf("%d elements of %v", n, t)
	}
	b, err := allocate(size)
	if err != nil {
		tb.Fatal(err)
	}
	err = dtype.Quantize(t, b, random(r, n, scale))
	var unsupported *dtype.UnsupportedError
	if errors.As(err, &unsupported) {
		err = dtype.RandomBlocks(t, b, r.Uint64(), float32(scale))
	}
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// dequantized returns n elements as float64.
func dequantized(tb testing.TB, t dtype.Type, b []byte) []float64 {
	tb.Helper()
	elems, size := t.Block()
	f := make([]float32, len(b)/size*elems)
	if err := dtype.Dequantize(t, f, b); err != nil {
		tb.Fatal(err)
	}
	return widen(f)
}

func widen(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// near fails the test unless each element of got is within tol of want, relative to the larger
// of the element and the norm per element.
func near(tb testing.TB, got []float32, want []float64, tol float64) {
	tb.Helper()
	if len(got) != len(want) {
		tb.Fatalf("%d elements, want %d", len(got), len(want))
	}
	var norm float64
	for _, v := range want {
		norm += v * v
	}
	norm = math.Sqrt(norm / float64(max(len(want), 1)))
	for i, v := range got {
		if d := math.Abs(float64(v) - want[i]); !(d <= tol*max(norm, math.Abs(want[i]))) {
			tb.Fatalf("element %d: %v, want %v (norm %v, tolerance %v)", i, v, want[i], norm, tol)
		}
	}
}

// same fails the test unless a and b have the same bits.
func same(tb testing.TB, what string, a, b []float32) {
	tb.Helper()
	if len(a) != len(b) {
		tb.Fatalf("%s: %d and %d elements", what, len(a), len(b))
	}
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			tb.Fatalf("%s: element %d: %v (%#x) and %v (%#x)", what, i, a[i], math.Float32bits(a[i]), b[i], math.Float32bits(b[i]))
		}
	}
}

// solo is one command with a slot for each binding, exactly as long as its extent, so that Go's
// bounds checks catch every access beyond it, and the guard page after it catches those of
// assembly.
type solo struct {
	tb      testing.TB
	b       *builder
	mem     [][]byte // memory of each slot
	team    team     // runs the command; its workers are the first ones of workers
	workers []*worker
	shared  []byte // of a team that prepares the input together
	gen     uint64 // the last generation
}

// newSolo creates a command. second holds the static secondary fields; missing names absent
// bindings.
func newSolo(tb testing.TB, id decl.ID, specs []uint32, p params, second map[int]uint32, missing ...string) *solo {
	tb.Helper()
	b := newBuilder(tb, 1, 1, 1024, 64, 0)
	k, _ := decl.Lookup(id)
	var binds []at
	s := &solo{tb: tb, b: b}
	for _, d := range k.Bindings {
		name := d.Name
		for _, m := range missing {
			if m == d.Name {
				name = ""
			}
		}
		if name != "" {
			b.slot("solo."+name, table.SlotScratch, table.ScopeExecutor, 1)
			name = "solo." + name
		}
		binds = append(binds, at{name, 0})
	}
	b.program("solo", 64)
	b.cmd(id, specs, p, table.PatchNone, second, binds...)
	env, err := b.t.NewEnv(&b.t.Cmds[0], &b.t.Programs[0])
	if err != nil {
		tb.Fatal(err)
	}
	if err := k.Check(env); err != nil {
		tb.Fatal(err)
	}
	s.mem = make([][]byte, len(b.t.Slots))
	for i, a := range binds {
		if a.slot == "" {
			continue
		}
		n, err := env.Extent(i)
		if err != nil {
			tb.Fatal(err)
		}
		b.t.Slots[b.slots[a.slot]].Size = n
		s.mem[b.slots[a.slot]] = guarded(tb, n)
	}
	return s
}

func (s *solo) bytes(name string) []byte {
	slot, ok := s.b.slots["solo."+name]
	if !ok {
		s.tb.Fatalf("no binding %s", name)
	}
	return s.mem[slot]
}

func (s *solo) f32(name string) []float32 { return float32s(s.bytes(name)) }

// fill copies x to a binding of the same length.
func (s *solo) fill(name string, x []float32) {
	s.tb.Helper()
	if copy(s.f32(name), x) != len(x) || len(x) != len(s.f32(name)) {
		s.tb.Fatalf("%s: %d elements, want %d", name, len(x), len(s.f32(name)))
	}
}

// run runs the command as a team of parts workers would, one worker after another.
func (s *solo) run(o *ops, parts int) *table.Step { return s.inModes(o, parts, 0) }

// together runs the command as a team would whose workers prepare its input together.
func (s *solo) together(o *ops, parts int) { s.inModes(o, parts, modePrepare, modePrepared) }

func (s *solo) inModes(o *ops, parts int, modes ...mode) *table.Step {
	s.tb.Helper()
	step := &table.Step{}
	cmds, err := bind(o, s.b.t, s.mem, step)
	if err != nil {
		s.tb.Fatal(err)
	}
	size, err := teamSizeOf(s.b.t)
	if err != nil {
		s.tb.Fatal(err)
	}
	scratch := size.scratch
	t := &s.team
	if t.parts.floats == nil {
		t.parts = partsMemory{float32s(guarded(s.tb, size.parts)), make([]atomic.Uint32, size.heads)}
	}
	t.workers = s.workers
	for len(t.workers) < parts {
		t.add(guarded(s.tb, scratch))
	}
	s.workers = t.workers
	t.workers = t.workers[:parts] // kernels divide their work by the number of workers
	t.shared = nil
	if len(modes) > 1 {
		if s.shared == nil {
			s.shared = guarded(s.tb, scratch)
		}
		t.shared = s.shared
	}
	p := phaseOf(cmds[:1])
	for _, m := range modes {
		s.gen++
		for _, w := range t.workers {
			w.gen, w.use = s.gen, parts
			w.own(&p, m)
		}
	}
	return step
}

// implementations are the sets of loops that must give the same bits. Tests must not change them:
// making them takes longer than many a command.
var implementations = sync.OnceValue(func() map[string]*ops {
	all := map[string]*ops{"portable": portable(), "fastest": fastest()}
	maps.Copy(all, narrower())
	return all
})

func putU32s(b []byte, v ...uint32) {
	for i, x := range v {
		binary.LittleEndian.PutUint32(b[4*i:], x)
	}
}
