package cost

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// requests are the bytes that the threads of a command load from and store to each binding.
// Loads that several threadgroups or SIMD groups repeat count each time.
type requests struct {
	loads, stores [decl.MaxBindings]uint64
}

// sum returns the bytes of all bindings.
func (r *requests) sum() uint64 {
	n := uint64(0)
	for i := range r.loads {
		n += r.loads[i] + r.stores[i]
	}
	return n
}

// Bindings of gemv, expert_gemv, gemm and gemm_halves.
const (
	bindX  = 0
	bindX2 = 1
	bindW  = 2
)

// requested returns the requests of a command. Without a formula for its kernel these are the
// compulsory bytes.
func (v *view) requested() requests {
	r := requests{v.reads, v.writes}
	switch v.c.Kernel {
	case kernels.GEMV, kernels.ExpertGEMV:
		v.gemvRequests(&r)
	case kernels.GEMM, kernels.GEMMHalves:
		v.gemmRequests(&r)
	}
	return r
}

// gemvRequests sets the requests of a product of a few rows. Every threadgroup computes the
// input for itself. A norm reads x twice, first for the sum of squares.
func (v *view) gemvRequests(r *requests) {
	groups := ceilDiv(v.value("out"), v.value("group"))
	x, x2 := v.reads[bindX], v.reads[bindX2]
	if v.c.Kernel == kernels.ExpertGEMV {
		x, x2 = 4*v.value("in")*v.rows*v.value("used"), min(x2, 1)*4*v.value("in")*v.rows*v.value("used")
	}
	if v.value("input") == decl.InputNorm {
		x, x2 = 2*x, x2*v.rows
	}
	r.loads[bindX], r.loads[bindX2] = groups*x, groups*x2
	if v.c.Kernel == kernels.GEMV {
		r.loads[bindW] *= v.rows
	}
}

// gemmRequests sets the requests of a product of a chunk: a threadgroup reads its rows of W and
// its rows of x once.
func (v *view) gemmRequests(r *requests) {
	groups := ceilDiv(v.value("out"), v.value("group"))
	rowGroups := ceilDiv(v.rows, v.value("row_group"))
	for i := range v.k.Bindings {
		switch v.k.Bindings[i].Name {
		case "x", "x2":
			r.loads[i] *= groups
		case "w":
			r.loads[i] *= rowGroups
		}
	}
}

// ceilDiv returns a/b rounded up; b = 0 counts as 1.
func ceilDiv(a, b uint64) uint64 {
	b = max(b, 1)
	return (a + b - 1) / b
}
