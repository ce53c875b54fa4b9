package dtype_test

import (
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/dtype"
)

func TestBytes(t *testing.T) {
	tests := []struct {
		typ  dtype.Type
		n    uint64
		want uint64
		ok   bool
	}{
		{dtype.F32, 3, 12, true},
		{dtype.Q4_0, 0, 0, true},
		{dtype.Q4_0, 64, 36, true},
		{dtype.Q4_0, 48, 0, false},
		{dtype.Q6_K, 512, 420, true},
		{dtype.Q6_K, 128, 0, false},
		{dtype.F64, 1 << 60, 0, false}, // 2^63
		{dtype.F64, 1<<60 - 1, 1<<63 - 8, true},
		{dtype.F32, 1 << 63, 0, false}, // past 64 bits
		{dtype.Invalid, 1, 0, false},
		{dtype.Type(255), 1, 0, false},
	}
	for _, test := range tests {
		if got, ok := test.typ.Bytes(test.n); got != test.want || ok != test.ok {
			t.Errorf("%s: %d elements: got %d, %v, want %d, %v", test.typ, test.n, got, ok, test.want, test.ok)
		}
	}
}

func TestParse(t *testing.T) {
	for _, typ := range dtype.All() {
		for _, name := range []string{typ.String(), strings.ToLower(typ.String())} {
			if got, err := dtype.Parse(name); got != typ || err != nil {
				t.Errorf("%s: got %s, %v", name, got, err)
			}
		}
	}
	for _, name := range []string{"", "invalid", "Q7_0", "type(3)"} {
		if got, err := dtype.Parse(name); err == nil {
			t.Errorf("%q: got %s", name, got)
		}
	}
	if got := dtype.Type(200).String(); got != "type(200)" {
		t.Errorf("got %s", got)
	}
}
