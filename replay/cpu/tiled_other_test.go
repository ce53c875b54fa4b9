//go:build !amd64 && !arm64

package cpu

import (
	"testing"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// tiledSets returns the assembly products: none on this architecture.
func tiledSets(tb testing.TB) map[string]map[dtype.Type]tiledFunc {
	tb.Skip("there is no assembly for this architecture")
	return nil
}
