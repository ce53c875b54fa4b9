//go:build softmetal

package e2e_test

import (
	"testing"

	"github.com/pianola-engine/pianola/internal/metal/soft"
)

// TestMetalModel runs a model of TestGPUModels, which a Mac runs, on the software Metal. The other
// models, modes and the goldens would take long.
func TestMetalModel(t *testing.T) {
	if err := soft.Start("."); err != nil {
		t.Fatal(err)
	}
	gpu, modes := anyGPU(t)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	gpuModel{"testdata/tiny/llama", "", 0}.test(t, gpu, modes[1:], 6)
	if err := soft.Violation(); err != nil {
		t.Error(err)
	}
}
