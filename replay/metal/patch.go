package metal

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/metal/driver"
	"github.com/pianola-engine/pianola/table"
)

// The kernel patch advances a recorded token. It is the first command of each token and runs as
// one threadgroup. It writes the values of the step block to the secondary bytes of the
// program's patched commands and advances the step block to the next token. If the stop flag is
// set, it does neither. Its arguments have the same form as those of other kernels. Binding 0
// is a list of patches of 8 bytes, binding 1 the records of 16 bytes to which they write.
//
// If the stop flag may be set within a command buffer, a token's list ends with a patch for one
// more record, the token's execution range. The patch writes the step's Row as the length of
// the range, because programs for one row or a batch do not use Row otherwise. After a stop the patch does
// not write, and the range keeps the length 0 that the host has set.

const (
	patchThreads = 256
	patchAlign   = 16
)

// rangeLength is the offset of the length in an execution range.
const rangeLength = 4

// appendRange appends the patch of a token's execution range.
func appendRange(b []byte, record uint32) []byte {
	return device.AppendPatch(b, record, table.PatchRow, false, rangeLength)
}

// ranged reports whether a program's tokens have execution ranges: it writes tokens, one row at a
// time or one for each row of a batch, and no command uses the step's Row.
func ranged(t *table.Table, p *table.Program) bool {
	if p.MaxRows != 1 && !p.Flags.Has(table.FlagBatch) {
		return false
	}
	steps := false
	for i := range t.ProgramCmds(p) {
		c := &t.Cmds[int(p.First)+i]
		k, _ := decl.Lookup(c.Kernel)
		steps = steps || k.Step
		if c.Patch.Kind() == table.PatchRow {
			return false
		}
	}
	return steps
}

// driverPlace returns the step's position in the form that chains use.
func driverPlace(s *table.Step) driver.Place {
	return driver.Place{Position: s.Position, KVRow: s.KVRow, KVLen: s.KVLen, TokenIndex: s.TokenIndex, Row: s.Row, Rows: s.Rows}
}
