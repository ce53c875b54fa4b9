package cuda

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/pianola-engine/pianola/internal/cuda/driver"
	"github.com/pianola-engine/pianola/internal/cuda/ptx"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/table"
)

// Modules holds the kernels that a device selects from.
type Modules struct {
	Texts        []Text
	Instances    []Instance
	BindingAlign uint64 // alignment of every binding's address, at most 256; 0 means no requirement
	// Apple reports that the texts have the kernels' bodies for Apple GPUs, so that the device replays
	// commands for these. Only measurements of those bodies use it.
	Apple bool
	// Pooled reports that the texts have the kernels of tables for many sequences. Without them, Load
	// refuses these tables.
	Pooled bool
}

// Text is one PTX text. Texts with the same name have the same entries.
type Text struct {
	Name string // name of the kernel family, such as "gemv"
	Arch int    // required compute capability, 10*major + minor
	// Exact reports that the text is only for GPUs of exactly that capability, because it uses
	// instructions that others lack.
	Exact bool
	// Read returns the text. It may end with a zero byte.
	Read func() ([]byte, error)
	// Describe describes the text. If it is nil, the device reads and hashes the text even if the
	// cache has its code.
	Describe func() (TextInfo, error)
}

// TextInfo describes a text.
type TextInfo struct {
	Hash            [sha256.Size]byte // differs between different texts
	Version, Target string            // arguments of the directives, such as "7.8" and "sm_90"
}

// info describes a text.
func (t *Text) info() (TextInfo, error) {
	if t.Describe != nil {
		return t.Describe()
	}
	b, err := t.Read()
	if err != nil {
		return TextInfo{}, err
	}
	parsed, err := ptx.Parse(b)
	if err != nil {
		return TextInfo{}, err
	}
	return TextInfo{sha256.Sum256(b), parsed.Version, parsed.Target}, nil
}

// Instance is an entry of a text: a kernel with some specialisation constants fixed. It reads the
// others from its arguments.
type Instance struct {
	Kernel string // a declaration's name, or "patch"
	Text   string // name of the texts that contain it
	Entry  string
	Fixed  []Fixed
	// TGMem returns the threadgroup memory in bytes that a command needs in addition to the
	// table's, with the given number of threads. If it is nil, commands need none.
	TGMem func(env decl.Env, threads int) (uint64, error)
	// Cluster returns the number of threadgroups of a command's clusters. If it is nil, commands have none.
	Cluster func(env decl.Env) (uint64, error)
}

// Fixed is a specialisation constant that an instance fixes.
type Fixed struct {
	Spec  int // index in the kernel's declaration
	Value uint32
	Mask  uint32 // mask of the bits of the value that are fixed; 0 means all
}

func (f Fixed) fits(value uint32) bool {
	return value == f.Value || f.Mask != 0 && value&f.Mask == f.Value
}

// kernelPatch is the name of the kernel that patches the secondary bytes; see patch.go.
const kernelPatch = "patch"

// serves reports whether a text runs on GPUs of a compute capability.
func (t *Text) serves(capability int) bool {
	return t.Arch == capability || t.Arch < capability && !t.Exact
}

// exactDriver is the first driver that supports exact texts (PTX 8.3).
const exactDriver driver.Version = 12030

// text returns the named text for a GPU: the exact one for its capability, if the driver supports
// it, or else the text for the newest architecture that is not newer than the GPU.
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

// supports reports whether some text runs on a compute capability.
func (m *Modules) supports(capability int) bool {
	for i := range m.Texts {
		if m.Texts[i].serves(capability) {
			return true
		}
	}
	return false
}

// choose returns the instance that fits and fixes the most constants; of several, the first.
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
		return nil, fmt.Errorf("kernel %d or its specialisation constants are unknown", c.Kernel)
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
