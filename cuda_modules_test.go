package pianola

import (
	"fmt"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/replay/cuda"
	"github.com/pianola-engine/pianola/replay/cuda/ptx"
)

// TestModules makes sure that every embedded kernel reaches the device, for
// each architecture.
func TestModules(t *testing.T) {
	m, err := makeModules()
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Instances) < 10 || m.BindingAlign == 0 {
		t.Errorf("%d instances, aligned to %d", len(m.Instances), m.BindingAlign)
	}
	texts := map[string]*ptx.Text{}
	read := func(name string, arch int) *ptx.Text {
		key := fmt.Sprint(name, arch)
		if texts[key] == nil {
			i := slices.IndexFunc(m.Texts, func(t cuda.Text) bool { return t.Name == name && t.Arch == arch })
			b, err := m.Texts[i].Read()
			if err != nil {
				t.Fatal(err)
			}
			if texts[key], err = ptx.Parse(b); err != nil {
				t.Fatalf("%s for %d: %v", name, arch, err)
			}
		}
		return texts[key]
	}
	for _, in := range m.Instances {
		archs := map[int]bool{}
		for _, text := range m.Texts {
			if text.Name == in.Text {
				archs[text.Arch] = true
				if _, ok := read(text.Name, text.Arch).Entry(in.Entry); !ok {
					t.Errorf("%s for %d has no entry %s", text.Name, text.Arch, in.Entry)
				}
			}
		}
		if len(archs) != 3 {
			t.Errorf("%s is there for %v", in.Entry, archs)
		}
	}
}
