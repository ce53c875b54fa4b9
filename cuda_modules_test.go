package pianola

import (
	"fmt"
	"testing"

	"github.com/pianola-engine/pianola/internal/cuda/ptx"
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
	exact := map[string]bool{}
	for _, text := range m.Texts {
		b, err := text.Read()
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := ptx.Parse(b)
		if err != nil {
			t.Fatalf("%s for %d: %v", text.Name, text.Arch, err)
		}
		target := fmt.Sprintf("sm_%d", text.Arch)
		if text.Exact {
			target += "a"
			exact[text.Name] = true
		}
		if parsed.Target != target || text.Arch >= 90 && !parsed.CanOverlap() {
			t.Errorf("%s for %s is for %s", text.Name, target, parsed.Target)
		}
		for _, in := range m.Instances {
			if _, ok := parsed.Entry(in.Entry); in.Text == text.Name && !ok {
				t.Errorf("%s for %s has no entry %s", text.Name, target, in.Entry)
			}
		}
	}
	for _, in := range m.Instances {
		archs := map[int]bool{}
		for _, text := range m.Texts {
			if text.Name == in.Text {
				archs[text.Arch] = true
			}
		}
		if len(archs) != 3 {
			t.Errorf("%s is there for %v", in.Entry, archs)
		}
	}
	if len(exact) != 1 || !exact["halves.metal"] {
		t.Errorf("texts for one processor alone: %v", exact)
	}
}
