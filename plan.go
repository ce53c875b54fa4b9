package pianola

import (
	"errors"
	"fmt"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/cuda"
	"github.com/pianola-engine/pianola/replay/metal"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

// MemoryPlan is what a model takes of a device's memory.
type MemoryPlan struct {
	Device  replay.Info
	Mode    string
	Context int // positions of a session

	// Loaded is what Model.Memory says once the model is open: weights, copied or where
	// the files are mapped, and what sessions take turns on.
	Loaded replay.Memory
	// Session is what each session adds that has come to its whole context. Before, it
	// has the KV caches of the positions that it has come to. Where a device must move
	// caches to make room, those before are there too for a moment; with
	// SessionOptions.Reserve they never are.
	Session replay.Memory

	Free uint64 // bytes that are free for the device now, 0 if that is not known
}

// Total returns the bytes of the model with so many sessions. Parameters of commands,
// recordings of drivers and what the process has of its own (tokenizer, table, Go's
// heap) are not among them.
func (p *MemoryPlan) Total(sessions int) uint64 {
	m := &p.Loaded
	return m.Weights + m.Mapped + m.Executor + uint64(max(sessions, 0))*p.Session.Sessions
}

// Kind returns the bytes of the slots of a kind with so many sessions.
func (p *MemoryPlan) Kind(k table.SlotKind, sessions int) uint64 {
	if int(k) >= len(p.Loaded.Kinds) {
		return 0
	}
	return p.Loaded.Kinds[k].Active + uint64(max(sessions, 0))*p.Session.Kinds[k].Active
}

// BudgetError says that a model does not fit in Options.MemoryBudget.
type BudgetError struct {
	Need, Have uint64 // bytes
	Sessions   int    // that the budget is for
	Longest    int    // positions of the longest context that fits; 0: none does, or a roll fixes it
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

// ErrNoPlan says that a device does not tell what a table takes.
var ErrNoPlan = errors.New("pianola: the device does not say what a table takes")

// Plan says what Open would take of a device's memory with these options, and what each
// session would. It reads headers, no weights, and the device need not have room. The
// error is a *BudgetError, with the plan, if that is more than o.MemoryBudget allows.
func Plan(path string, o Options) (p *MemoryPlan, err error) {
	h, err := OpenHeader(path, o.Architectures)
	if err != nil {
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
	t, err := tableFor(h.cfg, h.dir, on, o)
	if err != nil {
		return nil, err
	}
	p := &planner{cfg: h.cfg, dir: h.dir, on: on, o: o}
	plan, err := p.of(t)
	if err != nil {
		return nil, err
	}
	if plan.Free, err = freeMemory(on.dev); err != nil {
		return nil, err
	}
	return plan, p.check(plan)
}

// tableFor compiles a model's table for a device, or takes the roll.
func tableFor(cfg *arch.Config, dir *weights.Directory, on *target, o Options) (*table.Table, error) {
	if o.Roll != nil {
		return loadRoll(o, cfg, dir, on.chip)
	}
	return compiler.Compile(inputFor(cfg, dir, on.chip, CompileOptions{
		Context: o.Context, NoFuse: o.NoFuse, NoRepack: o.NoRepack, AllLogits: o.AllLogits, Hidden: o.Hidden, LogProbs: o.LogProbs, Sampler: o.Sampler, Draft: o.Draft,
		KV: o.KV, KVSinks: o.KVSinks, KVWindow: o.KVWindow,
	}))
}

// planner plans tables of one model for one device.
type planner struct {
	cfg *arch.Config
	dir *weights.Directory
	on  *target
	o   Options
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
	plan := &MemoryPlan{Device: p.on.dev.Info(), Mode: p.on.mode, Context: int(t.Header.Context)}
	var err error
	plan.Loaded, plan.Session, err = dev.Plan(t, p.where, plan.Context)
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
		o.Context = lo + (hi-lo)/2
		fits := false
		if t, err := tableFor(p.cfg, p.dir, p.on, o); err == nil {
			shorter, err := p.of(t)
			fits = err == nil && shorter.Total(sessions) <= have
		}
		if fits {
			e.Longest, lo = o.Context, o.Context+1
		} else {
			hi = o.Context - 1
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
	p := &planner{cfg: m.cfg, dir: m.dir, on: on, o: o}
	plan, err := p.of(m.t)
	if err != nil {
		return err
	}
	return p.check(plan)
}

// freeMemory returns the bytes that are free for a device, 0 if that is not known.
func freeMemory(d replay.Device) (free uint64, err error) {
	switch d := d.(type) {
	case *cuda.Device:
		return d.FreeMemory()
	case *metal.Device:
		p := d.Properties()
		return p.WorkingSet - min(p.Allocated, p.WorkingSet), nil
	}
	free, _ = weights.AvailableMemory()
	return free, nil
}
