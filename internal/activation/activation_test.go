package activation_test

import (
	"math"
	"testing"

	"github.com/pianola-engine/pianola/internal/activation"
)

// TestFunctions checks that each function has a name, a formula and exactly one reference, and
// that no config.json name belongs to two functions.
func TestFunctions(t *testing.T) {
	seen := map[string]bool{}
	for i, f := range activation.Functions {
		if f.Name == "" || f.Formula == "" || f.Shader == "" || len(f.Configs) == 0 || (f.Of == nil) == (f.OfPair == nil) {
			t.Errorf("function %d is incomplete: %+v", i, f)
		}
		for _, name := range f.Configs {
			if seen[name] {
				t.Errorf("the config.json name %s belongs to two functions", name)
			}
			seen[name] = true
			if id, ok := activation.ByConfig(name); !ok || int(id) != i {
				t.Errorf("%s is function %d, %v, want %d", name, id, ok, i)
			}
		}
	}
	if _, ok := activation.ByConfig("relu"); ok {
		t.Error("ByConfig accepts relu, which is not declared")
	}
}

// TestValues compares the references with published values of the functions.
func TestValues(t *testing.T) {
	for _, tt := range []struct {
		id      uint32
		x, want float64
	}{
		{activation.SiLU, 1, 0.7310585786}, {activation.GELUTanh, 1, 0.8411919906}, {activation.GELU, 1, 0.8413447461}, {activation.GELU, -2, -0.0455002639}, {activation.ReLUSquared, 3, 9}, {activation.ReLUSquared, -3, 0},
	} {
		if got := activation.Functions[tt.id].Of(tt.x); math.Abs(got-tt.want) > 1e-9 {
			t.Errorf("%s of %v is %v, want %v", activation.Functions[tt.id].Name, tt.x, got, tt.want)
		}
	}
	if got := activation.Functions[activation.ClampedSwiGLU].OfPair(9, -9, 7); math.Abs(got+42*0.9999933) > 1e-3 {
		t.Errorf("clamped_swiglu of gate 9 and up -9 with limit 7 is %v", got)
	}
}
