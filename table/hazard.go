package table

import "slices"

// access is a byte range of a slot that a command reads or writes.
type access struct {
	slot   uint32
	lo, hi uint64
	write  bool
	early  bool // a command whose parameter settled is 1 may read it before it waits at its barrier
}

// conflicts reports whether b must wait for a.
func (a access) conflicts(b access) bool {
	return a.slot == b.slot && (a.write || b.write) && a.lo < b.hi && b.lo < a.hi
}

// accesses returns the byte ranges that a command of program p reads and writes. Every command
// reads the step block; kernels declared with Step also write it.
func (t *Table) accesses(c *Cmd, p *Program) ([]access, error) {
	env, err := t.NewEnv(c, p)
	if err != nil {
		return nil, err
	}
	k := env.k
	var out []access
	for i := range min(int(c.Bindings), len(k.Bindings)) {
		b := c.Bind[i]
		if b.Slot == NoSlot {
			continue
		}
		n, err := env.Extent(i)
		if err != nil {
			return nil, err
		}
		out = append(out, access{slot: b.Slot, lo: b.Offset, hi: b.Offset + n, write: k.Bindings[i].Role.Writes(), early: k.ReadsEarly(i)})
	}
	if _, step, ok := t.Slot(SlotStep); ok {
		out = append(out, access{slot: step, hi: StepSize, write: k.Step, early: true})
	}
	return out, nil
}

// hazards walks the programs with the accesses of all their commands.
//
// Replay is cyclic: any program may follow any other, itself included. So each program starts
// with every access pending that some program may leave behind.
type hazards struct {
	t    *Table
	accs [][]access // of each command
}

func newHazards(t *Table) (*hazards, error) {
	h := &hazards{t: t, accs: make([][]access, len(t.Cmds))}
	for pi := range t.Programs {
		p := &t.Programs[pi]
		for i := p.First; i < p.First+p.Count; i++ {
			a, err := t.accesses(&t.Cmds[i], p)
			if err != nil {
				return nil, t.fault(int(i), err.Error())
			}
			h.accs[i] = a
		}
	}
	return h, nil
}

// walk replays a program, starting with the pending accesses. It calls barrier for each command
// to learn whether the command has a barrier; conflict reports whether the command conflicts with
// a pending access. walk returns the accesses that are pending at the end.
func (h *hazards) walk(p *Program, pending []access, barrier func(cmd int, conflict bool) bool) []access {
	pending = slices.Clone(pending)
	for i := int(p.First); i < int(p.First+p.Count); i++ {
		conflict := slices.ContainsFunc(h.accs[i], func(a access) bool {
			return slices.ContainsFunc(pending, func(b access) bool { return b.conflicts(a) })
		})
		if barrier(i, conflict) {
			pending = pending[:0]
		}
		for _, a := range h.accs[i] {
			if !slices.Contains(pending, a) {
				pending = append(pending, a)
			}
		}
	}
	return pending
}

// rounds bounds the search for a fixed point. Barriers only carry accesses from the end of one
// program to the start of the next, so two rounds are enough for every table with a barrier in
// each program.
const rounds = 8

// fixpoint walks all programs, each starting with the accesses that any of them leaves pending,
// until those no longer change.
func (h *hazards) fixpoint(barrier func(cmd int, conflict bool) bool) (settled bool) {
	var entry []access
	for range rounds {
		var next []access
		for i := range h.t.Programs {
			for _, a := range h.walk(&h.t.Programs[i], entry, barrier) {
				if !slices.Contains(next, a) {
					next = append(next, a)
				}
			}
		}
		if len(next) == len(entry) && !slices.ContainsFunc(next, func(a access) bool { return !slices.Contains(entry, a) }) {
			return true
		}
		entry = next
	}
	return false
}

// PlaceBarriers sets the barrier flag of exactly the commands that conflict with an earlier
// command with no barrier in between: commands that access a range the earlier one writes, or
// write a range it accesses. It also sets the parameter settled of commands that have it: to 1 if what they
// read before they wait at their barrier is not written by the commands from the barrier before on.
func (t *Table) PlaceBarriers() error {
	h, err := newHazards(t)
	if err != nil {
		return err
	}
	flags := make([]bool, len(t.Cmds))
	settled := h.fixpoint(func(cmd int, conflict bool) bool {
		flags[cmd] = conflict
		return conflict
	})
	if !settled {
		// A barrier at the start of each program removes every dependence between programs.
		h.fixpoint(func(cmd int, conflict bool) bool {
			flags[cmd] = conflict || h.first(cmd)
			return flags[cmd]
		})
	}
	for i := range t.Cmds {
		t.Cmds[i].Barrier = 0
		if flags[i] {
			t.Cmds[i].Barrier = 1
		}
	}
	h.settle()
	return nil
}

func (h *hazards) first(cmd int) bool {
	return slices.ContainsFunc(h.t.Programs, func(p Program) bool { return int(p.First) == cmd })
}

// missingBarriers returns the commands that conflict with an earlier command and have no barrier
// in between.
func (h *hazards) missingBarriers() []int {
	missing := map[int]bool{}
	h.fixpoint(func(cmd int, conflict bool) bool {
		has := h.t.Cmds[cmd].Barrier != 0
		if conflict && !has {
			missing[cmd] = true
		}
		return has
	})
	var list []int
	for cmd := range missing {
		list = append(list, cmd)
	}
	slices.Sort(list)
	return list
}
