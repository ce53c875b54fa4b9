package tokenizer

import (
	"hash/maphash"
	"strings"
	"sync/atomic"
)

// wordCache caches the tokens of words. It is direct-mapped: each word has one slot, and a new
// word replaces the old one. So its size is bounded and it needs no lock. If two goroutines
// race for a slot, one of the words is merged again later.
type wordCache struct {
	seed  maphash.Seed
	slots []atomic.Pointer[cachedWord]
}

type cachedWord struct {
	word string
	ids  []int32
}

const (
	cacheSlots = 1 << 14
	// cachedLength is the length in bytes of the longest word that is stored. It bounds the
	// cache at about 5 MiB.
	cachedLength = 48
)

func newWordCache() *wordCache {
	return &wordCache{
		seed:  maphash.MakeSeed(),
		slots: make([]atomic.Pointer[cachedWord], cacheSlots),
	}
}

func (c *wordCache) slot(word string) *atomic.Pointer[cachedWord] {
	return &c.slots[maphash.String(c.seed, word)%cacheSlots]
}

// store keeps copies of word and ids.
func (c *wordCache) store(slot *atomic.Pointer[cachedWord], word string, ids []int32) {
	slot.Store(&cachedWord{strings.Clone(word), append([]int32(nil), ids...)})
}
