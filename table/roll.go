package table

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// A roll is a table on disk. All integers are little-endian on every machine. Offsets are in
// bytes from the start of the file.
//
//	offset  0  magic      "PIANOLA\x1a"
//	offset  8  version    u32, RollVersion
//	offset 12  count      u32, the number of sections; all sections, in the order of their ids
//	offset 16  length     u64, bytes of the whole file, checksum included
//	offset 24  directory  one entry per section: id u32, reserved u32, offset u64, length u64
//	then       sections   each begins at a multiple of 8, after a padding of zeros
//	last       checksum   SHA-256 of all bytes before it
//
// A section is an array of records without gaps; its length determines their number. Reserved
// bytes are zero. A str is an index in the section of strings.
//
//	id  section    bytes  fields of a record
//	 1  header     112    arch, model, chip, device str; vocab, width, layers, context,
//	                      chunk, logits rows, max stops u32; options str;
//	                      fingerprints of the model and the chip 2 * [32]u8; one record
//	 2  slots       16    name str; kind, scope u8; reserved u16; size u64
//	 3  specs       40    kernel u16; reserved [6]u8; values [8]u32
//	 4  programs    20    name str; first, count, max rows, flags u32
//	 5  commands   256    pianola_cmd of shaders/params.h
//	 6  uploads     40    op, type u8; reserved u16; slot u32; tensor str;
//	                      reserved u32; source offset, source size, destination offset u64
//	 7  constants    1    u8
//	 8  labels       4    str, one per command
//	 9  regions     40    name str; slot, program, first, last, reserved u32;
//	                      offset, size u64
//	10  strings     any   length u32, then that number of bytes
//
// Each string is stored once; strings are numbered by their first use in sections 1 to 9. So a
// table has exactly one encoding, and encoding a decoded roll returns the same bytes.
const (
	rollMagic   = "PIANOLA\x1a"
	rollPrefix  = 24 // magic, version, sections, length
	rollEntry   = 24 // one section of the directory
	rollAlign   = 8
	rollHashLen = sha256.Size
)

// RollVersion is the version of the roll format that Encode writes and Decode reads. It changes
// with the format and with the meaning of a kernel's declaration.
const RollVersion = 9

// MaxRollSize is the largest size of a roll in bytes. It is large enough for a table of MaxCmds
// commands. The roll of a model with a hundred layers takes about 1 MiB.
const MaxRollSize = 512 << 20

// Errors of Decode and ReadFile. Every error they return for a bad roll wraps one of these.
var (
	ErrMagic     = errors.New("not a roll")
	ErrVersion   = errors.New("unknown version of the roll format")
	ErrTruncated = errors.New("roll is truncated")
	ErrChecksum  = errors.New("roll's checksum does not match")
	ErrFormat    = errors.New("roll is malformed")
)

type section uint32

const (
	sectionHeader section = 1 + iota
	sectionSlots
	sectionSpecs
	sectionPrograms
	sectionCmds
	sectionUploads
	sectionConst
	sectionLabels
	sectionRegions
	sectionStrings

	sectionCount = int(sectionStrings)
)

// Sizes of records in bytes.
const (
	headerSize  = 112
	slotSize    = 16
	specSize    = 40
	programSize = 20
	uploadSize  = 40
	labelSize   = 4
	regionSize  = 40
)

func (s section) String() string {
	if s < sectionHeader || s > sectionStrings {
		return fmt.Sprintf("section %d", uint32(s))
	}
	return [...]string{"header", "slots", "specs", "programs", "commands", "uploads", "constants", "labels", "regions", "strings"}[s-1]
}

func alignRoll(n uint64) uint64 { return (n + rollAlign - 1) &^ (rollAlign - 1) }

// Encode returns the table as a roll. Equal tables have equal rolls. Encode does not validate the
// table. It fails if the number of labels differs from the number of commands or if the roll
// would exceed MaxRollSize.
func (t *Table) Encode() ([]byte, error) {
	if len(t.Labels) != len(t.Cmds) {
		return nil, fmt.Errorf("table: encode: %d labels for %d commands", len(t.Labels), len(t.Cmds))
	}
	e := rollEncoder{index: map[string]uint32{}}
	sections := [sectionCount][]byte{
		e.header(&t.Header),
		e.slots(t.Slots),
		e.specs(t.Specs),
		e.programs(t.Programs),
		e.cmds(t.Cmds),
		e.uploads(t.Uploads),
		t.Const,
		e.labels(t.Labels),
		e.regions(t.Regions),
	}
	sections[sectionStrings-1] = e.strings
	b, err := assembleRoll(&sections)
	if err != nil {
		return nil, fmt.Errorf("table: encode: %w", err)
	}
	return b, nil
}

// Fingerprint returns the checksum of the table's roll.
func (t *Table) Fingerprint() (sum [sha256.Size]byte, err error) {
	b, err := t.Encode()
	if err == nil {
		copy(sum[:], b[len(b)-len(sum):])
	}
	return sum, err
}

// assembleRoll puts a directory before the sections and a checksum after them.
func assembleRoll(sections *[sectionCount][]byte) ([]byte, error) {
	offsets := [sectionCount]uint64{}
	end := uint64(rollPrefix + sectionCount*rollEntry)
	for i, s := range sections {
		offsets[i] = alignRoll(end)
		end = offsets[i] + uint64(len(s))
	}
	end = alignRoll(end)
	total := end + rollHashLen
	if total > MaxRollSize {
		return nil, fmt.Errorf("roll size %d exceeds the limit of %d bytes", total, MaxRollSize)
	}

	le := binary.LittleEndian
	b := make([]byte, 0, total)
	b = append(b, rollMagic...)
	b = le.AppendUint32(b, RollVersion)
	b = le.AppendUint32(b, uint32(sectionCount))
	b = le.AppendUint64(b, total)
	for i, s := range sections {
		b = le.AppendUint32(b, uint32(i+1))
		b = le.AppendUint32(b, 0)
		b = le.AppendUint64(b, offsets[i])
		b = le.AppendUint64(b, uint64(len(s)))
	}
	for i, s := range sections {
		b = append(b, make([]byte, offsets[i]-uint64(len(b)))...)
		b = append(b, s...)
	}
	b = append(b, make([]byte, end-uint64(len(b)))...)
	sum := sha256.Sum256(b)
	return append(b, sum[:]...), nil
}

// rollEncoder numbers strings in the order of their first use. Its methods must be called in the
// order of the sections.
type rollEncoder struct {
	index   map[string]uint32
	strings []byte
}

func (e *rollEncoder) str(b []byte, s string) []byte {
	i, ok := e.index[s]
	if !ok {
		i = uint32(len(e.index))
		e.index[s] = i
		e.strings = binary.LittleEndian.AppendUint32(e.strings, uint32(len(s)))
		e.strings = append(e.strings, s...)
	}
	return binary.LittleEndian.AppendUint32(b, i)
}

func appendU32s(b []byte, values ...uint32) []byte {
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

func appendU64s(b []byte, values ...uint64) []byte {
	for _, v := range values {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

func (e *rollEncoder) header(h *Header) []byte {
	b := make([]byte, 0, headerSize)
	for _, s := range [...]string{h.Arch, h.Model, h.Chip, h.Device} {
		b = e.str(b, s)
	}
	b = appendU32s(b, h.Vocab, h.Width, h.Layers, h.Context, h.Chunk, h.LogitsRows, h.MaxStops)
	b = e.str(b, h.Options)
	b = append(b, h.ModelFP[:]...)
	return append(b, h.ChipFP[:]...)
}

func (e *rollEncoder) slots(slots []Slot) []byte {
	b := make([]byte, 0, len(slots)*slotSize)
	for i := range slots {
		s := &slots[i]
		b = e.str(b, s.Name)
		b = append(b, byte(s.Kind), byte(s.Scope), 0, 0)
		b = appendU64s(b, s.Size)
	}
	return b
}

func (e *rollEncoder) specs(specs []Spec) []byte {
	b := make([]byte, 0, len(specs)*specSize)
	for i := range specs {
		b = appendU32s(b, uint32(specs[i].Kernel), 0)
		b = appendU32s(b, specs[i].Values[:]...)
	}
	return b
}

func (e *rollEncoder) programs(programs []Program) []byte {
	b := make([]byte, 0, len(programs)*programSize)
	for i := range programs {
		p := &programs[i]
		b = e.str(b, p.Name)
		b = appendU32s(b, p.First, p.Count, p.MaxRows, uint32(p.Flags))
	}
	return b
}

func (e *rollEncoder) cmds(cmds []Cmd) []byte {
	b := make([]byte, 0, len(cmds)*cmdSize)
	for i := range cmds {
		b = appendCmd(b, &cmds[i])
	}
	return b
}

// appendCmd appends the cmdSize bytes of a command.
func appendCmd(b []byte, c *Cmd) []byte {
	b = binary.LittleEndian.AppendUint16(b, uint16(c.Kernel))
	b = binary.LittleEndian.AppendUint16(b, c.Spec)
	b = append(b, c.Bindings, c.ParamSize, c.SecondSize, byte(c.Patch))
	b = append(b, c.PatchOffset[0], c.PatchOffset[1], c.Barrier, 0)
	b = appendU32s(b, c.TGMem)
	b = appendU32s(b, c.Grid[:]...)
	b = appendU32s(b, c.Threadgroup[:]...)
	for i := range c.Bind {
		b = appendU32s(b, c.Bind[i].Slot, 0)
		b = appendU64s(b, c.Bind[i].Offset)
	}
	b = append(b, c.Param[:]...)
	b = append(b, c.Second[:]...)
	return appendU64s(b, 0)
}

func (e *rollEncoder) uploads(uploads []Upload) []byte {
	b := make([]byte, 0, len(uploads)*uploadSize)
	for i := range uploads {
		u := &uploads[i]
		b = append(b, byte(u.Op), byte(u.Type), u.Step, u.Phase)
		b = appendU32s(b, u.Slot)
		b = e.str(b, u.Tensor)
		b = appendU32s(b, u.Cols)
		b = appendU64s(b, u.SrcOffset, u.SrcSize, u.DstOffset)
	}
	return b
}

func (e *rollEncoder) labels(labels []string) []byte {
	b := make([]byte, 0, len(labels)*labelSize)
	for _, l := range labels {
		b = e.str(b, l)
	}
	return b
}

func (e *rollEncoder) regions(regions []Region) []byte {
	b := make([]byte, 0, len(regions)*regionSize)
	for i := range regions {
		r := &regions[i]
		b = e.str(b, r.Name)
		b = appendU32s(b, r.Slot, r.Program, r.First, r.Last, 0)
		b = appendU64s(b, r.Offset, r.Size)
	}
	return b
}
