package table

import (
	"encoding/binary"

	"github.com/pianola-engine/pianola/internal/decl"
)

// NoSlot is the slot index of an absent binding.
const NoSlot = ^uint32(0)

// Binding is a buffer argument: a slot and a byte offset in it.
type Binding struct {
	Slot   uint32
	_      uint32
	Offset uint64
}

// KernelID identifies a kernel by the number in its declaration (package decl). The numbers are
// part of the .roll format; dumps show the names.
type KernelID = decl.ID

// Cmd is one kernel dispatch: plain old data, 256 bytes, with the same layout in C
// (shaders/params.h). The kernel's declaration determines which bindings, parameters and
// secondary fields a command has.
type Cmd struct {
	Kernel      KernelID
	Spec        uint16 // index in Table.Specs
	Bindings    uint8  // number of bindings, absent ones included
	ParamSize   uint8
	SecondSize  uint8 // 0 or 16
	Patch       Patch
	PatchOffset [2]uint8 // offset in Second that the patch kind's value is written to, NoPatch if unused; the second one is reserved
	Barrier     uint8    // 1: wait until all earlier commands have finished
	_           uint8
	TGMem       uint32    // bytes of threadgroup memory
	Grid        [3]uint32 // in threadgroups
	Threadgroup [3]uint32
	Bind        [decl.MaxBindings]Binding
	Param       [decl.ParamBytes]byte
	Second      [decl.SecondBytes]byte
	_           [8]byte
}

// cmdSize is the size of a Cmd in bytes, in memory and in a roll.
const cmdSize = 256

// NoPatch marks an unused patch offset.
const NoPatch = 0xff

// Patch selects which of a command's secondary bytes change from token to token: one of the kinds
// below, plus PatchRows if the number of rows changes too. A patch copies 32-bit values from the
// step record to Second. It never writes Param.
type Patch uint8

// Patch kinds, in the order of decl.PatchKinds. The kind's value is written to PatchOffset[0].
const (
	PatchNone     Patch = iota
	PatchToken          // index in the token ring of the first row's token
	PatchPosition       // position of the first row
	PatchKVLen          // KV length of the first row
	PatchArgmax         // token index + rows: where the next token is written
	PatchRow            // first row that the program reads of a chunk
	patchKinds

	PatchRows Patch = 0x80 // added to a kind: the number of active rows is written to decl.SecondRows
)

// Kind returns the kind without PatchRows.
func (p Patch) Kind() Patch { return p &^ PatchRows }

// String returns the kind's name, with "+rows" if rows are patched.
func (p Patch) String() string {
	k := p.Kind()
	if k >= patchKinds {
		return "invalid"
	}
	switch {
	case p&PatchRows == 0:
		return decl.PatchKinds[k]
	case k == PatchNone:
		return "rows"
	}
	return decl.PatchKinds[k] + "+rows"
}

// Step is the step record: the part of a session's state that commands read and update for each
// token. A device keeps it in the step block, a slot that kernels can read. In a pooled table, row
// records and page tables follow it there (package internal/sequence). C has the same struct
// (shaders/params.h).
type Step struct {
	RNG        uint64 // counter of the random generator
	Position   uint32 // position of the first row
	KVRow      uint32 // KV cache row of the first row, before the modulo by the cache's capacity
	KVLen      uint32 // positions visible to the first row, its own included
	TokenIndex uint32 // index of the first row's token in the token ring
	Row        uint32 // first row of the chunk that the program reads; after verify, the row that chose the last token
	Rows       uint32 // active rows
	Stop       uint32 // nonzero: kernels return without doing anything
	Count      uint32 // tokens written since the submission began
	Cancel     uint32 // set by the host at any time: the next token becomes a stop
	Drafted    uint32 // tokens drafted since the submission began
	Accepted   uint32 // drafted tokens that were accepted since the submission began
	Trust      uint32 // a speculate.Trust: how far to trust the next drafts
	Until      uint32 // token index at which verification ends; if it is 0, the submission's limit applies
	Sequence   uint32 // in a pooled table, the sequence that the rows belong to
}

// MaxDraft is the largest number of tokens in a draft.
const MaxDraft = 31

// StopUntil is the stop flag that verify sets when it has reached Until.
const StopUntil = 512

// StepSize is the size of a Step in bytes.
const StepSize = 64

// value returns the first value that a patch of kind k writes.
func (s *Step) value(k Patch) uint32 {
	switch k {
	case PatchToken:
		return s.TokenIndex
	case PatchPosition:
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

// Apply writes the patched values of c for step s to second, which must hold a copy of c.Second.
func (c *Cmd) Apply(s *Step, second *[decl.SecondBytes]byte) {
	if c.Patch == PatchNone {
		return
	}
	k := c.Patch.Kind()
	if k != PatchNone {
		putAt(second, c.PatchOffset[0], s.value(k))
	}
	if c.Patch&PatchRows != 0 {
		putAt(second, decl.SecondRows, s.Rows)
	}
}

// patches reports whether the command's patch writes the secondary field at offset.
func (c *Cmd) patches(offset int) bool {
	return c.Patch.Kind() != PatchNone && int(c.PatchOffset[0]) == offset || c.Patch&PatchRows != 0 && offset == decl.SecondRows
}

// putAt writes v at offset, which Validate has bounded. It ignores an offset past the end.
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

// Field returns the secondary field at offset off of patched secondary bytes.
func Field(second *[decl.SecondBytes]byte, off int) uint32 {
	return binary.LittleEndian.Uint32(second[off : off+4])
}
