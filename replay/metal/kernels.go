package metal

import (
	"slices"

	"github.com/pianola-engine/pianola/internal/decl"
)

// Kernels holds the kernels that a device creates pipelines from. One of Data and Source is
// required.
type Kernels struct {
	Data   []byte                 // a library compiled by Apple's compiler; if nil, or not accepted by the system, Source is used
	Source func() ([]byte, error) // returns the whole Metal source text
	List   []Kernel
	Shared *Libraries // libraries that devices share, or nil

	BindingAlign uint64 // alignment of every binding's address, at most 256; 0 means no requirement
}

// Kernel is a function of the library.
type Kernel struct {
	Name       string // a declaration's name, or "patch"
	MaxThreads int    // largest number of threads in a threadgroup
	// Constants are the indices of its function constants, in the order of a command's
	// specialisation values.
	Constants []uint32
	// TGMem returns the threadgroup memory in bytes that a command needs in addition to the
	// table's, with the given number of threads. If it is nil, commands need none.
	TGMem func(env decl.Env, threads int) (uint64, error)
}

// kernelPatch is the name of the kernel that writes secondary bytes; see patch.go.
const kernelPatch = "patch"

func (k *Kernels) find(name string) (*Kernel, bool) {
	i := slices.IndexFunc(k.List, func(k Kernel) bool { return k.Name == name })
	if i < 0 {
		return nil, false
	}
	return &k.List[i], true
}
