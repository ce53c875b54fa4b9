package bench

import (
	"fmt"

	"github.com/pianola-engine/pianola/table"
)

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

// DecodeReads returns what each command of the decode program reads.
func DecodeReads(t *table.Table) ([]Reads, error) { return ProgramReads(t, table.ProgramDecode) }

// ProgramReads returns what each command of a program reads, from the extents
// of its bindings.
func ProgramReads(t *table.Table, name string) ([]Reads, error) {
	p, _, ok := t.Program(name)
	if !ok {
		return nil, fmt.Errorf("bench: the table has no program %s", name)
	}
	reads := make([]Reads, p.Count)
	for i := range reads {
		var err error
		if reads[i], err = commandReads(t, &t.Cmds[int(p.First)+i], p); err != nil {
			return nil, fmt.Errorf("bench: command %d (%s): %w", int(p.First)+i, t.Label(int(p.First)+i), err)
		}
	}
	return reads, nil
}

func commandReads(t *table.Table, c *table.Cmd, p *table.Program) (r Reads, err error) {
	env, err := t.NewEnv(c, p)
	if err != nil {
		return r, err
	}
	for i, b := range env.Kernel().Bindings {
		slot := c.Bind[i].Slot
		if slot == table.NoSlot || !env.Kernel().Role(i, env).Reads() || i >= int(c.Bindings) {
			continue
		}
		extent, err := env.Extent(i)
		if err != nil {
			return r, err
		}
		switch t.Slots[slot].Kind {
		case table.SlotWeight:
			if rows, ok := env.Value("vocab"); ok && c.Kernel == table.KernelEmbed && rows > 0 {
				extent /= rows
			}
			r.Weights += extent
		case table.SlotKV:
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

// meanBytes returns what all commands read for a token, on the average of
// tokens of which the first sees kvLen positions.
func meanBytes(reads []Reads, kvLen, tokens int) float64 {
	var sum float64
	for _, r := range reads {
		for i := range tokens {
			sum += float64(r.Bytes(kvLen + i))
		}
	}
	return sum / float64(tokens)
}

// patched returns how many commands of the decode program change from token to
// token.
func patched(t *table.Table) int {
	n := 0
	if p, _, ok := t.Program(table.ProgramDecode); ok {
		for _, c := range t.ProgramCmds(p) {
			if c.Patch != table.PatchNone {
				n++
			}
		}
	}
	return n
}
