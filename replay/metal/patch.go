package metal

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/metal/driver"
	"github.com/pianola-engine/pianola/table"
)

// The kernel patch is how a recorded token finds out where it is. It runs first
// in each token, as one threadgroup: it writes the values of the step block to
// the secondary bytes of the program's patched commands and moves the step block
// on to the next token. If the stop flag is set it does neither. Its arguments
// are those of any kernel; binding 0 is a list of patches of 8 bytes, binding 1
// the records of 16 bytes that they write to.
//
// Where the stop flag may be set in the middle, a token's list ends with a patch
// of one record more: the token's execution range. Its length is a value of the
// step block that programs of one row have no other use for, the first row. A
// token behind a stop leaves its range as the host has made it, empty.

const (
	patchThreads = 256
	patchAlign   = 16
)

// rangeLength is where in a range its length is.
const rangeLength = 4

// appendRange appends the patch of a token's execution range.
func appendRange(b []byte, record uint32) []byte {
	return device.AppendPatch(b, record, table.PatchRow, false, [2]uint8{rangeLength, table.NoPatch})
}

// ranged reports whether a program's tokens have execution ranges: it writes
// tokens, one row at a time, and no command looks at the first row.
func ranged(t *table.Table, p *table.Program) bool {
	if p.MaxRows != 1 {
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

// driverPlace is where a step is, as chains have it.
func driverPlace(s *table.Step) driver.Place {
	return driver.Place{Position: s.Position, KVRow: s.KVRow, KVLen: s.KVLen, TokenIndex: s.TokenIndex, Row: s.Row, Rows: s.Rows}
}
