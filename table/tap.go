package table

import (
	"fmt"

	"github.com/pianola-engine/pianola/internal/decl"
)

// Written is the float32 output of a command through one binding: Rows rows of Cols elements,
// Stride bytes apart.
type Written struct {
	Binding    int
	Name       string
	Slot       uint32
	Offset     uint64
	Rows, Cols int
	Stride     uint64
}

// Size returns the bytes from the start of the first row to the end of the last.
func (w *Written) Size() uint64 { return uint64(w.Rows-1)*w.Stride + 4*uint64(w.Cols) }

// Written returns the float32 output that a command of a program writes to the scratch and logits
// slots when step patches it. The step must have passed replay.CheckRun.
func (t *Table) Written(cmd int, p *Program, step *Step) ([]Written, error) {
	env, err := t.EnvAt(cmd, p, step)
	if err != nil {
		return nil, err
	}
	rows := 1
	if n, ok := env.Value("rows"); ok {
		rows = int(n)
	}
	c := &t.Cmds[cmd]
	var all []Written
	for i := range env.k.Bindings {
		b := c.Bind[i]
		if i >= int(c.Bindings) || b.Slot == NoSlot || !env.k.Role(i, env).Writes() || env.k.Bindings[i].Elem != decl.F32 {
			continue
		}
		if k := t.Slots[b.Slot].Kind; k != SlotScratch && k != SlotLogits {
			continue
		}
		// The extent of one more row is the distance between rows.
		one, err := env.withRows(1).Extent(i)
		if err != nil {
			return nil, err
		}
		two, err := env.withRows(2).Extent(i)
		if err != nil {
			return nil, err
		}
		w := Written{i, env.k.Bindings[i].Name, b.Slot, b.Offset, rows, int(one / 4), two - one}
		if w.Stride == 0 {
			w.Rows = 1
		}
		if size := t.Slots[b.Slot].Size; b.Offset > size || w.Size() > size-b.Offset {
			return nil, fmt.Errorf("binding %s exceeds slot %s", w.Name, t.Slots[b.Slot].Name)
		}
		all = append(all, w)
	}
	return all, nil
}

// EnvAt returns the environment of a command of a program, patched with step.
func (t *Table) EnvAt(cmd int, p *Program, step *Step) (*Env, error) {
	e, err := t.NewEnv(&t.Cmds[cmd], p)
	if err != nil {
		return nil, err
	}
	e.second = e.c.Second
	e.c.Apply(step, &e.second)
	return e, nil
}

// withRows returns the environment with n active rows, if the kernel has a field rows.
func (e *Env) withRows(n uint32) *Env {
	with := *e
	for _, s := range e.k.Second {
		if s.Name == "rows" {
			putAt(&with.second, decl.SecondRows, n)
		}
	}
	return &with
}
