package tokenizer

import (
	"math/bits"
	"math/rand/v2"
)

// hashTable maps numbers to values, several times faster than a Go map. The inner loops of all
// models use it to look up pairs of tokens and edges of tries. Its hash function is seeded at
// random, so that no file can make all its keys collide.
type hashTable[V any] struct {
	slots      []hashSlot[V]
	multiplier uint64
	shift      uint8
	count      int
}

type hashSlot[V any] struct {
	key   uint64 // the key plus one; 0 marks a free slot
	value V
}

// newHashTable returns a table with room for n keys.
func newHashTable[V any](n int) *hashTable[V] {
	size := max(bits.Len(uint(n)), 3) + 1
	return &hashTable[V]{
		slots:      make([]hashSlot[V], 1<<size),
		multiplier: rand.Uint64() | 1,
		shift:      uint8(64 - size),
	}
}

// slot returns the slot of key, or the free slot for it if the table lacks key.
func (t *hashTable[V]) slot(key uint64) *hashSlot[V] {
	slots := t.slots
	i := (key + 1) * t.multiplier >> t.shift
	for {
		s := &slots[i&uint64(len(slots)-1)]
		if s.key == 0 || s.key == key+1 {
			return s
		}
		i++
	}
}

// get returns the value of key, or the zero value if the table lacks key. The largest
// uint64 is not a valid key.
func (t *hashTable[V]) get(key uint64) V { return t.slot(key).value }

// set sets the value of key.
func (t *hashTable[V]) set(key uint64, value V) {
	s := t.slot(key)
	if s.key == 0 {
		if 2*(t.count+1) > len(t.slots) {
			t.double()
			s = t.slot(key)
		}
		s.key = key + 1
		t.count++
	}
	s.value = value
}

func (t *hashTable[V]) double() {
	old := t.slots
	t.slots = make([]hashSlot[V], 2*len(old))
	t.shift--
	for _, s := range old {
		if s.key != 0 {
			*t.slot(s.key - 1) = s
		}
	}
}
