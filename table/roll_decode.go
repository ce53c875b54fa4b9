package table

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
)

// Decode returns the table that roll b encodes. The table keeps no reference to b. Decode checks
// the structure only: every byte belongs to a record, every command has one label, and Encode
// returns b again. Use Validate to check the content. Errors wrap ErrMagic, ErrVersion,
// ErrTruncated, ErrChecksum or ErrFormat.
func Decode(b []byte) (*Table, error) {
	t, err := decodeRoll(b)
	if err != nil {
		return nil, fmt.Errorf("table: %w", err)
	}
	return t, nil
}

func decodeRoll(b []byte) (*Table, error) {
	total, err := rollLength(b)
	if err != nil {
		return nil, err
	}
	if uint64(len(b)) < total {
		return nil, fmt.Errorf("%w: got %d of %d bytes", ErrTruncated, len(b), total)
	}
	if uint64(len(b)) > total {
		return nil, fmt.Errorf("%w: %d bytes after the end", ErrFormat, uint64(len(b))-total)
	}
	body, sum := b[:total-rollHashLen], b[total-rollHashLen:]
	if got := sha256.Sum256(body); !bytes.Equal(got[:], sum) {
		return nil, ErrChecksum
	}
	d := rollDecoder{}
	if err := d.directory(body); err != nil {
		return nil, err
	}
	t := &Table{}
	for _, step := range [...]func(*Table) error{
		d.decodeStrings, d.header, d.slots, d.specs, d.programs, d.cmds, d.uploads, d.constants, d.labels, d.regions, d.finish,
	} {
		if err := step(t); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// rollLength checks magic and version and returns the length in the prefix. The length is at least
// the length of an empty roll and at most MaxRollSize.
func rollLength(prefix []byte) (uint64, error) {
	if n := min(len(prefix), len(rollMagic)); string(prefix[:n]) != rollMagic[:n] {
		return 0, ErrMagic
	}
	if len(prefix) < rollPrefix {
		return 0, fmt.Errorf("%w: got %d of %d bytes", ErrTruncated, len(prefix), rollPrefix)
	}
	le := binary.LittleEndian
	if v := le.Uint32(prefix[8:]); v != RollVersion {
		return 0, fmt.Errorf("%w: version %d, want %d (compile the model again)", ErrVersion, v, RollVersion)
	}
	if n := le.Uint32(prefix[12:]); n != uint32(sectionCount) {
		return 0, fmt.Errorf("%w: %d sections, but version %d has %d", ErrFormat, n, RollVersion, sectionCount)
	}
	total := le.Uint64(prefix[16:])
	if total < uint64(rollPrefix+sectionCount*rollEntry+rollHashLen) || total > MaxRollSize {
		return 0, fmt.Errorf("%w: length %d out of range", ErrFormat, total)
	}
	return total, nil
}

type rollDecoder struct {
	sections [sectionCount][]byte
	strings  []string
	used     uint32 // strings used so far: a prefix of strings
}

// directory finds the sections of body, the roll without its checksum, and checks that they fill
// it in order.
func (d *rollDecoder) directory(body []byte) error {
	le := binary.LittleEndian
	end := uint64(rollPrefix + sectionCount*rollEntry)
	for i := range d.sections {
		entry := body[rollPrefix+i*rollEntry:]
		id, offset, length := section(le.Uint32(entry)), le.Uint64(entry[8:]), le.Uint64(entry[16:])
		want := section(i + 1)
		switch {
		case id != want:
			return fmt.Errorf("%w: directory: entry %d is %s, not %s", ErrFormat, i, id, want)
		case le.Uint32(entry[4:]) != 0:
			return fmt.Errorf("%w: directory: %s: reserved bytes are not 0", ErrFormat, id)
		case offset != alignRoll(end) || offset > uint64(len(body)):
			return fmt.Errorf("%w: %s: offset %d, but the previous section ends at %d", ErrFormat, id, offset, end)
		case length > uint64(len(body))-offset:
			return fmt.Errorf("%w: %s: offset %d + %d bytes exceeds the size %d", ErrFormat, id, offset, length, len(body))
		case !allZero(body[end:offset]):
			return fmt.Errorf("%w: bytes before %s are not 0", ErrFormat, id)
		}
		end = offset + length
		d.sections[i] = body[offset:end:end]
	}
	if alignRoll(end) != uint64(len(body)) || !allZero(body[end:]) {
		return fmt.Errorf("%w: bytes after the last section, which ends at %d", ErrFormat, end)
	}
	return nil
}

func allZero(b []byte) bool {
	for _, v := range b {
		if v != 0 {
			return false
		}
	}
	return true
}

func (d *rollDecoder) decodeStrings(*Table) error {
	// One copy, which the strings share, so that b is not kept.
	rest := string(d.sections[sectionStrings-1])
	seen := map[string]bool{}
	for rest != "" {
		i := len(d.strings)
		if len(rest) < 4 {
			return fmt.Errorf("%w: strings: %d bytes for the length of string %d", ErrFormat, len(rest), i)
		}
		n := uint32(rest[0]) | uint32(rest[1])<<8 | uint32(rest[2])<<16 | uint32(rest[3])<<24
		rest = rest[4:]
		if uint64(n) > uint64(len(rest)) {
			return fmt.Errorf("%w: strings: string %d has %d bytes, %d are left", ErrFormat, i, n, len(rest))
		}
		s := rest[:n]
		rest = rest[n:]
		if seen[s] {
			return fmt.Errorf("%w: strings: string %d is there twice", ErrFormat, i)
		}
		seen[s] = true
		d.strings = append(d.strings, s)
	}
	return nil
}

// count returns how many records of size bytes a section has.
func (d *rollDecoder) count(id section, size int) (int, error) {
	n := len(d.sections[id-1])
	if n%size != 0 {
		return 0, fmt.Errorf("%w: %s: %d bytes are no multiple of %d", ErrFormat, id, n, size)
	}
	return n / size, nil
}

// decodeRecords returns the records of a section, or nil if the section is empty. The memory that
// it allocates is proportional to the bytes of the section.
func decodeRecords[T any](d *rollDecoder, id section, size int, decode func(*record, *T)) ([]T, error) {
	n, err := d.count(id, size)
	if err != nil || n == 0 {
		return nil, err
	}
	all := make([]T, n)
	for i := range all {
		r := record{d: d, rest: d.sections[id-1][i*size : (i+1)*size]}
		decode(&r, &all[i])
		if r.fault != "" {
			return nil, fmt.Errorf("%w: %s: record %d: %s", ErrFormat, id, i, r.fault)
		}
	}
	return all, nil
}

// record reads the fields of one record in order and keeps the first fault. The lengths of the
// fields add up to the length of the record.
type record struct {
	d     *rollDecoder
	rest  []byte
	fault string
}

func (r *record) bytes(n int) []byte {
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *record) u8() uint8   { return r.bytes(1)[0] }
func (r *record) u16() uint16 { return binary.LittleEndian.Uint16(r.bytes(2)) }
func (r *record) u32() uint32 { return binary.LittleEndian.Uint32(r.bytes(4)) }
func (r *record) u64() uint64 { return binary.LittleEndian.Uint64(r.bytes(8)) }

func (r *record) u32s(values []uint32) {
	for i := range values {
		values[i] = r.u32()
	}
}

func (r *record) reserved(n int) {
	if !allZero(r.bytes(n)) && r.fault == "" {
		r.fault = "reserved bytes are not 0"
	}
}

// str returns a string by its index. Strings are numbered by first use, so an index is at most the
// number of strings used so far.
func (r *record) str() string {
	i := r.u32()
	d := r.d
	switch {
	case uint64(i) >= uint64(len(d.strings)):
		if r.fault == "" {
			r.fault = fmt.Sprintf("string %d of %d", i, len(d.strings))
		}
		return ""
	case i > d.used:
		if r.fault == "" {
			r.fault = fmt.Sprintf("string %d is used before string %d", i, d.used)
		}
	case i == d.used:
		d.used++
	}
	return d.strings[i]
}

func (d *rollDecoder) header(t *Table) error {
	list, err := decodeRecords(d, sectionHeader, headerSize, func(r *record, h *Header) {
		h.Arch, h.Model, h.Chip, h.Device = r.str(), r.str(), r.str(), r.str()
		h.Vocab, h.Width, h.Layers, h.Context = r.u32(), r.u32(), r.u32(), r.u32()
		h.Chunk, h.LogitsRows, h.MaxStops = r.u32(), r.u32(), r.u32()
		h.Options = r.str()
		copy(h.ModelFP[:], r.bytes(len(h.ModelFP)))
		copy(h.ChipFP[:], r.bytes(len(h.ChipFP)))
	})
	if err != nil {
		return err
	}
	if len(list) != 1 {
		return fmt.Errorf("%w: header: %d records", ErrFormat, len(list))
	}
	t.Header = list[0]
	return nil
}

func (d *rollDecoder) slots(t *Table) (err error) {
	t.Slots, err = decodeRecords(d, sectionSlots, slotSize, func(r *record, s *Slot) {
		s.Name = r.str()
		s.Kind, s.Scope = SlotKind(r.u8()), Scope(r.u8())
		r.reserved(2)
		s.Size = r.u64()
	})
	return err
}

func (d *rollDecoder) specs(t *Table) (err error) {
	t.Specs, err = decodeRecords(d, sectionSpecs, specSize, func(r *record, s *Spec) {
		s.Kernel = decl.ID(r.u16())
		r.reserved(6)
		r.u32s(s.Values[:])
	})
	return err
}

func (d *rollDecoder) programs(t *Table) (err error) {
	t.Programs, err = decodeRecords(d, sectionPrograms, programSize, func(r *record, p *Program) {
		p.Name = r.str()
		p.First, p.Count, p.MaxRows, p.Flags = r.u32(), r.u32(), r.u32(), Flags(r.u32())
	})
	return err
}

func (d *rollDecoder) cmds(t *Table) (err error) {
	t.Cmds, err = decodeRecords(d, sectionCmds, cmdSize, func(r *record, c *Cmd) {
		c.Kernel, c.Spec = decl.ID(r.u16()), r.u16()
		c.Bindings, c.ParamSize, c.SecondSize, c.Patch = r.u8(), r.u8(), r.u8(), Patch(r.u8())
		c.PatchOffset = [2]uint8{r.u8(), r.u8()}
		c.Barrier = r.u8()
		r.reserved(1)
		c.TGMem = r.u32()
		r.u32s(c.Grid[:])
		r.u32s(c.Threadgroup[:])
		for i := range c.Bind {
			c.Bind[i].Slot = r.u32()
			r.reserved(4)
			c.Bind[i].Offset = r.u64()
		}
		copy(c.Param[:], r.bytes(len(c.Param)))
		copy(c.Second[:], r.bytes(len(c.Second)))
		r.reserved(8)
	})
	return err
}

func (d *rollDecoder) uploads(t *Table) (err error) {
	t.Uploads, err = decodeRecords(d, sectionUploads, uploadSize, func(r *record, u *Upload) {
		u.Op, u.Type = UploadOp(r.u8()), dtype.Type(r.u8())
		u.Step, u.Phase = r.u8(), r.u8()
		u.Slot = r.u32()
		u.Tensor = r.str()
		u.Cols = r.u32()
		u.SrcOffset, u.SrcSize, u.DstOffset = r.u64(), r.u64(), r.u64()
	})
	return err
}

func (d *rollDecoder) constants(t *Table) error {
	if b := d.sections[sectionConst-1]; len(b) > 0 {
		t.Const = bytes.Clone(b)
	}
	return nil
}

func (d *rollDecoder) labels(t *Table) (err error) {
	t.Labels, err = decodeRecords(d, sectionLabels, labelSize, func(r *record, s *string) { *s = r.str() })
	if err != nil {
		return err
	}
	if len(t.Labels) != len(t.Cmds) {
		return fmt.Errorf("%w: labels: %d for %d commands", ErrFormat, len(t.Labels), len(t.Cmds))
	}
	return nil
}

func (d *rollDecoder) regions(t *Table) (err error) {
	t.Regions, err = decodeRecords(d, sectionRegions, regionSize, func(r *record, g *Region) {
		g.Name = r.str()
		g.Slot, g.Program, g.First, g.Last = r.u32(), r.u32(), r.u32(), r.u32()
		r.reserved(4)
		g.Offset, g.Size = r.u64(), r.u64()
	})
	return err
}

func (d *rollDecoder) finish(*Table) error {
	if int(d.used) != len(d.strings) {
		return fmt.Errorf("%w: strings: string %d of %d is not used", ErrFormat, d.used, len(d.strings))
	}
	return nil
}
