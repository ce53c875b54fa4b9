package shaders

import (
	"bytes"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/metal/joined"
)

// TestMade checks the manifest against the embedded files and the declarations.
func TestMade(t *testing.T) {
	m, err := Made()
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Architectures) == 0 || m.BindingAlign == 0 || m.Compiler == "" || !slices.IsSorted(m.Architectures) {
		t.Errorf("%+v", m)
	}
	for _, k := range m.Kernels {
		if k.declared == nil || k.declared.Name != k.Name || k.MaxThreads == 0 || len(k.Entries) == 0 && !joined.Apple(k.File) {
			t.Errorf("%+v", k)
		}
		if src, err := Source(k.File); err != nil || !bytes.Contains(src, []byte("kernel void "+k.Name+"(")) {
			t.Errorf("%s is not in %s: %v", k.Name, k.File, err)
		}
	}
	for _, list := range [][]decl.Kernel{decl.Kernels, decl.Helpers} {
		for _, d := range list {
			if _, ok := m.Kernel(d.Name); !ok {
				t.Errorf("%s is declared but has no source", d.Name)
			}
		}
	}
	if len(m.Exact) == 0 {
		t.Error("no text for exactly one architecture")
	}
	if _, ok := m.Kernel("nothing"); ok {
		t.Error("found a missing kernel")
	}
	for _, file := range []string{"nothing.metal", "", "../go.mod"} {
		if _, err := PTX(file, "sm_90"); err == nil {
			t.Errorf("found PTX of %q", file)
		}
		if _, err := Source(file); err == nil {
			t.Errorf("found source %q", file)
		}
	}
}

func TestEntry(t *testing.T) {
	k := &Kernel{
		declared: &decl.Kernel{Specs: []decl.Constant{{Name: "a"}, {Name: "b"}, {Name: "c"}}},
		Entries: []Entry{
			{Name: "b1", Fixed: []Fixed{{Name: "b", Value: 1}}},
			{Name: "b1c2", Fixed: []Fixed{{Name: "b", Value: 1}, {Name: "c", Value: 2}}},
			{Name: "a7", Fixed: []Fixed{{Name: "a", Value: 7}}},
			{Name: "d0", Fixed: []Fixed{{Name: "d", Value: 0}}},
		},
	}
	for _, tt := range []struct {
		specs []uint32
		want  string
	}{
		{[]uint32{0, 1, 0, 0, 0}, "b1"},
		{[]uint32{0, 1, 2}, "b1c2"},
		{[]uint32{7, 1, 2}, "b1c2"},
		{[]uint32{7, 0, 2}, "a7"},
		{[]uint32{0, 0, 0}, ""},
		{[]uint32{7}, "a7"},
		{nil, ""},
	} {
		got, ok := k.Entry(tt.specs)
		if ok != (tt.want != "") || ok && got.Name != tt.want {
			t.Errorf("%v: %v, %t, want %q", tt.specs, got, ok, tt.want)
		}
	}
	k.Entries = append(k.Entries, Entry{Name: "generic"})
	if got, ok := k.Entry([]uint32{0, 0, 0}); !ok || got.Name != "generic" {
		t.Errorf("got %v", got)
	}
}
