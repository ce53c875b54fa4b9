package tokenizer

import (
	"hash/maphash"
	"strings"
	"sync/atomic"
)

// wordCache remembers the tokens of words. It is direct-mapped: a word has one
// place, and the last word stored there stays. So it is bounded, needs no lock,
// and a lost race costs one repeated merge.
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
	// cachedLength is the longest word in bytes that is stored, which bounds the
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
