package compiler

import (
	"fmt"
	"slices"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/recurrent"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/internal/speculate"
	"github.com/pianola-engine/pianola/table"
)

// poolError reports that a pooled table cannot have an option, or not this number of sequences or pages.
type poolError struct{ What string }

// Error implements error.
func (e *poolError) Error() string { return "compiler: a table for many sequences: " + e.What }

// poolKind is a kind of layers, which see the same positions and share page tables.
type poolKind struct {
	window, sinks int
	state         bool // layers with recurrent state
}

// stateKind is the kind of layers with recurrent state. A layer that has attention too is also of another.
var stateKind = poolKind{state: true}

// poolStateBudget bounds the bytes of the states of a pooled table, of all layers together, unless its
// sequences need more.
const poolStateBudget = 1 << 30

// planPool checks the options of a pooled table and plans its step block.
func (s *state) planPool() error {
	o := &s.in.Options
	if o.Sequences == 0 && o.Pages == 0 {
		return nil
	}
	if o.Draft > 0 {
		return &poolError{"it verifies drafts without the program verify"}
	}
	o.Batching = true
	l := sequence.Layout{Sequences: o.Sequences, Pages: o.Pages, Table: ceil(o.Context, sequence.PagePositions)}
	if o.Pages == 0 {
		l.Pages = l.Sequences * l.Table
	}
	for i := range s.cfg.Layers {
		if k := s.kindOf(i); s.cfg.Layer[i].Attends() && s.kindIndex(k) < 0 {
			s.kinds = append(s.kinds, k)
		}
	}
	if s.cfg.Recurrent() {
		s.kinds = append(s.kinds, stateKind)
	}
	l.Kinds = len(s.kinds)
	l.States = s.poolStates(&l)
	for _, n := range slices.Concat(s.batchClasses(), s.fillClasses()) {
		l.Rows = max(l.Rows, n)
	}
	if err := l.Check(); err != nil {
		return &poolError{err.Error()}
	}
	s.pool = &l
	return nil
}

// poolStates returns the number of states of a pooled table. A sequence needs the state that it begins
// with, and at a border another one; a prompt needs those at the borders of a chunk. More are for
// beginnings of prompts that may come again, at most as many as there are pages.
func (s *state) poolStates(l *sequence.Layout) int {
	if !s.cfg.Recurrent() {
		return 0
	}
	need := 2*l.Sequences + ceil(s.in.Chip.PrefillChunk, recurrent.Border) + 3
	return min(l.Pages, max(need, int(poolStateBudget/s.stateBytes())))
}

// kindOf returns the kind of a layer's attention.
func (s *state) kindOf(layer int) poolKind {
	if w := s.cfg.Layer[layer].Window; w > 0 {
		return poolKind{window: w}
	}
	return poolKind{window: s.in.Options.KVWindow, sinks: s.in.Options.KVSinks}
}

func (s *state) kindIndex(k poolKind) int {
	for i, other := range s.kinds {
		if other == k {
			return i
		}
	}
	return -1
}

// batchClasses returns the numbers of rows that batch programs are compiled for, in ascending order. A
// class that no batch needs is left out.
func (s *state) batchClasses() (classes []int) {
	for _, n := range s.in.Chip.BatchRows {
		classes = append(classes, min(n, s.in.Options.Sequences))
		if n >= s.in.Options.Sequences {
			break
		}
	}
	return classes
}

// batchRows returns the largest number of rows of which a batch chooses tokens, or 0 if the table is not
// pooled.
func (s *state) batchRows() int {
	if s.pool == nil {
		return 0
	}
	classes := s.batchClasses()
	return classes[len(classes)-1]
}

// fillClasses returns the numbers of rows that the programs of joint passes are compiled for, in ascending
// order. The largest is a chunk. A GPU has programs for fewer rows, whose products have other kernels or
// threadgroups: the time of a product depends on the tiles of rows that its program has, not on the rows that there
// are. Layers with recurrent state need the rows of a sequence in order, so their tables have none.
func (s *state) fillClasses() (classes []int) {
	chunk := s.chunk()
	if s.cfg.Recurrent() {
		return nil
	}
	if rows := s.in.Chip.BatchRows; s.in.Chip.GEMMUnit > 0 {
		wanted := []int{fewRows, rows[len(rows)-1]}
		if s.segments() { // gemm_few has two groups of rows for quantised weights, gemm_halves tiles of 64 and 128 rows
			for n := 2 * fewRows; n < chunk; n *= 2 {
				wanted = append(wanted, n)
			}
			wanted = append(wanted, chunk*3/4)
		}
		for _, n := range wanted {
			if n < chunk && !slices.Contains(classes, n) {
				classes = append(classes, n)
			}
		}
		slices.Sort(classes)
	}
	return append(classes, chunk)
}

// planPages creates a layer's slots of KV pages.
func (s *state) planPages(l *layerPlan) {
	k := s.kindOf(l.index)
	l.window, l.sinks = k.window, k.sinks
	l.cap = s.pool.Pages * sequence.PagePositions
	l.tables = s.tablesOf(k)
}

// tablesOf returns the offset of the page tables of a kind in the step block.
func (s *state) tablesOf(k poolKind) uint32 { return uint32(s.pool.TablesAt(s.kindIndex(k))) }

// batches adds the programs that decode a batch, for each class of rows.
func (s *state) batches() error {
	return s.eachChoice(s.batchClasses(), [3]string{sequence.ProgramBatch, sequence.ProgramSample, sequence.ProgramRanked}, 0, func(p *program, choose func(p *program)) error {
		x, err := s.body(p)
		if err != nil {
			return err
		}
		return s.head(p, x, false, choose)
	})
}

// eachChoice adds a program for each of the classes of rows and for each way of choosing tokens that the table has, and
// calls emit to emit its nodes. names are the names of the programs that choose by argmax, sample, and store
// log-probabilities.
func (s *state) eachChoice(classes []int, names [3]string, flags table.Flags, emit func(p *program, choose func(p *program)) error) error {
	flags |= table.FlagChooses | table.FlagBatch
	for _, rows := range classes {
		for i, c := range []struct {
			flags  table.Flags
			choose func(p *program)
			on     bool
		}{
			{flags, s.argmaxRows, true},
			{flags | table.FlagSamples, s.sample, s.sampler != nil},
			{flags | table.FlagSamples | table.FlagRanks, s.ranked, s.ranks != nil},
		} {
			if !c.on {
				continue
			}
			if err := emit(s.newProgram(fmt.Sprintf("%s.%d", names[i], rows), rows, true, c.flags), c.choose); err != nil {
				return err
			}
		}
	}
	return nil
}

// fills adds the programs of joint passes. They share the residual of the program prefill.
func (s *state) fills(x *value) error {
	classes := s.fillClasses()
	if len(classes) == 0 {
		return nil
	}
	for _, rows := range classes {
		if err := s.bodyInto(s.newProgram(fmt.Sprintf("%s.%d", sequence.ProgramFill, rows), rows, true, table.FlagBatch), x); err != nil {
			return err
		}
	}
	return s.eachChoice(s.headClasses(), [3]string{sequence.ProgramHead, sequence.ProgramSampleHead, sequence.ProgramRankedHead}, table.FlagReadsRow, func(p *program, choose func(p *program)) error {
		return s.head(p, x, true, choose)
	})
}

// mostHeads bounds the rows that a joint pass chooses tokens for because of drafts, and so the memory of logits.
const mostHeads = 64

// headClasses returns the numbers of rows of which joint passes choose tokens, in ascending order: those of the
// batches, and more if there are few sequences, because each token of a draft is a row.
func (s *state) headClasses() (classes []int) {
	if len(s.fillClasses()) == 0 {
		return nil
	}
	most := max(s.batchRows(), min(mostHeads, (1+speculate.JointMost)*s.in.Options.Sequences, s.chunk()))
	for _, n := range s.in.Chip.BatchRows {
		classes = append(classes, min(n, most))
		if n >= most {
			break
		}
	}
	return classes
}

// chosenRows returns the largest number of rows of which a program of a pooled table chooses tokens, or 0.
func (s *state) chosenRows() int {
	if s.pool == nil {
		return 0
	}
	return slices.Max(append(s.headClasses(), s.batchRows()))
}

// argmaxRows emits the choice of the most probable token of each row.
func (s *state) argmaxRows(p *program) {
	part := s.in.Chip.ArgmaxPart
	if part == 0 {
		part = roundUp(s.cfg.Vocab, 4)
	}
	best := s.argmaxParts(p, part)
	p.emit(spot{role: roleArgmaxPart}, argmaxPartArgs{part: part}, []operand{{v: s.logits, width: s.cfg.Vocab}}, best.all())
	p.emit(spot{role: roleArgmax}, chooseArgs{parts: best.width / 2}, []operand{best.all(), s.stops.all()}, s.tokens.all())
}

// sequences returns the value of the constant sequences for a program's commands.
func (l *lowering) sequences() uint32 {
	switch {
	case l.s.pool == nil:
		return decl.SequencesOwn
	case l.p.flags.Has(table.FlagBatch):
		return decl.SequencesMany
	}
	return decl.SequencesOne
}

// place sets a patch of the program's position or token, which the rows of a batch take from their row
// records instead.
func (l *lowering) place(kind table.Patch, offset uint8) {
	if l.sequences() != decl.SequencesMany {
		l.patch(kind, offset)
		return
	}
	l.patch(table.PatchNone, 0)
	if kind == table.PatchKVLen {
		l.cmd.PutSecond(int(offset), 1) // a valid value, which is not used
	}
}

// pooled returns the number of sequences of a pooled table, or 0.
func (l *lowering) pooled() uint32 {
	if l.s.pool == nil {
		return 0
	}
	return uint32(l.s.pool.Sequences)
}

// pages returns the parameters tables and table of the layer's KV pages.
func (l *lowering) pages() (tables, entries uint32) {
	if l.s.pool == nil {
		return 0, 0
	}
	return l.n.layer.tables, uint32(l.s.pool.Table)
}

// first returns the number of rows at the start of a layer's cache that stay, which pages do not have.
func (l *layerPlan) first() uint32 {
	if l.tables > 0 {
		return 0
	}
	return uint32(l.sinks)
}
