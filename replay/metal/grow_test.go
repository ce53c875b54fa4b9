//go:build softmetal

package metal_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/metal"
	"github.com/pianola-engine/pianola/table"
)

// TestGrowKinds writes the rows of caches of every kind while they grow step by step. Written
// rows and scales must keep their values, the session must decode the right tokens, and a fork
// must contain the same rows.
func TestGrowKinds(t *testing.T) {
	checked(t)
	for _, kind := range decl.KVKinds() {
		m := compiled(t, "tiny/llama", 512, compiler.Options{KV: kind})
		quick(t, m.t)
		for _, mode := range metal.Modes() {
			t.Run(kind+"/"+mode, func(t *testing.T) {
				d, caches := load(t, options(t, mode), m), m.t.KVCaches()
				want := tokens(t, d, begun(t, d))
				id := begun(t, d)
				row := func(c *table.KVCache, part uint32, p int) (uint64, []byte) {
					at, n := c.Span(part, uint32(p), uint32(p+1))
					return at, bytes.Repeat([]byte{byte(int(c.Slot)*31 + int(part)*7 + p)}, int(n))
				}
				check := func(id replay.SessionID, positions int) {
					t.Helper()
					for i := range caches {
						for part := range caches[i].Parts() {
							for p := range positions {
								at, want := row(&caches[i], part, p)
								got := make([]byte, len(want))
								if err := d.Read(id, caches[i].Slot, at, got); err != nil || !bytes.Equal(got, want) {
									t.Fatalf("slot %d, part %d, row %d of %d: %v, %v", caches[i].Slot, part, p, positions, got, err)
								}
							}
						}
					}
				}
				written := 0
				for _, positions := range []int{10, 257, 512} {
					if err := d.Reserve(id, positions); err != nil {
						t.Fatal(err)
					}
					check(id, written)
					for i := range caches {
						for part := range caches[i].Parts() {
							for p := written; p < positions; p++ {
								at, b := row(&caches[i], part, p)
								if err := d.Write(id, caches[i].Slot, at, b); err != nil {
									t.Fatal(err)
								}
							}
						}
					}
					written = positions
				}
				fork, err := d.Fork(id, 280)
				if err != nil {
					t.Fatal(err)
				}
				check(fork, 280)
				check(id, written)
				before := d.Memory().Kinds[table.SlotKV].Active
				if err := d.Shrink(id, 100); err != nil {
					t.Fatal(err)
				}
				if now := d.Memory().Kinds[table.SlotKV].Active; now >= before {
					t.Errorf("%d bytes of caches after Shrink, before %d", now, before)
				}
				check(id, 100)
				check(fork, 280)
				if got := tokens(t, d, id); !slices.Equal(got, want) {
					t.Errorf("%v, want %v", got, want)
				}
			})
		}
	}
}

// tokens decodes a few tokens after the session's first one and returns their bytes.
func tokens(t *testing.T, d *metal.Device, id replay.SessionID) []byte {
	t.Helper()
	const n = 3
	if _, err := submit(d, decode(d.Table(), id, 0, n)); err != nil {
		t.Fatal(err)
	}
	_, ring, _ := d.Table().Slot(table.SlotTokens)
	got := make([]byte, 4*n)
	if err := d.Read(id, ring, 4, got); err != nil {
		t.Fatal(err)
	}
	return got
}
