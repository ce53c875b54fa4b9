package table

import (
	"fmt"
	"slices"
)

// Reads counts the bytes that one command reads from memory that outlives a token: weights, recurrent
// state and KV caches. It excludes activations, which stay in a processor's cache.
type Reads struct {
	Weights uint64 // read once per command: weights, one row of an embedding, the state of a layer
	KVRow   uint64 // bytes of the KV cache per visible position
	Seen    uint64 // visible positions at most: the attention window or the cache's capacity
}

// Bytes returns the bytes that the command reads if kvLen positions are visible to its row, that
// row's own included. For a chunk, it is the last row that counts.
func (r Reads) Bytes(kvLen int) uint64 {
	return r.Weights + r.KVRow*min(uint64(kvLen), r.Seen)
}

// Reads returns what each command of a program reads, computed from the extents of its bindings.
func (t *Table) Reads(name string) ([]Reads, error) {
	p, _, ok := t.Program(name)
	if !ok {
		return nil, fmt.Errorf("table: the table has no program %s", name)
	}
	reads := make([]Reads, p.Count)
	for i := range reads {
		var err error
		if reads[i], err = t.commandReads(&t.Cmds[int(p.First)+i], p); err != nil {
			return nil, fmt.Errorf("table: command %d (%s): %w", int(p.First)+i, t.Label(int(p.First)+i), err)
		}
	}
	return reads, nil
}

func (t *Table) commandReads(c *Cmd, p *Program) (r Reads, err error) {
	env, err := t.NewEnv(c, p)
	if err != nil {
		return r, err
	}
	for i, b := range env.k.Bindings {
		slot := c.Bind[i].Slot
		if slot == NoSlot || !env.k.Role(i, env).Reads() || i >= int(c.Bindings) {
			continue
		}
		extent, err := env.Extent(i)
		if err != nil {
			return r, err
		}
		switch t.Slots[slot].Kind {
		case SlotWeight, SlotState:
			read, err := env.k.ReadBytes(i, env)
			if err != nil {
				return r, err
			}
			r.Weights += read
		case SlotKV:
			if slices.ContainsFunc(c.Bind[:i], func(b Binding) bool { return b.Slot == slot }) {
				continue // K and V are parts of the same rows
			}
			capacity, ok := env.Value("cap")
			if !ok || capacity == 0 {
				return r, fmt.Errorf("binding %s is a KV cache, but the kernel has no parameter cap", b.Name)
			}
			r.KVRow += extent / capacity
			r.Seen = capacity
			if windowed, _ := env.Value("windowed"); windowed != 0 {
				if w, ok := env.Value("window"); ok {
					r.Seen = min(r.Seen, w)
				}
			}
		}
	}
	return r, nil
}
