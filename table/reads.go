package table

import "fmt"

// Reads are the bytes that one command of a program reads of memory
// that lasts from token to token. Activations are left out: they stay in a
// cache.
type Reads struct {
	Weights uint64 // once a use; of an embedding, one row
	KVRow   uint64 // of the KV caches, for each position that it sees
	Seen    uint64 // positions that it sees at most: the window or the cache's capacity
}

// Bytes returns the bytes that the command reads where the token, or the last
// of a chunk, sees kvLen positions, itself included.
func (r Reads) Bytes(kvLen int) uint64 {
	return r.Weights + r.KVRow*min(uint64(kvLen), r.Seen)
}

// Reads returns what each command of a program reads, from the extents
// of its bindings.
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
	for i, b := range env.Kernel().Bindings {
		slot := c.Bind[i].Slot
		if slot == NoSlot || !env.Kernel().Role(i, env).Reads() || i >= int(c.Bindings) {
			continue
		}
		extent, err := env.Extent(i)
		if err != nil {
			return r, err
		}
		switch t.Slots[slot].Kind {
		case SlotWeight:
			read, err := env.Kernel().ReadBytes(i, env)
			if err != nil {
				return r, err
			}
			r.Weights += read
		case SlotKV:
			capacity, ok := env.Value("cap")
			if !ok || capacity == 0 {
				return r, fmt.Errorf("binding %s is a KV cache of unknown capacity", b.Name)
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
