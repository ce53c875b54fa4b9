package table

import "encoding/binary"

// The external tests build damaged rolls from these.
const (
	RollMagic      = rollMagic
	RollPrefix     = rollPrefix
	RollEntry      = rollEntry
	RollHashLen    = rollHashLen
	CmdSize        = cmdSize
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

// HumanSize formats a number of bytes as dumps do.
var HumanSize = humanSize

// ExactSize formats an extent as dumps do.
var ExactSize = exactSize

// ScopeOf is the required scope of each kind of slot.
var ScopeOf = scopeOf

// PutU32 writes a parameter by its offset, U32 reads one.
func (c *Cmd) PutU32(off int, v uint32) { binary.LittleEndian.PutUint32(c.Param[off:], v) }
func (c *Cmd) U32(off int) uint32       { return binary.LittleEndian.Uint32(c.Param[off:]) }

// Parts of the encoding of rolls.
const SlotSize = slotSize

var (
	AppendCmd    = appendCmd
	AssembleRoll = assembleRoll
	ReadRoll     = readRoll
)
