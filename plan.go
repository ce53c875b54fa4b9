package pianola

import (
	"errors"
	"fmt"

	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// Memory is memory on a device, in bytes.
type Memory struct {
	Weights  uint64 // weights that were copied to the device or repacked
	Mapped   uint64 // weights that the device uses in place, in the mapped files
	Sessions uint64 // KV caches, tokens and settings of all sessions
	Executor uint64 // scratch, which sessions share

	// Kinds is the memory of each kind of slot. Of KV caches it counts what sessions have
	// grown to.
	Kinds [table.SlotKinds]MemoryUse
}

// MemoryUse is the memory of one kind of slot, in bytes.
type MemoryUse struct {
	Active uint64 // now
	Peak   uint64 // the most since the model was opened
}

// memoryOf returns a device's memory as this package has it.
func memoryOf(d replay.Memory) Memory {
	m := Memory{Weights: d.Weights, Mapped: d.Mapped, Sessions: d.Sessions, Executor: d.Executor}
	for i, k := range d.Kinds {
		m.Kinds[i] = MemoryUse{k.Active, k.Peak}
	}
	return m
}

// MemoryPlan is the memory that a model and its sessions need on a device.
type MemoryPlan struct {
	Device  DeviceInfo
	Mode    Mode
	Context int // positions of a session

	// Loaded is the memory of the opened model without sessions.
	Loaded Memory
	// Session is what each session adds at full context. A shorter context needs less. A
	// device that moves a cache to make it larger needs the old and the new one for a
	// moment; SessionOptions.Reserve avoids that.
	Session Memory

	Free uint64 // free bytes of the device now, 0 if unknown
}

// Total returns the bytes of the model with a number of sessions at full context. It leaves
// out parameters of commands, recordings of drivers, and the memory of the process itself:
// tokenizer, table and Go's heap.
func (p *MemoryPlan) Total(sessions int) uint64 {
	m := &p.Loaded
	return m.Weights + m.Mapped + m.Executor + uint64(max(sessions, 0))*p.Session.Sessions
}

// Kind returns the bytes of one kind of slot with a number of sessions at full context.
func (p *MemoryPlan) Kind(k table.SlotKind, sessions int) uint64 {
	if int(k) >= len(p.Loaded.Kinds) {
		return 0
	}
	return p.Loaded.Kinds[k].Active + uint64(max(sessions, 0))*p.Session.Kinds[k].Active
}

// BudgetError reports a model that does not fit in Options.MemoryBudget.
type BudgetError struct {
	Need, Have uint64 // bytes
	Sessions   int    // the number of sessions that the budget is for
	Longest    int    // positions of the longest context that fits; 0 if none does or a roll fixes it
	Plan       *MemoryPlan
}

// Error implements error.
func (e *BudgetError) Error() string {
	s := fmt.Sprintf("pianola: the model with %d sessions of %d positions takes %d bytes of a budget of %d", e.Sessions, e.Plan.Context, e.Need, e.Have)
	if e.Longest > 0 {
		s += fmt.Sprintf("; %d positions fit", e.Longest)
	}
	return s
}

// ErrNoPlan is the error of Plan for a device that cannot plan its memory.
var ErrNoPlan = errors.New("pianola: the device cannot plan its memory")

// Plan returns the memory that Open would take with these options, and that of each
// session. It reads the headers of the files, no weights, and allocates nothing on the
// device. The error is a *BudgetError, which has the plan, if the model needs more than
// o.MemoryBudget.
func Plan(path string, o Options) (p *MemoryPlan, err error) {
	h, err := OpenHeader(path, o.Architectures)
	if err != nil {
		return nil, err
	}
	if err := o.Table.check(); err != nil {
		return nil, err
	}
	on, err := newDevice(o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, on.dev.Close()) }()
	return h.plan(on, o)
}

// plan is Plan for a device.
func (h *Header) plan(on *target, o Options) (*MemoryPlan, error) {
	t, err := h.tableFor(on, o)
	if err != nil {
		return nil, err
	}
	p := &planner{h, on, o}
	plan, err := p.of(t)
	if err != nil {
		return nil, err
	}
	if plan.Free, err = on.free(); err != nil {
		return nil, err
	}
	return plan, p.check(plan)
}

// planner plans tables of one model for one device.
type planner struct {
	*Header
	on *target
	o  Options
}

// of returns the plan of a table.
func (p *planner) of(t *table.Table) (*MemoryPlan, error) {
	dev, ok := p.on.dev.(replay.Planner)
	if !ok {
		return nil, ErrNoPlan
	}
	if faults := t.Validate(); len(faults) > 0 {
		return nil, fmt.Errorf("pianola: %w", faults[0])
	}
	plan := &MemoryPlan{Device: p.on.info(), Mode: p.on.mode, Context: int(t.Header.Context)}
	loaded, session, err := dev.Plan(t, p.where, plan.Context)
	plan.Loaded, plan.Session = memoryOf(loaded), memoryOf(session)
	return plan, err
}

func (p *planner) where(tensor string) (offset uint64, ok bool) {
	t, ok := p.dir.Tensor(tensor)
	return t.Offset, ok
}

// check returns a *BudgetError if a plan is over the budget.
func (p *planner) check(plan *MemoryPlan) error {
	sessions := max(1, p.o.BudgetSessions)
	need, have := plan.Total(sessions), p.o.MemoryBudget
	if have == 0 || need <= have {
		return nil
	}
	e := &BudgetError{Need: need, Have: have, Sessions: sessions, Plan: plan}
	if p.o.Roll != nil {
		return e
	}
	// Tables are compiled in no time: from headers, most of what they have does not
	// depend on the context.
	for lo, hi := 1, plan.Context-1; lo <= hi; {
		o := p.o
		o.Table.Context = lo + (hi-lo)/2
		fits := false
		if t, err := p.tableFor(p.on, o); err == nil {
			shorter, err := p.of(t)
			fits = err == nil && shorter.Total(sessions) <= have
		}
		if fits {
			e.Longest, lo = o.Table.Context, o.Table.Context+1
		} else {
			hi = o.Table.Context - 1
		}
	}
	return e
}

// withinBudget returns a *BudgetError if the model's table takes more than the options
// allow.
func (m *Model) withinBudget(on *target, o Options) error {
	if o.MemoryBudget == 0 {
		return nil
	}
	p := &planner{m.h, on, o}
	plan, err := p.of(m.t)
	if err != nil {
		return err
	}
	return p.check(plan)
}
