package device

import (
	"fmt"

	"github.com/pianola-engine/pianola/table"
)

// CheckTable returns why no device can load a table: InvalidTableError, or that
// it has no step slot.
func CheckTable(device string, t *table.Table) error {
	if faults := t.Validate(); len(faults) > 0 {
		return &InvalidTableError{Device: device, Faults: faults}
	}
	step, _, ok := t.Slot(table.SlotStep)
	if !ok || step.Scope != table.ScopeSession || step.Size < table.StepSize {
		return fmt.Errorf("%s: the table has no step slot of session scope", device)
	}
	return nil
}

// CheckChip returns why a table is not for a device's kernels, or nil.
func CheckChip(device string, t *table.Table) error {
	if t.Header.Device != device {
		return fmt.Errorf("%s: the table is for chip %s, a %s device", device, t.Header.Chip, t.Header.Device)
	}
	return nil
}

// EachCmd calls f with the commands of all programs, and makes a CommandError of
// the first error. Commands that are in no program are left out.
func EachCmd(device string, t *table.Table, f func(i int, p *table.Program, c *table.Cmd) error) error {
	for pi := range t.Programs {
		p := &t.Programs[pi]
		for i := range t.ProgramCmds(p) {
			c := int(p.First) + i
			if err := f(c, p, &t.Cmds[c]); err != nil {
				return NewCommandError(device, t, c, err)
			}
		}
	}
	return nil
}

// NewCommandError returns an error of a command.
func NewCommandError(device string, t *table.Table, cmd int, err error) *CommandError {
	return &CommandError{Device: device, Command: cmd, Label: t.Label(cmd), Err: err}
}

// CheckAlign returns an error if a binding is not at a multiple of align, where
// kernels can use it; 0 is anywhere. Slots begin at multiples of 256.
func CheckAlign(c *table.Cmd, align uint64) error {
	for i, b := range c.Bind[:min(int(c.Bindings), len(c.Bind))] {
		if b.Slot != table.NoSlot && align > 0 && b.Offset%align != 0 {
			return fmt.Errorf("binding %d is at offset %d of its slot, which is no multiple of %d", i, b.Offset, align)
		}
	}
	return nil
}
