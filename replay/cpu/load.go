package cpu

import (
	"context"
	"errors"
	"fmt"

	"github.com/pianola-engine/pianola/table"
)

// Load takes a table: it validates it, checks that every command has a
// kernel, executes the upload section and starts the team.
func (d *Device) Load(ctx context.Context, t *table.Table, src table.Source, o table.LoadOptions) error {
	d.mu.Lock()
	switch {
	case d.closed:
		d.mu.Unlock()
		return ErrClosed
	case d.loaded || d.loading:
		d.mu.Unlock()
		return ErrLoaded
	}
	d.loading = true
	d.mu.Unlock()

	l := &loader{t: t, src: src, o: o}
	team, err := d.load(ctx, l)

	d.mu.Lock()
	defer d.mu.Unlock()
	d.loading = false
	if err != nil {
		return err
	}
	d.team, d.model, d.loaded = team, l.mem, true
	d.weights, d.mapped = l.copied, l.mapped
	return nil
}

func (d *Device) load(ctx context.Context, l *loader) (*team, error) {
	t := l.t
	if faults := t.Validate(); len(faults) > 0 {
		return nil, &InvalidTableError{Faults: faults}
	}
	step, _, ok := t.Slot(table.SlotStep)
	if !ok || step.Scope != table.ScopeSession || step.Size < table.StepSize {
		return nil, errors.New("cpu: the table has no step slot of session scope")
	}
	// Bound to no memory first: a table that this device cannot run fails
	// before its weights are read.
	if _, err := bind(d.ops, t, make([][]byte, len(t.Slots)), nil, d.threads); err != nil {
		return nil, err
	}
	scratch, err := workerBytes(t)
	if err != nil {
		return nil, err
	}
	if err := l.run(ctx); err != nil {
		return nil, err
	}
	d.executor = scratch * uint64(d.threads)
	for i := range t.Slots {
		s := &t.Slots[i]
		if s.Scope != table.ScopeExecutor {
			continue
		}
		if l.mem[i], err = allocate(s.Size); err != nil {
			return nil, fmt.Errorf("cpu: slot %s: %w", s.Name, err)
		}
		d.executor += s.Size
	}
	// Bound again to the memory there is, which may be mapped at addresses
	// that kernels cannot use.
	if _, err := bind(d.ops, t, l.mem, nil, d.threads); err != nil {
		return nil, err
	}
	d.table = t
	return newTeam(d, d.threads, scratch, d.cpus)
}
