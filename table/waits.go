package table

import "slices"

// wait is one reason for a command's barrier: the command and an earlier one use a common range of
// a slot, and at least one of the two writes it.
type wait struct {
	cmd    int // the earlier command
	slot   uint32
	lo, hi uint64 // the common range
	kind   string // "read after write", "write after read" or "write after write"
}

// Bounds of the list of waits. Tables whose barriers are placed by PlaceBarriers stay far below
// them; a hostile table must not make a dump large or slow.
const (
	maxPending = 1 << 12 // accesses without a barrier in between
	maxWaits   = 64      // waits of a command
)

// pendingAccess is an access by the last command that made it.
type pendingAccess struct {
	access
	cmd int
}

// waits returns the waits of each command on the commands between it and the barrier before it. A
// command with waits but without a barrier lacks one. The first commands of a program wait for the
// last ones of all programs, because any program may follow any other. waits returns nil if a
// program's range or a command does not match its declarations, which Validate reports.
func (t *Table) waits() [][]wait {
	for i := range t.Programs {
		p := &t.Programs[i]
		if uint64(p.First)+uint64(p.Count) > uint64(len(t.Cmds)) {
			return nil
		}
	}
	h, err := newHazards(t)
	if err != nil {
		return nil
	}
	list := make([][]wait, len(t.Cmds))
	// What a program leaves pending depends on what it began with only if it has no barrier. The
	// union over all programs is therefore complete after each of them was walked once.
	var entry []pendingAccess
	for i := range t.Programs {
		for _, a := range h.collect(&t.Programs[i], nil, list) {
			entry = addPending(entry, a)
		}
	}
	for i := range t.Programs {
		h.collect(&t.Programs[i], entry, list)
	}
	return list
}

// collect sets the waits of a program's commands, which starts with the given accesses pending, and
// returns the accesses that are pending at its end.
func (h *hazards) collect(p *Program, entry []pendingAccess, list [][]wait) []pendingAccess {
	pending := slices.Clone(entry)
	for i := int(p.First); i < int(p.First+p.Count); i++ {
		list[i] = conflicting(pending, h.accs[i])
		if h.t.Cmds[i].Barrier != 0 {
			pending = pending[:0]
		}
		for _, a := range h.accs[i] {
			pending = addPending(pending, pendingAccess{a, i})
		}
	}
	return pending
}

// addPending adds an access. If an earlier command made the same access, it replaces that command.
func addPending(pending []pendingAccess, a pendingAccess) []pendingAccess {
	if i := slices.IndexFunc(pending, func(b pendingAccess) bool { return b.access == a.access }); i >= 0 {
		pending[i].cmd = a.cmd
		return pending
	}
	if len(pending) >= maxPending {
		return pending
	}
	return append(pending, a)
}

// conflicting returns the waits of a command with the given accesses.
func conflicting(pending []pendingAccess, accs []access) []wait {
	var list []wait
	for _, a := range accs {
		for _, b := range pending {
			if !b.conflicts(a) || len(list) >= maxWaits {
				continue
			}
			w := wait{cmd: b.cmd, slot: a.slot, lo: max(a.lo, b.lo), hi: min(a.hi, b.hi), kind: "read after write"}
			switch {
			case a.write && b.write:
				w.kind = "write after write"
			case a.write:
				w.kind = "write after read"
			}
			if !slices.Contains(list, w) {
				list = append(list, w)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b wait) int { return a.cmd - b.cmd })
	return list
}
