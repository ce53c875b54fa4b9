package table

import (
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/internal/decl"
)

// Flags describe the effects of a program beyond computing activations. The compiler sets them, and
// Validate compares them with the declarations of the program's kernels. Code that replays a
// program must use the flags, never the program's name.
type Flags uint32

// The flags.
const (
	// FlagChooses is set if the program chooses a token and writes it to the token
	// ring: it has a command that writes the step block.
	FlagChooses Flags = 1 << iota

	// FlagAdvances is set if the program updates the step record itself, so that the step
	// block holds the record for the next replay. For other programs the device that replays
	// them updates the step record.
	FlagAdvances

	// FlagReadsRow is set if the program reads rows of the chunk that the prefill
	// program left in scratch, from the step record's Row on, instead of tokens.
	FlagReadsRow

	// FlagSamples is set if the program reads the sampler slot.
	FlagSamples

	// FlagRanks is set if the program stores log-probabilities in the ranks slot.
	FlagRanks

	// FlagBatch is set if the program's rows belong to the sequences that the row records of the step
	// block name.
	FlagBatch

	allFlags = FlagBatch<<1 - 1
)

var flagNames = [...]string{"chooses", "advances", "reads_row", "samples", "ranks", "batch"}

// Has reports whether all flags of g are set.
func (f Flags) Has(g Flags) bool { return f&g == g }

// Names returns the names of the flags that are set.
func (f Flags) Names() []string {
	names := []string{}
	for i, name := range flagNames {
		if f.Has(1 << i) {
			names = append(names, name)
		}
	}
	return names
}

// String returns the names separated by commas, or "none" if no flag is set.
func (f Flags) String() string {
	if f&allFlags == 0 {
		return "none"
	}
	return strings.Join(f.Names(), ",")
}

// declared returns the flags that follow from the declarations of a program's kernels. Commands with
// unknown kernels or slots add none.
func (t *Table) declared(p *Program) (f Flags) {
	set := func(flag Flags, on bool) {
		if on {
			f |= flag
		}
	}
	for i := range t.ProgramCmds(p) {
		c := &t.Cmds[int(p.First)+i]
		k, ok := decl.Lookup(c.Kernel)
		if !ok {
			continue
		}
		set(FlagChooses, k.Step)
		set(FlagAdvances, k.Advances)
		set(FlagReadsRow, c.Patch.Kind() == PatchRow)
		set(FlagSamples, t.binds(c, SlotSampler))
		set(FlagRanks, t.binds(c, SlotRanks))
		set(FlagBatch, t.sequences(c, k) == decl.SequencesMany)
	}
	return f
}

// sequences returns the value of a command's constant sequences.
func (t *Table) sequences(c *Cmd, k *decl.Kernel) uint32 {
	i, ok := k.Spec("sequences")
	if !ok || uint64(c.Spec) >= uint64(len(t.Specs)) {
		return decl.SequencesOwn
	}
	return t.Specs[c.Spec].Values[i]
}

// binds reports whether a command binds a slot of a kind.
func (t *Table) binds(c *Cmd, kind SlotKind) bool {
	return slices.ContainsFunc(c.Bind[:], func(b Binding) bool {
		return int64(b.Slot) < int64(len(t.Slots)) && t.Slots[b.Slot].Kind == kind
	})
}
