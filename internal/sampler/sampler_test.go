package sampler

import (
	"cmp"
	"math"
	"testing"
	"unsafe"
)

// TestOrderKey checks that keys of all kinds of floats have the order of the floats.
func TestOrderKey(t *testing.T) {
	inf := float32(math.Inf(1))
	list := []float32{-Limit, -1e10, -1, -1e-40, 0, 1e-45, 1e-40, 0.5, 1, math.Nextafter32(1, 2), 1e20, Limit}
	for i, a := range list {
		if got := KeyValue(OrderKey(a)); got != a {
			t.Errorf("KeyValue returns %[2]v for the key of %[1]v", a, got)
		}
		for j, b := range list {
			if got := cmp.Compare(OrderKey(a), OrderKey(b)); got != cmp.Compare(i, j) {
				t.Errorf("%v and %v: %d", a, b, got)
			}
		}
	}
	for _, c := range []struct {
		v    float32
		want uint32
	}{
		{inf, OrderKey(Limit)}, {math.MaxFloat32, OrderKey(Limit)}, {-math.MaxFloat32, OrderKey(-Limit)},
		{-inf, 0}, {float32(math.NaN()), 0}, {float32(math.Copysign(math.NaN(), -1)), 0}, {float32(math.Copysign(0, -1)), OrderKey(0)},
	} {
		if got := OrderKey(c.v); got != c.want {
			t.Errorf("%v: key %#x, want %#x", c.v, got, c.want)
		}
	}
}

// TestSampler encodes every field of Settings and decodes it.
func TestSampler(t *testing.T) {
	want := Settings{Seed: 1<<40 + 7, InvTemperature: 0.5, TopK: 3, TopP: 4, TopPScale: 5, MinPDrop: 6, Repetition: 7, Presence: 8, Frequency: 9, Window: 10, Biases: 11, Ranked: 12}
	var b [Words * 4]byte
	want.Put(&b)
	var words [Words]uint32
	for i := range words {
		words[i] = uint32(b[4*i]) | uint32(b[4*i+1])<<8 | uint32(b[4*i+2])<<16 | uint32(b[4*i+3])<<24
	}
	if got := Parse(words[:]); got != want {
		t.Errorf("Put and Parse turn %+v into %+v", want, got)
	}
	if got := unsafe.Sizeof(want); got != Words*4 {
		t.Errorf("%d bytes", got)
	}
}
