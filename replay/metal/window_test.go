package metal

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestWindows(t *testing.T) {
	const page, limit = 16, 64
	for _, c := range []struct {
		what    string
		tensors []span
		cut     []span
		at      []int
	}{
		{"nothing", nil, nil, []int{}},
		{"one", []span{{3, 20}}, []span{{0, 32}}, []int{0}},
		{"all fit", []span{{3, 20}, {20, 64}}, []span{{0, 64}}, []int{0, 0}},
		{"one does not", []span{{3, 40}, {40, 72}}, []span{{0, 48}, {32, 80}}, []int{0, 1}},
		{"out of order", []span{{70, 80}, {0, 8}}, []span{{0, 16}, {64, 80}}, []int{1, 0}},
		{"a limit of pages", []span{{1, 64}, {65, 127}}, []span{{0, 64}, {64, 128}}, []int{0, 1}},
		{"too large", []span{{0, 8}, {8, 80}, {80, 96}}, []span{{0, 16}, {80, 96}}, []int{0, -1, 1}},
		{"too large with its pages", []span{{15, 79}}, nil, []int{-1}},
		{"the same bytes twice", []span{{16, 32}, {16, 32}, {8, 48}}, []span{{0, 48}}, []int{0, 0, 0}},
		{"the end of all", []span{{^uint64(0) - 3, ^uint64(0)}}, nil, []int{-1}},
	} {
		cut, at := windows(c.tensors, page, limit)
		if !slices.Equal(cut, c.cut) || !slices.Equal(at, c.at) {
			t.Errorf("%s: %v, %v, want %v, %v", c.what, cut, at, c.cut, c.at)
		}
	}
}

// TestWindowsHold checks the properties of windows for random mappings.
func TestWindowsHold(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		page := uint64(1) << (4 + r.IntN(4))
		limit := page * uint64(1+r.IntN(20))
		var tensors []span
		at := uint64(0)
		for range r.IntN(30) {
			at += r.Uint64N(3 * page)
			n := 1 + r.Uint64N(limit)
			tensors = append(tensors, span{at, at + n})
			if r.IntN(4) > 0 {
				at += n
			}
		}
		r.Shuffle(len(tensors), func(i, j int) { tensors[i], tensors[j] = tensors[j], tensors[i] })
		cut, in := windows(tensors, page, limit)
		for i, w := range cut {
			if w.first%page != 0 || w.end%page != 0 || w.first >= w.end || w.end-w.first > limit || i > 0 && w.first < cut[i-1].first {
				t.Fatalf("pages of %d, limit %d: window %v of %v", page, limit, w, cut)
			}
		}
		for i, x := range tensors {
			if in[i] < 0 {
				if (x.end+page-1)&^(page-1)-x.first&^(page-1) <= limit {
					t.Fatalf("pages of %d, limit %d: %v has no window", page, limit, x)
				}
				continue
			}
			if w := cut[in[i]]; x.first < w.first || x.end > w.end {
				t.Fatalf("%v is not within %v", x, w)
			}
		}
	}
}
