package metal

import (
	"cmp"
	"slices"
)

// span is bytes of a mapping, from offset first to before end.
type span struct{ first, end uint64 }

// windows cuts a mapping into as few buffers as a limit allows: each is whole
// pages and has whole tensors. Two may share the page where one ends and the
// next begins. at has the window of each tensor, or -1 where its pages are more
// than the limit.
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
