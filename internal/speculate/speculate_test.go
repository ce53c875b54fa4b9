package speculate_test

import (
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/speculate"
)

// TestDraft checks which earlier position a draft continues, and how the draft is continued
// beyond the end of the history.
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
		{"the draft repeats itself", []uint32{5, 4, 4, 4}, 4, 2, []uint32{4, 4, 4, 4, 4}},
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

// TestExpected checks which part of a draft is expected to be correct.
func TestExpected(t *testing.T) {
	for trust, want := range map[speculate.Trust]float64{0: 0.5, 3: 0.8, speculate.TrustFailed: 0.5} {
		if got := trust.Expected(); got != want {
			t.Errorf("trust %d: %g, want %g", trust, got, want)
		}
	}
}

// TestTrust checks how the lengths of drafts depend on the results of earlier drafts.
func TestTrust(t *testing.T) {
	history := make([]uint32, 20) // all tokens are equal, so every comparison matches
	draft := make([]uint32, 40)
	var trust speculate.Trust
	for i, c := range []struct{ drafted, right, want int }{
		{0, 0, 3}, {3, 3, 3}, {3, 3, 3}, {3, 3, 3}, {3, 3, 7}, {7, 7, 7}, {7, 7, 7}, {7, 7, 7}, {7, 7, 15}, // doubling
		{0, 0, 15},                       // an empty draft is not a failure
		{15, 8, 3}, {3, 1, 3}, {3, 3, 3}, // half correct, then a failure, then recovery
		{3, 3, 3}, {3, 3, 3}, {3, 3, 7}, {7, 0, 3},
	} {
		trust = trust.Judge(c.drafted, c.right)
		if got := speculate.Draft(draft, history, speculate.DraftMost, speculate.DraftLeast, trust); got != c.want {
			t.Fatalf("step %d: after %d of %d drafted tokens were accepted, Draft returns %d, want %d", i, c.right, c.drafted, got, c.want)
		}
	}
	few := []uint32{1, 2, 3, 4, 9, 1, 2, 3, 4}
	if n := speculate.Draft(draft, few, 15, 4, 0); n != 3 {
		t.Errorf("%d tokens are drafted after a match of four, want 3", n)
	}
	if n := speculate.Draft(draft, few, 15, 4, speculate.TrustFailed); n != 0 {
		t.Errorf("%d tokens are drafted after a failure, want 0", n)
	}
	if n := speculate.Draft(draft, history, 8, 4, ^speculate.Trust(0)); n > len(draft) || n < 0 {
		t.Errorf("%d tokens are drafted into a buffer of limited size", n)
	}
}
