package table

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/internal/decl"
)

// OptionBatching is the word of Header.Options that marks a table for batching.
const OptionBatching = "batching"

// Batching reports whether the table was compiled for batching: the bits of a row depend neither on
// the number of rows that are computed together nor on where a prompt was cut.
func (h *Header) Batching() bool {
	return slices.Contains(strings.Fields(h.Options), OptionBatching)
}

// arithmetic is what determines the bits that a command computes from a matrix or a KV cache.
type arithmetic struct {
	cmd    int // a command with this arithmetic
	kernel KernelID
	specs  [decl.MaxSpecs]uint32
	order  []uint64 // of the sums of a row, see decl.Kernel.Order
}

// batching checks that the bits of a row do not depend on the number of rows: all commands that
// multiply with a matrix, or that attend to a KV cache, have the same arithmetic, whichever program
// they belong to.
func (v *validator) batching() {
	t := v.t
	type place struct {
		slot   uint32
		offset uint64
	}
	first := map[place]arithmetic{}
	for p := range t.Programs {
		for c := range t.ProgramCmds(&t.Programs[p]) {
			i := int(t.Programs[p].First) + c
			cmd := &t.Cmds[i]
			env, err := t.NewEnv(cmd, &t.Programs[p])
			if err == nil {
				err = env.k.CheckBatching(env)
			}
			a := arithmetic{cmd: i, kernel: cmd.Kernel}
			if err == nil {
				a.specs = env.s.Values
				if i, ok := env.k.Spec("sequences"); ok {
					a.specs[i] = 0 // where the positions are, not how they are computed
				}
				a.order, err = env.k.RowOrder(env)
				a.kernel, a.specs = env.k.Form(a.kernel, a.specs)
			}
			if err != nil {
				v.add(i, "batching: %v", err)
				continue
			}
			for b := range env.k.Bindings {
				if !env.k.Sums(b, env) {
					continue
				}
				at := place{cmd.Bind[b].Slot, cmd.Bind[b].Offset}
				was, ok := first[at]
				switch {
				case !ok:
					first[at] = a
				case !was.same(&a):
					v.add(i, "batching: its arithmetic for slot %s is %s, that of command %d (%s) is %s",
						t.Slots[at.slot].Name, t.arithmeticOf(&a), was.cmd, t.Label(was.cmd), t.arithmeticOf(&was))
				}
			}
		}
	}
}

// same reports whether two commands compute the same bits.
func (a *arithmetic) same(b *arithmetic) bool {
	return a.kernel == b.kernel && a.specs == b.specs && slices.Equal(a.order, b.order)
}

// arithmeticOf describes an arithmetic: "gemm {1 2 0} order [64 256]".
func (t *Table) arithmeticOf(a *arithmetic) string {
	k, ok := decl.Lookup(a.kernel)
	if !ok {
		return "unknown"
	}
	s := fmt.Sprintf("%s with constants %d", k.Name, a.specs[:len(k.Specs)])
	if len(a.order) > 0 {
		s += fmt.Sprintf(" and %s %d", strings.Join(k.Order, ", "), a.order)
	}
	return s
}
