package dtype_test

import (
	"testing"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// TestNotFinite puts NaN where a type's blocks have scales.
func TestNotFinite(t *testing.T) {
	for _, typ := range dtype.All() {
		elems, size := typ.Block()
		b := make([]byte, 3*size)
		if n, _ := dtype.NotFinite(typ, b); n != 0 {
			t.Errorf("%s: %d of zeros", typ, n)
		}
		if typ == dtype.F32 || typ == dtype.F64 || typ.Quantized() && typ < dtype.MLX2 || typ == dtype.F16 || typ == dtype.BF16 {
			for i := 2 * size; i < len(b); i++ {
				b[i] = 0xff
			}
			if n, first := dtype.NotFinite(typ, b); n != 1 || first != 2*elems {
				t.Errorf("%s: %d, the first %d", typ, n, first)
			}
		}
	}
	if n, _ := dtype.NotFinite(dtype.Invalid, []byte{1}); n != 0 {
		t.Error("an invalid type has numbers")
	}
}
