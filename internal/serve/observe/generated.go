package observe

// Generated returns the number of tokens that each model has generated since the service's start, by
// the model's id.
func (b *Observer) Generated() map[string]uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[string]uint64, len(b.counts.models))
	for id, m := range b.counts.models {
		out[id] = m.generated
	}
	return out
}
