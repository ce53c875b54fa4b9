package table

import (
	"encoding/binary"
	"slices"

	"github.com/pianola-engine/pianola/internal/decl"
)

// A device may begin a command before the commands of the phase before have ended, a phase being the commands
// from one barrier to the next. It begins the command when all of that phase have begun, so that everything
// earlier has ended. Then the command reads only constant memory, and, if its parameter settled is 1, what the
// phase before does not write: the caches of attention and the step block.

// settled reports of each command of a program whether that is so: whether it is not in the first phase of the program,
// and the phase before writes neither the step block nor a binding that its kernel reads early.
func (h *hazards) settled(p *Program) []bool {
	list := make([]bool, p.Count)
	var before, phase []access // writes
	first := true
	for i := int(p.First); i < int(p.First+p.Count); i++ {
		c := &h.t.Cmds[i]
		if c.Barrier != 0 && i > int(p.First) {
			before, phase = phase, nil
			first = false
		}
		list[i-int(p.First)] = !first && !slices.ContainsFunc(h.accs[i], func(a access) bool {
			return a.early && slices.ContainsFunc(before, func(b access) bool { return b.conflicts(a) })
		})
		for _, a := range h.accs[i] {
			if a.write {
				phase = append(phase, a)
			}
		}
	}
	return list
}

// each calls visit for each command that has the parameter settled, with its offset and whether it may be 1.
func (h *hazards) each(visit func(cmd, offset int, settled bool)) {
	for pi := range h.t.Programs {
		p := &h.t.Programs[pi]
		list := h.settled(p)
		for i := int(p.First); i < int(p.First+p.Count); i++ {
			c := &h.t.Cmds[i]
			k, _ := decl.Lookup(c.Kernel) // newHazards has found it
			offset, ok := k.SettledParam()
			if !ok {
				continue
			}
			env, err := h.t.NewEnv(c, p)
			visit(i, offset, err == nil && k.MaySettle(env) && list[i-int(p.First)])
		}
	}
}

// settle sets the parameter settled of all commands that have it.
func (h *hazards) settle() {
	h.each(func(cmd, offset int, settled bool) {
		v := uint32(0)
		if settled {
			v = 1
		}
		binary.LittleEndian.PutUint32(h.t.Cmds[cmd].Param[offset:], v)
	})
}

// unsettled returns the commands whose parameter settled is 1 although the phase before may write what they read early.
func (h *hazards) unsettled() []int {
	var list []int
	h.each(func(cmd, offset int, settled bool) {
		if !settled && h.t.Cmds[cmd].u32(offset) != 0 {
			list = append(list, cmd)
		}
	})
	return list
}
