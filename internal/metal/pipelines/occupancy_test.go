package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/metal/kernels"
)

func TestResident(t *testing.T) {
	for _, c := range []struct {
		threads   int
		memory    uint64
		registers int
		want      int
		limit     string
	}{
		{32, 0, 0, 3072, "threads"}, {1024, 0, 16, 3072, "threads"}, {256, 0, 64, 768, "registers"}, {128, 0, 104, 512, "registers"},
		{128, 8 << 10, 0, 896, "threadgroup memory"}, {128, 32 << 10, 32, 128, "threadgroup memory"}, {1024, 0, 255, 0, "registers"},
	} {
		if n, limit := resident(c.threads, c.memory, c.registers); n != c.want || limit != c.limit {
			t.Errorf("%d threads, %d bytes, %d registers: %d, %s; want %d, %s", c.threads, c.memory, c.registers, n, limit, c.want, c.limit)
		}
	}
}

// TestOccupy lists the kernels of two shapes. At least one threadgroup of each must fit into a core,
// and registers.txt must have every kernel.
func TestOccupy(t *testing.T) {
	k, err := kernels.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	known, err := uses(registersText)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"llama-3.1-8b:Q4_0", "qwen3-0.6b:Q4_0"} {
		for _, chipName := range []string{"m1", "m4"} {
			c, err := chip.Lookup(chipName)
			if err != nil {
				t.Fatal(err)
			}
			tab, err := compile(name, chipName)
			if err != nil {
				t.Fatal(err)
			}
			all, err := kernelUses(tab, k)
			if err != nil {
				t.Fatal(err)
			}
			for _, u := range all {
				of, ok := known[u.symbol]
				if n, limit := resident(u.threads, u.memory, of.registers); !ok || n == 0 {
					t.Errorf("%s on %s: %s, known %t: %d threads fit into a core, by its %s", name, chipName, u.kernel, ok, n, limit)
				}
			}
			var b bytes.Buffer
			if err := occupy(&b, k, c, name); err != nil || strings.Count(b.String(), "\n") != len(all)+1 {
				t.Errorf("%s on %s: %v\n%s", name, chipName, err, b.String())
			}
		}
	}
}
