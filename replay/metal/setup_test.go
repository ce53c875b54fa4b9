//go:build softmetal

package metal_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/metal/soft"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/metal"
	"github.com/pianola-engine/pianola/table"
)

// TestThreads checks that each pipeline is compiled for exactly the threads that its commands are
// launched with.
func TestThreads(t *testing.T) {
	checked(t)
	m := tiny(t, "llama")
	d := load(t, options(t, metal.Modes()[0]), m)
	seen := map[int]bool{}
	for i, n := range d.Threads() {
		seen[n[0]] = true
		if n[0] != n[1] {
			t.Errorf("command %d (%s) has %d threads, and its pipeline up to %d", i, m.t.Label(i), n[0], n[1])
		}
	}
	if len(seen) < 3 {
		t.Errorf("all commands have the same number of threads: %v", seen)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestResidency decodes with and without residency sets. The tokens must be the same, and
// recordings must not declare the use of buffers if a residency set exists.
func TestResidency(t *testing.T) {
	m := single(t, false)
	t.Cleanup(func() { soft.SetResidency(true) })
	for _, mode := range metal.Modes() {
		var want []uint32
		for _, sets := range []bool{true, false} {
			checked(t)
			soft.SetResidency(sets)
			d := load(t, options(t, mode), m)
			if d.Properties().Residency != sets || strings.Contains(d.Properties().OS, "15.") != sets {
				t.Fatalf("sets %t: %+v", sets, d.Properties())
			}
			id, other := begun(t, d), begun(t, d)
			calls, _, _ := counted(t, d, decode(m.t, id, 0, 8))
			if declared := calls["useResources:count:usage:"] > 0; declared != (mode == "record" && !sets) {
				t.Errorf("%s, sets %t: %v", mode, sets, calls)
			}
			if err := d.CloseSession(other); err != nil { // its buffers are removed from the set
				t.Error(err)
			}
			if res, err := submit(d, decode(m.t, id, 8, 4)); err != nil || res.Count != 4 {
				t.Errorf("%+v, %v", res, err)
			}
			got := ring(t, d, m.t, id, 13)
			if want == nil {
				want = got
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s, sets %t: %v, want %v", mode, sets, got, want)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// archived loads a table, decodes a token and returns the number of compiled pipelines.
func archived(t *testing.T, o metal.Options, m model) int {
	t.Helper()
	before := soft.Compiled()
	if err := use(o, m); err != nil {
		t.Fatal(err)
	}
	return soft.Compiled() - before
}

// archives returns the files of a directory, which must contain only archives.
func archives(t *testing.T, folder string) []string {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".metalarchive") || !e.Type().IsRegular() {
			t.Errorf("%s was not removed", e.Name())
		}
		files = append(files, filepath.Join(folder, e.Name()))
	}
	return files
}

// TestArchive keeps pipelines in a file. A second device must compile none, the pipelines of
// another mode must be added, and an invalid archive must be replaced.
func TestArchive(t *testing.T) {
	checked(t)
	m := norm(t)
	o := options(t, "encode")
	if n := archived(t, o, m); n != 1 {
		t.Fatalf("%d pipelines without an archive", n)
	}
	o.Archive = filepath.Join(t.TempDir(), "not", "there")
	for _, want := range []int{1, 0, 0} {
		if n := archived(t, o, m); n != want {
			t.Errorf("%d pipelines were compiled, want %d", n, want)
		}
	}
	record := options(t, "record")
	record.Archive = o.Archive
	for _, want := range []int{2, 0} { // one for the mode, one for the kernel patch
		if n := archived(t, record, m); n != want {
			t.Errorf("record: %d pipelines were compiled, want %d", n, want)
		}
	}
	files := archives(t, o.Archive)
	if len(files) != 1 {
		t.Fatalf("files %v", files)
	}
	whole, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string]string{
		"empty": "", "damaged": string(whole[:len(whole)-3]), "another GPU's": "archive of pipelines for another\n", "of another library": strings.SplitAfter(string(whole), "\n")[0] + "rmsnorm 0\n",
	} {
		if err := os.WriteFile(files[0], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, want := range []int{1, 0} {
			if n := archived(t, o, m); n != want {
				t.Errorf("%s: %d pipelines were compiled, want %d", what, n, want)
			}
		}
	}

	other := *o.Kernels // other kernels use another file
	source, err := other.Source()
	if err != nil {
		t.Fatal(err)
	}
	other.Source = func() ([]byte, error) { return append(slices.Clip(source), "\n// changed\n"...), nil }
	changed := o
	changed.Kernels = &other
	if n := archived(t, changed, m); n != 1 {
		t.Errorf("changed kernels: %d pipelines were compiled", n)
	}
	soft.SetResidency(false) // another system uses another file
	n := archived(t, o, m)
	soft.SetResidency(true)
	if n != 1 {
		t.Errorf("another system: %d pipelines were compiled", n)
	}
	if files := archives(t, o.Archive); len(files) != 3 {
		t.Errorf("files %v", files)
	}

	o.Archive = files[0] // not a directory
	if n := archived(t, o, m); n != 1 {
		t.Errorf("no folder: %d pipelines were compiled", n)
	}
	if runtime.GOOS == "linux" {
		o.Archive = "/proc/self/pianola" // not writable
		if n := archived(t, o, m); n != 1 {
			t.Errorf("a folder that cannot be written: %d pipelines were compiled", n)
		}
	}
}

// TestArchiveFaults makes each call of a load with an archive fail in turn. The failure must be
// reported or have no effect, no object may stay alive, and the file must stay valid.
func TestArchiveFaults(t *testing.T) {
	checked(t)
	m := norm(t)
	for _, there := range []bool{false, true} {
		once := func(n int) (string, error) {
			o := options(t, "record")
			o.Archive = t.TempDir()
			if there { // the archive of the other mode
				other := options(t, "encode")
				other.Archive = o.Archive
				archived(t, other, m)
			}
			soft.FailAt(n, 2)
			d, err := metal.New(o)
			if err == nil {
				err = d.Load(bg, m.t, nil, replay.LoadOptions{})
				if closed := d.Close(); closed != nil {
					t.Error(closed)
				}
			}
			call := soft.Failed()
			soft.FailAt(0, 0)
			for _, want := range []int{-1, 0} { // a pipeline that was not kept is compiled, and then kept
				if n := archived(t, o, m); want >= 0 && n != want {
					t.Errorf("after %s: %d pipelines were compiled", call, n)
				}
			}
			archives(t, o.Archive)
			return call, err
		}
		objects, bytes := soft.Live()
		failed := map[string]int{}
		for n := 1; ; n++ {
			call, err := once(n)
			if call == "" {
				break
			}
			failed[call]++
			if call == "newComputePipelineStateWithDescriptor:options:reflection:error:" && err == nil { // the pipeline is compiled
				continue
			}
			fault(t, fmt.Sprintf("archive there %t, call %d, %s", there, n, call), call, 2, err)
			if o, b := soft.Live(); o != objects || b != bytes {
				t.Fatalf("%s: %d objects and %d bytes are left", call, o-objects, b-bytes)
			}
		}
		if failed["newBinaryArchiveWithDescriptor:error:"] != 1 || failed["addComputePipelineFunctionsWithDescriptor:error:"] != 2 || failed["serializeToURL:error:"] != 1 {
			t.Errorf("failed calls: %v", failed)
		}
	}
}

// TestShared compiles the library once for all devices that are loaded at the same time, and
// again after the last one is closed.
func TestShared(t *testing.T) {
	checked(t)
	m := norm(t)
	o := options(t, "encode")
	k := *o.Kernels
	k.Shared = new(metal.Libraries)
	o.Kernels = &k
	compiled := func() int { return soft.Calls()["newLibraryWithSource:options:error:"] }
	before := compiled()
	a, b := load(t, o, m), load(t, o, m)
	if n := compiled() - before; n != 1 {
		t.Errorf("two devices compiled %d libraries", n)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := use(o, m); err != nil { // device b still uses the library
		t.Error(err)
	}
	if n := compiled() - before; n != 1 {
		t.Errorf("three devices compiled %d libraries", n)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := use(o, m); err != nil {
		t.Error(err)
	}
	if n := compiled() - before; n != 2 {
		t.Errorf("when all were closed %d libraries had been compiled, want 2", n)
	}
}

// TestWarm checks that Load makes the GPU read all weights and replays each program. It must
// leave no trace: a device without warm-up must decode the same tokens.
func TestWarm(t *testing.T) {
	m := single(t, false)
	for _, mode := range metal.Modes() {
		checked(t)
		cold := load(t, options(t, mode), m)
		want := chains(t, cold, m.t, begun(t, cold), 6, 6)
		if err := cold.Close(); err != nil {
			t.Error(err)
		}
		copied, ran := soft.Copied(), soft.Dispatches()
		d := load(t, options(t, mode).ForTest(0, false, false), m)
		mem := d.Memory()
		if n := soft.Copied() - copied; n < int(mem.Weights+mem.Mapped) {
			t.Errorf("%s: %d bytes were read of %+v", mode, n, mem)
		}
		all := 0
		for i := range m.t.Programs {
			all += 2 * int(m.t.Programs[i].Count) // programs for one row are replayed twice
		}
		if n := soft.Dispatches() - ran; n < all {
			t.Errorf("%s: %d commands of %d", mode, n, all)
		}
		if got := chains(t, d, m.t, begun(t, d), 6, 6); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", mode, got, want)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestKeepAlive checks that an idle GPU gets work, but not without KeepAlive, while a chain
// runs, or after Close.
func TestKeepAlive(t *testing.T) {
	m := norm(t)
	stirred := func() int { return soft.Calls()["requestResidency"] }
	for _, mode := range metal.Modes() {
		checked(t)
		o := options(t, mode)
		quiet := load(t, o, m)
		before := stirred()
		time.Sleep(20 * time.Millisecond)
		if n := stirred() - before; n != 0 {
			t.Errorf("%s: without KeepAlive the GPU got work %d times", mode, n)
		}
		if err := quiet.Close(); err != nil {
			t.Error(err)
		}

		o.KeepAlive = 5 * time.Millisecond
		d := load(t, o, m)
		id, err := d.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		before = stirred()
		for start := time.Now(); stirred() < before+3; time.Sleep(100 * time.Microsecond) {
			if time.Since(start) > time.Minute {
				t.Fatalf("%s: %d keep-alive passes in a minute", mode, stirred()-before)
			}
		}
		soft.SetDelay(20000)
		for attempt := 1; ; attempt++ { // on a busy machine there may be passes before the chain begins and after it has ended
			start := time.Now()
			before = stirred()
			if res, err := submit(d, decode(m.t, id, 0, 8)); err != nil || res.Count != 0 { // no token counts
				t.Errorf("%s: %+v, %v", mode, res, err)
			}
			n, took := stirred()-before, time.Since(start)
			if took < 100*time.Millisecond || n > 1 && attempt == 20 {
				t.Errorf("%s: %d keep-alive passes during a chain of %v", mode, n, took)
			}
			if n <= 1 || attempt == 20 {
				break
			}
		}
		soft.SetDelay(0)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		before = stirred()
		time.Sleep(20 * time.Millisecond)
		if n := stirred() - before; n != 0 {
			t.Errorf("%s: %d keep-alive passes after Close", mode, n)
		}
	}
}

// TestKeepAliveLost removes the GPU while it is idle. The next submission must report the loss.
func TestKeepAliveLost(t *testing.T) {
	checked(t)
	m := norm(t)
	for _, code := range []int{11, 2} {
		o := options(t, "encode")
		o.KeepAlive = 100 * time.Millisecond
		d := load(t, o, m)
		id, err := d.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		soft.FailAt(3, code) // after a command buffer and an encoder
		for start := time.Now(); soft.Failed() == ""; time.Sleep(time.Millisecond) {
			if time.Since(start) > time.Minute {
				t.Fatal("no keep-alive pass in a minute")
			}
		}
		if call := soft.Failed(); call != "commit" {
			t.Errorf("%s failed", call)
		}
		time.Sleep(20 * time.Millisecond)
		_, err = submit(d, decode(m.t, id, 0, 1))
		if lost := errors.Is(err, metal.ErrDeviceLost); lost != (code == 11) || !lost && err != nil {
			t.Errorf("code %d: %v", code, err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		soft.FailAt(0, 0)
	}
}

// TestLabels checks that each command of mode encode is a debug group if labels are requested
// or commands are timed.
func TestLabels(t *testing.T) {
	checked(t)
	m := single(t, false)
	p, _, _ := m.t.Program(table.ProgramDecode)
	for _, on := range []bool{false, true} {
		o := whole(t, "encode")
		o.Labels = on
		d := load(t, o, m)
		id := begun(t, d)
		if _, err := submit(d, decode(m.t, id, 0, 1)); err != nil { // afterwards the cost of a token is known
			t.Fatal(err)
		}
		calls, all, own := counted(t, d, decode(m.t, id, 1, 3))
		if want := map[bool]int{true: 3 * int(p.Count)}[on]; calls["pushDebugGroup:"] != want || calls["popDebugGroup"] != want {
			t.Errorf("labels %t: %v", on, calls)
		}
		if own < all-4 || own > all+4 {
			t.Errorf("labels %t: the device counts %d calls, Metal %d", on, own, all)
		}
		timed := decode(m.t, id, 4, 1)
		timed.Timings = make([]time.Duration, p.Count)
		if calls, _, _ := counted(t, d, timed); calls["pushDebugGroup:"] != int(p.Count) {
			t.Errorf("labels %t, timed: %v", on, calls)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}
