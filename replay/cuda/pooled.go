package cuda

import (
	"errors"
	"fmt"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/table"
)

// checkPooled returns an error for a table for many sequences if the texts have no kernels for it, or if it
// uses a form of attn_tile that has not given the results of a session on a GPU: with two float16 terms, and
// for heads that are larger than 64 elements and no multiple of 64. On an H200, a third of the generations
// differed there, and none in the other forms. The emulator does not show the difference.
func checkPooled(m *Modules, t *table.Table) error {
	if !m.Pooled {
		return device.CheckOwn(name, t)
	}
	if _, pooled := sequence.Of(t.Header.Options, int(t.Header.Context)); !pooled {
		return nil
	}
	return device.EachCmd(name, t, func(_ int, _ *table.Program, c *table.Cmd) error {
		if c.Kernel != kernels.AttnTile || int(c.Spec) >= len(t.Specs) {
			return nil
		}
		values := t.Specs[c.Spec].Values
		act, size := kernels.AttnTileSpecAct, kernels.AttnTileSpecHeadDim
		if values[act] == decl.ActF16x2 {
			return errors.New("exact attention of many sequences is not supported on this device yet")
		}
		if d := values[size]; d > 64 && d%64 != 0 {
			return fmt.Errorf("attention of many sequences with heads of %d elements is not supported on this device yet", d)
		}
		return nil
	})
}
