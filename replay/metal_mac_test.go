//go:build darwin && cgo && !softmetal

package replay_test

import (
	"errors"
	"testing"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/metal/kernels"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/metal"
)

// TestMetal runs the tests of every device on the GPU of this machine.
func TestMetal(t *testing.T) {
	k, err := kernels.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range metal.Modes() {
		for _, c := range sessionTests {
			if c.name == "Chunks" {
				continue // chunks of one row use other kernels, which add in another order
			}
			t.Run(mode+"/"+c.name, func(t *testing.T) {
				c.run(t, func(t testing.TB, name string, chunk int, o compiler.Options) *replay.Model {
					t.Helper()
					dev, err := metal.New(metal.Options{Mode: mode, Kernels: k})
					if errors.Is(err, metal.ErrNoMetal) {
						t.Skipf("no GPU to run on: %v", err)
					} else if err != nil {
						t.Fatal(err)
					}
					return loadedOn(t, dev, "m4-pro", name, chunk, o)
				})
			})
		}
	}
}
