package cuda

import (
	"fmt"
	"strings"

	"github.com/pianola-engine/pianola/internal/cuda/driver"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/table"
)

// Modules are the kernels that a device chooses from.
type Modules struct {
	Texts        []Text
	Instances    []Instance
	BindingAlign uint64 // what every binding's address is a multiple of, at most 256; 0: anything
}

// Text is one PTX text. Texts of one name have the same entries.
type Text struct {
	Name string // of the family, "gemv"
	Arch int    // the compute capability that it needs, 10*major + minor
	// Exact says that it is for GPUs of that capability alone, of which it uses
	// instructions that others do not have.
	Exact bool
	// Read returns the text. A zero byte may end it.
	Read func() ([]byte, error)
}

// Instance is an entry of a text: a kernel with some specialisation constants
// fixed. Whatever is not fixed it reads from its arguments.
type Instance struct {
	Kernel string // a declaration's name, or "patch"
	Text   string // the name of the texts that have it
	Entry  string
	Fixed  []Fixed
	// TGMem returns the bytes of threadgroup memory that a command needs with
	// so many threads, beside what the table gives it; nil: none.
	TGMem func(env decl.Env, threads int) (uint64, error)
}

// Fixed is a specialisation constant that an instance fixes.
type Fixed struct {
	Spec  int // index in the kernel's declaration
	Value uint32
	Mask  uint32 // which bits of the value are fixed; 0: all
}

func (f Fixed) fits(value uint32) bool {
	return value == f.Value || f.Mask != 0 && value&f.Mask == f.Value
}

// kernelPatch is the name of the kernel that writes the seconds; see patch.go.
const kernelPatch = "patch"

// serves reports whether a text is for GPUs of a compute capability.
func (t *Text) serves(capability int) bool {
	return t.Arch == capability || t.Arch < capability && !t.Exact
}

// exactDriver is the first driver that knows the language of texts for one GPU
// alone, PTX 8.0.
const exactDriver driver.Version = 12000

// text returns the text of a name for a GPU of a compute capability: the one
// for it alone, if the driver knows it, or else for the newest architecture that
// is not newer than it.
func (m *Modules) text(name string, capability int, v driver.Version) *Text {
	var best *Text
	for i := range m.Texts {
		t := &m.Texts[i]
		if t.Name == name && t.serves(capability) && (!t.Exact || v >= exactDriver) && (best == nil || t.Arch > best.Arch || t.Arch == best.Arch && t.Exact) {
			best = t
		}
	}
	return best
}

// supports reports whether some text is for a compute capability.
func (m *Modules) supports(capability int) bool {
	for i := range m.Texts {
		if m.Texts[i].serves(capability) {
			return true
		}
	}
	return false
}

// choose returns the instance that fixes the most constants among those that
// fit, the first of equals.
func (m *Modules) choose(kernel string, values [decl.MaxSpecs]uint32) (*Instance, bool) {
	var best *Instance
	for i := range m.Instances {
		in := &m.Instances[i]
		if in.Kernel == kernel && in.fits(values) && (best == nil || len(in.Fixed) > len(best.Fixed)) {
			best = in
		}
	}
	return best, best != nil
}

func (in *Instance) fits(values [decl.MaxSpecs]uint32) bool {
	for _, f := range in.Fixed {
		if f.Spec < 0 || f.Spec >= len(values) || !f.fits(values[f.Spec]) {
			return false
		}
	}
	return true
}

// instance returns the instance of a command.
func (m *Modules) instance(t *table.Table, c *table.Cmd) (*Instance, error) {
	k, ok := decl.Lookup(c.Kernel)
	if !ok || int(c.Spec) >= len(t.Specs) {
		return nil, fmt.Errorf("kernel %d or its constants are unknown", c.Kernel)
	}
	values := t.Specs[c.Spec].Values
	in, ok := m.choose(k.Name, values)
	if !ok {
		var named []string
		for i, s := range k.Specs {
			named = append(named, fmt.Sprintf("%s=%d", s.Name, values[i]))
		}
		return nil, &device.KernelError{Kernel: k.Name, Constants: strings.Join(named, " ")}
	}
	return in, nil
}
