package cuda

import (
	"fmt"

	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// Plan predicts the memory of a table: after Load, and for each session with room for the given
// number of positions. It does not count what is small: the driver's graphs, the command arrays of
// mode resident, and the descriptors of matrices.
func (d *Device) Plan(t *table.Table, _ func(tensor string) (offset uint64, ok bool), positions int) (loaded, session replay.Memory, err error) {
	plan := &Device{caches: device.NewCaches(t)}
	var m replay.Memory
	var fixed uint64
	for scope, to := range []*uint64{table.ScopeModel: &m.Weights, table.ScopeSession: &fixed, table.ScopeExecutor: &m.Executor} {
		if *to, err = plan.place(t, table.Scope(scope), func(int, uint64) {}); err != nil {
			return loaded, session, fmt.Errorf("cuda: %w", err)
		}
	}
	if !plan.whole() {
		m.Executor += fixed // the block of the current session
	}
	caches, _ := cachesOf(t)
	m.Executor += uint64(recordBytes * len(caches))
	b, _ := patches(t)
	m.Executor += uint64(len(b)) + device.PatchSize
	kv := plan.caches.Place(plan.caches.Capacity(positions), align, func(int, uint64) {})
	loaded, session = device.Planned(t, m, fixed, kv)
	return loaded, session, nil
}
