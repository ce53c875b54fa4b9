package kernels

import (
	"fmt"
	"testing"

	"github.com/pianola-engine/pianola/internal/cuda/ptx"
)

// TestEmbedded checks that the kernels contain every embedded kernel for each architecture.
func TestEmbedded(t *testing.T) {
	m, err := Embedded()
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Instances) < 10 || m.BindingAlign == 0 {
		t.Errorf("%d instances, aligned to %d", len(m.Instances), m.BindingAlign)
	}
	exact, hashes := map[string]bool{}, map[[32]byte]string{}
	for _, text := range m.Texts {
		b, err := text.Read()
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := ptx.Parse(b)
		if err != nil {
			t.Fatalf("%s for %d: %v", text.Name, text.Arch, err)
		}
		info, err := text.Describe()
		if err != nil || info.Version != parsed.Version || info.Target != parsed.Target || info.Hash == [32]byte{} {
			t.Errorf("%s for %d: %+v, %v", text.Name, text.Arch, info, err)
		}
		if other, ok := hashes[info.Hash]; ok {
			t.Errorf("%s for %s and %s have the same hash", text.Name, info.Target, other)
		}
		hashes[info.Hash] = text.Name + " for " + info.Target
		target := fmt.Sprintf("sm_%d", text.Arch)
		if text.Exact {
			target += "a"
			exact[text.Name] = true
		}
		if parsed.Target != target || text.Arch >= 90 && !ptx.CanOverlap(parsed.Version, parsed.Target) {
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
			t.Errorf("%s exists for %v", in.Entry, archs)
		}
	}
	if len(exact) != 3 || !exact["halves.metal"] || !exact["attn_tile.metal"] || !exact["few.metal"] {
		t.Errorf("exact texts: %v", exact)
	}
}
