package device

import "testing"

// TestScale scales progress counts whose products need more than 64 bits.
func TestScale(t *testing.T) {
	const big = 5 << 32
	for _, c := range []struct{ n, all, of, want uint64 }{
		{0, 7, 3, 0}, {3, 7, 3, 7}, {big / 2, big, big, big / 2}, {big - 4, 2 * big, big, 2*big - 8}, {big, big + 96, big, big + 96},
		{1<<63 - 1, 1<<64 - 2, 1<<63 - 1, 1<<64 - 2},
	} {
		if got := scale(c.n, c.all, c.of); got != c.want {
			t.Errorf("%d of %d in %d: %d, want %d", c.n, c.of, c.all, got, c.want)
		}
	}
}
