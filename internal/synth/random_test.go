package synth

import (
	"math"
	"testing"
)

// TestNormals checks that the table has the moments of the normal distribution. It also checks
// that no quantile is so close to the border between two multiples of 2^-16 that the last bits
// of Erfinv could change its rounding.
func TestNormals(t *testing.T) {
	table := normals()
	var sum, squares, fourth float64
	for i, v := range table {
		if i > 0 && v < table[i-1] {
			t.Fatalf("entry %d is smaller than the previous one", i)
		}
		if v != -table[len(table)-1-i] {
			t.Fatalf("the table is not symmetric at entry %d", i)
		}
		x := float64(v)
		sum += x
		squares += x * x
		fourth += x * x * x * x
		steps := quantile(i) * (1 << 16)
		if border := math.Abs(steps - math.Floor(steps) - 0.5); border < 1e-9 {
			t.Errorf("entry %d is only %v steps from a rounding border", i, border)
		}
	}
	n := float64(len(table))
	if sum != 0 || math.Abs(squares/n-1) > 1e-3 || math.Abs(fourth/n-3) > 0.02 {
		t.Errorf("moments: %v, %v, %v; want 0, 1, 3", sum/n, squares/n, fourth/n)
	}
	if table[1<<16*3/4] < 0.6744 || table[1<<16*3/4] > 0.6746 {
		t.Errorf("the upper quartile is %v", table[1<<16*3/4])
	}
}
