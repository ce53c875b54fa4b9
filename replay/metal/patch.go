package metal

import (
	"encoding/binary"

	"github.com/pianola-engine/pianola/replay/metal/driver"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/table/decl"
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
	patchSize    = 8
	patchThreads = 256
	patchAlign   = 16
)

// appendPatch appends one patch to a list.
func appendPatch(b []byte, record uint32, kind table.Patch, rows bool, offsets [2]uint8) []byte {
	flag := byte(0)
	if rows {
		flag = 1
	}
	b = binary.LittleEndian.AppendUint32(b, record)
	return append(b, byte(kind), flag, offsets[0], offsets[1])
}

// patchList appends the patches of a program.
func patchList(b []byte, t *table.Table, p *table.Program) []byte {
	for i := range t.ProgramCmds(p) {
		if c := &t.Cmds[int(p.First)+i]; c.Patch != table.PatchNone {
			b = appendPatch(b, p.First+uint32(i), c.Patch.Kind(), c.Patch&table.PatchRows != 0, c.PatchOffset)
		}
	}
	return b
}

// rangeLength is where in a range its length is.
const rangeLength = 4

// appendRange appends the patch of a token's execution range.
func appendRange(b []byte, record uint32) []byte {
	return appendPatch(b, record, table.PatchRow, false, [2]uint8{rangeLength, table.NoPatch})
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

// Offsets of the step block, as shaders/params.h has them.
const (
	stepStop  = 32
	stepCount = 36
)

// Values of the stop flag. A kernel looks only whether it is 0.
const (
	stopID  = 0xff    // mask of what argmax writes
	stopDry = 1 << 16 // set from the start: replaying without kernels
)

// putStep encodes a step block, or its beginning.
func putStep(b []byte, s *table.Step) {
	le := binary.LittleEndian
	le.PutUint64(b, s.RNG)
	for i, v := range [...]uint32{s.Position, s.KVRow, s.KVLen, s.TokenIndex, s.Row, s.Rows} {
		le.PutUint32(b[8+4*i:], v)
	}
	if len(b) == driver.PlaceBytes {
		return
	}
	le.PutUint32(b[stepStop:], s.Stop)
	clear(b[stepCount:table.StepSize])
}

// advance moves a step some tokens on, as the kernel patch does for each.
func advance(s *table.Step, tokens uint32) {
	n := s.Rows * tokens
	s.Position += n
	s.KVRow += n
	s.KVLen += n
	s.TokenIndex += n
}

// driverPlace is where a step is, as chains have it.
func driverPlace(s *table.Step) driver.Place {
	return driver.Place{Position: s.Position, KVRow: s.KVRow, KVLen: s.KVLen, TokenIndex: s.TokenIndex, Row: s.Row, Rows: s.Rows}
}
