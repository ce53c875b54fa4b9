package cpu

import (
	"testing"

	"golang.org/x/sys/cpu"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// needAVX2 skips a test of the assembly if the processor cannot run it.
func needAVX2(tb testing.TB) {
	if !cpu.X86.HasAVX2 || !hasF16C() {
		tb.Skip("the processor has no AVX2 or no F16C")
	}
}

// tiledSets returns the assembly products that this processor can run.
func tiledSets(tb testing.TB) map[string]map[dtype.Type]tiledFunc {
	needAVX2(tb)
	sets := map[string]map[dtype.Type]tiledFunc{"avx2": tiledAVX2()}
	if hasAVX512() {
		sets["avx512"] = tiledAVX512()
	}
	if hasAMX() {
		sets["amx"] = tiledAMX()
	}
	return sets
}
