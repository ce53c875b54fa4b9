package replay

import (
	"slices"
	"testing"
)

// TestPasses checks which tables tell the scheduler that passes should fill their programs.
func TestPasses(t *testing.T) {
	for _, c := range []struct{ programs, want []int }{
		{[]int{32, 64, 128, 256, 384, 512}, []int{32, 64, 128, 256, 384, 512}},
		{[]int{32, 256, 512}, nil}, // too few programs
		{[]int{512}, nil},
		{nil, nil},
	} {
		p := &pool{m: &Model{}}
		p.heads[0], p.batch[0] = []batchProgram{{rows: 64}}, []batchProgram{{rows: 64}}
		for _, n := range c.programs {
			p.fill = append(p.fill, batchProgram{rows: n})
		}
		if got := p.passes(); !slices.Equal(got, c.want) {
			t.Errorf("programs for %d rows: %d, want %d", c.programs, got, c.want)
		}
	}
}
