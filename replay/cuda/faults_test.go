package cuda

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/cuda/fake"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// use performs the operations of a typical program on a new device: load, decode, profile,
// cancel and close. It joins all errors.
func use(drv *fake.Driver, mode string, m model) error { return useCached(drv, mode, m, "") }

// useCached is use with a cache directory.
func useCached(drv *fake.Driver, mode string, m model, cache string) error {
	d, err := New(Options{Library: drv.Path, Mode: mode, Modules: fakeModules(), Cache: cache, graphTokens: []int{2, 1}})
	if err != nil {
		return err
	}
	return errors.Join(useDevice(d, m), d.Close(), d.Close())
}

func useDevice(d *Device, m model) error {
	if err := d.Load(context.Background(), m.t, m.src, replay.LoadOptions{}); err != nil {
		return err
	}
	if _, pooled := sequence.Of(m.t.Header.Options, int(m.t.Header.Context)); pooled {
		return useSequences(d)
	}
	id, err := start(d)
	if err != nil {
		return err
	}
	if _, err := submit(d, decode(d, id, 0, 3)); err != nil {
		return err
	}
	_, prefill, _ := d.table.Program(table.ProgramPrefill)
	_, head, _ := d.table.Program(table.ProgramHead)
	prompt := &replay.Submission{Session: id, Runs: []replay.Run{
		{Program: uint32(prefill), Count: 1, Step: table.Step{KVLen: 1, Rows: 3}},
		{Program: uint32(head), Count: 1, Step: table.Step{Position: 2, KVRow: 2, KVLen: 3, TokenIndex: 2, Row: 2, Rows: 1}},
	}}
	if _, err := submit(d, prompt); err != nil {
		return err
	}
	one := decode(d, id, 3, 1)
	one.Timings = make([]time.Duration, d.table.Programs[one.Runs[0].Program].Count)
	if _, err := submit(d, one); err != nil {
		return err
	}
	ticket, err := d.Submit(decode(d, id, 4, 3))
	if err != nil {
		return err
	}
	d.Cancel(ticket)
	if _, err := d.Wait(ticket); err != nil {
		return err
	}
	if _, err := tokens(d, id, 4); err != nil {
		return err
	}
	return d.CloseSession(id)
}

// placed reports whether an error names the place where it occurred.
func placed(err error) bool {
	return strings.HasPrefix(err.Error(), "cuda: ")
}

// repeats is the number of times that a driver call fails whose place is like that of others.
const repeats = 4

// places returns the numbers of the calls to make fail, from first to last. Where the same few calls follow
// each other many times, as for the nodes of a graph, the first repeats are taken, and every eleventh of the others.
func places(trace []string, first, last int) (list []int) {
	const before = 5 // calls that tell one place from another
	seen := map[string]int{}
	for n := first; n <= last; n++ {
		if n > len(trace) { // the call has no name
			list = append(list, n)
			continue
		}
		place := strings.Join(trace[max(0, n-before):n], " ")
		if seen[place]++; seen[place] <= repeats || n%11 == 0 {
			list = append(list, n)
		}
	}
	return list
}

// TestPlaces checks that all of few calls are places, and that most of many equal ones are not.
func TestPlaces(t *testing.T) {
	calls := []string{"a", "b", "c"}
	for range 100 {
		calls = append(calls, "add", "depend")
	}
	calls = append(calls, "d", "e")
	list := places(calls, 2, len(calls))
	for _, n := range []int{2, 3, 4, 5, 6, 7, len(calls) - 1, len(calls)} {
		if !slices.Contains(list, n) {
			t.Errorf("call %d is not among %d", n, list)
		}
	}
	if n := len(list); list[0] != 2 || n > 50 || !slices.IsSorted(list) {
		t.Errorf("%d of %d calls: %d", n, len(calls), list)
	}
	if got := places(nil, 1, 3); !slices.Equal(got, []int{1, 2, 3}) {
		t.Errorf("calls without names: %d", got)
	}
}

// TestFaults makes driver calls of each place fail in turn, in every mode: once with a transient error
// and once with an error that loses the device. The result must be an error that names its
// place, nothing may stay allocated, and a new device must work.
func TestFaults(t *testing.T) {
	m := tiny(t, "llama")
	m.src = unreleased{m.src} // a release is no driver call
	for _, mode := range Modes() {
		for _, code := range []int{2, 719} {
			drv := fake.New(t)
			if err := use(drv, mode, m); err != nil {
				t.Fatal(err)
			}
			faults(t, drv, mode, code, m, places(drv.Trace(), 1, drv.Calls()), exhaustive.Pick(1, 7), func() string { return "" })
		}
	}
}

// TestFaultsCache is TestFaults for the calls that assemble modules for an empty cache, and for
// those that load cached code.
func TestFaultsCache(t *testing.T) {
	m := tiny(t, "llama")
	for _, code := range []int{2, 719} {
		drv, full := fake.New(t), t.TempDir()
		first, last := 0, 0
		for call := 1; last == 0; call++ { // the calls from the first link on
			drv.FailAt(call, 100)
			_ = useCached(drv, "resident", m, t.TempDir())
			switch name := drv.Failed(); {
			case first == 0 && strings.HasPrefix(name, "cuLink"):
				first = call
			case first != 0 && name == "cuModuleGetFunction":
				last = call
			case name == "":
				t.Fatal("no module is assembled and loaded")
			}
		}
		drv.FailAt(0, 0)
		drv.Release()
		faults(t, drv, "resident", code, m, places(nil, first, last), 1, t.TempDir)
		if err := useCached(drv, "resident", m, full); err != nil {
			t.Fatal(err)
		}
		faults(t, drv, "resident", code, m, places(nil, first, last), 1, func() string { return full })
	}
}

// faults makes the calls with the given numbers, or each step-th of them, fail in turn. cache returns the cache directory of
// each device.
func faults(t *testing.T, drv *fake.Driver, mode string, code int, m model, calls []int, step int, cache func() string) {
	t.Helper()
	for i := 0; i < len(calls); i += step {
		n := calls[i]
		leaked := drv.Leaked()
		drv.FailAt(n, code)
		err := useCached(drv, mode, m, cache())
		call := drv.Failed()
		drv.FailAt(0, 0)
		what := fmt.Sprintf("%s, code %d at call %d of %d, %s", mode, code, n, calls[len(calls)-1], call)
		var de *DriverError
		switch {
		case call == "": // the number of calls depends on how uploads overlap
		case err == nil && forgiven(call, code):
		case err == nil:
			t.Errorf("%s: no error", what)
		case !placed(err) || !errors.As(err, &de) || int(de.Code) != code && code < 700:
			t.Errorf("%s: error %v", what, err)
		case errors.Is(err, ErrDeviceLost) != (code == 719) || errors.Is(err, ErrOutOfMemory) != (code == 2):
			t.Errorf("%s: error %v", what, err)
		}
		// Destroying the context frees what could not be freed before. It still exists
		// if its own release was made to fail.
		if drv.Excused() > 0 {
			drv.Release()
		}
		if drv.Live() != 0 || drv.Used() != 0 || drv.Retained() != 0 {
			t.Fatalf("%s: %d objects and %d bytes are left, the context is retained %d times", what, drv.Live(), drv.Used(), drv.Retained())
		}
		if drv.Leaked() != leaked && call != "cuCtxPushCurrent" {
			t.Errorf("%s: %d objects were not freed", what, drv.Leaked()-leaked)
		}
	}
	if c := drv.Complaint(); c != "" {
		t.Errorf("%s: the driver was misused: %s", mode, c)
	}
	if err := use(drv, mode, m); err != nil {
		t.Errorf("after all faults: %v", err)
	}
}

// forgiven reports whether a call may fail without an error. This holds for the calls of
// Cancel, which returns no error, for calls that free resources of a lost device, and for the
// assembler, without which the driver loads PTX.
func forgiven(call string, code int) bool {
	cancel := []string{"cuStreamWaitEvent", "cuMemcpyHtoDAsync", "cuStreamSynchronize", "cuCtxPushCurrent", "cuCtxPopCurrent"}
	frees := []string{
		"cuEventSynchronize", "cuMemFree", "cuMemFreeHost", "cuStreamDestroy", "cuEventDestroy", "cuModuleUnload", "cuGraphDestroy",
		"cuGraphExecDestroy", "cuDevicePrimaryCtxRelease",
	}
	return slices.Contains(cancel, call) || code < 700 && strings.HasPrefix(call, "cuLink") || code >= 700 && slices.Contains(frees, call)
}

// TestOutOfMemory makes each allocation fail in turn.
func TestOutOfMemory(t *testing.T) {
	m := tiny(t, "llama")
	drv := fake.New(t)
	n := 0
	for ; ; n++ {
		drv.FailAlloc(n + 1)
		err := use(drv, "record", m)
		if err == nil {
			break
		}
		if !errors.Is(err, ErrOutOfMemory) || !placed(err) || !strings.Contains(err.Error(), "bytes: cuMem") {
			t.Fatalf("allocation %d: %v", n+1, err)
		}
		drv.Check()
	}
	if n < 10 {
		t.Errorf("%d allocations", n)
	}
	drv.FailAlloc(0)
	drv.SetMemory(1 << 20)
	err := use(drv, "record", m)
	if !errors.Is(err, ErrOutOfMemory) || !strings.HasPrefix(err.Error(), "cuda: slots of the model: ") {
		t.Errorf("1 MiB of memory: %v", err)
	}
	drv.Check()
}

// TestOutOfMemorySession checks that a device stays usable if it has no memory for another
// session.
func TestOutOfMemorySession(t *testing.T) {
	drv := fake.New(t)
	d := load(t, drv, "record", tiny(t, "llama"))
	id := begun(t, d)
	if err := d.Reserve(id, 1); err != nil {
		t.Fatal(err)
	}
	used := drv.Used()
	drv.SetMemory(uint64(used))
	if _, err := d.NewSession(); !errors.Is(err, ErrOutOfMemory) || !strings.HasPrefix(err.Error(), "cuda: slots of the session: ") {
		t.Errorf("%v", err)
	}
	if drv.Used() != used {
		t.Errorf("%d bytes are used, %d were", drv.Used(), used)
	}
	if _, err := d.Submit(decode(d, id, 300, 1)); !errors.Is(err, ErrOutOfMemory) || !strings.HasPrefix(err.Error(), "cuda: KV caches for 512 positions: ") {
		t.Errorf("%v", err)
	}
	if drv.Used() != used {
		t.Errorf("%d bytes are used, %d were", drv.Used(), used)
	}
	chains(t, d, id, 5, 5)
}

// TestLost makes a kernel fail while other submissions wait. Each must get an error that
// reports the lost device, the device must refuse new calls, and Close must free it.
func TestLost(t *testing.T) {
	m := tiny(t, "llama")
	for _, mode := range Modes() {
		drv := fake.New(t)
		d := open(t, drv, mode)
		if err := d.Load(context.Background(), m.t, m.src, replay.LoadOptions{}); err != nil {
			t.Fatal(err)
		}
		a, b := begun(t, d), begun(t, d)
		drv.FailKernel(30)
		first, err := d.Submit(decode(d, a, 0, 50))
		if err != nil {
			t.Fatal(err)
		}
		second, err := d.Submit(decode(d, b, 0, 1))
		if err == nil {
			_, err = d.Wait(second)
		}
		if !errors.Is(err, ErrDeviceLost) {
			t.Errorf("%s: the queued submission: %v", mode, err)
		}
		_, err = d.Wait(first)
		var run *device.RunError
		if !errors.Is(err, ErrDeviceLost) || !placed(err) || (mode == "record" && (!errors.As(err, &run) || run.Program != table.ProgramDecode)) {
			t.Errorf("%s: %v", mode, err)
		}
		if _, err := d.Submit(decode(d, a, 0, 1)); !errors.Is(err, ErrDeviceLost) {
			t.Errorf("%s: Submit: %v", mode, err)
		}
		if _, err := d.NewSession(); !errors.Is(err, ErrDeviceLost) {
			t.Errorf("%s: NewSession: %v", mode, err)
		}
		if err := d.Read(a, 0, 0, make([]byte, 4)); !errors.Is(err, ErrDeviceLost) {
			t.Errorf("%s: Read: %v", mode, err)
		}
		if err := d.CloseSession(b); err != nil {
			t.Errorf("%s: CloseSession: %v", mode, err)
		}
		if err := errors.Join(d.Close(), d.Close()); err != nil {
			t.Errorf("%s: Close: %v", mode, err)
		}
		drv.Check()
		if err := use(drv, mode, m); err != nil {
			t.Errorf("%s: another device: %v", mode, err)
		}
	}
}

// TestDriverErrors opens missing, outdated and failing drivers.
func TestDriverErrors(t *testing.T) {
	for name, c := range map[string]struct {
		change func(drv *fake.Driver) string
		is     error
		want   string
	}{
		"no library": {func(*fake.Driver) string { return "/nonexistent/libcuda.so.1" }, ErrNoDriver, "cuda: no NVIDIA driver: /nonexistent/libcuda.so.1: "},
		"too old":    {func(drv *fake.Driver) string { drv.SetVersion(11070); return drv.Path }, ErrDriverTooOld, "cuda: the NVIDIA driver is too old: it supports CUDA 11.7, want at least 11.8"},
		"symbol": {func(*fake.Driver) string { return fake.New(t, "WITHOUT_GRAPH_UPLOAD").Path }, ErrDriverTooOld,
			"cuda: the NVIDIA driver is too old: it has no function cuGraphUpload"},
		"no GPU":      {func(drv *fake.Driver) string { drv.SetDevices(0); return drv.Path }, ErrNoGPU, "cuda: no NVIDIA GPU: cuInit: CUDA_ERROR_NO_DEVICE (100)"},
		"stub":        {func(drv *fake.Driver) string { drv.SetInit(34); return drv.Path }, ErrNoDriver, "cuda: no NVIDIA driver: cuInit: error (34)"},
		"mismatch":    {func(drv *fake.Driver) string { drv.SetInit(803); return drv.Path }, ErrDriverTooOld, "cuda: the NVIDIA driver is too old: cuInit: error (803)"},
		"start":       {func(drv *fake.Driver) string { drv.SetInit(999); return drv.Path }, ErrDeviceLost, "cuda: cuInit: CUDA_ERROR_UNKNOWN (999)"},
		"an old GPU":  {func(drv *fake.Driver) string { drv.SetCapability(6, 1); return drv.Path }, ErrNoKernels, "cuda: Fake GPU, compute capability 6.1: no kernels for this GPU"},
		"all is well": {func(drv *fake.Driver) string { return drv.Path }, nil, ""},
	} {
		drv := fake.New(t)
		_, err := New(Options{Library: c.change(drv), Modules: fakeModules()})
		if c.is == nil {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if !errors.Is(err, c.is) || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
		drv.Check()
	}
	drv := fake.New(t)
	if _, err := New(Options{Library: drv.Path, GPU: 1, Modules: fakeModules()}); !errors.Is(err, ErrNoGPU) || err.Error() != "cuda: no NVIDIA GPU 1: found 1" {
		t.Errorf("%v", err)
	}
	if _, err := New(Options{Library: drv.Path, Mode: "other", Modules: fakeModules()}); err == nil || !strings.Contains(err.Error(), `unknown mode "other": want one of record, resident, encode`) {
		t.Errorf("%v", err)
	}
	if _, err := New(Options{Library: drv.Path}); !errors.Is(err, ErrNoKernels) {
		t.Errorf("%v", err)
	}
}

// TestCapability treats a GPU as one of another compute capability.
func TestCapability(t *testing.T) {
	drv := fake.New(t)
	drv.SetCapability(9, 0)
	for capability, shared := range map[int]uint64{0: 0, 90: 0, 70: 96 << 10, 80: 163 << 10} {
		d, err := New(Options{Library: drv.Path, Modules: fakeModules(), Capability: capability})
		if err != nil {
			t.Fatal(err)
		}
		g := d.GPU()
		if want := cmp.Or(capability, 90); g.capability() != want || shared != 0 && g.SharedMemory > shared {
			t.Errorf("capability %d: %d with %d bytes of threadgroup memory, want %d with at most %d", capability, g.capability(), g.SharedMemory, want, shared)
		}
	}
	for _, capability := range []int{-1, 61, 100} {
		if _, err := New(Options{Library: drv.Path, Modules: fakeModules(), Capability: capability}); err == nil || !strings.Contains(err.Error(), "cannot be treated as one of") {
			t.Errorf("capability %d: error %v", capability, err)
		}
	}
}
