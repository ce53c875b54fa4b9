package e2e

import (
	"flag"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/replay/cuda"
)

var spillPath = flag.String("spill-model", "testdata/gopher-q8_0.gguf", "the model whose pages TestGPUSpill evicts")

// TestGPUSpill evicts a prompt from the memory of a GPU, in each mode that keeps recordings, and generates after
// it again, without copies and with copies in memory and in a file. All must have the same tokens. Whether the
// copies are read depends on how fast the GPU prefills.
func TestGPUSpill(t *testing.T) {
	if _, err := cuda.FindGPU("", 0); err != nil {
		t.Skipf("no GPU to run on: %v", err)
	}
	var want []int32
	for _, mode := range []pianola.Mode{pianola.ModeRecord, pianola.ModeEncode} {
		for _, o := range []pianola.SpillOptions{{}, {Memory: 8 << 30}, {Memory: 64 << 20, Dir: t.TempDir(), File: 8 << 30}} {
			m := spillModel(t, pianola.Options{Device: pianola.DeviceCUDA, Mode: mode, Spill: o}, *spillPath)
			first, ids, st := evicted(t, m, func() { settled(m) })
			if want == nil {
				want = first
			}
			if !slices.Equal(first, want) || !slices.Equal(ids, want) {
				t.Errorf("mode %s, %+v: %v, then %v, want %v", mode, o, first, ids, want)
			}
			t.Logf("mode %s, %+v: %d of %d tokens restored, first token after %v", mode, o, st.Restored, st.PromptTokens, st.FirstToken)
		}
	}
}
