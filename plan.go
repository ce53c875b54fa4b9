package pianola

import (
	"errors"
	"fmt"

	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// Memory is the memory that a model and its sessions use on a device, in bytes.
type Memory struct {
	Weights  uint64 // weights that were copied to the device or repacked
	Mapped   uint64 // weights that the device uses in place, in the mapped files
	Sessions uint64 // KV caches, tokens and settings of all sessions
	Executor uint64 // scratch, which sessions share

	// Kinds is the memory of each kind of slot, indexed by table.SlotKind. KV caches count
	// with their current size.
	Kinds [table.SlotKinds]MemoryUse
}

// MemoryUse is the memory of one kind of slot, in bytes.
type MemoryUse struct {
	Active uint64 // bytes in use now
	Peak   uint64 // the largest value of Active since the model was opened, or since Model.ResetPeaks
}

// memoryOf converts a device's memory to a Memory.
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
	Context int // number of positions of a session

	// Loaded is the memory of the opened model without sessions.
	Loaded Memory
	// Session is the memory that each session adds at full context. A shorter context
	// needs less. A device that copies a KV cache to enlarge it briefly needs memory for
	// both copies; SessionOptions.Reserve avoids that.
	Session Memory

	// Spill is the memory of Options.Spill if the device shares the host's memory, otherwise 0.
	Spill uint64

	Free uint64 // free bytes of the device now, or 0 if unknown
}

// Total returns the number of bytes that the model needs with sessions sessions at full context.
// It does not include the parameters of commands, the recordings of drivers, or the process's own
// memory for the tokenizer, the table and the Go heap.
func (p *MemoryPlan) Total(sessions int) uint64 {
	m := &p.Loaded
	return m.Weights + m.Mapped + m.Executor + uint64(max(sessions, 0))*p.Session.Sessions + p.Spill
}

// Kind returns the number of bytes of one kind of slot with sessions sessions at full context.
func (p *MemoryPlan) Kind(k table.SlotKind, sessions int) uint64 {
	if int(k) >= len(p.Loaded.Kinds) {
		return 0
	}
	return p.Loaded.Kinds[k].Active + uint64(max(sessions, 0))*p.Session.Kinds[k].Active
}

// BudgetError reports a model that does not fit in Options.MemoryBudget.
type BudgetError struct {
	Need, Have uint64 // bytes that the model needs, and bytes of the budget
	Sessions   int    // number of sessions in Need
	// Longest is the number of positions of the longest context that fits, or 0 if none does or a
	// roll determines the context.
	Longest int
	Plan    *MemoryPlan // the memory that the model needs with the context of the options
}

// Error implements error.
func (e *BudgetError) Error() string {
	s := fmt.Sprintf("pianola: the model with %d sessions of %d positions needs %d bytes; the memory budget is %d bytes", e.Sessions, e.Plan.Context, e.Need, e.Have)
	if e.Longest > 0 {
		s += fmt.Sprintf("; a context of %d positions fits", e.Longest)
	}
	return s
}

// LimitError reports memory that is over Options.WeightLimit, KVLimit or ScratchLimit. Its fields are
// Kind, a table.SlotKind, and the bytes Need and Limit.
type LimitError = replay.LimitError

// ErrNoPlan reports that the device does not support Plan and Options.MemoryBudget.
var ErrNoPlan = errors.New("pianola: the device does not support memory plans")

// Plan returns the memory that Open would use with the same options, and the memory of each
// session. It reads no weights and allocates nothing on the device. If the model needs more than
// o.MemoryBudget, the error is a *BudgetError, which contains the plan. Other errors are ErrNoPlan
// and those of OpenHeader and Open.
func Plan(path string, o Options) (p *MemoryPlan, err error) {
	if err := o.parallel(); err != nil {
		return nil, err
	}
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
	if p.on.device != DeviceCUDA {
		plan.Spill = p.o.Spill.Memory
	}
	loaded, session, err := dev.Plan(t, p.where, plan.Context)
	plan.Loaded, plan.Session = memoryOf(loaded), memoryOf(session)
	return plan, err
}

func (p *planner) where(tensor string) (offset uint64, ok bool) {
	t, ok := p.dir.Tensor(tensor)
	return t.Offset, ok
}

// check returns a *LimitError if a plan is over a limit, or a *BudgetError if it is over the budget.
func (p *planner) check(plan *MemoryPlan) error {
	for kind, limit := range [table.SlotKinds]uint64{table.SlotWeight: p.o.WeightLimit, table.SlotScratch: p.o.ScratchLimit} {
		if need := plan.Loaded.Kinds[kind].Active; limit > 0 && need > limit {
			return fmt.Errorf("pianola: %w", &LimitError{Kind: table.SlotKind(kind), Need: need, Limit: limit})
		}
	}
	sessions := max(1, p.o.BudgetSessions)
	need, have := plan.Total(sessions), p.o.MemoryBudget
	if have == 0 || need <= have {
		return nil
	}
	e := &BudgetError{Need: need, Have: have, Sessions: sessions, Plan: plan}
	if p.o.Roll != nil {
		return e
	}
	// Compiling reads no weights and is fast, so a binary search over contexts is cheap.
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

// withinBudget returns a *BudgetError or a *LimitError if the model's table needs more than the options allow.
func (m *Model) withinBudget(on *target, o Options) error {
	if o.MemoryBudget == 0 && o.WeightLimit == 0 && o.ScratchLimit == 0 {
		return nil
	}
	p := &planner{m.h, on, o}
	plan, err := p.of(m.t)
	if err != nil {
		return err
	}
	return p.check(plan)
}
