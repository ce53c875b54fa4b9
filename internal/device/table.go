package device

import (
	"fmt"

	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/table"
)

// CheckTable returns an error if no device can load the table: InvalidTableError if Validate
// finds faults, or an error if the table has no step slot of session scope.
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

// CheckChip returns an error if the table was not compiled for a chip of the device.
func CheckChip(device string, t *table.Table) error {
	if t.Header.Device != device {
		return fmt.Errorf("%s: the table was compiled for chip %s of device %s", device, t.Header.Chip, t.Header.Device)
	}
	return nil
}

// CheckOwn returns an error for a pooled table, on devices whose kernels do not support it.
func CheckOwn(device string, t *table.Table) error {
	if _, pooled := sequence.Of(t.Header.Options, int(t.Header.Context)); pooled {
		return fmt.Errorf("%s: tables for many sequences are not supported on this device yet", device)
	}
	return nil
}

// EachCmd calls f with the commands of all programs. It returns the first error as a
// CommandError. It skips commands that belong to no program.
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

// CheckAlign returns an error if a binding's offset is not a multiple of align, which kernels
// require. If align is 0, any offset is accepted. Slots begin at multiples of 256.
func CheckAlign(c *table.Cmd, align uint64) error {
	for i, b := range c.Bind[:min(int(c.Bindings), len(c.Bind))] {
		if b.Slot != table.NoSlot && align > 0 && b.Offset%align != 0 {
			return fmt.Errorf("binding %d: offset %d is not a multiple of %d", i, b.Offset, align)
		}
	}
	return nil
}
