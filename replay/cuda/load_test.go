package cuda

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/pianola-engine/pianola/internal/cuda/driver"
	"github.com/pianola-engine/pianola/internal/cuda/fake"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// source holds tensors in memory. It records the bytes that are released.
type source struct {
	tensors  map[string][]byte
	released chan int
}

func (s *source) Tensor(name string) ([]byte, error) {
	b, ok := s.tensors[name]
	if !ok {
		return nil, fmt.Errorf("no tensor %s", name)
	}
	return b, nil
}

func (s *source) Release(b []byte) { s.released <- len(b) }

// Numbers of columns of the upload table's tensors, and numbers of rows that make each tensor
// larger than one piece.
const (
	upCols = 256
	upRows = 16 * 1101
)

// uploads returns a table whose weights use every kind of upload. Its only command is a norm.
func uploads(t *testing.T, rows int) (*table.Table, *source) {
	t.Helper()
	tab := &table.Table{Header: table.Header{Device: "cuda", Chip: "h200", Vocab: 8, Width: 8, Layers: 1, Context: 8, Chunk: 1}}
	slot := func(name string, kind table.SlotKind, scope table.Scope, size int) uint32 {
		tab.Slots = append(tab.Slots, table.Slot{Name: name, Kind: kind, Scope: scope, Size: uint64(size)})
		return uint32(len(tab.Slots) - 1)
	}
	slot("tokens", table.SlotTokens, table.ScopeSession, 4*9)
	logits := slot("logits", table.SlotLogits, table.ScopeSession, 4*8)
	slot("stops", table.SlotStops, table.ScopeSession, 4)
	slot("step", table.SlotStep, table.ScopeSession, table.StepSize)
	slot("scratch", table.SlotScratch, table.ScopeExecutor, 100)
	src := &source{tensors: map[string][]byte{}, released: make(chan int, 1000)}
	r := rand.New(rand.NewPCG(1, 2))
	for name, typ := range map[string]dtype.Type{"plain": dtype.F32, "half": dtype.F16, "brain": dtype.BF16, "q8": dtype.Q8_0} {
		size, _ := typ.Bytes(uint64(rows * upCols))
		b := make([]byte, size)
		x := make([]float32, rows*upCols)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		if err := dtype.Quantize(typ, b, x); err != nil {
			t.Fatal(err)
		}
		src.tensors[name] = b
	}
	add := func(op table.UploadOp, typ dtype.Type, slot uint32, tensor string, cols uint32, from, size, to int) {
		tab.Uploads = append(tab.Uploads, table.Upload{Op: op, Type: typ, Slot: slot, Tensor: tensor, Cols: cols,
			SrcOffset: uint64(from), SrcSize: uint64(size), DstOffset: uint64(to)})
	}
	n := rows * upCols
	plain := slot("plain", table.SlotWeight, table.ScopeModel, 4*n)
	add(table.UploadCopy, dtype.F32, plain, "plain", 0, 0, 4*n, 0)
	made := slot("made", table.SlotWeight, table.ScopeModel, 8*n+8)
	add(table.UploadToF32, dtype.F16, made, "half", 0, 0, 2*n, 0)
	add(table.UploadToF32, dtype.BF16, made, "brain", 0, 0, 2*n, 4*n)
	tab.Const = []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	add(table.UploadConst, dtype.F32, made, "", 0, 4, 8, 8*n)
	tiles, _ := dtype.Tiled16.Bytes(dtype.Q8_0, uint64(rows), upCols)
	tiled := slot("tiled", table.SlotWeight, table.ScopeModel, int(tiles))
	add(table.UploadTile, dtype.Q8_0, tiled, "q8", upCols, 0, len(src.tensors["q8"]), 0)

	c := table.Cmd{Kernel: kernels.RMSNorm, Bindings: 3, PatchOffset: [2]uint8{table.NoPatch, table.NoPatch},
		Grid: [3]uint32{1, 1, 1}, Threadgroup: [3]uint32{32, 1, 1}}
	kernels.RMSNormParams{N: 8, XRows: 1}.Put(&c)
	c.PutSecond(decl.SecondRows, 1)
	for i := range c.Bind {
		c.Bind[i].Slot = table.NoSlot
	}
	c.Bind[0].Slot, c.Bind[1].Slot, c.Bind[2].Slot = plain, made, logits
	tab.Cmds, tab.Labels = []table.Cmd{c}, []string{"the.norm"}
	tab.Specs = []table.Spec{{Kernel: kernels.RMSNorm}}
	tab.Programs = []table.Program{{Name: table.ProgramDecode, Count: 1, MaxRows: 1}}
	if err := tab.PlaceBarriers(); err != nil {
		t.Fatal(err)
	}
	return tab, src
}

// TestUploads compares the bytes on the GPU with conversions of whole tensors.
func TestUploads(t *testing.T) {
	tab, src := uploads(t, upRows)
	drv := fake.New(t)
	d := open(t, drv, "")
	var seen []uint64
	var total uint64
	if err := d.Load(context.Background(), tab, src, replay.LoadOptions{Progress: func(done, all uint64) { seen, total = append(seen, done), all }}); err != nil {
		t.Fatal(err)
	}
	var sum uint64
	for _, u := range tab.Uploads {
		sum += u.SrcSize
	}
	if total != sum || !slices.IsSorted(seen) || seen[0] != 0 || seen[len(seen)-1] != total || len(seen) != 1+5+3+3+1+2 {
		t.Errorf("progress %v of %d, want %d", seen, total, sum)
	}
	close(src.released)
	released := 0
	for n := range src.released {
		released += n
	}
	if released != int(sum)-8 {
		t.Errorf("%d bytes of the source were released, of %d", released, sum-8)
	}
	floats := func(typ dtype.Type, name string) []byte {
		x := make([]float32, upRows*upCols)
		if err := dtype.Dequantize(typ, x, src.tensors[name]); err != nil {
			t.Fatal(err)
		}
		return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 4*len(x))
	}
	tiled := make([]byte, tab.Slots[7].Size)
	if err := dtype.Tile(dtype.Q8_0, tiled, src.tensors["q8"], upRows, upCols); err != nil {
		t.Fatal(err)
	}
	made := slices.Concat(floats(dtype.F16, "half"), floats(dtype.BF16, "brain"), tab.Const[4:12])
	for slot, want := range map[int][]byte{5: src.tensors["plain"], 6: made, 7: tiled} {
		got := make([]byte, len(want))
		if err := d.enter(); err != nil {
			t.Fatal(err)
		}
		err := d.drv.MemcpyDtoHAsync(got, d.mem[slot], d.transfer)
		d.leave(&err)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("slot %s has other bytes", tab.Slots[slot].Name)
		}
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	drv.Check()
}

// TestLoadErrors loads invalid tables and sources. Load must return an error that names the
// place, must leave nothing allocated on the GPU, and must afterwards accept another table.
func TestLoadErrors(t *testing.T) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for name, c := range map[string]struct {
		change func(tab *table.Table, src *source, o *Options)
		ctx    context.Context
		want   string
	}{
		"no tensor":   {func(_ *table.Table, src *source, _ *Options) { delete(src.tensors, "half") }, nil, "cuda: upload 1 (half): no tensor half"},
		"short":       {func(_ *table.Table, src *source, _ *Options) { src.tensors["brain"] = src.tensors["brain"][:8] }, nil, "cuda: upload 2 (brain): offset 0 + "},
		"invalid":     {func(tab *table.Table, _ *source, _ *Options) { tab.Cmds[0].Grid[1] = 7 }, nil, "cuda: the table is not valid: "},
		"chip":        {func(tab *table.Table, _ *source, _ *Options) { tab.Header.Device, tab.Header.Chip = "cpu", "cpu" }, nil, "cuda: the table was compiled for chip cpu of device cpu"},
		"quantised":   {func(tab *table.Table, _ *source, _ *Options) { tab.Uploads[1].Type = dtype.I16 }, nil, ""},
		"threads":     {func(tab *table.Table, _ *source, _ *Options) { tab.Cmds[0].Threadgroup[0] = 1024 }, nil, "cuda: command 0 (the.norm): threadgroup of 1024 threads: entry rmsnorm supports at most 512"},
		"odd threads": {func(tab *table.Table, _ *source, _ *Options) { tab.Cmds[0].Threadgroup[0] = 33 }, nil, "cuda: command 0 (the.norm): threadgroup of 33 threads: want a multiple of 32"},
		"memory":      {func(tab *table.Table, _ *source, _ *Options) { tab.Cmds[0].TGMem = 1 << 20 }, nil, "cuda: command 0 (the.norm): 1048576 bytes of threadgroup memory exceed the GPU's 232448"},
		"alignment": {func(tab *table.Table, _ *source, o *Options) {
			tab.Cmds[0].Bind[1].Offset, o.Modules.BindingAlign = 8, 16
		}, nil,
			"cuda: command 0 (the.norm): binding 1: offset 8 is not a multiple of 16"},
		"no kernel": {func(_ *table.Table, _ *source, o *Options) {
			o.Modules.Instances = slices.DeleteFunc(o.Modules.Instances, func(in Instance) bool { return in.Kernel == "rmsnorm" })
		}, nil, "cuda: command 0 (the.norm): there is no kernel rmsnorm"},
		"no patch": {func(_ *table.Table, _ *source, o *Options) {
			o.Modules.Instances = slices.DeleteFunc(o.Modules.Instances, func(in Instance) bool { return in.Kernel == "patch" })
		}, nil, "cuda: there is no kernel patch"},
		"no entry": {func(_ *table.Table, _ *source, o *Options) {
			o.Modules.Texts[0].Read = func() ([]byte, error) { return fake.PTX("patch"), nil }
		}, nil,
			"cuda: command 0 (the.norm): entry rmsnorm: cuModuleGetFunction: CUDA_ERROR_NOT_FOUND (500)"},
		"no text": {func(_ *table.Table, _ *source, o *Options) { o.Modules.Texts[0].Name = "other" }, nil, "cuda: kernels all: no kernels for this GPU"},
		"PTX": {func(_ *table.Table, _ *source, o *Options) {
			o.Modules.Texts[0].Read = func() ([]byte, error) { return []byte("nonsense"), nil }
		}, nil, `cuda: kernels all, sm_70: ptx: line 1: "nonsense" outside of an entry`},
		"assembly": {func(_ *table.Table, _ *source, o *Options) {
			o.Modules.Texts[0].Read = func() ([]byte, error) {
				return bytes.Replace(fake.PTX("rmsnorm", "patch"), []byte("ret;"), []byte("error;"), 1), nil
			}
		}, nil, "cuda: kernels all, sm_70: cuModuleLoadDataEx: CUDA_ERROR_INVALID_PTX (218): line 1: this is no PTX"},
		"unread": {func(_ *table.Table, _ *source, o *Options) {
			o.Modules.Texts[0].Read = func() ([]byte, error) { return nil, io.ErrUnexpectedEOF }
		}, nil, "cuda: kernels all, sm_70: unexpected EOF"},
		"cancelled": {func(*table.Table, *source, *Options) {}, cancelled, "cuda: load: context canceled"},
	} {
		tab, src := uploads(t, 16)
		drv := fake.New(t)
		o := Options{Library: drv.Path, Modules: fakeModules()}
		c.change(tab, src, &o)
		d, err := New(o)
		if err != nil {
			t.Errorf("%s: New: %v", name, err)
			continue
		}
		ctx := c.ctx
		if ctx == nil {
			ctx = context.Background()
		}
		if err := d.Load(ctx, tab, src, replay.LoadOptions{}); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %s", name, err, c.want)
		}
		drv.Check()
		if name == "cancelled" || name == "no tensor" {
			tab, src = uploads(t, 16)
			if err := d.Load(context.Background(), tab, src, replay.LoadOptions{}); err != nil {
				t.Errorf("%s: a second time: %v", name, err)
			}
		}
		if err := d.Close(); err != nil {
			t.Errorf("%s: Close: %v", name, err)
		}
		drv.Check()
	}
}

// TestCancelLoad cancels in the middle of the upload.
func TestCancelLoad(t *testing.T) {
	tab, src := uploads(t, upRows)
	drv := fake.New(t)
	d := open(t, drv, "")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	err := d.Load(ctx, tab, src, replay.LoadOptions{Progress: func(done, total uint64) {
		if done > total/2 {
			cancel()
		}
		if err := d.Close(); err == nil || err.Error() != "cuda: Close during Load" {
			t.Errorf("Close during Load: %v", err)
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	drv.Check()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// shrunk is a source that panics like a mapped file that has shrunk.
type shrunk struct{ source }

func (*shrunk) Release([]byte) { panic("the file has shrunk") }

func TestPanic(t *testing.T) {
	tab, src := uploads(t, 16)
	drv := fake.New(t)
	d := open(t, drv, "")
	var p *device.PanicError
	err := d.Load(context.Background(), tab, &shrunk{*src}, replay.LoadOptions{})
	if !errors.As(err, &p) || err.Error() != "cuda: load: panic: the file has shrunk" {
		t.Errorf("%v", err)
	}
	drv.Check()
}

// TestThreadgroupMemory uses commands and instances whose threadgroup memory exceeds the
// default limit of a launch, which the device must raise.
func TestThreadgroupMemory(t *testing.T) {
	for _, c := range []struct{ cmd, instance uint32 }{{200 << 10, 0}, {0, 200 << 10}, {1 << 10, 64 << 10}} {
		tab, src := uploads(t, 16)
		tab.Cmds[0].TGMem = c.cmd
		drv := fake.New(t)
		m := fakeModules()
		for i := range m.Instances {
			if m.Instances[i].Kernel == kernelPatch {
				continue
			}
			m.Instances[i].TGMem = func(_ decl.Env, threads int) (uint64, error) { return uint64(c.instance) * uint64(threads) / 32, nil }
		}
		d, err := New(Options{Library: drv.Path, Modules: m})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(d.Load(context.Background(), tab, src, replay.LoadOptions{}), d.Close()); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		drv.Check()
	}
}

// TestChoose picks the most specific instance, and the newest text that fits.
func TestChoose(t *testing.T) {
	m := &Modules{
		Texts: []Text{{Name: "a", Arch: 70}, {Name: "a", Arch: 90}, {Name: "a", Arch: 80}, {Name: "b", Arch: 100},
			{Name: "c", Arch: 90, Exact: true}, {Name: "c", Arch: 90}, {Name: "c", Arch: 100, Exact: true}, {Name: "c", Arch: 80}},
		Instances: []Instance{
			{Kernel: "gemv", Entry: "generic"},
			{Kernel: "gemv", Entry: "f16", Fixed: []Fixed{{Spec: 0, Value: uint32(dtype.F16)}}},
			{Kernel: "gemv", Entry: "f16_silu", Fixed: []Fixed{{Spec: 0, Value: uint32(dtype.F16)}, {Spec: 2, Value: 1}}},
			{Kernel: "gemv", Entry: "f32_silu", Fixed: []Fixed{{Spec: 0, Value: uint32(dtype.F32)}, {Spec: 2, Value: 1}}},
			{Kernel: "gemv", Entry: "f16_bias", Fixed: []Fixed{{Spec: 0, Value: uint32(dtype.F16)}, {Spec: 3, Value: 1}}},
			{Kernel: "gemv", Entry: "bad", Fixed: []Fixed{{Spec: 9, Value: 0}, {Spec: -1, Value: 0}, {Spec: 3, Value: 0}}},
			{Kernel: "attn", Entry: "only128", Fixed: []Fixed{{Spec: 0, Value: 128}}},
		},
	}
	values := func(v ...uint32) (all [decl.MaxSpecs]uint32) { copy(all[:], v); return all }
	for _, c := range []struct {
		kernel string
		values [decl.MaxSpecs]uint32
		want   string
	}{
		{"gemv", values(uint32(dtype.Q8_0)), "generic"},
		{"gemv", values(uint32(dtype.F16)), "f16"},
		{"gemv", values(uint32(dtype.F16), 0, 1), "f16_silu"},
		{"gemv", values(uint32(dtype.F16), 0, 1, 1), "f16_silu"},
		{"gemv", values(uint32(dtype.F32)), "generic"},
		{"attn", values(128), "only128"},
		{"attn", values(64), ""},
		{"rope", values(64), ""},
	} {
		got := ""
		if in, ok := m.choose(c.kernel, c.values); ok {
			got = in.Entry
		}
		if got != c.want {
			t.Errorf("%s %v: %q, want %q", c.kernel, c.values, got, c.want)
		}
	}
	for capability, want := range map[int]int{61: 0, 70: 70, 75: 70, 80: 80, 89: 80, 90: 90, 120: 90} {
		got := 0
		if text := m.text("a", capability, driver.Oldest); text != nil {
			got = text.Arch
		}
		if got != want || m.supports(capability) != (want != 0) {
			t.Errorf("capability %d: sm_%d, want sm_%d", capability, got, want)
		}
	}
	for capability, want := range map[int]Text{80: {Arch: 80}, 89: {Arch: 80}, 90: {Arch: 90, Exact: true}, 100: {Arch: 100, Exact: true}, 103: {Arch: 90}} {
		if got := m.text("c", capability, exactDriver); got == nil || got.Arch != want.Arch || got.Exact != want.Exact {
			t.Errorf("capability %d: %+v, want %+v", capability, got, want)
		}
	}
	if got := m.text("c", 90, driver.Oldest); got == nil || got.Exact {
		t.Errorf("a driver that does not know the language: %+v", got)
	}
	tab := &table.Table{Specs: []table.Spec{{Kernel: kernels.Attn, Values: values(64, 1)}}}
	_, err := m.instance(tab, &table.Cmd{Kernel: kernels.Attn})
	if err == nil || err.Error() != "there is no kernel attn for head_dim=64 windowed=1 split=0 kv=0 sinks=0 layout=0 learned=0 sequences=0" {
		t.Errorf("%v", err)
	}
}

// TestLayout compares the layout of structures that the GPU reads with their layout in C.
func TestLayout(t *testing.T) {
	var a arguments
	for name, c := range map[string]struct{ got, want uintptr }{
		"params": {unsafe.Offsetof(a.params), 64},
		"second": {unsafe.Offsetof(a.second), 128},
		"step":   {unsafe.Offsetof(a.step), 136},
		"specs":  {unsafe.Offsetof(a.specs), 144},
		"size":   {unsafe.Sizeof(a), argumentsSize},
	} {
		if c.got != c.want {
			t.Errorf("%s at %d, want %d", name, c.got, c.want)
		}
	}
	s := table.Step{RNG: 1 << 40, Position: 2, KVRow: 3, KVLen: 4, TokenIndex: 5, Row: 6, Rows: 7, Stop: 8, Count: 9}
	got := bytes.Repeat([]byte{0xff}, table.StepSize)
	device.PutStep(got, &s)
	if want := unsafe.Slice((*byte)(unsafe.Pointer(&s)), table.StepSize); !bytes.Equal(got, want) {
		t.Errorf("a step block is %x, want %x", got, want)
	}
	if binary.LittleEndian.Uint32(got[device.StepStop:]) != 8 || binary.LittleEndian.Uint32(got[device.StepCount:]) != 9 || unsafe.Offsetof(s.Stop) != device.StepPlace {
		t.Error("the offsets of the step block differ")
	}
}
