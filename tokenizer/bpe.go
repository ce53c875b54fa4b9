package tokenizer

import "math"

// pair is two neighbouring tokens.
type pair struct{ left, right int32 }

// unranked is the rank of a pair that does not merge.
const unranked = math.MaxInt32

// merges are the rules of byte-pair encoding in order of rank: the lower a
// rule's rank, the earlier it applies.
type merges struct {
	rank   map[pair]int32
	result []int32 // [rank], the token that the pair becomes
}

func (m *merges) rankOf(left, right int32) int32 {
	if r, ok := m.rank[pair{left, right}]; ok {
		return r
	}
	return unranked
}

// merger applies merges to one word at a time. It keeps its buffers.
type merger struct {
	*merges
	ranks, prev, next []int32
	queue             rankQueue
}

// shortWord is the length in bytes up to which scanning all pairs for the best
// one is faster than a heap.
const shortWord = 48

// merge returns the tokens that the word of byte tokens ids becomes, in place:
// always the pair of the lowest rank merges next, the leftmost of equals. It
// takes O(n log n) time and linear memory.
func (m *merger) merge(ids []int32) []int32 {
	if len(ids) <= shortWord {
		return m.mergeShort(ids)
	}
	return m.mergeLong(ids)
}

func (m *merger) mergeShort(ids []int32) []int32 {
	ranks := m.ranks[:0]
	for i := 1; i < len(ids); i++ {
		ranks = append(ranks, m.rankOf(ids[i-1], ids[i]))
	}
	m.ranks = ranks
	for len(ranks) > 0 {
		best := 0
		for i, r := range ranks {
			if r < ranks[best] {
				best = i
			}
		}
		if ranks[best] == unranked {
			break
		}
		ids[best] = m.result[ranks[best]]
		copy(ids[best+1:], ids[best+2:])
		ids = ids[:len(ids)-1]
		copy(ranks[best:], ranks[best+1:])
		ranks = ranks[:len(ranks)-1]
		if best > 0 {
			ranks[best-1] = m.rankOf(ids[best-1], ids[best])
		}
		if best < len(ranks) {
			ranks[best] = m.rankOf(ids[best], ids[best+1])
		}
	}
	return ids
}

// mergeLong keeps the tokens as a linked list by index and the pairs that can
// merge in a heap. A heap entry is stale when its rank is no longer the rank of
// the pair at its position; a rank belongs to one pair, so that equality is
// enough.
func (m *merger) mergeLong(ids []int32) []int32 {
	n := int32(len(ids))
	m.ranks = grow(m.ranks, len(ids))
	m.prev = grow(m.prev, len(ids))
	m.next = grow(m.next, len(ids))
	m.queue = m.queue[:0]
	ranks, prev, next := m.ranks, m.prev, m.next
	for i := range n {
		prev[i], next[i] = i-1, i+1
		ranks[i] = unranked
		if i+1 < n {
			ranks[i] = m.rankOf(ids[i], ids[i+1])
		}
		if ranks[i] != unranked {
			m.queue = append(m.queue, entry(ranks[i], i))
		}
	}
	m.queue.init()
	update := func(i int32) {
		ranks[i] = unranked
		if next[i] < n {
			ranks[i] = m.rankOf(ids[i], ids[next[i]])
		}
		if ranks[i] != unranked {
			m.queue.push(entry(ranks[i], i))
		}
	}
	for len(m.queue) > 0 {
		e := m.queue.pop()
		rank, i := int32(e>>32), int32(e&math.MaxUint32)
		if ranks[i] != rank {
			continue
		}
		gone := next[i]
		ids[i] = m.result[rank]
		ranks[gone] = unranked
		next[i] = next[gone]
		if next[i] < n {
			prev[next[i]] = i
		}
		update(i)
		if prev[i] >= 0 {
			update(prev[i])
		}
	}
	out := ids[:0]
	for i := int32(0); i < n; i = next[i] {
		out = append(out, ids[i])
	}
	return out
}

// grow returns a slice of length n, s's memory if it is large enough.
func grow(s []int32, n int) []int32 {
	if cap(s) < n {
		return make([]int32, n)
	}
	return s[:n]
}

// rankQueue is a heap of entries: rank in the high half, position in the low
// half, so that the smallest is the leftmost pair of the lowest rank.
type rankQueue []uint64

func entry(rank, position int32) uint64 { return uint64(rank)<<32 | uint64(position) }

func (q rankQueue) init() {
	for i := len(q)/2 - 1; i >= 0; i-- {
		q.down(i)
	}
}

func (q *rankQueue) push(e uint64) {
	*q = append(*q, e)
	h := *q
	i := len(h) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent] <= h[i] {
			break
		}
		h[parent], h[i] = h[i], h[parent]
		i = parent
	}
}

func (q *rankQueue) pop() uint64 {
	h := *q
	top, last := h[0], len(h)-1
	h[0] = h[last]
	*q = h[:last]
	q.down(0)
	return top
}

func (q rankQueue) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(q) {
			return
		}
		if child+1 < len(q) && q[child+1] < q[child] {
			child++
		}
		if q[i] <= q[child] {
			return
		}
		q[i], q[child] = q[child], q[i]
		i = child
	}
}
