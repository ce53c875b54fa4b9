package cost

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
)

// time predicts the time of a command. Starting it and its chains of dependent accesses come before
// and after the stream of its data; the stream takes as long as the slowest of the resources
// that it uses, because kernels load ahead of their arithmetic.
func (r *Rates) time(to *Command, v *view) {
	to.Seconds, to.Bound = r.Dispatch, Latency
	if to.Barrier {
		to.Seconds += r.Barrier + v.phases()*r.Phase
	}
	use := r.use(to)
	streams := [...]struct {
		bound   Bound
		seconds float64
	}{
		{Memory, r.memory(to)},
		{Cache, float64(to.Requested) / r.Cache / use},
		{Matrix, float64(to.Matrix) / r.matrix(v) / use},
		{Vector, (float64(to.Vector)/r.vector(v) + float64(to.Other)/r.Other) / use},
	}
	longest := streams[0]
	for _, s := range streams[1:] {
		if s.seconds > longest.seconds {
			longest = s
		}
	}
	if longest.seconds > to.Seconds {
		to.Bound = longest.bound
	}
	to.Seconds += longest.seconds
	if r.Exposed > 0 {
		to.Seconds += r.Exposed * min(streams[0].seconds, streams[2].seconds+streams[3].seconds)
	}
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

// matrix returns the rate of the command's multiply-adds on matrix units.
func (r *Rates) matrix(v *view) float64 {
	rate := r.Matrix
	if v.attends() {
		rate = r.Attn
	}
	if v.hasSpec("act") && v.value("act") == decl.ActF16x2 {
		rate /= 2 // the products of both terms
	}
	return rate / v.tiles(r.device)
}

// vector returns the rate of the command's multiply-adds on vector units.
func (r *Rates) vector(v *view) float64 {
	if v.value("act") == decl.ActQ8 && v.hasSpec("act") {
		if superblocks(dtype.Type(v.value("wtype"))) {
			return 0.82 * r.Int8 // two levels of scales; measured in prefill on a CPU
		}
		return r.Int8
	}
	return r.Float32
}

// superblocks reports whether a type has blocks of 256 elements with scales of their parts.
func superblocks(t dtype.Type) bool {
	elems, _ := t.Block()
	return elems == 256
}
