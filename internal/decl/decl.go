// Package decl declares every kernel once: its bindings with their roles and
// extents, its parameters with their offsets, its patched fields and its
// specialisation constants.
//
// Command gen generates Go constants and structs and the header for C and Metal from the
// declarations; table.Validate and the dump read the declarations directly. The package must not
// depend on devices or models.
package decl

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// Limits of a command's layout.
const (
	MaxBindings = 8
	ParamBytes  = 64
	SecondBytes = 16
	MaxSpecs    = 8
)

// Role is the way a kernel accesses a binding.
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

// Elem is the type of a binding's elements, or of a parameter.
type Elem uint8

// Element types. Parameters are U32 or F32, both 4 bytes wide.
const (
	_          Elem = iota
	U32             // uint32
	F32             // float32
	WeightType      // blocks of the weight type that the constant wtype selects
	KVType          // K or V in the type that the constant kv selects
	Scored          // a float32 and the uint32 index that it belongs to
	Record          // structures, described in the binding's Doc
	elems
)

// String returns the type's name in documentation: "float32", "wtype".
func (e Elem) String() string {
	if e == 0 || e >= elems {
		return "invalid"
	}
	return [...]string{U32: "uint32", F32: "float32", WeightType: "wtype", KVType: "kv", Scored: "(float32, index)", Record: "record"}[e]
}

// Binding is one buffer argument.
type Binding struct {
	Name   string
	Role   Role
	Elem   Elem   // type of all elements
	Shape  string // "[rows, n]"; documentation only
	Extent string // bytes from the binding's offset that the kernel may touch, an Expr
	If     string // condition under which the binding is present, an Expr of the constants; "" means always
	ReadIf string // condition under which a binding with role Write is ReadWrite, an Expr of the constants; "" means never
	Reads  string // bytes of the binding that one command reads, an Expr; "" means the whole extent
	Doc    string // description of the elements, in addition to shape and type

	extent, reads, present, readIf Expr
}

// Text describes the elements: "[rows, n] float32, the residual stream".
func (b *Binding) Text() string {
	text := b.Shape
	if b.Elem != Record {
		text += " " + b.Elem.String()
	}
	if b.Doc != "" {
		text += ", " + b.Doc
	}
	return text
}

// Present reports whether a command with the specialisation constants of env has
// the binding.
func (b *Binding) Present(env Env) bool {
	if b.If == "" {
		return true
	}
	n, err := b.present.Eval(env)
	return err == nil && n != 0
}

// Needs returns the specialisation constants in the condition If.
func (b *Binding) Needs() []string { return b.present.Names() }

// Matrix describes a binding as a matrix of 16-bit elements. A GPU's copy unit can copy rectangular
// parts of it, which are called boxes. For a GPU with a copy unit, the device passes a descriptor of
// each matrix in a buffer that follows the kernel's bindings.
type Matrix struct {
	Binding               string
	Rows, Columns, Stride string // each an Expr; Stride is the distance between rows in bytes
	If                    string // condition under which the binding is such a matrix, an Expr; "" means always

	rows, columns, stride, present Expr
}

// Boxes are a matrix for a GPU's copy unit. Binding is the binding's index.
type Boxes struct {
	Binding               int
	Rows, Columns, Stride uint64
}

// Boxes returns the size of matrix i of the command with the given arguments. It reports whether the
// command has such a matrix.
func (k *Kernel) Boxes(i int, env Env) (b Boxes, ok bool, err error) {
	m := &k.Matrices[i]
	b.Binding = slices.IndexFunc(k.Bindings, func(b Binding) bool { return b.Name == m.Binding })
	if m.If != "" {
		if n, err := m.present.Eval(env); err != nil || n == 0 {
			return b, false, err
		}
	}
	for _, v := range []struct {
		to *uint64
		of *Expr
	}{{&b.Rows, &m.rows}, {&b.Columns, &m.columns}, {&b.Stride, &m.stride}} {
		if *v.to, err = v.of.Eval(env); err != nil {
			return b, false, fmt.Errorf("%s.%s: %w", k.Name, m.Binding, err)
		}
	}
	return b, true, nil
}

// Field is one parameter. Fields of Params are packed in order, 4 bytes each.
type Field struct {
	Name string
	Type Elem // U32 or F32
	Doc  string
}

// Second is a field of the 16 secondary bytes, which patches write. A value that no patch writes must
// be in Min..Max.
type Second struct {
	Name     string
	Offset   int
	Min, Max string // each an Expr
	Doc      string

	min, max Expr
}

// Offsets of the secondary fields. A field has the same offset in every kernel, so that decode and
// prefill can use the same kernels.
const (
	SecondIndex  = 0  // token index, position or first row
	SecondKVLen  = 4  // number of positions visible to the first row
	SecondBehind = 8  // index of the command's row, if the command computes one row of several; never patched
	SecondRows   = 12 // active rows
)

// PatchKinds are the names of the kinds of patches. The index is a table.Patch. Each kind writes one
// value to one secondary field.
var PatchKinds = []string{"none", "token", "position", "kv_len", "argmax", "row"}

// Kernel declares one kernel. Its id is its index in Kernels.
type Kernel struct {
	Name      string
	Doc       string
	Bindings  []Binding
	Matrices  []Matrix // bindings that a GPU's copy unit can copy
	Params    []Field
	Second    []Second
	Specs     []Constant // specialisation constants, in order
	Grid      [3]string  // threadgroups of each dimension, x fastest, each an Expr
	Require   []string   // conditions that the arguments must meet, each an Expr, which may name threads
	Worker    string     // bytes of private memory that a worker of the CPU team needs, an Expr
	TGMem     string     // bytes of threadgroup memory on a GPU, an Expr, which may name threads
	Cluster   string     // threadgroups of a cluster, which are neighbours in x and can read each other's threadgroup memory, an Expr; "" or 0: one
	Step      bool       // writes the step block (stop flag, count)
	Advances  bool       // advances the step record; only self-advancing programs have such commands
	Chunk     bool       // computes a chunk by matrix instructions; the resident kernel of a GPU cannot contain it
	Order     []string   // numbers that, besides the constants, determine the order in which a row's sums are added, each an Expr, which may name threads
	Batching  string     // condition under which the bits of a row do not depend on the number of rows, an Expr; "" means always
	Same      []string   // constants that do not change the bits
	As        *As        // another form of the command, with the same bits; nil: none
	Settled   []string   // bindings that a command whose parameter settled is 1 reads before the commands of the phase before have ended; see fieldSettled
	SettledIf string     // condition under which settled may be 1, an Expr of the constants; "" means if Settled has bindings
	Optional  []string   // parameters, secondary fields and constants that text dumps omit if they are 0
	Apple     *Body      // the body for Apple GPUs, if it differs from that for other GPUs

	worker    Expr
	tgMem     Expr
	cluster   Expr
	grid      [3]Expr
	require   []Expr
	order     []Expr
	batching  Expr
	settledIf Expr
}

// Body is a second body of a kernel, for GPUs to which another shape of the work fits. A command is for one
// body: a device with the other body cannot execute it. The CPU device executes the commands of both.
type Body struct {
	If    string // condition under which a command is for this body, an Expr, which may name threads
	TGMem string // bytes of threadgroup memory, an Expr, which may name threads

	when, tgMem Expr
}

// Names in expressions whose values come from the table or the command.
const (
	nameThreads     = "threads"      // size of the command's threadgroup, in TGMem and Require
	nameContext     = "context"      // the table's context limit
	nameProgramRows = "program_rows" // rows that the command's program is compiled for, in Min and Max
)

// Constant is a specialisation constant: a number, a flag, or one of several named values.
type Constant struct {
	Name       string
	Flag       bool     // 0 or 1
	Values     []string // names of the values 0, 1 and so on
	WeightType bool     // the values are of type dtype.Type
	Doc        string
}

// hasNames reports whether the constant's values have names.
func (c *Constant) hasNames() bool { return c.WeightType || len(c.Values) > 0 }

// value returns the value with a name.
func (c *Constant) value(name string) (uint64, bool) {
	if c.WeightType {
		t, err := dtype.Parse(name)
		return uint64(t), err == nil
	}
	i := slices.Index(c.Values, name)
	return uint64(max(i, 0)), i >= 0
}

// Check returns an error unless v is one of the constant's values.
func (c *Constant) Check(v uint32) error {
	switch {
	case c.WeightType && (v > 255 || !dtype.Type(v).Valid()):
		return fmt.Errorf("weight type %d is unknown", v)
	case len(c.Values) > 0 && int64(v) >= int64(len(c.Values)):
		return fmt.Errorf("%s is %d, not one of %s", c.Name, v, strings.Join(c.Values, ", "))
	case c.Flag && v > 1:
		return fmt.Errorf("%s is %d, not 0 or 1", c.Name, v)
	}
	return nil
}

// FunctionConstant returns the Metal function constant index of a specialisation
// constant. It is the same in all kernels.
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

// Env supplies the values of the names in expressions.
type Env interface {
	// Value returns the value of a parameter, a secondary field or a specialisation constant.
	Value(name string) (uint64, bool)
}

// Values is an Env of the values of some names, for expressions that have no others.
type Values map[string]uint64

// Value implements Env.
func (v Values) Value(name string) (uint64, bool) {
	n, ok := v[name]
	return n, ok
}

// Role returns the role of binding i for the specialisation constants of env.
func (k *Kernel) Role(i int, env Env) Role {
	b := &k.Bindings[i]
	if b.ReadIf == "" {
		return b.Role
	}
	if n, err := b.readIf.Eval(env); err == nil && n == 0 {
		return b.Role
	}
	return ReadWrite
}

// Extent returns the number of bytes, from its offset on, that binding i may access.
func (k *Kernel) Extent(i int, env Env) (uint64, error) {
	b := &k.Bindings[i]
	n, err := b.extent.Eval(env)
	if err != nil {
		return 0, fmt.Errorf("%s.%s: %w", k.Name, b.Name, err)
	}
	return n, nil
}

// ReadBytes returns the number of bytes of binding i that a command reads: the value of Reads if the
// declaration sets it, otherwise the extent.
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

// WorkerBytes returns the private memory in bytes that a worker of the CPU team needs.
func (k *Kernel) WorkerBytes(env Env) (uint64, error) {
	n, err := k.worker.Eval(env)
	if err != nil {
		return 0, fmt.Errorf("%s: worker memory: %w", k.Name, err)
	}
	return n, nil
}

// threadsEnv extends an Env by the name threads, the size of the threadgroup.
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

// ThreadgroupBytes returns the threadgroup memory in bytes that a threadgroup of the given size needs
// on a GPU.
func (k *Kernel) ThreadgroupBytes(env Env, threads int) (uint64, error) {
	size := &k.tgMem
	if k.ForApple(env, threads) {
		size = &k.Apple.tgMem
	}
	n, err := size.Eval(threadsEnv{env, uint64(threads)})
	if err != nil {
		return 0, fmt.Errorf("%s: threadgroup memory: %w", k.Name, err)
	}
	return n, nil
}

// ClusterSize returns the number of threadgroups of a cluster, at least 1. A GPU without clusters executes
// such a command, too: there the first threadgroup of each does all the work.
func (k *Kernel) ClusterSize(env Env) (uint64, error) {
	n, err := k.cluster.Eval(env)
	if err != nil {
		return 0, fmt.Errorf("%s: cluster: %w", k.Name, err)
	}
	return max(n, 1), nil
}

// ForApple reports whether a command with threadgroups of the given size is for the kernel's body for
// Apple GPUs, because the kernel has such a body and the command meets its condition.
func (k *Kernel) ForApple(env Env, threads int) bool {
	if k.Apple == nil {
		return false
	}
	n, err := k.Apple.when.Eval(threadsEnv{env, uint64(threads)})
	return err == nil && n != 0
}

// GridSize returns the number of threadgroups in each dimension.
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
	for _, r := range k.require {
		ok, err := r.Eval(env)
		if err != nil {
			return fmt.Errorf("%s: %w", k.Name, err)
		}
		if ok == 0 {
			return fmt.Errorf("%s: %s does not hold: %s", k.Name, r, r.values(env))
		}
	}
	return nil
}

// RowOrder returns the values of Order. Two commands with the same kernel, the same constants and
// the same values add the sums of a row in the same order.
func (k *Kernel) RowOrder(env Env) ([]uint64, error) {
	values := make([]uint64, len(k.order))
	for i := range k.order {
		n, err := k.order[i].Eval(env)
		if err != nil {
			return nil, fmt.Errorf("%s: order of sums: %w", k.Name, err)
		}
		values[i] = n
	}
	return values, nil
}

// Sums reports whether binding i of a command holds the matrix or the KV cache with which the kernel
// computes sums of products.
func (k *Kernel) Sums(i int, env Env) bool {
	b := &k.Bindings[i]
	if !b.Present(env) || !k.Role(i, env).Reads() {
		return false
	}
	_, product := k.Spec(constAct.Name)
	return b.Elem == KVType || b.Elem == WeightType && product
}

// As describes a form of a command that another kernel computes with the same bits. The kernel's other
// constants have the same values.
type As struct {
	Kernel    string
	Constants map[string]uint32 // values of constants of that kernel that this one does not have
}

// Form returns the kernel and the constants of the form that stands for all forms of a command with the same
// bits.
func (k *Kernel) Form(id ID, values [MaxSpecs]uint32) (ID, [MaxSpecs]uint32) {
	for _, name := range k.Same {
		if at, ok := k.Spec(name); ok {
			values[at] = 0
		}
	}
	if k.As == nil {
		return id, values
	}
	for i := range Kernels {
		other := &Kernels[i]
		if other.Name != k.As.Kernel {
			continue
		}
		var form [MaxSpecs]uint32
		for to, c := range other.Specs {
			if value, ok := k.As.Constants[c.Name]; ok {
				form[to] = value
			} else if from, ok := k.Spec(c.Name); ok {
				form[to] = values[from]
			}
		}
		return ID(i), form
	}
	return id, values
}

// CheckBatching returns an error if the bits of a row depend on the number of rows.
func (k *Kernel) CheckBatching(env Env) error {
	if k.Batching == "" {
		return nil
	}
	ok, err := k.batching.Eval(env)
	if err != nil {
		return fmt.Errorf("%s: %w", k.Name, err)
	}
	if ok == 0 {
		return fmt.Errorf("%s: a row's bits depend on the number of rows, because %s does not hold: %s", k.Name, k.batching, k.batching.values(env))
	}
	return nil
}

// CheckSecond returns an error if the value of secondary field s is not in the
// field's range.
func (k *Kernel) CheckSecond(s *Second, env Env) error {
	v, _ := env.Value(s.Name)
	low, err := s.min.Eval(env)
	if err != nil {
		return fmt.Errorf("%s: %w", k.Name, err)
	}
	high, err := s.max.Eval(env)
	if err != nil {
		return fmt.Errorf("%s: %w", k.Name, err)
	}
	if v < low || v > high {
		return fmt.Errorf("%s: %s %d is not in %d..%d", k.Name, s.Name, v, low, high)
	}
	return nil
}

// Param returns the offset of a parameter in the parameter bytes.
func (k *Kernel) Param(name string) (offset int, t Elem, ok bool) {
	for i, f := range k.Params {
		if f.Name == name {
			return 4 * i, f.Type, true
		}
	}
	return 0, 0, false
}

// SettledParam returns the offset of the parameter settled, if the kernel has it.
func (k *Kernel) SettledParam() (offset int, ok bool) {
	offset, _, ok = k.Param(fieldSettled.Name)
	return offset, ok
}

// MaySettle reports whether a command with the specialisation constants of env reads anything early if settled is 1.
func (k *Kernel) MaySettle(env Env) bool {
	if k.SettledIf == "" {
		return len(k.Settled) > 0
	}
	n, err := k.settledIf.Eval(env)
	return err == nil && n != 0
}

// ReadsEarly reports whether a command reads binding i early if its parameter settled is 1.
func (k *Kernel) ReadsEarly(i int) bool { return slices.Contains(k.Settled, k.Bindings[i].Name) }

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
