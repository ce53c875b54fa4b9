//go:build softmetal

package replay_test

import (
	"testing"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/replay"
)

// TestMetalSpill is TestSpill with Metal in software.
func TestMetalSpill(t *testing.T) {
	testSpill(t, 9, compiler.Options{}, func(o compiler.Options, lo replay.LoadOptions) *replay.Model {
		return parallelOn(t, softMetal(t, "record"), "m4-pro", "llama", o, lo)
	})
}
