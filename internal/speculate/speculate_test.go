package speculate_test

import (
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/speculate"
)

// TestDraft checks which place a draft comes from, and how it goes on.
func TestDraft(t *testing.T) {
	for _, c := range []struct {
		name        string
		history     []uint32
		most, least int
		want        []uint32
	}{
		{"the longest", []uint32{1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3}, 4, 2, []uint32{7, 9, 2, 3, 8}},
		{"the newest of the longest", []uint32{2, 3, 7, 9, 2, 3, 8, 5, 2, 3}, 4, 2, []uint32{8, 5, 2, 3, 8}},
		{"no longer than most", []uint32{1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3}, 2, 2, []uint32{8, 1, 2, 3, 8}},
		{"goes on with itself", []uint32{5, 4, 4, 4}, 4, 2, []uint32{4, 4, 4, 4, 4}},
		{"at least one", []uint32{6, 5, 1, 6}, 4, 1, []uint32{5, 1, 6, 5, 1}},
		{"too few", []uint32{6, 5, 1, 6}, 4, 2, nil},
		{"one token", []uint32{6}, 4, 1, nil},
		{"none", nil, 4, 1, nil},
	} {
		draft := make([]uint32, 5)
		draft = draft[:speculate.Draft(draft, c.history, c.most, c.least, 4)]
		if !slices.Equal(draft, c.want) {
			t.Errorf("%s: %v, want %v", c.name, draft, c.want)
		}
	}
}

// TestTrust checks how long drafts are after others.
func TestTrust(t *testing.T) {
	history := make([]uint32, 20) // all the same: as many in common as are asked for
	draft := make([]uint32, 40)
	var trust speculate.Trust
	for i, c := range []struct{ drafted, right, want int }{
		{0, 0, 3}, {3, 3, 3}, {3, 3, 3}, {3, 3, 3}, {3, 3, 7}, {7, 7, 7}, {7, 7, 7}, {7, 7, 7}, {7, 7, 15}, // as long as they are right
		{0, 0, 15},                       // none is no failure
		{15, 8, 3}, {3, 1, 3}, {3, 3, 3}, // half of it, then a failure, which is made good
		{3, 3, 3}, {3, 3, 3}, {3, 3, 7}, {7, 0, 3},
	} {
		trust = trust.Judge(c.drafted, c.right)
		if got := speculate.Draft(draft, history, speculate.DraftMost, speculate.DraftLeast, trust); got != c.want {
			t.Fatalf("%d: %d of %d were right, %d are drafted, want %d", i, c.right, c.drafted, got, c.want)
		}
	}
	few := []uint32{1, 2, 3, 4, 9, 1, 2, 3, 4}
	if n := speculate.Draft(draft, few, 15, 4, 0); n != 3 {
		t.Errorf("%d tokens are drafted where four are the same", n)
	}
	if n := speculate.Draft(draft, few, 15, 4, speculate.TrustFailed); n != 0 {
		t.Errorf("%d tokens are drafted after a failure", n)
	}
	if n := speculate.Draft(draft, history, 8, 4, ^speculate.Trust(0)); n > len(draft) || n < 0 {
		t.Errorf("%d tokens are drafted", n)
	}
}
