package table

import (
	"encoding/binary"

	"github.com/pianola-engine/pianola/internal/decl"
)

// NoSlot is the slot of a binding that is not there.
const NoSlot = ^uint32(0)

// Binding is a buffer argument: a slot and a byte offset in it.
type Binding struct {
	Slot   uint32
	_      uint32
	Offset uint64
}

// Cmd is one kernel dispatch: plain old data, 256 bytes, the same layout in C
// (shaders/params.h). Which bindings, parameters and secondary fields it has
// follows from its kernel's declaration.
type Cmd struct {
	Kernel      decl.ID
	Spec        uint16 // index in Table.Specs
	Bindings    uint8  // how many, absent ones in between included
	ParamSize   uint8
	SecondSize  uint8 // 0 or 16
	Patch       Patch
	PatchOffset [2]uint8 // in Second, of the patch kind's first and second value; NoPatch if unused
	Barrier     uint8    // 1: all commands before must have finished
	_           uint8
	TGMem       uint32    // bytes of threadgroup memory
	Grid        [3]uint32 // in threadgroups
	Threadgroup [3]uint32
	Bind        [decl.MaxBindings]Binding
	Param       [decl.ParamBytes]byte
	Second      [decl.SecondBytes]byte
	_           [8]byte
}

// CmdSize is the size of a Cmd in bytes, in memory and in a roll.
const CmdSize = 256

// NoPatch marks a patch offset that is not used.
const NoPatch = 0xff

// Patch says which of a command's secondary bytes change from token to token:
// a kind, and PatchRows if the number of rows changes too. Patches write
// 32-bit values from a step record into Second, never into Param.
type Patch uint8

// Patch kinds. The first value goes to PatchOffset[0], the second to
// PatchOffset[1].
const (
	PatchNone     Patch = iota
	PatchToken          // token index
	PatchPosition       // position
	PatchKVLen          // KV length
	PatchPosKV          // position, and KV length
	PatchArgmax         // token index + rows: where the next token goes
	PatchRow            // first row, of programs that read some rows of a chunk
	patchKinds

	PatchRows Patch = 0x80 // added to a kind: rows go to decl.SecondRows
)

// Kind returns the kind without PatchRows.
func (p Patch) Kind() Patch { return p &^ PatchRows }

// String returns the kind's name, with "+rows" if rows are patched.
func (p Patch) String() string {
	names := [...]string{"none", "token", "position", "kv_len", "position+kv_len", "argmax", "row"}
	k := p.Kind()
	if k >= patchKinds {
		return "invalid"
	}
	switch {
	case p&PatchRows == 0:
		return names[k]
	case k == PatchNone:
		return "rows"
	}
	return names[k] + "+rows"
}

// Step is a row record of the step block: where a token is. The block is an
// array of them, one now. A device keeps it in memory that kernels can read;
// the layout is the same in C (shaders/params.h).
type Step struct {
	RNG        uint64 // counter of the random generator
	Position   uint32 // of the first row
	KVRow      uint32 // KV cache row of the first row, before mod capacity
	KVLen      uint32 // positions that the first row sees, itself included
	TokenIndex uint32 // of the first row, in the token ring
	Row        uint32 // first row of the chunk that the program reads; of verify, the one that chose the last token
	Rows       uint32 // rows that are there
	Stop       uint32 // not 0: kernels do nothing
	Count      uint32 // tokens written since the submission began
	Cancel     uint32 // set from outside at any time: the next token becomes a stop
	Drafted    uint32 // tokens that were drafted since the submission began
	Accepted   uint32 // of them, those that were chosen
	Trust      uint32 // a speculate.Trust: in the drafts that come
	Until      uint32 // token index at which verification ends, 0: where it is told to
	_          uint32
}

// MaxDraft is the largest number of tokens that a draft may have.
const MaxDraft = 31

// StopUntil is the stop flag of verification that has come to Until.
const StopUntil = 512

// StepSize is the size of a Step in bytes.
const StepSize = 64

// value returns what a patch kind writes first.
func (s *Step) value(k Patch) uint32 {
	switch k {
	case PatchToken:
		return s.TokenIndex
	case PatchPosition, PatchPosKV:
		return s.Position
	case PatchKVLen:
		return s.KVLen
	case PatchArgmax:
		return s.TokenIndex + s.Rows
	case PatchRow:
		return s.Row
	}
	return 0
}

// Apply writes the patched values of c for step s to second, which must hold
// a copy of c.Second.
func (c *Cmd) Apply(s *Step, second *[decl.SecondBytes]byte) {
	if c.Patch == PatchNone {
		return
	}
	k := c.Patch.Kind()
	if k != PatchNone {
		putAt(second, c.PatchOffset[0], s.value(k))
	}
	if k == PatchPosKV {
		putAt(second, c.PatchOffset[1], s.KVLen)
	}
	if c.Patch&PatchRows != 0 {
		putAt(second, decl.SecondRows, s.Rows)
	}
}

// putAt writes v at an offset that Validate bounded; one past the end is
// ignored rather than trusted.
func putAt(second *[decl.SecondBytes]byte, offset uint8, v uint32) {
	if int(offset)+4 <= len(second) {
		binary.LittleEndian.PutUint32(second[offset:], v)
	}
}

// Tiles returns the number of threadgroups of the grid.
func (c *Cmd) Tiles() int {
	return int(uint64(c.Grid[0]) * uint64(c.Grid[1]) * uint64(c.Grid[2]))
}

func (c *Cmd) u32(off int) uint32 { return binary.LittleEndian.Uint32(c.Param[off:]) }

// PutSecond sets a secondary field's static value.
func (c *Cmd) PutSecond(off int, v uint32) {
	binary.LittleEndian.PutUint32(c.Second[off:], v)
	c.SecondSize = decl.SecondBytes
}

// Field returns the secondary field at off of patched secondary bytes.
func Field(second *[decl.SecondBytes]byte, off int) uint32 {
	return binary.LittleEndian.Uint32(second[off : off+4])
}
