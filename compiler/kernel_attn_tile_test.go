package compiler

import (
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
)

// TestOwnWork checks the threadgroups of rope_attn_tile on a GPU of 132 multiprocessors, for models with 32 Q heads and
// 8 K and V heads.
func TestOwnWork(t *testing.T) {
	for _, test := range []struct {
		name                           string
		headDim, context, window, rows int
		want                           ownWork
	}{
		{"a row", 128, 8192, 0, 1, ownWork{threads: 256, cluster: 4, slots: 3}},
		{"a short context", 128, 512, 0, 1, ownWork{threads: 256, cluster: 1, slots: 3}},
		{"two segments", 128, 1024, 0, 1, ownWork{threads: 256, cluster: 2, slots: 2}},
		{"a window", 128, 8192, 1000, 1, ownWork{threads: 256, cluster: 2, slots: 2}},
		{"4 rows: no room for clusters of 4", 128, 8192, 0, 4, ownWork{threads: 256, cluster: 2, slots: 2}},
		{"8 rows", 128, 8192, 0, 8, ownWork{threads: 256, cluster: 2, slots: 2}},
		{"16 rows: a threadgroup for each", 128, 8192, 0, 16, ownWork{threads: 256, cluster: 1, slots: 3}},
		{"32 rows: two threadgroups on a core", 128, 8192, 0, 32, ownWork{threads: 128, cluster: 1, slots: 2}},
		{"64 rows: four", 128, 8192, 0, 64, ownWork{threads: 128, cluster: 1, slots: 1}},
		{"512 rows", 128, 8192, 0, 512, ownWork{threads: 128, cluster: 1, slots: 1}},
		{"heads without segments", 256, 8192, 0, 1, ownWork{threads: 256, cluster: 1, slots: 1}},
	} {
		s := &state{kv: decl.KVF16}
		s.in.Chip, s.in.Options.Context = chipOf(t, "h200"), test.context
		l := &lowering{s: s, p: &program{rows: test.rows}, n: &node{spot: spot{layer: &layerPlan{headDim: test.headDim}}}}
		a := ropeAttnTileArgs{attnTileArgs: attnTileArgs{shape: tileShape{units: 1, threads: 256}}}
		a.heads, a.kvHeads, a.window = 32, 8, test.window
		if got := a.work(l); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}
