package cuda

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/cuda/fake"
	"github.com/pianola-engine/pianola/replay"
)

// TestChains decodes in every mode in chains of 1, 16 and 128 tokens, with streams that execute
// at once and streams that execute late. The tokens must be the same.
func TestChains(t *testing.T) {
	m := tiny(t, "qwen3")
	var want []uint32
	for _, mode := range Modes() {
		for _, eager := range []bool{false, true} {
			drv := fake.New(t)
			if eager {
				drv.SetEager()
			}
			d := load(t, drv, mode, m)
			for _, length := range []int{1, 16, 128} {
				launches, graphs := drv.Launches(), drv.GraphLaunches()
				got := chains(t, d, begun(t, d), 128, length)
				if want == nil {
					want = got
				}
				if !slices.Equal(got, want) {
					t.Fatalf("%s, eager %t, chains of %d: %v, want %v", mode, eager, length, got, want)
				}
				p := &m.t.Programs[0]
				launches, graphs = drv.Launches()-launches, drv.GraphLaunches()-graphs
				wantLaunches, wantGraphs := 128*int(p.Count), 0
				switch mode {
				case "record":
					wantLaunches, wantGraphs = 0, map[int]int{1: 128, 16: 16, 128: 2}[length]
				case "resident":
					wantLaunches = 128 / length
				}
				if launches != wantLaunches || graphs != wantGraphs {
					t.Errorf("%s: %d launches and %d graphs for 128 tokens of %d commands", mode, launches, graphs, p.Count)
				}
			}
		}
	}
	if slices.Max(want) == slices.Min(want[1:]) {
		t.Errorf("the chain repeats one token: %v", want)
	}
}

// TestEdges records a graph without the table's barriers. The tokens must differ, which proves
// that the tests above would detect a missing edge.
func TestEdges(t *testing.T) {
	m := tiny(t, "qwen3")
	d := load(t, fake.New(t), "record", m)
	want := chains(t, d, begun(t, d), 20, 20)
	loose := *d.table
	loose.Cmds = slices.Clone(loose.Cmds)
	for i := range loose.Cmds {
		loose.Cmds[i].Barrier = 0
	}
	d.table, d.recordings.of = &loose, make([][]graph, len(loose.Programs))
	if got := chains(t, d, begun(t, d), 20, 20); slices.Equal(got, want) {
		t.Error("without barriers the tokens are the same")
	}
}

// TestStandIns loads the table of TestGPU on the fake driver, so that the table is also
// validated on machines without a GPU.
func TestStandIns(t *testing.T) {
	tab, src := gpuTable(t, 3, 64)
	drv := fake.New(t)
	d := open(t, drv, "")
	if err := d.Load(context.Background(), tab, src, replay.LoadOptions{}); err != nil {
		t.Fatal(err)
	}
	chains(t, d, begun(t, d), 10, 5)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	drv.Check()
	for _, in := range gpuModules().Instances {
		if !bytes.Contains(gpuPTX, []byte(".entry "+in.Entry+"(")) {
			t.Errorf("testdata/gpu.ptx has no entry %s", in.Entry)
		}
	}
}

// TestFakeChecks misuses the fake driver, which must report each misuse.
func TestFakeChecks(t *testing.T) {
	drv := fake.New(t)
	d := load(t, drv, "", tiny(t, "llama"))
	if err := d.drv.MemFree(12345); err == nil || drv.Complaint() == "" {
		t.Errorf("freeing an unknown address: %v, %q", err, drv.Complaint())
	}
	other := fake.New(t)
	if other.Complaint() != "" || other.Calls() != 0 {
		t.Error("two drivers share their state")
	}
	e := open(t, other, "")
	if _, err := e.drv.MemAlloc(1); err == nil || other.Complaint() != "cuMemAlloc: no context is current" {
		t.Errorf("without a context: %v, %q", err, other.Complaint())
	}
	drv.Forgive()
}
