package cpu

import (
	"context"
	"fmt"
	"math"

	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// Load checks that every command has a kernel, executes the upload section and
// starts the team.
func (d backend) Load(ctx context.Context, t *table.Table, src replay.Source, o replay.LoadOptions) (replay.Memory, error) {
	none := replay.Memory{}
	if err := device.CheckTable(name, t); err != nil {
		return none, err
	}
	// Bind without memory first, so that a table that this device cannot run is rejected before
	// its weights are read.
	if _, err := bind(d.ops, t, make([][]byte, len(t.Slots)), nil); err != nil {
		return none, err
	}
	size, err := teamSizeOf(t)
	if err != nil {
		return none, err
	}
	mem := make([][]byte, len(t.Slots))
	memory, err := upload(ctx, t, src, o, mem)
	if err != nil {
		return none, err
	}
	memory.Executor = size.bytes(d.threads)
	for i := range t.Slots {
		s := &t.Slots[i]
		if s.Scope != table.ScopeExecutor {
			continue
		}
		if mem[i], err = allocate(s.Size); err != nil {
			return none, fmt.Errorf("cpu: slot %s: %w", s.Name, err)
		}
		preferHuge(mem[i]) // the rows of a product's output are far apart
		memory.Executor += s.Size
	}
	// Bind again with the memory, since it may be mapped at addresses that kernels cannot use.
	if _, err := bind(d.ops, t, mem, nil); err != nil {
		return none, err
	}
	d.table, d.caches, d.model = t, t.KVCaches(), mem
	d.moves = make([]bool, len(t.Programs))
	for i := range t.Programs {
		d.moves[i] = t.Programs[i].Flags.Has(table.FlagAdvances)
	}
	d.team, err = newTeam(d.Device, d.threads, size, d.cpus)
	return memory, err
}

// upload allocates and fills every slot of model scope.
func upload(ctx context.Context, t *table.Table, src replay.Source, o replay.LoadOptions, mem [][]byte) (m replay.Memory, err error) {
	u, err := device.NewUpload(ctx, name, t, src, o)
	if err != nil {
		return m, err
	}
	if err := u.InPlace(func(up *table.Upload, src []byte) (bool, error) {
		if t.Slots[up.Slot].Kind != table.SlotWeight || !aligned(src, unitOf(up)) {
			return false, nil
		}
		mem[up.Slot] = src
		m.Mapped += uint64(len(src))
		return true, nil
	}); err != nil {
		return m, err
	}
	if m.Weights, err = allocateWeights(t, mem); err != nil {
		return m, err
	}
	return m, u.Fill(ctx, func(slot uint32) []byte { return mem[slot] })
}

// unitOf returns the alignment that kernels need to use a source's bytes in place.
func unitOf(up *table.Upload) uintptr {
	switch up.Type {
	case dtype.F32:
		return 4
	case dtype.F16, dtype.BF16:
		return 2
	}
	return 1
}

// allocateWeights allocates one block for all slots of model scope that have no memory yet, so
// that they share huge pages. It returns the size of the block.
func allocateWeights(t *table.Table, mem [][]byte) (bytes uint64, err error) {
	place := func(use func(slot int, at, size uint64)) (end uint64) {
		for i := range t.Slots {
			s := &t.Slots[i]
			if s.Scope != table.ScopeModel || mem[i] != nil {
				continue
			}
			use(i, end, s.Size)
			next := end + (s.Size+align-1)&^(align-1)
			if next < end {
				return math.MaxUint64
			}
			end = next
		}
		return end
	}
	size := place(func(int, uint64, uint64) {})
	block, err := allocate(size)
	if err != nil {
		return 0, fmt.Errorf("cpu: weights: %w", err)
	}
	preferHuge(block)
	place(func(slot int, at, size uint64) {
		mem[slot] = block[at:][:size:size]
		bytes += size
	})
	return bytes, nil
}
