package metal

import (
	"slices"

	"github.com/pianola-engine/pianola/internal/decl"
)

// Kernels are the kernels that a device makes pipelines of. One of Data and
// Source is needed.
type Kernels struct {
	Data   []byte                 // a library as Apple's compiler made it; nil, or what the system does not take: Source
	Source func() ([]byte, error) // Metal's text, all in one
	List   []Kernel
	Shared *Libraries // that devices share; nil: none

	BindingAlign uint64 // what every binding's address is a multiple of, at most 256; 0: anything
}

// Kernel is a function of the library.
type Kernel struct {
	Name       string // a declaration's, or "patch"
	MaxThreads int    // of a threadgroup
	// Constants are the numbers of its function constants, in the order of a
	// command's specialisation values.
	Constants []uint32
	// TGMem returns the bytes of threadgroup memory that a command needs with
	// so many threads, beside what the table gives it; nil: none.
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
