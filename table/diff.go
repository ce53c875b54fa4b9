package table

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// DifferenceKind classifies one difference between two tables.
type DifferenceKind uint8

// The kinds of differences.
const (
	OnlyA   DifferenceKind = iota // present only in the first table
	OnlyB                         // present only in the second table
	Changed                       // present in both tables, with different values
	Moved                         // only the offsets of a command's bindings in the scratch arena differ
)

// String returns "only in A", "only in B", "changed" or "moved".
func (k DifferenceKind) String() string {
	if k > Moved {
		return "invalid"
	}
	return [...]string{"only in A", "only in B", "changed", "moved"}[k]
}

// Change is one value that differs. A or B is "" if that table has no such value.
type Change struct {
	Field string // such as "kernel", "constant act", "param eps", "binding x", "grid"
	A, B  string
}

// Difference is one place where two tables differ.
type Difference struct {
	Where string // such as "decode: layer.3.attn.qkv", "slot scratch", "header"
	Kind  DifferenceKind
	What  []Change // the values that differ, for Changed; the scratch offsets that differ, for Moved

	// CmdA and CmdB are the indices of the commands that differ: -1 in a table without the command,
	// and both -1 if the difference is not one of commands.
	CmdA, CmdB int
}

// Diff compares two tables: their headers, slots, programs, uploads and constants, and their
// commands program by program. It matches commands by label, slots and programs by name, and
// uploads by destination. It compares slots and specs by their content, not by their index. The
// result is nil if and only if both tables have the same encoding.
func Diff(a, b *Table) []Difference {
	diffs := diffItems(a.headerItems(), b.headerItems(), "header")
	diffs = append(diffs, diffItems(a.slotItems(), b.slotItems(), "slots")...)
	diffs = append(diffs, diffItems(a.programItems(), b.programItems(), "programs")...)
	diffs = append(diffs, diffItems(a.uploadItems(), b.uploadItems(), "uploads")...)
	diffs = append(diffs, diffCmds(a, b)...)
	if len(diffs) > 0 {
		return diffs
	}
	return diffNumbering(a, b)
}

// WriteDiff writes differences as text, one per line. A line begins with "-" for an item only A
// has, "+" for an item only B has, and "~" for a changed item. Commands that only moved in the
// scratch arena come last and begin with ">".
func WriteDiff(w io.Writer, diffs []Difference) error {
	b := bufio.NewWriter(w) // keeps the first error for Flush
	for _, moved := range []bool{false, true} {
		for i := range diffs {
			if d := &diffs[i]; (d.Kind == Moved) == moved {
				b.WriteString(d.text())
				b.WriteByte('\n')
			}
		}
	}
	return b.Flush()
}

func (d *Difference) text() string {
	mark := "?"
	if d.Kind <= Moved {
		mark = [...]string{"-", "+", "~", ">"}[d.Kind]
	}
	s := mark + " " + d.Where
	for i, c := range d.What {
		s += [...]string{": ", ", "}[min(i, 1)]
		if d.Kind == Moved {
			c.Field = strings.TrimPrefix(c.Field, "binding ")
		}
		s += c.Field + " " + orDash(c.A) + " -> " + orDash(c.B)
	}
	return s
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// item is a part of a table that the other table may have too: a key that identifies it and its
// values by field.
type item struct {
	key    string
	fields []field
	cmd    int // index of the command, or -1 for other parts
}

type field struct {
	name, value string
	scratch     string // name of the scratch slot, if the value is an address in the scratch arena
	offset      uint64 // offset in scratch
}

// diffItems compares items with the same key. It also compares the order of the items that both
// tables have, and reports a different order once, for the whole list.
func diffItems(a, b []item, list string) []Difference {
	numberKeys(a)
	numberKeys(b)
	inB := make(map[string]int, len(b))
	for i, x := range b {
		inB[x.key] = i
	}
	inA := make(map[string]bool, len(a))
	var diffs []Difference
	last, before := -1, ""
	var order []Change
	for _, x := range a {
		inA[x.key] = true
		i, ok := inB[x.key]
		if !ok {
			diffs = append(diffs, Difference{Where: x.key, Kind: OnlyA, CmdA: x.cmd, CmdB: -1})
			continue
		}
		if i < last && order == nil {
			order = []Change{{"order", before + " before " + x.key, x.key + " before " + before}}
		}
		if i > last {
			last, before = i, x.key
		}
		if d := diffFields(x.fields, b[i].fields); d != nil {
			kind := Changed
			if moves, ok := onlyMoves(x.fields, b[i].fields, d); ok {
				kind, d = Moved, moves
			}
			diffs = append(diffs, Difference{Where: x.key, Kind: kind, What: d, CmdA: x.cmd, CmdB: b[i].cmd})
		}
	}
	for _, x := range b {
		if !inA[x.key] {
			diffs = append(diffs, Difference{Where: x.key, Kind: OnlyB, CmdA: -1, CmdB: x.cmd})
		}
	}
	if order != nil {
		diffs = append(diffs, Difference{Where: list, Kind: Changed, What: order, CmdA: -1, CmdB: -1})
	}
	return diffs
}

// numberKeys makes keys unique. In a valid table labels and names are unique already.
func numberKeys(items []item) {
	seen := make(map[string]int, len(items))
	for i := range items {
		key := items[i].key
		if seen[key]++; seen[key] > 1 {
			items[i].key += " (" + strconv.Itoa(seen[key]) + ")"
		}
	}
}

// diffFields compares fields by name: the fields of a in order, then the fields that only b has.
// Addresses in the scratch arena come last.
func diffFields(a, b []field) []Change {
	var changes, places []Change
	add := func(f field, c Change) {
		if f.scratch != "" {
			places = append(places, c)
			return
		}
		changes = append(changes, c)
	}
	for _, x := range a {
		y, _ := findField(b, x.name)
		if x.value != y.value {
			add(x, Change{x.name, x.value, y.value})
		}
	}
	for _, y := range b {
		if _, ok := findField(a, y.name); !ok {
			add(y, Change{y.name, "", y.value})
		}
	}
	return append(changes, places...)
}

func findField(fields []field, name string) (field, bool) {
	for _, f := range fields {
		if f.name == name {
			return f, true
		}
	}
	return field{}, false
}

// onlyMoves returns the changes as offsets if all of them are addresses in the scratch arena.
func onlyMoves(a, b []field, changes []Change) ([]Change, bool) {
	var moves []Change
	for _, c := range changes {
		x, _ := findField(a, c.Field)
		y, _ := findField(b, c.Field)
		if x.scratch == "" || x.scratch != y.scratch {
			return nil, false
		}
		moves = append(moves, Change{c.Field, fmt.Sprintf("+%#x", x.offset), fmt.Sprintf("+%#x", y.offset)})
	}
	return moves, true
}

func num[T ~uint8 | ~uint32 | ~uint64 | ~int](n T) string { return strconv.FormatUint(uint64(n), 10) }

func (t *Table) headerItems() []item {
	h := t.viewHeader()
	sum := sha256.Sum256(t.Const)
	return []item{{"header", []field{
		{name: "arch", value: h.Arch}, {name: "model", value: h.Model}, {name: "chip", value: h.Chip}, {name: "device", value: h.Device},
		{name: "vocab", value: num(h.Vocab)}, {name: "width", value: num(h.Width)}, {name: "layers", value: num(h.Layers)},
		{name: "context", value: num(h.Context)}, {name: "chunk", value: num(h.Chunk)},
		{name: "logits_rows", value: num(h.LogitsRows)}, {name: "max_stops", value: num(h.MaxStops)},
		{name: "options", value: h.Options}, {name: "arithmetic", value: h.Arithmetic},
		{name: "model_fingerprint", value: h.ModelFP}, {name: "chip_fingerprint", value: h.ChipFP},
		{name: "constants", value: fmt.Sprintf("%d bytes %s", len(t.Const), hex.EncodeToString(sum[:8]))},
	}, -1}}
}

func (t *Table) slotItems() []item {
	items := make([]item, len(t.Slots))
	for i := range t.Slots {
		s := &t.Slots[i]
		v := t.viewSlot(i)
		items[i] = item{"slot " + plain(v.Name), []field{
			{name: "kind", value: numbered(v.Kind, uint8(s.Kind), s.Kind < SlotKinds)},
			{name: "scope", value: numbered(v.Scope, uint8(s.Scope), s.Scope < scopes)},
			{name: "size", value: num(v.Size)},
		}, -1}
	}
	return items
}

// numbered returns the name of a value. If the value is unknown it appends its number, so that
// different unknown values have different names.
func numbered(name string, n uint8, known bool) string {
	if known {
		return name
	}
	return fmt.Sprintf("%s(%d)", name, n)
}

func (t *Table) programItems() []item {
	items := make([]item, len(t.Programs))
	for i := range t.Programs {
		p := &t.Programs[i]
		items[i] = item{"program " + plain(p.Name), []field{
			{name: "count", value: num(p.Count)}, {name: "max_rows", value: num(p.MaxRows)}, {name: "flags", value: p.Flags.String()},
		}, -1}
	}
	return items
}

func (t *Table) uploadItems() []item {
	items := make([]item, len(t.Uploads))
	for i := range t.Uploads {
		u := &t.Uploads[i]
		v := t.viewUpload(i)
		items[i] = item{"upload to " + place(v.Slot, v.DstOffset), []field{
			{name: "op", value: numbered(v.Op, uint8(u.Op), u.Op < uploadOps)},
			{name: "type", value: v.Type},
			{name: "tensor", value: v.Tensor},
			{name: "source_offset", value: num(v.SrcOffset)},
			{name: "source_size", value: num(v.SrcSize)},
			{name: "columns", value: num(u.Cols)},
			{name: "step", value: num(u.Step)},
			{name: "phase", value: num(u.Phase)},
		}, -1}
	}
	return items
}

// diffCmds compares the commands of each program that either table has.
func diffCmds(a, b *Table) []Difference {
	itemsA, orderA := a.cmdItems()
	itemsB, orderB := b.cmdItems()
	for _, p := range orderB {
		if _, ok := itemsA[p]; !ok {
			orderA = append(orderA, p)
		}
	}
	var diffs []Difference
	for _, p := range orderA {
		x, inA := itemsA[p]
		y, inB := itemsB[p]
		if inA && inB { // otherwise the missing program is reported
			diffs = append(diffs, diffItems(x, y, p)...)
		}
	}
	return diffs
}

// cmdItems returns the commands of each program, and the programs in the order of their commands.
func (t *Table) cmdItems() (map[string][]item, []string) {
	items := map[string][]item{}
	var order []string
	for i, p := range t.owners() {
		name := "no program"
		if p >= 0 {
			name = plain(t.Programs[p].Name)
		}
		if _, ok := items[name]; !ok {
			order = append(order, name)
		}
		v := t.viewCmd(i, p, nil)
		items[name] = append(items[name], item{name + ": " + plain(v.Label), v.fields(), i})
	}
	return items, order
}

// fields returns the values of a command that Diff compares.
func (v *cmdView) fields() []field {
	f := []field{{name: "kernel", value: v.Kernel}}
	for _, c := range v.Constants {
		f = append(f, field{name: "constant " + c.Name, value: c.Value})
	}
	for i := range v.Bindings {
		b := &v.Bindings[i]
		x := field{name: "binding " + b.Name, value: place(b.Slot, b.Offset)}
		if b.arena {
			x.scratch, x.offset = b.Slot, b.Offset
		}
		f = append(f, x)
	}
	for _, p := range v.Params {
		f = append(f, field{name: "param " + p.Name, value: p.Value})
	}
	for _, s := range v.Second {
		f = append(f, field{name: "second " + s.Name, value: s.Value})
	}
	patch := v.patchText()
	if patch == "" {
		patch = PatchNone.String()
	}
	return append(f,
		field{name: "grid", value: dimensions(v.Grid)},
		field{name: "threadgroup", value: dimensions(v.Threadgroup)},
		field{name: "tgmem", value: num(v.TGMem)},
		field{name: "patch", value: patch},
		field{name: "barrier", value: strconv.FormatBool(v.Barrier)},
	)
}

// diffNumbering reports differences between tables whose values are all equal: regions, the
// numbering of slots and specs, and bytes that no declaration names.
func diffNumbering(a, b *Table) []Difference {
	x, errA := a.Encode()
	y, errB := b.Encode()
	if bytes.Equal(x, y) && fmt.Sprint(errA) == fmt.Sprint(errB) {
		return nil
	}
	changed := func(where, field, valueA, valueB string) []Difference {
		return []Difference{{Where: where, Kind: Changed, What: []Change{{field, valueA, valueB}}, CmdA: -1, CmdB: -1}}
	}
	encoding := func(b []byte, err error) string {
		if err != nil {
			return err.Error()
		}
		sum := sha256.Sum256(b)
		return fmt.Sprintf("%d bytes %s", len(b), hex.EncodeToString(sum[:8]))
	}
	switch {
	case !slices.Equal(a.Regions, b.Regions):
		for i := range min(len(a.Regions), len(b.Regions)) {
			if a.Regions[i] != b.Regions[i] {
				return changed("regions", num(i), a.regionText(i), b.regionText(i))
			}
		}
		return changed("regions", "count", num(len(a.Regions)), num(len(b.Regions)))
	case !slices.Equal(a.Specs, b.Specs):
		return changed("specs", "numbering", fmt.Sprintf("%d specs", len(a.Specs)), fmt.Sprintf("%d specs", len(b.Specs)))
	}
	for i := range min(len(a.Cmds), len(b.Cmds)) {
		if a.Cmds[i] != b.Cmds[i] {
			return changed(fmt.Sprintf("command %d (%s)", i, plain(a.Label(i))), "bytes", "some", "others that its kernel does not declare")
		}
	}
	return changed("table", "encoding", encoding(x, errA), encoding(y, errB))
}

func (t *Table) regionText(i int) string {
	r := &t.Regions[i]
	return fmt.Sprintf("%s at %s+%#x[%d], commands %d to %d", plain(r.Name), plain(t.slotName(r.Slot)), r.Offset, r.Size, r.First, r.Last)
}
