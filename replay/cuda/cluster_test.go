package cuda

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/cuda/fake"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/replay"
)

// clusteredModules returns the fake driver's kernels, with clusters of n threadgroups for the products whose
// grids consist of such clusters, or for all.
func clusteredModules(n uint64, all bool) *Modules {
	m := fakeModules()
	for i := range m.Instances {
		if m.Instances[i].Kernel != "gemv" {
			continue
		}
		m.Instances[i].Cluster = func(env decl.Env) (uint64, error) {
			grid, err := decl.Of("gemv").GridSize(env)
			if grid[0]%n != 0 && !all {
				return 1, err
			}
			return n, err
		}
	}
	return m
}

// TestClusters replays a model whose products run in clusters of threadgroups, in the modes that launch each
// command, and on a GPU without clusters.
func TestClusters(t *testing.T) {
	m := tiny(t, "llama")
	var want []uint32
	for _, c := range []struct {
		mode, call string // the driver's function for clusters
		major      int
		modules    *Modules
	}{
		{"encode", "", 9, fakeModules()},
		{"encode", "cuLaunchKernelEx", 9, clusteredModules(2, false)},
		{"record", "cuGraphKernelNodeSetAttribute", 9, clusteredModules(2, false)},
		{"record", "", 8, clusteredModules(2, false)},
	} {
		drv := fake.New(t)
		drv.SetCapability(c.major, 0)
		d, err := New(Options{Library: drv.Path, Mode: c.mode, Modules: c.modules})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Load(context.Background(), m.t, m.src, replay.LoadOptions{}); err != nil {
			t.Fatal(err)
		}
		got := chains(t, d, begun(t, d), 12, 5)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if want == nil {
			want = got
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s, capability %d.0: tokens %v, want %v", c.mode, c.major, got, want)
		}
		calls := drv.Called()
		for _, name := range []string{"cuLaunchKernelEx", "cuGraphKernelNodeSetAttribute"} {
			if (calls[name] > 0) != (name == c.call) {
				t.Errorf("%s, capability %d.0: %d calls of %s", c.mode, c.major, calls[name], name)
			}
		}
		drv.Check()
	}
}

// TestClusterGrid loads a table with a grid that does not consist of whole clusters.
func TestClusterGrid(t *testing.T) {
	m, drv := tiny(t, "llama"), fake.New(t)
	d, err := New(Options{Library: drv.Path, Modules: clusteredModules(7, true)})
	if err != nil {
		t.Fatal(err)
	}
	err = d.Load(context.Background(), m.t, m.src, replay.LoadOptions{})
	if err == nil || !strings.Contains(err.Error(), "want clusters of 7 threadgroups") {
		t.Errorf("%v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	drv.Check()
}
