package table

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// DumpOptions restrict a dump to some of the commands.
type DumpOptions struct {
	First, Last int    // commands First to Last - 1; if both are 0, all commands
	Grep        string // only commands whose line of text contains Grep
}

func (o DumpOptions) restricted() bool { return o.First != 0 || o.Last != 0 || o.Grep != "" }

// Dump writes the table as text: header, slots, programs and uploads, then one line per command
// under a heading for each program. If the options restrict the commands, Dump writes only the
// selected commands and the headings of their programs.
//
// A command's line has these fields, in this order:
//
// - its index
// - | if the command has a barrier: it waits for all commands before it
// - its label
// - its kernel with the specialisation constants; flags that are 0 are left out
// - its bindings, as name=slot+offset:region[bytes]
// - its parameters
// - its secondary fields, except those that a patch writes
// - grid and threadgroup, without trailing 1s
// - threadgroup memory, if it uses any
// - the patch kind, followed by the patched fields if their names differ from the kind's
//
// In a binding, +offset is left out if it is 0. The region is the one that contains the offset
// (region+offset if the offset is inside it). The extent, [bytes], is left out if the binding
// covers the whole slot; its units K and M are 1024 and 1024*1024.
func (t *Table) Dump(w io.Writer, o DumpOptions) error {
	d, err := newDumper(t, o)
	if err != nil {
		return err
	}
	b := bufio.NewWriter(w) // keeps the first error for Flush
	if !o.restricted() {
		t.dumpHeader(b)
		t.dumpSlots(b)
		t.dumpPrograms(b)
		t.dumpUploads(b)
	}
	gap := ""
	if !o.restricted() {
		gap = "\n"
	}
	last := -2 // -1 means no program
	err = d.each(func(_ *cmdView, program int, line string) error {
		if program != last {
			last = program
			b.WriteString(gap + t.programHeading(program) + "\n")
			gap = "\n"
		}
		b.WriteString(line)
		return b.WriteByte('\n')
	})
	if err != nil {
		return err
	}
	return b.Flush()
}

func (t *Table) dumpHeader(b *bufio.Writer) {
	h := t.viewHeader()
	fmt.Fprintf(b, "arch %s, model %s, chip %s (%s)\n", plain(h.Arch), plain(h.Model), plain(h.Chip), plain(h.Device))
	fmt.Fprintf(b, "vocab %d, width %d, layers %d, context %d, chunk %d, logits rows %d, stop ids %d\n",
		h.Vocab, h.Width, h.Layers, h.Context, h.Chunk, h.LogitsRows, h.MaxStops)
	options := h.Options
	if options == "" {
		options = "none"
	}
	fmt.Fprintf(b, "options %s\n", plain(options))
	fmt.Fprintf(b, "arithmetic: %s\n", h.Arithmetic)
	fmt.Fprintf(b, "fingerprints: model %s, chip %s\n", h.ModelFP[:16], h.ChipFP[:16])
}

func (t *Table) dumpSlots(b *bufio.Writer) {
	var sizes [scopes]uint64
	names := make([]string, len(t.Slots))
	for i, s := range t.Slots {
		names[i] = plain(s.Name)
		if s.Scope < scopes {
			sizes[s.Scope] += s.Size
		}
	}
	fmt.Fprintf(b, "\nslots: %d", len(t.Slots))
	for s, n := range sizes {
		fmt.Fprintf(b, ", %s %s", Scope(s), humanSize(n))
	}
	b.WriteByte('\n')
	width := columnWidth(names, 40)
	for i := range t.Slots {
		s := t.viewSlot(i)
		fmt.Fprintf(b, "%5d  %s  %-7s  %-8s  %10s  %d\n", s.Index, pad(names[i], width), s.Kind, s.Scope, humanSize(s.Size), s.Size)
	}
}

func (t *Table) dumpPrograms(b *bufio.Writer) {
	fmt.Fprintf(b, "\nprograms: %d\n", len(t.Programs))
	for i, p := range t.Programs {
		end := uint64(p.First) + uint64(p.Count)
		fmt.Fprintf(b, "%5d  %s  commands %d:%d, rows %d, flags %s\n", i, pad(plain(p.Name), 8), p.First, end, p.MaxRows, p.Flags)
	}
}

func (t *Table) dumpUploads(b *bufio.Writer) {
	var total uint64
	sources := make([]string, len(t.Uploads))
	for i := range t.Uploads {
		u := t.viewUpload(i)
		total += u.DstSize
		source := u.Tensor
		if t.Uploads[i].Op == UploadConst {
			source = "constants"
		}
		sources[i] = place(source, u.SrcOffset) + "[" + exactSize(u.SrcSize) + "]"
		if u.Step > 1 {
			sources[i] += fmt.Sprintf("%%%d=%d", u.Step, u.Phase)
		}
	}
	fmt.Fprintf(b, "\nuploads: %d, %s; constants %d B\n", len(t.Uploads), humanSize(total), len(t.Const))
	width := columnWidth(sources, 56)
	for i := range t.Uploads {
		u := t.viewUpload(i)
		fmt.Fprintf(b, "%5d  %-5s  %-6s  %s  -> %s[%s]\n", i, u.Op, u.Type, pad(sources[i], width), place(u.Slot, u.DstOffset), exactSize(u.DstSize))
	}
}

func (t *Table) programHeading(program int) string {
	if program < 0 {
		return "commands of no program"
	}
	p := &t.Programs[program]
	return fmt.Sprintf("program %s: %d commands, rows %d", plain(p.Name), p.Count, p.MaxRows)
}

// dumper walks the commands of a dump.
type dumper struct {
	t           *Table
	o           DumpOptions
	first, last int
	owner       []int // program of each command, or -1
	// Column widths, from all commands of the range, so that a command's line is the same with
	// and without Grep.
	label, kernel int
}

func newDumper(t *Table, o DumpOptions) (*dumper, error) {
	d := &dumper{t: t, o: o, first: o.First, last: o.Last, owner: t.owners()}
	if o.First == 0 && o.Last == 0 {
		d.last = len(t.Cmds)
	}
	if d.first < 0 || d.last < d.first {
		return nil, fmt.Errorf("table: dump: commands %d:%d are not a valid range", o.First, o.Last)
	}
	d.last = min(d.last, len(t.Cmds))
	for i := d.first; i < d.last; i++ {
		_, k := t.viewKernel(&t.Cmds[i])
		d.label = max(d.label, utf8.RuneCountInString(plain(t.Label(i))))
		d.kernel = max(d.kernel, utf8.RuneCountInString(k.text()))
	}
	d.label, d.kernel = min(d.label, 32), min(d.kernel, 52)
	return d, nil
}

// owners returns the index of each command's program, or -1 if no program contains the command. If
// programs overlap, which Validate rejects, it is the program that starts last.
func (t *Table) owners() []int {
	order := make([]int, len(t.Programs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return int(int64(t.Programs[a].First) - int64(t.Programs[b].First))
	})
	owner := make([]int, len(t.Cmds))
	current := -1
	for i := range owner {
		for len(order) > 0 && uint64(t.Programs[order[0]].First) <= uint64(i) {
			current, order = order[0], order[1:]
		}
		owner[i] = current
		if current >= 0 && uint64(i)-uint64(t.Programs[current].First) >= uint64(t.Programs[current].Count) {
			owner[i] = -1
		}
	}
	return owner
}

// each calls f with every command that the options select, its program and its line of text.
func (d *dumper) each(f func(c *cmdView, program int, line string) error) error {
	live := newLiveRegions(d.t)
	for i := d.first; i < d.last; i++ {
		v := d.t.viewCmd(i, d.owner[i], live.at(i))
		line := d.line(&v)
		if !strings.Contains(line, d.o.Grep) {
			continue
		}
		if err := f(&v, d.owner[i], line); err != nil {
			return err
		}
	}
	return nil
}

// liveRegions finds the regions that are live at a command. Commands must be asked for in
// ascending order.
type liveRegions struct {
	pending []*Region // by first command
	live    []*Region
}

func newLiveRegions(t *Table) *liveRegions {
	l := &liveRegions{pending: make([]*Region, len(t.Regions))}
	for i := range t.Regions {
		l.pending[i] = &t.Regions[i]
	}
	slices.SortStableFunc(l.pending, func(a, b *Region) int { return int(int64(a.First) - int64(b.First)) })
	return l
}

func (l *liveRegions) at(cmd int) []*Region {
	for len(l.pending) > 0 && uint64(l.pending[0].First) <= uint64(cmd) {
		l.live = append(l.live, l.pending[0])
		l.pending = l.pending[1:]
	}
	l.live = slices.DeleteFunc(l.live, func(r *Region) bool { return uint64(r.Last) < uint64(cmd) })
	return l.live
}

func (d *dumper) line(v *cmdView) string {
	mark := " "
	if v.Barrier {
		mark = "|"
	}
	var s strings.Builder
	fmt.Fprintf(&s, "%5d %s %s  %s ", v.Index, mark, pad(plain(v.Label), d.label), pad(v.kernelView.text(), d.kernel))
	for i := range v.Bindings {
		s.WriteString(" " + v.Bindings[i].text())
	}
	s.WriteString(" ")
	s.WriteString(v.Params.text())
	s.WriteString(v.Second.text())
	fmt.Fprintf(&s, "  grid=%s tg=%s", dimensions(v.Grid), dimensions(v.Threadgroup))
	if v.TGMem != 0 {
		fmt.Fprintf(&s, " tgmem=%d", v.TGMem)
	}
	if p := v.patchText(); p != "" {
		s.WriteString(" patch=" + p)
	}
	return s.String()
}

// text returns the kernel and its constants, such as gemv{wtype=Q8_0 act=q8}.
func (k *kernelView) text() string {
	if c := k.Constants.text(); c != "" {
		return k.Kernel + "{" + c[1:] + "}"
	}
	return k.Kernel
}

// text returns the values that are not quiet, each after a space.
func (n namedValues) text() string {
	var s strings.Builder
	for _, v := range n {
		if !v.quiet {
			s.WriteString(" " + v.Name + "=" + v.Value)
		}
	}
	return s.String()
}

// place returns a name and an offset, or only the name if the offset is 0.
func place(name string, offset uint64) string {
	if offset == 0 {
		return plain(name)
	}
	return fmt.Sprintf("%s+%#x", plain(name), offset)
}

func (b *bindingView) text() string {
	s := b.Name + "=" + place(b.Slot, b.Offset)
	if b.Region != "" {
		s += ":" + place(b.Region, b.RegionOffset)
	}
	switch {
	case b.Extent == nil:
		s += "[?]"
	case !b.whole:
		s += "[" + exactSize(*b.Extent) + "]"
	}
	return s
}

// patchText returns the patch kind, followed by the patched fields in parentheses unless the kind
// is named after them. It returns "" if there is no patch.
func (v *cmdView) patchText() string {
	if len(v.PatchFields) == 0 || strings.Join(v.PatchFields, "+") == v.Patch {
		return strings.TrimSuffix(v.Patch, PatchNone.String())
	}
	return v.Patch + "(" + strings.Join(v.PatchFields, ",") + ")"
}

// dimensions formats a size in up to three dimensions, without trailing 1s.
func dimensions(d [3]uint32) string {
	switch {
	case d[2] != 1:
		return fmt.Sprintf("%dx%dx%d", d[0], d[1], d[2])
	case d[1] != 1:
		return fmt.Sprintf("%dx%d", d[0], d[1])
	}
	return strconv.FormatUint(uint64(d[0]), 10)
}

// plain returns a name unchanged if it prints as one word, and quoted otherwise, so that names
// from a file cannot disturb columns or a terminal.
func plain(s string) string {
	ok := s != ""
	for _, r := range s {
		ok = ok && r != ' ' && r != '"' && r != utf8.RuneError && strconv.IsPrint(r)
	}
	if ok {
		return s
	}
	return strconv.Quote(s)
}

// columnWidth returns the width of the longest word, at most limit.
func columnWidth(words []string, limit int) int {
	n := 0
	for _, w := range words {
		n = max(n, utf8.RuneCountInString(w))
	}
	return min(n, limit)
}

func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s)))
}

// exactSize formats a number of bytes, in K or M (1024, 1024*1024) if it is a whole number of
// them.
func exactSize(n uint64) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return strconv.FormatUint(n>>20, 10) + "M"
	case n >= 1<<10 && n%(1<<10) == 0:
		return strconv.FormatUint(n>>10, 10) + "K"
	}
	return strconv.FormatUint(n, 10)
}

// humanSize formats a number of bytes with three digits, such as "1.25 MiB".
func humanSize(n uint64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	x := float64(n) / (1 << 10)
	for _, unit := range []string{"KiB", "MiB", "GiB"} {
		if x < 999.5 {
			return strconv.FormatFloat(x, 'f', decimals(x), 64) + " " + unit
		}
		x /= 1 << 10
	}
	return strconv.FormatFloat(x, 'f', decimals(x), 64) + " TiB"
}

// decimals returns the number of decimals that gives x three digits.
func decimals(x float64) int {
	switch {
	case x < 9.995:
		return 2
	case x < 99.95:
		return 1
	}
	return 0
}
