package table_test

import (
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/table"
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
		ok := table.Draft(draft, c.history, c.most, c.least)
		if !ok {
			draft = nil
		}
		if !slices.Equal(draft, c.want) {
			t.Errorf("%s: %v, want %v", c.name, draft, c.want)
		}
	}
}
