package device

import (
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/table"
)

// twoCaches are caches of 2 heads with 512 rows of 6 bytes, and of 3 heads with 300 rows
// that rotate, of 4 bytes.
func twoCaches() *Caches {
	return &Caches{
		t:      &table.Table{Header: table.Header{Context: 512}, Slots: []table.Slot{{Name: "tokens"}, {Name: "k", Size: 6144}, {Name: "v", Size: 3600}}},
		caches: []table.KVCache{{Slot: 1, Heads: 2, Rows: 512, RowSize: 6}, {Slot: 2, Heads: 3, Rows: 300, RowSize: 4}},
		bySlot: []int{-1, 0, 1},
	}
}

func TestCapacities(t *testing.T) {
	c := twoCaches()
	if got := c.Capacities(); !slices.Equal(got, []int{256, 512}) {
		t.Errorf("%v", got)
	}
	c.t.Header.Context = 700
	if got := c.Capacities(); !slices.Equal(got, []int{256, 512, 700}) {
		t.Errorf("%v", got)
	}
	c.t.Header.Context = 9
	if got := c.Capacities(); !slices.Equal(got, []int{9}) || c.Capacity(1) != 9 {
		t.Errorf("%v", got)
	}
}

// TestMove keeps every row in use at its place when caches become larger.
func TestMove(t *testing.T) {
	c := twoCaches()
	for _, positions := range []int{0, 1, 256} {
		old, grown := filled(c, 256, positions), filled(c, 512, 0)
		if err := c.Move(512, 256, positions, func(slot int, dst, src, n uint64) error {
			copy(grown[slot][dst:][:n], old[slot][src:][:n])
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if want := filled(c, 512, positions); !slices.EqualFunc(grown, want, slices.Equal) {
			t.Errorf("%d positions are not where they were", positions)
		}
	}
}

// filled returns the slots of a session, with marks in the rows of some positions.
func filled(c *Caches, room, positions int) [][]byte {
	mem := make([][]byte, 3)
	at := map[int]uint64{}
	if c.Place(room, 64, func(slot int, offset uint64) { at[slot] = offset }); at[1] != 0 || at[2]%64 != 0 {
		panic(at)
	}
	c.Each(room, func(own table.KVCache) {
		mem[own.Slot] = make([]byte, own.Size())
		for h := range own.Heads {
			for r := range own.Used(positions) {
				offset, n := own.Span(h, r, r+1)
				for i := range n {
					mem[own.Slot][offset+i] = byte(1 + 7*h + 3*r + uint32(i))
				}
			}
		}
	})
	return mem
}

// TestParts reads ranges of the table's slots from sessions with fewer rows.
func TestParts(t *testing.T) {
	c := twoCaches()
	whole := filled(c, 512, 200)
	for _, room := range []int{256, 512} {
		own := filled(c, room, 200)
		for slot := uint32(1); slot <= 2; slot++ {
			cache := c.caches[slot-1]
			for h := range cache.Heads {
				for _, span := range [][2]uint32{{0, 200}, {199, 256}, {0, 1}, {17, 80}} {
					at, n := cache.Span(h, span[0], span[1])
					got := make([]byte, n-1)
					if err := c.Parts(slot, room, at+1, len(got), func(p Part) error {
						copy(got[p.From:p.To], own[slot][p.Offset:])
						return nil
					}); err != nil {
						t.Fatal(err)
					}
					if !slices.Equal(got, whole[slot][at+1:][:n-1]) {
						t.Errorf("room for %d, slot %d, head %d, rows %v", room, slot, h, span)
					}
				}
			}
		}
	}
	none := func(Part) error { return nil }
	for _, bad := range []struct {
		room   int
		offset uint64
		n      int
	}{{0, 0, 1}, {256, 256 * 6, 1}, {256, 255 * 6, 7}, {256, 0, 6144}} {
		if err := c.Parts(1, bad.room, bad.offset, bad.n, none); err == nil {
			t.Errorf("%+v: taken", bad)
		}
	}
	if err := c.Parts(1, 512, 0, 6144, none); err != nil {
		t.Errorf("all of a slot: %v", err)
	}
	if err := c.Parts(0, 0, 3, 5, func(p Part) error {
		if p != (Part{3, 0, 5}) {
			t.Errorf("a slot that is no cache: %+v", p)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
