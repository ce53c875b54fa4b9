package metal

import (
	"cmp"
	"slices"
)

// span is the range [first, end) of a mapping.
type span struct{ first, end uint64 }

// windows cuts a mapping into as few buffers as the limit allows. Each consists of whole pages
// and contains whole tensors; two may share the page where one ends and the next begins. at is
// the window of each tensor, or -1 if the tensor's pages exceed the limit.
func windows(tensors []span, page, limit uint64) (cut []span, at []int) {
	order := make([]int, len(tensors))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(tensors[a].first, tensors[b].first) })
	at = make([]int, len(tensors))
	for _, i := range order {
		t := tensors[i]
		first, end := t.first&^(page-1), (t.end+page-1)&^(page-1)
		if end < t.end || end-first > limit {
			at[i] = -1
			continue
		}
		if n := len(cut); n > 0 && max(end, cut[n-1].end)-cut[n-1].first <= limit {
			cut[n-1].end = max(end, cut[n-1].end)
		} else {
			cut = append(cut, span{first, end})
		}
		at[i] = len(cut) - 1
	}
	return cut, at
}
