package tokenizer

import "math"

// pair is two neighbouring tokens.
type pair struct{ left, right int32 }

func (p pair) key() uint64 { return uint64(uint32(p.left))<<32 | uint64(uint32(p.right)) }

// unranked is the rank of a pair that does not merge.
const unranked = math.MaxInt32

// rule is the result of merging a pair. Rules of lower rank are applied first. Rules of a
// vocabulary with scores may share ranks. The zero rule means that the pair does not merge.
type rule struct {
	order  int32 // the rank plus one
	result int32
}

func (r rule) rank() int32 {
	if r.order == 0 {
		return unranked
	}
	return r.order - 1
}

// merges holds the rules of byte-pair encoding by pair.
type merges struct{ rules *hashTable[rule] }

func (m *merges) find(left, right int32) rule { return m.rules.get(pair{left, right}.key()) }

// merger applies merges to one word at a time. It reuses its buffers between words.
type merger struct {
	*merges
	ranks, results, prev, next []int32
	queue                      rankQueue

	// tracked marks the tokens that are split again after merging; nil marks none. origin is the
	// pair from which each of them was last merged.
	tracked []bool
	origin  map[int32]pair
}

// look returns the rule of a pair.
func (m *merger) look(left, right int32) rule {
	r := m.find(left, right)
	if m.tracked != nil && r.order != 0 && m.tracked[r.result] {
		m.origin[r.result] = pair{left, right}
	}
	return r
}

// shortWord is the length in bytes up to which scanning all pairs is faster than a heap.
const shortWord = 48

// merge merges the tokens of a word in place and returns the result. It repeatedly merges the
// pair of the lowest rank, and the leftmost of equal pairs. It takes O(n log n) time and
// linear memory.
func (m *merger) merge(ids []int32) []int32 {
	if len(ids) <= shortWord {
		return m.mergeShort(ids)
	}
	return m.mergeLong(ids)
}

func (m *merger) mergeShort(ids []int32) []int32 {
	n := len(ids) - 1 // pairs
	m.ranks, m.results = grow(m.ranks, max(n, 0)), grow(m.results, max(n, 0))
	ranks, results := m.ranks, m.results
	for i := range n {
		r := m.look(ids[i], ids[i+1])
		ranks[i], results[i] = r.rank(), r.result
	}
	for n > 0 {
		best := 0
		for i, r := range ranks[:n] {
			if r < ranks[best] {
				best = i
			}
		}
		if ranks[best] == unranked {
			break
		}
		ids[best] = results[best]
		copy(ids[best+1:], ids[best+2:])
		ids = ids[:n]
		copy(ranks[best:n], ranks[best+1:n])
		copy(results[best:n], results[best+1:n])
		n--
		if best > 0 {
			r := m.look(ids[best-1], ids[best])
			ranks[best-1], results[best-1] = r.rank(), r.result
		}
		if best < n {
			r := m.look(ids[best], ids[best+1])
			ranks[best], results[best] = r.rank(), r.result
		}
	}
	return ids
}

// mergeLong keeps the tokens in a linked list by index, and the pairs that can merge in a
// heap. A heap entry is stale if the pair at its position has another rank by the time it is
// removed. A different pair with the same rank may use the entry, because the entry equals the
// one pushed for that pair.
func (m *merger) mergeLong(ids []int32) []int32 {
	n := int32(len(ids))
	m.ranks, m.results = grow(m.ranks, len(ids)), grow(m.results, len(ids))
	m.prev, m.next = grow(m.prev, len(ids)), grow(m.next, len(ids))
	m.queue = m.queue[:0]
	ranks, results, prev, next := m.ranks, m.results, m.prev, m.next
	look := func(i int32) int32 {
		ranks[i] = unranked
		if next[i] < n {
			r := m.look(ids[i], ids[next[i]])
			ranks[i], results[i] = r.rank(), r.result
		}
		return ranks[i]
	}
	for i := range n {
		prev[i], next[i] = i-1, i+1
		if rank := look(i); rank != unranked {
			m.queue = append(m.queue, entry(rank, i))
		}
	}
	m.queue.init()
	for len(m.queue) > 0 {
		e := m.queue.pop()
		rank, i := int32(e>>32), int32(e&math.MaxUint32)
		if ranks[i] != rank {
			continue
		}
		gone := next[i]
		ids[i] = results[i]
		ranks[gone] = unranked
		next[i] = next[gone]
		if next[i] < n {
			prev[next[i]] = i
		}
		for _, left := range [...]int32{prev[i], i} {
			if left < 0 {
				continue
			}
			if rank := look(left); rank != unranked {
				m.queue.push(entry(rank, left))
			}
		}
	}
	out := ids[:0]
	for i := int32(0); i < n; i = next[i] {
		out = append(out, ids[i])
	}
	return out
}

// grow returns a slice of length n. It reuses the memory of s if that is large enough.
func grow(s []int32, n int) []int32 {
	if cap(s) < n {
		return make([]int32, n)
	}
	return s[:n]
}

// rankQueue is a heap of entries with the rank in the high half and the position in the low
// half, so the smallest entry is the leftmost pair of the lowest rank.
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
