package pianola

import (
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/replay/metal/driver"
	"github.com/pianola-engine/pianola/replay/metal/kernels"
)

// TestMetalChip finds the data of GPUs by their names, and by their family.
func TestMetalChip(t *testing.T) {
	for name, want := range map[string]struct {
		family int
		chip   string
	}{
		"Apple M1": {7, "m1"}, "Apple M1 Ultra": {7, "m1-ultra"}, "Apple M2 Pro": {8, "m2-pro"}, "Apple M4": {9, "m4"}, "Apple M4 Max": {9, "m4-max"},
		"Apple M5 Pro": {9, "m5-pro"}, "Apple M9": {9, "m3"}, "Apple M12 Pro": {8, "m2"}, "Apple A14": {7, "m1"}, "Apple M10": {9, "m3"}, "": {0, "m1"},
	} {
		p := driver.Properties{Name: name, Family: want.family, MaxThreads: 1024, ThreadgroupMemory: 32 << 10, MaxBuffer: 1 << 30}
		c, err := metalChip(p)
		if err != nil && name != "" || name != "" && (c.Name != want.chip || c.MaxBufferBytes != 1<<30) {
			t.Errorf("%s: %+v, %v, want %s", name, c, err, want.chip)
		}
	}
}

// TestMetalSource looks for what Metal's compiler would not find.
func TestMetalSource(t *testing.T) {
	k, err := kernels.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	source, err := k.Source()
	if err != nil {
		t.Fatal(err)
	}
	text := string(source)
	if strings.Contains(text, `#include "`) || strings.Count(text, "#include <metal_stdlib>") == 0 {
		t.Error("headers are not all in the text")
	}
	if len(k.List) < 15 || k.BindingAlign != 16 {
		t.Errorf("%d kernels, aligned to %d", len(k.List), k.BindingAlign)
	}
	for _, kernel := range k.List {
		if strings.Count(text, "kernel void "+kernel.Name+"(") != 1 || kernel.MaxThreads == 0 {
			t.Errorf("kernel %s: %+v", kernel.Name, kernel)
		}
	}
}
