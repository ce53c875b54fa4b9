package bench

import "testing"

func TestPercentile(t *testing.T) {
	list := make([]float64, 200)
	for i := range list {
		list[i] = float64(200 - i)
	}
	for _, c := range []struct {
		list []float64
		p    int
		want float64
	}{{nil, 99, 0}, {[]float64{3}, 99, 3}, {[]float64{3, 1}, 50, 1}, {list, 50, 100}, {list, 99, 198}} {
		if got := percentile(c.list, c.p); got != c.want {
			t.Errorf("%d of %d values: %v, want %v", c.p, len(c.list), got, c.want)
		}
	}
}
