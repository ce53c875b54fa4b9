package cuda

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// gpuPTX contains stand-ins for two kernels, and the kernel patch; see testdata/gpu.c.
//
//go:embed testdata/gpu.ptx
var gpuPTX []byte

// gpuModules returns the stand-in kernels of gpuPTX.
func gpuModules() *Modules {
	m := &Modules{Texts: []Text{{Name: "gpu", Arch: 70, Read: func() ([]byte, error) { return gpuPTX, nil }}}}
	for _, k := range []string{"rmsnorm", "argmax", "patch"} {
		m.Instances = append(m.Instances, Instance{Kernel: k, Text: "gpu", Entry: k})
	}
	return m
}

// gpuTable returns a table whose decode program consists of pairs of commands and an argmax.
// The first command of a pair computes 2*x + 1 from slot seed, the second the same from the
// result of the first. The stand-in for argmax computes the next token from the last result.
func gpuTable(t *testing.T, pairs, context int) (*table.Table, *source) {
	t.Helper()
	const n = 8
	tab := &table.Table{Header: table.Header{Device: "cuda", Chip: "cuda", Vocab: n, Width: n, Layers: 1, Context: uint32(context), Chunk: 1, MaxStops: 1}}
	slot := func(name string, kind table.SlotKind, scope table.Scope, size int) uint32 {
		tab.Slots = append(tab.Slots, table.Slot{Name: name, Kind: kind, Scope: scope, Size: uint64(size)})
		return uint32(len(tab.Slots) - 1)
	}
	tokens := slot("tokens", table.SlotTokens, table.ScopeSession, 4*(context+1))
	logits := slot("logits", table.SlotLogits, table.ScopeSession, 4*n)
	stops := slot("stops", table.SlotStops, table.ScopeSession, 8)
	slot("step", table.SlotStep, table.ScopeSession, table.StepSize)
	scratch := slot("scratch", table.SlotScratch, table.ScopeExecutor, 4*n)
	seed := slot("seed", table.SlotWeight, table.ScopeModel, 4*n)
	b := make([]byte, 4*n)
	for i := range n {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(i+5))
	}
	src := &source{tensors: map[string][]byte{"seed": b}, released: make(chan int, 10)}
	tab.Uploads = []table.Upload{{Op: table.UploadCopy, Type: 1, Slot: seed, Tensor: "seed", SrcSize: 4 * n}}
	add := func(id decl.ID, p interface{ Put(*table.Cmd) }, patch table.Patch, slots ...uint32) {
		c := table.Cmd{Kernel: id, Bindings: uint8(len(slots)), Patch: patch, PatchOffset: [2]uint8{table.NoPatch, table.NoPatch},
			Grid: [3]uint32{1, 1, 1}, Threadgroup: [3]uint32{32, 1, 1}, Spec: uint16(len(tab.Specs))}
		p.Put(&c)
		if patch == table.PatchArgmax {
			c.PatchOffset[0] = decl.SecondIndex
		} else {
			c.PutSecond(decl.SecondRows, 1)
		}
		c.SecondSize = decl.SecondBytes
		for i := range c.Bind {
			c.Bind[i].Slot = table.NoSlot
		}
		for i, s := range slots {
			c.Bind[i].Slot = s
		}
		tab.Specs = append(tab.Specs, table.Spec{Kernel: id})
		tab.Cmds = append(tab.Cmds, c)
		tab.Labels = append(tab.Labels, fmt.Sprintf("cmd.%d", len(tab.Cmds)))
	}
	norm := kernels.RMSNormParams{N: n, XRows: 1}
	for range pairs {
		add(kernels.RMSNorm, norm, 0, seed, seed, scratch)
		add(kernels.RMSNorm, norm, 0, scratch, seed, logits)
	}
	add(kernels.Argmax, kernels.ArgmaxParams{N: n, Ring: uint32(context + 1), MaxStops: 1}, table.PatchArgmax, logits, stops, tokens)
	tab.Programs = []table.Program{{Name: table.ProgramDecode, Count: uint32(len(tab.Cmds)), MaxRows: 1, Flags: table.FlagChooses}}
	if err := tab.PlaceBarriers(); err != nil {
		t.Fatal(err)
	}
	return tab, src
}

// gpuTokens returns the first n tokens that the stand-ins produce after token 7.
func gpuTokens(n int) []uint32 {
	out := []uint32{7}
	for range n {
		out = append(out, out[len(out)-1]*3+2*(2*5+1)+1)
	}
	return out
}

// TestGPU replays on a real GPU with stand-in kernels. It tests arguments, graphs, patches,
// stop, cancellation, times and errors.
func TestGPU(t *testing.T) {
	gpu, err := FindGPU("", 0)
	if err != nil {
		t.Skipf("no GPU to run on: %v", err)
	}
	t.Logf("%s, %s, %d MiB, %.0f GB/s", gpu.Name, gpu.detail(), gpu.Memory>>20, gpu.BandwidthGBs)
	const pairs, ctx = 50, 20000
	for _, mode := range Modes() {
		tab, src := gpuTable(t, pairs, ctx)
		d, err := New(Options{Mode: mode, Modules: gpuModules()})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := d.Load(context.Background(), tab, src, replay.LoadOptions{}); err != nil {
			t.Fatal(err)
		}
		loaded := time.Since(start)
		for _, length := range []int{1, 16, 128} {
			if got := chains(t, d, begun(t, d), 256, length); !slices.Equal(got, gpuTokens(256)) {
				t.Errorf("%s, chains of %d: %v", mode, length, got[:min(len(got), 12)])
			}
		}
		if got := chains(t, d, begun(t, d, gpuTokens(40)[40]), 100, 64); !slices.Equal(got, gpuTokens(40)) {
			t.Errorf("%s: %d tokens with a stop id", mode, len(got)-1)
		}
		gpuCancel(t, d, ctx)
		commands := int(tab.Programs[0].Count)
		id := begun(t, d)
		for _, dry := range []bool{false, true} {
			sub := decode(d, id, 0, 500)
			sub.Dry = dry
			start := time.Now()
			res, err := submit(d, sub)
			if err != nil || !dry && res.Count != 500 {
				t.Errorf("%s: %+v, %v", mode, res, err)
			}
			t.Logf("%s, dry %t: %.2f us a command on the device, %.2f in all; loaded in %v", mode, dry,
				float64(res.Elapsed.Microseconds())/float64(500*commands), float64(time.Since(start).Microseconds())/float64(500*commands), loaded)
		}
		timed := decode(d, id, 0, 1)
		timed.Timings = make([]time.Duration, commands)
		if _, err := submit(d, timed); err != nil || slices.Min(timed.Timings) <= 0 || slices.Max(timed.Timings) > time.Second {
			t.Errorf("%s: %v, %v", mode, timed.Timings, err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	bad := gpuModules()
	bad.Texts[0].Read = func() ([]byte, error) { return bytes.Replace(gpuPTX, []byte("mov.u32"), []byte("nonsense"), 1), nil }
	d, err := New(Options{Modules: bad})
	if err != nil {
		t.Fatal(err)
	}
	tab, src := gpuTable(t, 1, 8)
	var de *DriverError
	if err := d.Load(context.Background(), tab, src, replay.LoadOptions{}); !errors.As(err, &de) || de.Log == "" {
		t.Errorf("invalid PTX: %v", err)
	} else {
		t.Log(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// gpuCancel cancels a long chain in the middle.
func gpuCancel(t *testing.T, d *Device, n int) {
	t.Helper()
	id := begun(t, d)
	ticket, err := d.Submit(decode(d, id, 0, n))
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	start := time.Now()
	d.Cancel(ticket)
	res, err := d.Wait(ticket)
	took := time.Since(start)
	if err != nil || res.Count == 0 || res.Count == n || res.Stopped {
		t.Fatalf("%s: cancelled: %+v, %v", d.Mode(), res, err)
	}
	if got := mustTokens(t, d, id, res.Count+1); !slices.Equal(got, gpuTokens(res.Count)) {
		t.Errorf("%s: other tokens before the cancellation", d.Mode())
	}
	t.Logf("%s: cancelled after %d tokens, in %v", d.Mode(), res.Count, took)
}
