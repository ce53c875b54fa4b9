package replay

import "github.com/pianola-engine/pianola/internal/batch"

// BatchLoad returns the load of a model for many sequences.
func (m *Model) BatchLoad() batch.Load { return m.engine.Load() }
