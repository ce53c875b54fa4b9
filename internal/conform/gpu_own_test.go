package conform

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	declared "github.com/pianola-engine/pianola/internal/kernels"
)

// onGPU runs a command on a GPU. cache is a directory for assembled kernels.
func (c command) onGPU(t *testing.T, r *rand.Rand, cache string) [decl.MaxBindings][]byte {
	t.Helper()
	tab, slots := c.tableOf(t)
	return gpuOutcome(t, tab, slots, c.contents(t, tab, slots, r), cache).bindings
}

// TestGPUOwn compares rope_attn_tile with the commands that it fuses, bit for bit, on a GPU: they use different
// matrix instructions there.
func TestGPUOwn(t *testing.T) {
	needHopper(t)
	cache := t.TempDir()
	for seed := range uint64(72) {
		r := rand.New(rand.NewPCG(seed, 43))
		a, w := ownShape(r, seed)
		if seed%8 == 0 {
			a.kvLen, a.window = 1500+r.IntN(2000), pick(r, 0, 0, 1200)
			a.context = a.kvLen
		}
		columns := a.kvHeads * a.shared * a.headDim
		base := a.command(r)
		rope, attn := a.parted(base, w)
		made := rope.onGPU(t, r, cache)
		attn.input["q"] = made[declared.QKRoPEKVBindQOut]
		attn.input["k_cache"], attn.input["v_cache"] = made[declared.QKRoPEKVBindKCache], made[declared.QKRoPEKVBindVCache]
		want, _ := attnHalves(t, attn.onGPU(t, r, cache)[declared.AttnTileBindHalves], columns, 1, false)
		few := seed%2 == 0
		got := a.own(base, w, few).onGPU(t, r, cache)
		rows, _ := attnHalves(t, got[declared.RoPEAttnTileBindHalves], columns, 1, few)
		where := fmt.Sprintf("seed %d: %v, half %d, norm %t, %+v, few %t", seed, a.attention, a.half, a.norm, w, few)
		if !bytes.Equal(rows, want) {
			n := 0
			for i := range rows {
				if rows[i] != want[i] {
					n++
				}
			}
			t.Errorf("%s: %d of %d bytes of the results differ from those of two commands", where, n, len(rows))
		}
		if !bytes.Equal(got[declared.RoPEAttnTileBindKCache], attn.input["k_cache"]) || !bytes.Equal(got[declared.RoPEAttnTileBindVCache], attn.input["v_cache"]) {
			t.Errorf("%s: the caches differ from those of two commands", where)
		}
	}
}
