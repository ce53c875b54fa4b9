package device

import (
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/table"
)

// someCaches has four caches: 2 heads with 512 rows of 6 bytes; 3 heads with 300 rows of 4 bytes,
// a ring; 2 heads with 512 rows of 32 bytes and 2 bytes of scales; and 1 head with 270 rows, of
// which the first 260 are reserved.
func someCaches() *Caches {
	return &Caches{
		t: &table.Table{
			Header: table.Header{Context: 512},
			Slots:  []table.Slot{{Name: "tokens"}, {Name: "k", Size: 6144}, {Name: "v", Size: 3600}, {Name: "q", Size: 34816}, {Name: "s", Size: 9180}},
		},
		caches: []table.KVCache{
			{Slot: 1, Heads: 2, Rows: 512, Planes: [2]uint64{6}}, {Slot: 2, Heads: 3, Rows: 300, Planes: [2]uint64{4}},
			{Slot: 3, Heads: 2, Rows: 512, Planes: [2]uint64{32, 2}}, {Slot: 4, Heads: 1, Rows: 270, First: 260, Planes: [2]uint64{32, 2}},
		},
		bySlot: []int{-1, 0, 1, 2, 3},
	}
}

func TestCapacities(t *testing.T) {
	c := someCaches()
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

// TestMove checks that every used row keeps its content when caches grow.
func TestMove(t *testing.T) {
	c := someCaches()
	for _, positions := range []int{0, 1, 256} {
		old, grown := filled(c, 256, positions), filled(c, 512, 0)
		if err := c.Move(512, 256, positions, func(r Rows) error {
			for i := range r.Parts {
				copy(grown[r.Slot][r.To+i*r.ToPitch:][:r.Size], old[r.Slot][r.From+i*r.FromPitch:][:r.Size])
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if want := filled(c, 512, positions); !slices.EqualFunc(grown, want, slices.Equal) {
			t.Errorf("%d positions are not where they were", positions)
		}
	}
}

// filled returns the slots of a session, with marks in the rows of the first positions.
func filled(c *Caches, room, positions int) [][]byte {
	mem := make([][]byte, 5)
	at := map[int]uint64{}
	if c.Place(room, 64, func(slot int, offset uint64) { at[slot] = offset }); at[1] != 0 || at[2]%64 != 0 || at[3]%64 != 0 || at[4] <= at[3] {
		panic(at)
	}
	c.Each(room, func(own table.KVCache) {
		mem[own.Slot] = make([]byte, own.Size())
		for part := range own.Parts() {
			for r := range own.Used(positions) {
				offset, n := own.Span(part, r, r+1)
				for i := range n {
					mem[own.Slot][offset+i] = byte(1 + 7*part + 3*r + uint32(i))
				}
			}
		}
	})
	return mem
}

// TestParts reads ranges of the table's slots from sessions with fewer rows.
func TestParts(t *testing.T) {
	c := someCaches()
	whole := filled(c, 512, 200)
	for _, room := range []int{256, 512} {
		own := filled(c, room, 200)
		for slot := uint32(1); slot <= 4; slot++ {
			cache := c.caches[slot-1]
			for part := range cache.Parts() {
				for _, span := range [][2]uint32{{0, 200}, {199, 256}, {0, 1}, {17, 80}} {
					at, n := cache.Span(part, span[0], span[1])
					got := make([]byte, n-1)
					if err := c.Parts(slot, room, at+1, len(got), func(p Part) error {
						copy(got[p.From:p.To], own[slot][p.Offset:])
						return nil
					}); err != nil {
						t.Fatal(err)
					}
					if !slices.Equal(got, whole[slot][at+1:][:n-1]) {
						t.Errorf("room for %d, slot %d, part %d, rows %v", room, slot, part, span)
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
	for slot := uint32(1); slot <= 4; slot++ {
		if err := c.Parts(slot, 512, 0, int(c.t.Slots[slot].Size), none); err != nil {
			t.Errorf("all of slot %d: %v", slot, err)
		}
	}
	// The range from the elements of one row to the scales of another spans two planes.
	var parts []Part
	if err := c.Parts(3, 300, 2*512*32-512*32, 32, func(p Part) error { parts = append(parts, p); return nil }); err != nil || !slices.Equal(parts, []Part{{300 * 32, 0, 32}}) {
		t.Errorf("row 0 of head 1: %+v, %v", parts, err)
	}
	if err := c.Parts(3, 300, 2*512*32-1, 1, none); err == nil {
		t.Error("the last row of elements, of a session with fewer: taken")
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
