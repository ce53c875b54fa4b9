package cost

import "github.com/pianola-engine/pianola/internal/decl"

// time predicts the time of a command. Starting it and its chain of dependent accesses come before
// and after the stream of its data; the stream takes as long as the slowest of the resources
// that it uses, because kernels load ahead of their arithmetic.
func (r *Rates) time(to *Command, v *view) {
	to.Seconds, to.Bound = r.Dispatch, Latency
	if to.Barrier {
		to.Seconds += r.Barrier + r.Phase
	}
	stream := 0.0
	for _, part := range []struct {
		bound   Bound
		seconds float64
	}{
		{Memory, r.memory(to)},
		{Cache, float64(to.Requested) / r.Cache / r.use(to)},
		{Matrix, float64(to.Matrix) / r.Matrix / r.use(to)},
		{Vector, (float64(to.Vector)/r.vector(v) + float64(to.Other)/r.Other) / r.use(to)},
	} {
		if part.seconds > stream {
			stream = part.seconds
			if stream > to.Seconds {
				to.Bound = part.bound
			}
		}
	}
	to.Seconds += stream
}

// memory returns the time of reading and writing memory. Activations count as far as they are
// larger than the cache.
func (r *Rates) memory(to *Command) float64 {
	activations := float64(to.Compulsory() - to.Model)
	return (float64(to.Model) + max(0, activations-r.CacheSize)) / r.Memory
}

// use returns the share of the cores that the command's threadgroups occupy over all rounds.
func (r *Rates) use(to *Command) float64 {
	cores := uint64(max(r.Cores, 1))
	rounds := (to.Threadgroups + cores - 1) / cores
	return float64(to.Threadgroups) / float64(rounds*cores)
}

// vector returns the rate of the command's multiply-adds on vector units.
func (r *Rates) vector(v *view) float64 {
	if v.value("act") == decl.ActQ8 && v.hasSpec("act") {
		return r.Int8
	}
	return r.Float32
}
