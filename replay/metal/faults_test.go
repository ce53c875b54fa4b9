//go:build softmetal

package metal_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/metal/driver"
	"github.com/pianola-engine/pianola/internal/metal/soft"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/metal"
	"github.com/pianola-engine/pianola/table"
)

// use performs the operations of a typical program on a new device: load, decode, profile,
// cancel and close. It joins all errors.
func use(o metal.Options, m model) error {
	d, err := metal.New(o)
	if err != nil {
		return err
	}
	return errors.Join(useDevice(d, m), d.Close(), d.Close())
}

func useDevice(d *metal.Device, m model) error {
	if err := d.Load(bg, m.t, m.src, replay.LoadOptions{}); err != nil {
		return err
	}
	id, err := begin(d, m.t)
	if err != nil {
		return err
	}
	if _, err := submit(d, decode(m.t, id, 0, 3)); err != nil {
		return errors.Join(err, d.CloseSession(id)) // the session must still be closable
	}
	if _, err := submit(d, prompt(m.t, id, 2)); err != nil {
		return err
	}
	one := decode(m.t, id, 3, 1)
	one.Timings = make([]time.Duration, m.t.Programs[one.Runs[0].Program].Count)
	if _, err := submit(d, one); err != nil {
		return err
	}
	ticket, err := d.Submit(decode(m.t, id, 4, 3))
	if err != nil {
		return err
	}
	d.Cancel(ticket)
	if _, err := d.Wait(ticket); err != nil {
		return err
	}
	return d.CloseSession(id)
}

// forgiven reports whether a failing call has a substitute: separate command buffers for
// timestamp samples, usage declarations for a residency set, compilation for an archive.
func forgiven(call string) bool {
	switch call {
	case "newCounterSampleBufferWithDescriptor:error:", "computeCommandEncoderWithDescriptor:", "commandBuffer", "newResidencySetWithDescriptor:error:",
		"newBinaryArchiveWithDescriptor:error:", "addComputePipelineFunctionsWithDescriptor:error:", "serializeToURL:error:":
		return true
	}
	return false
}

// TestFaults makes each fallible Metal call fail in turn, in both modes, and ends command
// buffers with several errors. The result must be an error that names its place, no object may
// stay alive, and a new device must work.
func TestFaults(t *testing.T) {
	m := single(t, false)
	for _, mode := range metal.Modes() {
		checked(t)
		o := options(t, mode)
		before := soft.Fallible()
		if err := use(o, m); err != nil {
			t.Fatal(err)
		}
		calls := soft.Fallible() - before
		objects, bytes := soft.Live()
		failed := map[string]int{}
		for n := 1; n <= calls; n++ {
			codes := []int{2}
			for i := 0; i < len(codes); i++ {
				code := codes[i]
				soft.FailAt(n, code)
				err := use(o, m)
				call := soft.Failed()
				soft.FailAt(0, 0)
				if call == "" { // the number of calls depends on when a chain is cancelled
					continue
				}
				failed[call]++
				if call == "commit" && i == 0 {
					codes = append(codes, 1, 8, 11)
				}
				what := fmt.Sprintf("%s, call %d of %d, %s, code %d", mode, n, calls, call, code)
				fault(t, what, call, code, err)
				if o, b := soft.Live(); o != objects || b != bytes {
					t.Fatalf("%s: %d objects and %d bytes are left", what, o-objects, b-bytes)
				}
			}
		}
		t.Logf("%s: %v", mode, failed)
		if failed["newBufferWithLength:options:"] == 0 || failed["commit"] == 0 || failed["newComputePipelineStateWithDescriptor:options:reflection:error:"] == 0 ||
			failed["newLibraryWithSource:options:error:"] == 0 {
			t.Errorf("%s: failed calls: %v", mode, failed)
		}
		if err := use(o, m); err != nil {
			t.Errorf("after all faults: %v", err)
		}
	}
}

// fault checks the error that results from the failure of a call.
func fault(t *testing.T, what, call string, code int, err error) {
	t.Helper()
	var de *metal.DriverError
	var ce *device.CommandError
	var re *device.RunError
	switch {
	case err == nil:
		if !forgiven(call) {
			t.Errorf("%s: no error", what)
		}
		return
	case !strings.HasPrefix(err.Error(), "metal: "):
		t.Errorf("%s: error %v", what, err)
	case call == "MTLCreateSystemDefaultDevice" || call == "newCommandQueue" || call == "newFence":
		if !errors.Is(err, metal.ErrNoMetal) {
			t.Errorf("%s: error %v", what, err)
		}
		return
	case !errors.As(err, &de):
		t.Errorf("%s: error %v", what, err)
	}
	switch call {
	case "newFunctionWithName:constantValues:error:", "newComputePipelineStateWithDescriptor:options:reflection:error:":
		if patch := strings.Contains(err.Error(), "pipeline patch"); !patch && (!errors.As(err, &ce) || ce.Label == "") {
			t.Errorf("%s: error %v has no command", what, err)
		}
	case "newBufferWithLength:options:":
		if !errors.Is(err, metal.ErrOutOfMemory) {
			t.Errorf("%s: error %v", what, err)
		}
	case "commit":
		placed := errors.As(err, &re) && re.Program != "" || errors.As(err, &ce) && ce.Label != ""
		if !placed || int(de.Code) != code || errors.Is(err, metal.ErrDeviceLost) != (code == 11) || errors.Is(err, metal.ErrTimeout) != (code == 2) ||
			errors.Is(err, metal.ErrOutOfMemory) != (code == 8) {
			t.Errorf("%s: error %v", what, err)
		}
	}
}

// TestFaultLabel checks the error of a fault in a profiled submission. If each command has an
// encoder or a command buffer of its own, the error names the command. Otherwise it names the
// program.
func TestFaultLabel(t *testing.T) {
	checked(t)
	m := single(t, false)
	for samples := range 3 {
		soft.SetTimestamps(samples)
		d := load(t, options(t, "encode"), m)
		id := begun(t, d)
		sub := decode(m.t, id, 0, 1)
		sub.Timings = make([]time.Duration, m.t.Programs[sub.Runs[0].Program].Count)
		before := soft.Fallible()
		if _, err := submit(d, sub); err != nil {
			t.Fatal(err)
		}
		at := soft.Fallible() - before // after the only commit, the samples are read
		if samples == 0 {              // a command buffer, an encoder and a commit for each command
			at = at / len(sub.Timings) * 4
		} else {
			at--
		}
		soft.FailAt(at, 3)
		_, err := submit(d, sub)
		var ce *device.CommandError
		var re *device.RunError
		want := 0
		if samples == 0 {
			want = 3
		}
		label := m.t.Label(int(m.t.Programs[sub.Runs[0].Program].First) + want)
		switch {
		case soft.Failed() != "commit":
			t.Errorf("samples %d: %s failed", samples, soft.Failed())
		case samples == 2:
			if !errors.As(err, &re) || re.Program != table.ProgramDecode || !strings.Contains(err.Error(), "encoder decode faulted") {
				t.Errorf("samples %d: %v", samples, err)
			}
		case !errors.As(err, &ce) || ce.Label != label || !strings.Contains(err.Error(), "encoder "+label+" faulted"):
			t.Errorf("samples %d: %v, want command %s", samples, err, label)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestLost removes the GPU. Each call must return an error that reports the lost device, and
// Close must free everything.
func TestLost(t *testing.T) {
	m := single(t, false)
	for _, mode := range metal.Modes() {
		checked(t)
		d := load(t, options(t, mode), m)
		a, b := begun(t, d), begun(t, d)
		chains(t, d, m.t, a, 2, 2)
		soft.FailAt(4, 11) // a command buffer, two encoders and the commit
		_, err := submit(d, decode(m.t, a, 2, 40))
		var run *device.RunError
		if !errors.Is(err, metal.ErrDeviceLost) || !errors.As(err, &run) || run.Program != table.ProgramDecode {
			t.Errorf("%s: %v", mode, err)
		}
		if _, err := d.Submit(decode(m.t, a, 0, 1)); !errors.Is(err, metal.ErrDeviceLost) {
			t.Errorf("%s: Submit: %v", mode, err)
		}
		if _, err := d.NewSession(); !errors.Is(err, metal.ErrDeviceLost) {
			t.Errorf("%s: NewSession: %v", mode, err)
		}
		if err := d.CloseSession(b); err != nil {
			t.Errorf("%s: CloseSession: %v", mode, err)
		}
		if err := errors.Join(d.Close(), d.Close()); err != nil {
			t.Errorf("%s: Close: %v", mode, err)
		}
		soft.FailAt(0, 0)
		if err := use(options(t, mode), m); err != nil {
			t.Errorf("%s: another device: %v", mode, err)
		}
	}
}

// TestTimeout lets one command buffer time out. The session and the device must stay usable.
func TestTimeout(t *testing.T) {
	m := single(t, false)
	for _, mode := range metal.Modes() {
		checked(t)
		d := load(t, options(t, mode).ForTest(2, false, true), m)
		id := begun(t, d)
		want := chains(t, d, m.t, begun(t, d), 6, 6)
		soft.FailAt(8, 2) // the second command buffer's commit
		_, err := submit(d, decode(m.t, id, 0, 6))
		var run *device.RunError
		if !errors.Is(err, metal.ErrTimeout) || !errors.As(err, &run) || run.First == 0 || run.End <= run.First || !strings.Contains(err.Error(), "encoder decode faulted") {
			t.Errorf("%s: %s: %v", mode, soft.Failed(), err)
		}
		if got := chains(t, d, m.t, id, 6, 6); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: after a timeout %v, want %v", mode, got, want)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestMemory simulates too little memory and too small a limit of the buffer size.
func TestMemory(t *testing.T) {
	checked(t)
	m := single(t, false)
	soft.SetLimits(0, 1<<16)
	if err := use(options(t, "encode"), m); !errors.Is(err, metal.ErrOutOfMemory) {
		t.Errorf("64 KiB of memory: %v", err)
	}
	var largest uint64
	for _, s := range m.t.Slots {
		largest = max(largest, s.Size)
	}
	soft.SetLimits((largest+255)&^255, 0)
	want := ""
	for _, limit := range []uint64{(largest + 255) &^ 255, 0} {
		soft.SetLimits(limit, 0)
		d := load(t, options(t, "record"), m)
		got := fmt.Sprint(chains(t, d, m.t, begun(t, d), 5, 5))
		if want == "" {
			want = got
		}
		if got != want {
			t.Errorf("with buffers of %d bytes: %s, want %s", limit, got, want)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	soft.SetLimits(largest-256, 0)
	if err := use(options(t, "encode"), m); err == nil || !strings.Contains(err.Error(), "exceed a buffer's") {
		t.Errorf("buffers of %d bytes: %v", largest-256, err)
	}
}

// norm returns a table of one command without tensors.
func norm(t *testing.T) model {
	t.Helper()
	tab := &table.Table{Header: table.Header{Device: "metal", Chip: "m4-pro", Vocab: 8, Width: 8, Layers: 1, Context: 8, Chunk: 1}}
	slot := func(name string, kind table.SlotKind, scope table.Scope, size int) uint32 {
		tab.Slots = append(tab.Slots, table.Slot{Name: name, Kind: kind, Scope: scope, Size: uint64(size)})
		return uint32(len(tab.Slots) - 1)
	}
	slot("tokens", table.SlotTokens, table.ScopeSession, 4*9)
	logits := slot("logits", table.SlotLogits, table.ScopeSession, 4*8)
	slot("stops", table.SlotStops, table.ScopeSession, 4)
	slot("step", table.SlotStep, table.ScopeSession, table.StepSize)
	slot("scratch", table.SlotScratch, table.ScopeExecutor, 100)
	weight := slot("w", table.SlotWeight, table.ScopeModel, 4*8)
	x := slot("x", table.SlotWeight, table.ScopeModel, 4*8)
	tab.Const = make([]byte, 32)
	for i := range 8 {
		binary.LittleEndian.PutUint32(tab.Const[4*i:], 0x3f800000)
	}
	for _, s := range []uint32{weight, x} {
		tab.Uploads = append(tab.Uploads, table.Upload{Op: table.UploadConst, Type: 1, Slot: s, SrcSize: 32})
	}
	c := table.Cmd{Kernel: kernels.RMSNorm, Bindings: 3, PatchOffset: [2]uint8{table.NoPatch, table.NoPatch},
		Grid: [3]uint32{1, 1, 1}, Threadgroup: [3]uint32{32, 1, 1}, TGMem: 4}
	kernels.RMSNormParams{N: 8, XRows: 1, Eps: 1e-5}.Put(&c)
	c.PutSecond(decl.SecondRows, 1)
	for i := range c.Bind {
		c.Bind[i].Slot = table.NoSlot
	}
	c.Bind[0].Slot, c.Bind[1].Slot, c.Bind[2].Slot = x, weight, logits
	tab.Cmds, tab.Labels = []table.Cmd{c}, []string{"the.norm"}
	tab.Specs = []table.Spec{{Kernel: kernels.RMSNorm}}
	tab.Programs = []table.Program{{Name: table.ProgramDecode, Count: 1, MaxRows: 1}}
	if err := tab.PlaceBarriers(); err != nil {
		t.Fatal(err)
	}
	return model{t: tab}
}

// TestCycles opens and closes 1,000 devices. No object may stay alive.
func TestCycles(t *testing.T) {
	checked(t)
	m := norm(t)
	for i := range 1000 {
		d, err := metal.New(options(t, metal.Modes()[i%2]))
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Load(bg, m.t, nil, replay.LoadOptions{}); err != nil {
			t.Fatal(err)
		}
		id, err := d.NewSession()
		if err == nil {
			_, err = submit(d, decode(m.t, id, 0, 1))
		}
		if err == nil && i%3 > 0 {
			err = d.CloseSession(id)
		}
		if err := errors.Join(err, d.Close()); err != nil {
			t.Fatal(err)
		}
		if objects, bytes := soft.Live(); objects != 0 || bytes != 0 {
			t.Fatalf("cycle %d: %d objects and %d bytes are left", i, objects, bytes)
		}
	}
}

// TestHostWrite writes to a buffer in flight, which the software Metal protects.
func TestHostWrite(t *testing.T) {
	checked(t)
	m := single(t, false)
	d := load(t, options(t, "encode"), m)
	id := begun(t, d)
	_, slot, _ := m.t.Slot(table.SlotTokens)
	mem, err := d.SlotBytes(id, slot)
	if err != nil {
		t.Fatal(err)
	}
	write := func() (fault any) {
		defer func() { fault = recover() }()
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		mem[len(mem)-1] = 1
		return nil
	}
	if fault := write(); fault != nil {
		t.Errorf("a write at rest: %v", fault)
	}
	soft.SetDelay(20000)
	detected := false
	for range 50 { // on a busy machine a submission may end before this goroutine writes
		ticket, err := d.Submit(decode(m.t, id, 0, 1))
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { _, err := d.Wait(ticket); ended <- err }()
		for len(ended) == 0 && !detected {
			detected = write() != nil
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if detected {
			break
		}
	}
	if !detected {
		t.Error("a write in flight is not detected")
	}
}

// TestLibraryData loads compiled kernels and falls back to the source for invalid data.
func TestLibraryData(t *testing.T) {
	checked(t)
	m := single(t, false)
	o := options(t, "encode")
	source, err := o.Kernels.Source()
	if err != nil {
		t.Fatal(err)
	}
	k := *o.Kernels
	k.Data, o.Kernels = append([]byte("MTLB"), source...), &k
	if err := use(o, m); err != nil {
		t.Error(err)
	}
	k.Data = []byte("nothing")
	if err := use(o, m); err != nil { // the source is available
		t.Error(err)
	}
	k.Source = nil
	var de *driver.Error
	if err := use(o, m); !errors.As(err, &de) || err.Error() != "metal: kernels: newLibraryWithData:error:: error 1: invalid library file" {
		t.Errorf("%v", err)
	}
	k.Data, k.Source = nil, func() ([]byte, error) { return []byte("#include \"norm.h\"\n"), nil }
	if err := use(o, m); err == nil || !strings.Contains(err.Error(), "'norm.h' file not found") {
		t.Errorf("%v", err)
	}
}
