package emu

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// tensors is a source of tensors held in memory.
type tensors map[string][]byte

func (s tensors) Tensor(name string) ([]byte, error) {
	if b, ok := s[name]; ok {
		return b, nil
	}
	return nil, fmt.Errorf("no tensor %s", name)
}

const (
	slotX = 4 // slot of x in addTable, which uses its first 32 elements
	slotW = 5
)

// addTable returns a table with two programs: decode adds w to x, and past reads past an
// extent but not past the slot.
func addTable(tb testing.TB) *table.Table {
	tb.Helper()
	t := &table.Table{
		Header: table.Header{Vocab: 4, Width: 32, Layers: 1, Context: 64, Chunk: 1},
		Slots: []table.Slot{
			{Name: "tokens", Kind: table.SlotTokens, Scope: table.ScopeSession, Size: 65 * 4},
			{Name: "logits", Kind: table.SlotLogits, Scope: table.ScopeSession, Size: 16},
			{Name: "stops", Kind: table.SlotStops, Scope: table.ScopeSession, Size: 4},
			{Name: "step", Kind: table.SlotStep, Scope: table.ScopeSession, Size: table.StepSize},
			{Name: "x", Kind: table.SlotKV, Scope: table.ScopeSession, Size: 256},
			{Name: "w", Kind: table.SlotWeight, Scope: table.ScopeModel, Size: 256},
		},
		Specs: []table.Spec{{Kernel: kernels.Add}, {Kernel: kernels.SiLUMul}},
		Programs: []table.Program{
			{Name: table.ProgramDecode, Count: 1, MaxRows: 1}, {Name: "past", First: 1, Count: 1, MaxRows: 1},
		},
		Uploads: []table.Upload{{Op: table.UploadToF32, Type: dtype.F16, Slot: slotW, Tensor: "w", SrcSize: 128}},
		Labels:  []string{"add", "reads past"},
	}
	for i, kernel := range []decl.ID{kernels.Add, kernels.SiLUMul} {
		k, _ := decl.Lookup(kernel)
		c := table.Cmd{
			Kernel: kernel, Spec: uint16(i), Bindings: uint8(len(k.Bindings)), ParamSize: uint8(4 * len(k.Params)), PatchOffset: [2]uint8{table.NoPatch, table.NoPatch},
			Patch: table.PatchRows, Grid: [3]uint32{1, 1, 1}, Threadgroup: [3]uint32{32, 1, 1},
		}
		c.PutSecond(decl.SecondRows, 1)
		for b := range c.Bind {
			c.Bind[b].Slot = table.NoSlot
		}
		t.Cmds = append(t.Cmds, c)
	}
	kernels.AddParams{N: 32}.Put(&t.Cmds[0])
	t.Cmds[0].Bind[0].Slot, t.Cmds[0].Bind[1].Slot = slotX, slotW
	kernels.SiLUMulParams{N: 32, Stride: 32}.Put(&t.Cmds[1])
	t.Cmds[1].Bind[0].Slot, t.Cmds[1].Bind[1].Slot, t.Cmds[1].Bind[2].Slot = slotW, slotW, slotX
	if err := t.PlaceBarriers(); err != nil {
		tb.Fatal(err)
	}
	return t
}

// source returns addTable's w: 64 times 2, as float16.
func source() tensors { return tensors{"w": bytes.Repeat([]byte{0, 0x40}, 64)} }

// times returns a submission that replays a program n times.
func times(id replay.SessionID, program, n uint32) *replay.Submission {
	return &replay.Submission{Session: id, Runs: []replay.Run{{Program: program, Count: n, Step: table.Step{KVLen: 1, Rows: 1}}}}
}

func TestDevice(t *testing.T) {
	d := NewDevice(Build(t, Options{Sanitize: true, Sources: "internal/emu/testdata/table"}), DeviceOptions{Order: Random, Seed: 1})
	if _, err := d.NewSession(); !errors.Is(err, ErrClosed) {
		t.Errorf("a session before Load: %v", err)
	}
	fatal := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	fatal(d.Load(context.Background(), addTable(t), source(), replay.LoadOptions{}))
	id, err := d.NewSession()
	fatal(err)
	other, err := d.NewSession()
	fatal(err)
	check := func(id replay.SessionID, added float32) {
		t.Helper()
		b := make([]byte, 256)
		fatal(d.Read(id, slotX, 0, b))
		for i := range 64 {
			want := float32(i)
			if i < 32 {
				want += added
			}
			if got := float(b, i); got != want {
				t.Fatalf("element %d is %v, want %v", i, got, want)
			}
		}
	}
	submit := func(sub *replay.Submission) (replay.Result, error) {
		t.Helper()
		ticket, err := d.Submit(sub)
		fatal(err)
		return d.Wait(ticket)
	}
	for _, s := range []replay.SessionID{id, other} {
		fatal(d.Write(s, slotX, 0, floats(64)))
	}
	if r, err := submit(times(id, 0, 3)); err != nil || r.Count != 3 || r.Stopped || r.Elapsed <= 0 {
		t.Errorf("%+v, %v", r, err)
	}
	check(id, 6)
	check(other, 0)

	// Timings receives the times of the last run; a dry run does nothing.
	sub := times(id, 0, 1)
	sub.Timings = make([]time.Duration, 1)
	if r, err := submit(sub); err != nil || r.Count != 1 || sub.Timings[0] <= 0 {
		t.Errorf("%+v, %v, times %v", r, err, sub.Timings)
	}
	sub = times(id, 0, 9)
	sub.Dry = true
	if r, err := submit(sub); err != nil || r.Count != 0 {
		t.Errorf("dry: %+v, %v", r, err)
	}
	check(id, 8)

	// A fault of a kernel is an error with the command's place, and the device keeps
	// working.
	var at *CommandError
	if _, err := submit(times(id, 1, 1)); !errors.As(err, &at) || at.Command != 1 || !strings.Contains(err.Error(), "(reads past)") || !strings.Contains(err.Error(), "heap-buffer-overflow") {
		t.Errorf("a kernel that reads past its extent: %v", err)
	}
	check(id, 8)
	if r, err := submit(times(id, 0, 1)); err != nil || r.Count != 1 {
		t.Errorf("after a fault: %+v, %v", r, err)
	}
	check(id, 10)

	// A session has one submission in flight, which can be cancelled.
	ticket, err := d.Submit(times(other, 0, 60))
	fatal(err)
	if _, err := d.Submit(times(other, 0, 1)); !errors.Is(err, ErrBusy) {
		t.Errorf("two submissions in flight: %v", err)
	}
	if err := d.Read(other, slotX, 0, make([]byte, 4)); !errors.Is(err, ErrBusy) {
		t.Errorf("reading in flight: %v", err)
	}
	d.Cancel(ticket)
	r, err := d.Wait(ticket)
	if err != nil || r.Count > 60 || r.Stopped {
		t.Errorf("cancelled: %+v, %v", r, err)
	}
	check(other, 2*float32(r.Count))
	if _, err := d.Wait(ticket); !errors.Is(err, ErrTicket) {
		t.Errorf("waiting twice: %v", err)
	}

	long := times(id, 0, 1)
	long.Runs[0].Step.Position = 64
	for name, bad := range map[string]*replay.Submission{
		"no session": times(99, 0, 1), "no program": times(id, 2, 1), "past the context": times(id, 0, 65), "a position past it": long,
		"no rows": {Session: id, Runs: []replay.Run{{Count: 1, Step: table.Step{KVLen: 1}}}}, "timings": {Session: id, Timings: make([]time.Duration, 3)},
	} {
		if _, err := d.Submit(bad); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	for _, at := range []struct {
		slot   uint32
		offset uint64
	}{{slotW, 0}, {99, 0}, {slotX, 253}, {slotX, 1 << 63}} {
		if err := d.Write(id, at.slot, at.offset, make([]byte, 4)); err == nil {
			t.Errorf("writing to slot %d at %d: taken", at.slot, at.offset)
		}
	}
	if m := d.Memory(); m.Weights != 256 || m.Sessions == 0 {
		t.Errorf("%+v", m)
	}
	fatal(d.CloseSession(other))
	if err := d.CloseSession(other); !errors.Is(err, ErrSession) {
		t.Errorf("closing a session twice: %v", err)
	}
	fatal(d.Close())
	fatal(d.Close())
	if _, err := d.Submit(times(id, 0, 1)); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestDeviceLoad checks that Load refuses tables that do not validate, and, with Unchecked,
// tables that no device can launch.
func TestDeviceLoad(t *testing.T) {
	for name, tt := range map[string]struct {
		change    func(*table.Table)
		src       replay.Source
		unchecked bool
		want      string
	}{
		"sound":        {func(*table.Table) {}, source(), false, ""},
		"grid":         {func(t *table.Table) { t.Cmds[0].Grid[0] = 2 }, source(), false, "command 0 (add)"},
		"grid, so be":  {func(t *table.Table) { t.Cmds[0].Grid[0] = 2 }, source(), true, ""},
		"kernel":       {func(t *table.Table) { t.Cmds[0].Kernel = 999 }, source(), true, "command 0 (add)"},
		"slot":         {func(t *table.Table) { t.Cmds[0].Bind[1].Slot = 6 }, source(), true, "command 0 (add): binding delta"},
		"offset":       {func(t *table.Table) { t.Cmds[0].Bind[1].Offset = 144 }, source(), true, "past the end of slot w"},
		"alignment":    {func(t *table.Table) { t.Cmds[0].Bind[1].Offset = 4 }, source(), true, "not a multiple of 16"},
		"no source":    {func(*table.Table) {}, nil, false, "upload 0 (w): there is no source"},
		"no tensor":    {func(*table.Table) {}, tensors{}, false, "upload 0 (w): no tensor w"},
		"short tensor": {func(*table.Table) {}, tensors{"w": make([]byte, 127)}, false, "exceeds the source's 127 bytes"},
		"destination":  {func(t *table.Table) { t.Uploads[0].DstOffset = 4 }, source(), true, "past the slot's 256"},
	} {
		tab := addTable(t)
		tt.change(tab)
		err := NewDevice(&Program{}, DeviceOptions{Unchecked: tt.unchecked}).Load(context.Background(), tab, tt.src, replay.LoadOptions{})
		if tt.want == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// TestUpload executes every operation.
func TestUpload(t *testing.T) {
	const rows, cols = 32, 64
	size, _ := dtype.Q8_0.Bytes(rows * cols)
	blocks := make([]byte, size)
	if err := dtype.RandomBlocks(dtype.Q8_0, blocks, 1, 1); err != nil {
		t.Fatal(err)
	}
	tiles := make([]byte, size)
	if err := dtype.Tile(dtype.Q8_0, tiles, blocks, rows, cols); err != nil {
		t.Fatal(err)
	}
	constants := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	tab := &table.Table{
		Const: constants,
		Uploads: []table.Upload{
			{Op: table.UploadConst, SrcOffset: 4, SrcSize: 4},
			{Op: table.UploadCopy, Type: dtype.Q8_0, Tensor: "q", SrcOffset: 34, SrcSize: 68, DstOffset: 4},
			{Op: table.UploadToF32, Type: dtype.F16, Tensor: "h", SrcSize: 4, DstOffset: 72},
			{Op: table.UploadTile, Type: dtype.Q8_0, Slot: 1, Tensor: "q", Cols: cols, SrcSize: size},
		},
	}
	mem := [][]byte{make([]byte, 80), make([]byte, size)}
	var steps []uint64
	err := upload(context.Background(), tab, tensors{"q": blocks, "h": {0, 0x3c, 0, 0xc0}}, mem, func(done, _ uint64) { steps = append(steps, done) })
	if err != nil {
		t.Fatal(err)
	}
	want := slices.Concat(constants[4:], blocks[34:102], binary.LittleEndian.AppendUint32(nil, 0x3f800000), binary.LittleEndian.AppendUint32(nil, 0xc0000000))
	if !bytes.Equal(mem[0], want) || !bytes.Equal(mem[1], tiles) {
		t.Error("the slots have another content")
	}
	if !slices.Equal(steps, []uint64{4, 72, 76, 76 + size}) {
		t.Errorf("progress %v", steps)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := upload(ctx, tab, tensors{}, mem, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
