package cpu

import (
	"testing"

	"golang.org/x/sys/cpu"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// tiledSets returns the assembly products that this processor can run.
func tiledSets(tb testing.TB) map[string]map[dtype.Type]tiledFunc {
	if !cpu.ARM64.HasASIMDDP {
		tb.Skip("the processor has no dot product")
	}
	sets := map[string]map[dtype.Type]tiledFunc{"neon": tiledNEON()}
	if cpu.ARM64.HasI8MM {
		sets["i8mm"] = tiledMatrixNEON()
	}
	return sets
}
