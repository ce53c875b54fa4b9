//go:build softmetal

package replay_test

import (
	"testing"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/metal/kernels"
	"github.com/pianola-engine/pianola/internal/metal/soft"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/metal"
)

// TestMetalSpill is TestSpill with Metal in software.
func TestMetalSpill(t *testing.T) {
	if err := soft.Start(".."); err != nil {
		t.Fatal(err)
	}
	k, err := kernels.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	testSpill(t, 9, compiler.Options{}, func(o compiler.Options, lo replay.LoadOptions) *replay.Model {
		dev, err := metal.New(metal.Options{Mode: "record", Kernels: k})
		if err != nil {
			t.Fatal(err)
		}
		return parallelOn(t, dev, "m4-pro", "llama", o, lo)
	})
}
