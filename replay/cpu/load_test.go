package cpu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// tryLoad loads a table on a new device.
func tryLoad(t *testing.T, b *builder, o replay.LoadOptions) (*Device, error) {
	t.Helper()
	if err := b.t.PlaceBarriers(); err != nil {
		t.Fatal(err)
	}
	d, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d, d.Load(context.Background(), b.t, b.tensors, o)
}

func TestNew(t *testing.T) {
	most := runtime.GOMAXPROCS(0)
	for _, n := range []int{-1, most + 1, 1 << 30} {
		if _, err := New(Options{Threads: n}); err == nil || !strings.Contains(err.Error(), "GOMAXPROCS") {
			t.Errorf("%d threads: %v", n, err)
		}
	}
	if d, err := New(Options{}); err != nil || d.threads != most {
		t.Errorf("threads %v, %v", d, err)
	}
}

func TestPin(t *testing.T) {
	d, err := New(Options{Pin: true})
	if !canPin {
		if err == nil {
			t.Error("threads are said to be bound where they cannot be")
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	d = chainModel(t).load(Options{Pin: true})
	if res, _ := decode(t, d, newSession(t, d, 3), 10); res.Count != 10 {
		t.Errorf("%+v", res)
	}
}

func TestUnsupportedWeight(t *testing.T) {
	for _, c := range []struct {
		t    dtype.Type
		act  uint32
		want string
	}{
		{dtype.I8, decl.ActF32, "cpu: command 2 (layer.0.ffn.down): gemv: weight type I8 is not supported"},
		{dtype.F16, decl.ActQ8, "cpu: command 2 (layer.0.ffn.down): gemv: weight type F16 with activation type q8 is not supported"},
	} {
		b := newBuilder(t, 8, 256, 8, 1, 0)
		size, _ := c.t.Bytes(8 * 256)
		b.weight("w", c.t, make([]byte, size))
		b.slot("scratch", table.SlotScratch, table.ScopeExecutor, 4096)
		b.program(table.ProgramDecode, 1)
		row := map[int]uint32{decl.SecondRows: 1}
		b.cmd(kernels.Add, nil, kernels.AddParams{N: 8}, 0, row, at{"scratch", 0}, at{"scratch", 64})
		b.cmd(kernels.Add, nil, kernels.AddParams{N: 8}, 0, row, at{"scratch", 0}, at{"scratch", 64})
		b.cmd(kernels.GEMV, []uint32{uint32(c.t), c.act}, kernels.GEMVParams{In: 256, Out: 8, XStride: 256, YStride: 8, Group: 1, RowGroup: 1}, 0, row,
			at{"scratch", 0}, at{}, at{"w", 0}, at{}, at{"logits", 0})
		b.t.Labels[2] = "layer.0.ffn.down"
		_, err := tryLoad(t, b, replay.LoadOptions{})
		var typed *WeightTypeError
		if !errors.As(err, &typed) || typed.Type != c.t || err.Error() != c.want {
			t.Errorf("error %v, want %s", err, c.want)
		}
	}
}

// uploads returns a table whose weights use every kind of upload; they end in a norm of 8
// elements.
func uploads(t *testing.T) *builder {
	b := newBuilder(t, 8, 8, 8, 1, 0)
	r := rand.New(rand.NewPCG(1, 9))
	b.weight("plain", dtype.F32, bytesOf(t, random(r, 8, 1)))
	b.tensors["half"] = randomBytes(t, r, dtype.F16, 8, 1)
	b.tensors["brain"] = randomBytes(t, r, dtype.BF16, 8, 1)
	b.slot("made", table.SlotWeight, table.ScopeModel, 4*(8+8+8+2))
	b.t.Const = bytesOf(t, []float32{9, 8, 7})
	b.t.Uploads = append(b.t.Uploads,
		table.Upload{Op: table.UploadToF32, Type: dtype.F16, Slot: b.slots["made"], Tensor: "half", SrcSize: 16},
		table.Upload{Op: table.UploadToF32, Type: dtype.BF16, Slot: b.slots["made"], Tensor: "brain", SrcSize: 16, DstOffset: 32},
		table.Upload{Op: table.UploadToF32, Type: dtype.F32, Slot: b.slots["made"], Tensor: "plain", SrcSize: 32, DstOffset: 64},
		table.Upload{Op: table.UploadConst, Type: dtype.F32, Slot: b.slots["made"], SrcOffset: 4, SrcSize: 8, DstOffset: 96},
	)
	b.slot("scratch", table.SlotScratch, table.ScopeExecutor, 256)
	b.program(table.ProgramDecode, 1)
	b.cmd(kernels.RMSNorm, nil, kernels.RMSNormParams{N: 8, XRows: 1}, 0, map[int]uint32{decl.SecondRows: 1},
		at{"plain", 0}, at{"made", 0}, at{"logits", 0})
	return b
}

func TestUploads(t *testing.T) {
	b := uploads(t)
	var seen []uint64
	var total uint64
	d, err := tryLoad(t, b, replay.LoadOptions{Progress: func(done, all uint64) { seen, total = append(seen, done), all }})
	if err != nil {
		t.Fatal(err)
	}
	if total != 32+16+16+32+8 || !slices.IsSorted(seen) || seen[len(seen)-1] != total {
		t.Errorf("progress %v of %d", seen, total)
	}
	var want []float32
	for _, w := range []struct {
		t    dtype.Type
		name string
	}{{dtype.F16, "half"}, {dtype.BF16, "brain"}, {dtype.F32, "plain"}} {
		for _, v := range dequantized(t, w.t, b.tensors[w.name]) {
			want = append(want, float32(v))
		}
	}
	same(t, "made", float32s(d.model[b.slots["made"]]), append(want, 8, 7))
	if &d.model[b.slots["plain"]][0] != &b.tensors["plain"][0] {
		t.Error("a tensor that could be used in place was copied")
	}
	if m := d.Memory(); m.Mapped != 32 || m.Weights != 104 || m.Executor < 256 || m.Sessions != 0 {
		t.Errorf("%+v", m)
	}
	newSession(t, d, 0)
	if m := d.Memory(); m.Sessions != 36+32+4+64 {
		t.Errorf("%+v", m)
	}
	if err := d.Load(context.Background(), b.t, b.tensors, replay.LoadOptions{}); !errors.Is(err, device.ErrLoaded) {
		t.Errorf("a second Load: %v", err)
	}
}

// TestUnaligned copies a tensor at an odd address.
func TestUnaligned(t *testing.T) {
	b := uploads(t)
	mem, err := allocate(64)
	if err != nil {
		t.Fatal(err)
	}
	odd := mem[1:][:32]
	copy(odd, b.tensors["plain"])
	b.tensors["plain"] = odd
	d, err := tryLoad(t, b, replay.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if d.Memory().Mapped != 0 {
		t.Errorf("%+v", d.Memory())
	}
}

func TestLoadErrors(t *testing.T) {
	for name, c := range map[string]struct {
		change func(b *builder)
		want   string
	}{
		"no tensor":   {func(b *builder) { delete(b.tensors, "half") }, "(half): no tensor half"},
		"short":       {func(b *builder) { b.tensors["brain"] = b.tensors["brain"][:15] }, "(brain): offset 0 + 16 bytes exceeds the source's 15 bytes"},
		"invalid":     {func(b *builder) { b.t.Cmds[0].Grid[1] = 7 }, "not valid"},
		"quantised":   {func(b *builder) { b.t.Uploads[1].Type = dtype.I16 }, "not "},
		"huge":        {func(b *builder) { b.t.Slots[b.slots["scratch"]].Size = 1 << 46 }, "slot scratch"},
		"barrier":     {func(b *builder) { b.t.Cmds[0].Barrier = 0 }, "barrier"},
		"slot number": {func(b *builder) { b.t.Uploads[0].Slot = 1 << 31 }, "not valid"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "huge" && machineMemory() > 1<<46 {
				t.Skip("this machine has more memory than a table may ask for, or does not say how much")
			}
			b := uploads(t)
			if err := b.t.PlaceBarriers(); err != nil {
				t.Fatal(err)
			}
			c.change(b)
			d, err := New(Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if err := d.Load(context.Background(), b.t, b.tensors, replay.LoadOptions{}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %s", err, c.want)
			}
			if _, err := d.NewSession(); !errors.Is(err, device.ErrNotLoaded) {
				t.Errorf("NewSession: %v", err)
			}
		})
	}
}

func TestLoadCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	b := uploads(t)
	if err := b.t.PlaceBarriers(); err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"before", "during"} {
		d, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		o := replay.LoadOptions{Progress: func(uint64, uint64) { cancel() }}
		if when == "before" {
			o.Progress = nil
			done, stop := context.WithCancel(ctx)
			stop()
			err = d.Load(done, b.t, b.tensors, o)
		} else {
			err = d.Load(ctx, b.t, b.tensors, o)
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", when, err)
		}
		d.Close()
	}
}

// TestEdge runs rows up to the end of the context, an empty run, and no run.
func TestEdge(t *testing.T) {
	d := chainModel(t).load(Options{})
	id := newSession(t, d, 3)
	step := table.Step{Position: chainCtx - 16, TokenIndex: chainCtx - 16, KVLen: chainCtx - 15, Rows: 8}
	for _, runs := range [][]replay.Run{{{Program: 1, Count: 2, Step: step}}, {{Program: 1, Step: step}}, nil} {
		if res := submit(t, d, &replay.Submission{Session: id, Runs: runs}); res.Count != 0 || res.Stopped {
			t.Errorf("%v: %+v", runs, res)
		}
	}
}

// failing is a source whose reads fail.
type failing struct{}

func (failing) Tensor(string) ([]byte, error) { return nil, io.ErrUnexpectedEOF }

func TestSourceError(t *testing.T) {
	b := uploads(t)
	if err := b.t.PlaceBarriers(); err != nil {
		t.Fatal(err)
	}
	for _, src := range []replay.Source{failing{}, nil} {
		d, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		err = d.Load(context.Background(), b.t, src, replay.LoadOptions{})
		if err == nil || src != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("source %v: %v", src, err)
		}
		d.Close()
	}
}

func ExampleNew() {
	d, err := New(Options{Threads: 1, Portable: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close()
	info := d.Info()
	fmt.Println(info.Device, info.Modes, info.Detail)
	// Output: cpu [encode] 1 threads, portable
}
