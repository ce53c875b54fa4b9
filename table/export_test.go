package table

import "encoding/binary"

// The external tests build damaged rolls from these.
const (
	RollMagic      = rollMagic
	RollPrefix     = rollPrefix
	RollEntry      = rollEntry
	RollHashLen    = rollHashLen
	SectionHeader  = sectionHeader
	SectionSlots   = sectionSlots
	SectionSpecs   = sectionSpecs
	SectionCmds    = sectionCmds
	SectionLabels  = sectionLabels
	SectionRegions = sectionRegions
	SectionStrings = sectionStrings
	SectionCount   = sectionCount
)

// Section is the id of a section of a roll.
type Section = section

// HumanSize is how dumps write a number of bytes.
var HumanSize = humanSize

// ExactSize is how dumps write an extent.
var ExactSize = exactSize

// ScopeOf is the scope of each kind of slot.
var ScopeOf = scopeOf

// PutU32 writes a parameter by its offset, U32 reads one.
func (c *Cmd) PutU32(off int, v uint32) { binary.LittleEndian.PutUint32(c.Param[off:], v) }
func (c *Cmd) U32(off int) uint32       { return binary.LittleEndian.Uint32(c.Param[off:]) }

// The pieces that rolls are encoded with.
const SlotSize = slotSize

var (
	AppendCmd    = appendCmd
	AssembleRoll = assembleRoll
	ReadRoll     = readRoll
)
