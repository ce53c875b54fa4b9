// Package decl declares every kernel once: its bindings with their roles and
// extents, its parameters with their offsets, its patched fields and its
// specialisation constants.
//
// Go constants and structs, the C and Metal header and the manifest are
// generated from it (see package gen beside it); table.Validate and the dump
// read it directly. It knows no device and no model.
package decl

import (
	"fmt"
	"strings"
)

// Limits of a command's layout.
const (
	MaxBindings = 8
	ParamBytes  = 64
	SecondBytes = 16
	MaxSpecs    = 8
)

// Role says what a kernel does with a binding.
type Role uint8

// The roles.
const (
	Read Role = iota
	Write
	ReadWrite
)

// String returns "r", "w" or "rw".
func (r Role) String() string { return [...]string{"r", "w", "rw"}[r] }

// Writes reports whether the role writes.
func (r Role) Writes() bool { return r != Read }

// Reads reports whether the role reads.
func (r Role) Reads() bool { return r != Write }

// Binding is one buffer argument.
type Binding struct {
	Name   string
	Role   Role
	Extent string // bytes from the binding's offset that the kernel may touch, see Expr
	If     string // the specialisation constants, divided by |, of which one must not be 0 for the binding to be there
	ReadIf string // of a binding with role Write: the constant that makes it ReadWrite, unless it is 0
	Reads  string // bytes that one command reads of the binding, where that is less than the extent, see Expr
	Doc    string // shape and element type

	extent, reads Expr
}

// Needs returns the constants of If.
func (b *Binding) Needs() []string {
	if b.If == "" {
		return nil
	}
	return strings.Split(b.If, "|")
}

// There reports whether the binding is there.
func (b *Binding) There(env Env) bool {
	for _, name := range b.Needs() {
		if n, _ := env.Value(name); n != 0 {
			return true
		}
	}
	return b.If == ""
}

// Floats reports whether all elements are float32.
func (b *Binding) Floats() bool { return strings.Contains(b.Doc, "] float32") }

// Type is a parameter's type.
type Type uint8

// Parameter types, all 4 bytes wide.
const (
	U32 Type = iota
	F32
)

// String returns "u32" or "f32".
func (t Type) String() string { return [...]string{"u32", "f32"}[t] }

// Field is one parameter. Fields of Params are packed in order, 4 bytes each.
type Field struct {
	Name string
	Type Type
	Doc  string
}

// Second is a field of the 16 secondary bytes, where patches write.
type Second struct {
	Name   string
	Offset int
	Doc    string
}

// Offsets of the secondary fields. They are the same in every kernel that has
// the field, so that one kernel serves decode and prefill.
const (
	SecondIndex  = 0  // token index, position or first row
	SecondKVLen  = 4  // KV length that the first row sees
	SecondBehind = 8  // rows that the command's is behind the first, of one that has a single row; not patched
	SecondRows   = 12 // rows that are there
)

// Kernel declares one kernel. Its id is its index in Kernels.
type Kernel struct {
	Name     string
	Doc      string
	Bindings []Binding
	Params   []Field
	Second   []Second
	Specs    []Constant // specialisation constants, in order
	Grid     [3]string  // threadgroups: what each tile is, x fastest
	Require  []string   // what must hold of the arguments, as "expr <= expr"; the name threads is there too
	Worker   string     // bytes of private memory a worker of the CPU team needs, "" for none
	TGMem    string     // bytes of threadgroup memory on a GPU, threads likewise
	Step     bool       // writes the step block (stop flag, count)
	Advances bool       // moves the step record on; only programs that advance themselves have such commands
	Optional []string   // parameters, secondary fields and constants that dumps for people leave out where they are 0

	worker  Expr
	tgMem   Expr
	grid    [3]Expr
	require []requirement
}

type requirement struct{ left, right Expr }

// nameThreads stands for a threadgroup's size in TGMem and in Require.
const nameThreads = "threads"

// nameContext stands for the table's context limit in expressions.
const nameContext = "context"

// Constant is a specialisation constant: its name and, where its values have
// names, those.
type Constant struct {
	Flag   bool // 0 or 1
	Name   string
	Values []string
	Doc    string
}

// FunctionConstant returns the number of a specialisation constant as a Metal
// function constant, the same for all kernels that have it.
func FunctionConstant(name string) (int, bool) {
	for i := range Constants {
		if Constants[i].Name == name {
			return i, true
		}
	}
	return 0, false
}

// ID is a kernel's index in Kernels.
type ID uint16

// Lookup returns a kernel's declaration.
func Lookup(id ID) (*Kernel, bool) {
	if int(id) >= len(Kernels) {
		return nil, false
	}
	return &Kernels[id], true
}

// ByName returns a kernel's id.
func ByName(name string) (ID, bool) {
	for i := range Kernels {
		if Kernels[i].Name == name {
			return ID(i), true
		}
	}
	return 0, false
}

// Env gives an expression the values of its names.
type Env interface {
	// Value returns a parameter, a secondary field or a specialisation
	// constant.
	Value(name string) (uint64, bool)
}

// Role returns what the kernel does with binding i.
func (k *Kernel) Role(i int, env Env) Role {
	b := &k.Bindings[i]
	if b.ReadIf == "" {
		return b.Role
	}
	if n, ok := env.Value(b.ReadIf); ok && n == 0 {
		return b.Role
	}
	return ReadWrite
}

// Extent returns how many bytes binding i may touch, from its offset.
func (k *Kernel) Extent(i int, env Env) (uint64, error) {
	b := &k.Bindings[i]
	n, err := b.extent.Eval(env)
	if err != nil {
		return 0, fmt.Errorf("%s.%s: %w", k.Name, b.Name, err)
	}
	return n, nil
}

// ReadBytes returns how many bytes of binding i a command reads: the extent, unless
// the declaration says that it is less.
func (k *Kernel) ReadBytes(i int, env Env) (uint64, error) {
	b := &k.Bindings[i]
	if b.Reads == "" {
		return k.Extent(i, env)
	}
	n, err := b.reads.Eval(env)
	if err != nil {
		return 0, fmt.Errorf("%s.%s: %w", k.Name, b.Name, err)
	}
	return n, nil
}

// WorkerBytes returns the private memory a worker of the CPU team needs.
func (k *Kernel) WorkerBytes(env Env) (uint64, error) {
	n, err := k.worker.Eval(env)
	if err != nil {
		return 0, fmt.Errorf("%s: worker memory: %w", k.Name, err)
	}
	return n, nil
}

// threadsEnv gives a threadgroup's size besides a command's values.
type threadsEnv struct {
	Env
	threads uint64
}

func (e threadsEnv) Value(name string) (uint64, bool) {
	if name == nameThreads {
		return e.threads, true
	}
	return e.Env.Value(name)
}

// ThreadgroupBytes returns the threadgroup memory that a threadgroup of so many
// threads needs on a GPU.
func (k *Kernel) ThreadgroupBytes(env Env, threads int) (uint64, error) {
	n, err := k.tgMem.Eval(threadsEnv{env, uint64(threads)})
	if err != nil {
		return 0, fmt.Errorf("%s: threadgroup memory: %w", k.Name, err)
	}
	return n, nil
}

// GridSize returns the threadgroups of each dimension.
func (k *Kernel) GridSize(env Env) (grid [3]uint64, err error) {
	for i := range grid {
		if grid[i], err = k.grid[i].Eval(env); err != nil {
			return grid, fmt.Errorf("%s: grid: %w", k.Name, err)
		}
	}
	return grid, nil
}

// Check returns an error for the first requirement that does not hold.
func (k *Kernel) Check(env Env) error {
	for i, r := range k.require {
		left, err := r.left.Eval(env)
		if err != nil {
			return fmt.Errorf("%s: %w", k.Name, err)
		}
		right, err := r.right.Eval(env)
		if err != nil {
			return fmt.Errorf("%s: %w", k.Name, err)
		}
		if left > right {
			return fmt.Errorf("%s: %s does not hold: %d > %d", k.Name, k.Require[i], left, right)
		}
	}
	return nil
}

// Param returns the offset of a parameter in the parameter bytes.
func (k *Kernel) Param(name string) (offset int, t Type, ok bool) {
	for i, f := range k.Params {
		if f.Name == name {
			return 4 * i, f.Type, true
		}
	}
	return 0, 0, false
}

// Spec returns the index of a specialisation constant.
func (k *Kernel) Spec(name string) (int, bool) {
	for i, c := range k.Specs {
		if c.Name == name {
			return i, true
		}
	}
	return 0, false
}

// HasSecond reports whether the kernel has a secondary field at offset.
func (k *Kernel) HasSecond(offset int) bool {
	for _, s := range k.Second {
		if s.Offset == offset {
			return true
		}
	}
	return false
}
