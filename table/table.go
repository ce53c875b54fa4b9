// Package table defines the dispatch table, which consists of commands, slots, programs and the
// upload section. The upload section describes how slots are filled from a model's tensors. The
// package validates tables, dumps them as text or JSON, compares them, and stores them in files,
// which are called rolls.
//
// A table is plain data. The package knows kernels only by their declarations (package decl). It
// must not know devices, model files or architectures.
package table

import (
	"fmt"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
)

// SlotKind classifies the content of a slot.
type SlotKind uint8

// The kinds of slots.
const (
	SlotWeight  SlotKind = iota // uploaded once, read only
	SlotKV                      // one layer's K or V, [kvHeads, capacity, headDim]; the kernels' constant kv selects the element type
	SlotScratch                 // the arena of activations
	SlotTokens                  // the token ring, [context + 1] uint32
	SlotLogits                  // [rows, vocab] float32
	SlotStops                   // token ids that stop a generation: a uint32 count, then the ids
	SlotStep                    // the step block: an array of Step
	SlotSampler                 // sampling options: sampler.Settings, then [MaxBias, 2] ids and biases
	SlotHidden                  // final hidden states of a chunk, [chunk, width] float32
	SlotRanks                   // log-probabilities of the last tokens: RankEntries entries of RankWords 32-bit words
	SlotState                   // states of one layer with recurrent state at several positions, as package recurrent arranges them
	SlotKinds
)

// String returns the kind's name.
func (k SlotKind) String() string {
	if k >= SlotKinds {
		return "invalid"
	}
	return [...]string{"weight", "kv", "scratch", "tokens", "logits", "stops", "step", "sampler", "hidden", "ranks", "state"}[k]
}

// Scope is the owner of a slot's memory.
type Scope uint8

// The scopes.
const (
	ScopeModel    Scope = iota // shared by all sessions of a model
	ScopeSession               // one per session
	ScopeExecutor              // one per executor (a team of threads or a queue); sessions use it in turn, one submission at a time
	scopes
)

// String returns the scope's name.
func (s Scope) String() string {
	if s >= scopes {
		return "invalid"
	}
	return [...]string{"model", "session", "executor"}[s]
}

// Slot is a named buffer of the table's plan.
type Slot struct {
	Name  string
	Kind  SlotKind
	Scope Scope
	Size  uint64 // bytes
}

// Spec holds the specialisation constants of a kernel, in the order of its declaration.
type Spec struct {
	Kernel KernelID
	Values [decl.MaxSpecs]uint32
}

// Program is a named range of commands.
type Program struct {
	Name    string
	First   uint32 // first command
	Count   uint32
	MaxRows uint32 // largest number of rows the program is compiled for
	Flags   Flags  // properties of the program that its replay depends on
}

// Names of the programs.
const (
	ProgramDecode  = "decode"  // one token: embedding to argmax
	ProgramPrefill = "prefill" // a chunk of the prompt: embedding to the last residual
	// ProgramPrefillFew is prefill for a short chunk, in tables for devices that have special
	// kernels for few rows. Both programs write the last residual to the same place.
	ProgramPrefillFew = "prefill_few"
	// ProgramPrefillFewest is prefill_few with kernels for even fewer rows.
	ProgramPrefillFewest = "prefill_fewest"
	ProgramHead          = "head"   // last row of a chunk: norm, logits, argmax
	ProgramLogits        = "logits" // a block of a chunk's rows: norm, logits
	ProgramHidden        = "hidden" // all rows of a chunk: norm, stored in the hidden slot

	ProgramSample     = "sample"      // decode with the sampler slot's choice of the token instead of argmax
	ProgramSampleHead = "sample_head" // head with the sampler slot's choice of the token instead of argmax
	ProgramRanked     = "ranked"      // sample, and store log-probabilities in the ranks slot
	ProgramRankedHead = "ranked_head" // sample_head, and store log-probabilities in the ranks slot

	// ProgramVerify is the verify step of speculative decoding. It decodes the pending token and
	// the draft tokens after it, one row each, and accepts the longest correct prefix of the
	// draft. It is self-advancing: it updates the step record itself.
	ProgramVerify = "verify"
)

// UploadOp selects the conversion of an upload.
type UploadOp uint8

// The upload operations.
const (
	UploadCopy      UploadOp = iota // copies bytes unchanged
	UploadToF32                     // converts F16, BF16 or F32 elements to float32
	UploadConst                     // copies bytes of the table's constants
	UploadTile                      // rearranges rows of quantization blocks to the layout dtype.Tiled16
	UploadPlusOne                   // converts F16, BF16 or F32 elements to float32 and adds 1
	UploadTranspose                 // transposes a matrix with Cols rows
	UploadJoin                      // copies rows of quantization blocks from a source of several tensors
	UploadHalf                      // transposes half of the columns of a matrix with Cols rows
	uploadOps
)

// String returns the operation's name.
func (o UploadOp) String() string {
	if o >= uploadOps {
		return "invalid"
	}
	return [...]string{"copy", "f32", "const", "tile", "1+f32", "transpose", "join", "half"}[o]
}

// Upload is one step of the upload section, which a device executes once when it loads the table.
// It converts bytes [SrcOffset, SrcOffset + SrcSize) of a tensor or of the table's constants and
// writes them to a weight slot.
type Upload struct {
	Op     UploadOp
	Type   dtype.Type // element type of the source
	Slot   uint32
	Tensor string // "" for UploadConst
	Cols   uint32 // elements per row of the destination, for UploadTile, UploadJoin, UploadTranspose and UploadHalf; 0 otherwise
	// Step and Phase select every Step-th item from item Phase on: elements for UploadToF32,
	// columns for UploadTranspose, rows for UploadTile and UploadJoin. Step 0 selects all. For
	// UploadHalf, Step is 2 and Phase the half.
	Step, Phase uint8
	SrcOffset   uint64
	SrcSize     uint64
	DstOffset   uint64
}

// Rows returns the number of rows of the source of an UploadTile or UploadJoin.
func (u *Upload) Rows() (rows uint64, ok bool) {
	row, ok := u.Type.Bytes(uint64(u.Cols))
	if !ok || row == 0 || u.SrcSize%row != 0 {
		return 0, false
	}
	return u.SrcSize / row, true
}

// Transposes reports whether the upload writes columns of its source as rows.
func (u *Upload) Transposes() bool { return u.Op == UploadTranspose || u.Op == UploadHalf }

// Column returns the column of the source that becomes row i of the destination of an upload that
// transposes a matrix with the given number of columns.
func (u *Upload) Column(i, columns int) int {
	if u.Op == UploadHalf {
		return int(u.Phase)*(columns/2) + i
	}
	return i*int(max(u.Step, 1)) + int(u.Phase)
}

// stepped returns the number of those rows that Step and Phase select.
func (u *Upload) stepped() (rows uint64, ok bool) {
	rows, ok = u.Rows()
	step := uint64(max(u.Step, 1))
	return rows / step, ok && step <= maxStep && rows%step == 0 && uint64(u.Phase) < step
}

// maxStep is the largest Step. The pieces of an upload are multiples of maxStep.
const maxStep = 2

// DstSize returns the number of bytes that the upload writes.
func (u *Upload) DstSize() (uint64, bool) {
	switch u.Op {
	case UploadToF32, UploadPlusOne, UploadTranspose, UploadHalf:
	case UploadTile:
		rows, ok := u.stepped()
		if !ok {
			return 0, false
		}
		return dtype.Tiled16.Bytes(u.Type, rows, uint64(u.Cols))
	case UploadJoin:
		_, ok := u.stepped()
		return u.SrcSize / uint64(max(u.Step, 1)), ok
	default:
		return u.SrcSize, true
	}
	elems, size := u.Type.Block()
	if elems != 1 || size == 0 || u.SrcSize%uint64(size) != 0 || u.SrcSize > 1<<60 {
		return 0, false
	}
	step, n := uint64(max(u.Step, 1)), u.SrcSize/uint64(size)
	if step > maxStep || n%step != 0 || uint64(u.Phase) >= step {
		return 0, false
	}
	if u.Op == UploadHalf && step != 2 {
		return 0, false
	}
	if u.Transposes() {
		cols := uint64(u.Cols)
		if cols == 0 || n%cols != 0 || n/cols%step != 0 {
			return 0, false
		}
		return n / step * uint64(size), true
	}
	return n / step * 4, true
}

// InPlace reports for each upload whether a device may use the bytes of the source without
// copying them: whether the upload is a plain copy that fills the whole slot.
func (t *Table) InPlace() []bool {
	parts := make([]int, len(t.Slots))
	for i := range t.Uploads {
		if s := t.Uploads[i].Slot; uint64(s) < uint64(len(parts)) {
			parts[s]++
		}
	}
	inPlace := make([]bool, len(t.Uploads))
	for i := range t.Uploads {
		u := &t.Uploads[i]
		inPlace[i] = u.Op == UploadCopy && uint64(u.Slot) < uint64(len(parts)) && parts[u.Slot] == 1 &&
			u.DstOffset == 0 && u.SrcSize == t.Slots[u.Slot].Size
	}
	return inPlace
}

// Region names a part of a slot during a range of commands, such as one activation in the scratch
// arena. Dumps and inspection use regions; replay does not.
type Region struct {
	Name    string
	Slot    uint32
	Offset  uint64
	Size    uint64
	Program uint32 // index in Programs
	First   uint32 // first and last command, both included, counted from the start of the table
	Last    uint32
}

// Header describes the model that the table was compiled from and the chip it was compiled for.
type Header struct {
	Arch   string // name of the architecture
	Model  string // the model's name from its file
	Chip   string
	Device string // kind of device that the chip belongs to

	Vocab      uint32
	Width      uint32
	Layers     uint32
	Context    uint32 // positions that the table is compiled for
	Chunk      uint32 // rows of the prefill program
	LogitsRows uint32 // rows of the logits program; 0 if there is none
	MaxStops   uint32 // capacity of the stops slot

	Options string   // compile options that change the commands, for the dump
	ModelFP [32]byte // fingerprint of the tensor directory
	ChipFP  [32]byte // fingerprint of the chip's data
}

// Table is a compiled model: a device loads it and a session replays it. A table is immutable
// once compiled or decoded.
type Table struct {
	Header   Header
	Slots    []Slot
	Specs    []Spec
	Programs []Program
	Cmds     []Cmd
	Uploads  []Upload
	Const    []byte // constants that UploadConst copies

	Labels  []string // one per command
	Regions []Region
}

// Program returns the program with the given name and its index.
func (t *Table) Program(name string) (*Program, int, bool) {
	for i := range t.Programs {
		if t.Programs[i].Name == name {
			return &t.Programs[i], i, true
		}
	}
	return nil, 0, false
}

// Prefill returns the program that prefills a chunk with the given number of rows, and its index:
// prefill_fewest or prefill_few if the table has it and it has enough rows, otherwise prefill. It returns
// nil and -1 if the table has none.
func (t *Table) Prefill(rows int) (*Program, int) {
	for _, name := range []string{ProgramPrefillFewest, ProgramPrefillFew} {
		if p, i, ok := t.Program(name); ok && rows <= int(p.MaxRows) {
			return p, i
		}
	}
	if p, i, ok := t.Program(ProgramPrefill); ok {
		return p, i
	}
	return nil, -1
}

// Slot returns the first slot of a kind and its index.
func (t *Table) Slot(k SlotKind) (*Slot, uint32, bool) {
	for i := range t.Slots {
		if t.Slots[i].Kind == k {
			return &t.Slots[i], uint32(i), true
		}
	}
	return nil, 0, false
}

// Label returns a command's label.
func (t *Table) Label(cmd int) string {
	if cmd < 0 || cmd >= len(t.Labels) {
		return ""
	}
	return t.Labels[cmd]
}

// KVCapacity returns the number of rows of the smallest KV cache. It is the context unless a
// layer has an attention window and a ring of fewer rows.
func (t *Table) KVCapacity() int {
	rows := t.Header.Context
	for i := range t.Cmds {
		k, ok := decl.Lookup(t.Cmds[i].Kernel)
		if !ok {
			continue
		}
		if off, _, ok := k.Param("cap"); ok {
			rows = min(rows, t.Cmds[i].u32(off))
		}
	}
	return int(rows)
}

// ProgramCmds returns the commands of a program. Validate must have accepted the program's range.
func (t *Table) ProgramCmds(p *Program) []Cmd {
	return t.Cmds[p.First : p.First+p.Count]
}

// Env evaluates the expressions of a kernel's declaration for one command. Parameters have their
// static values. Patched secondary fields have the largest value that the program and the context
// allow.
type Env struct {
	t      *Table
	c      *Cmd
	k      *decl.Kernel
	s      *Spec
	second [decl.SecondBytes]byte
	rows   uint32 // rows that the program is compiled for
}

// NewEnv returns the environment of a command of program p. It fails if the kernel is unknown or
// the table has no such spec.
func (t *Table) NewEnv(c *Cmd, p *Program) (*Env, error) {
	k, ok := decl.Lookup(c.Kernel)
	if !ok {
		return nil, fmt.Errorf("kernel %d is unknown", c.Kernel)
	}
	if int(c.Spec) >= len(t.Specs) {
		return nil, fmt.Errorf("spec %d: the table has %d specs", c.Spec, len(t.Specs))
	}
	e := &Env{t: t, c: c, k: k, s: &t.Specs[c.Spec], second: c.Second, rows: p.MaxRows}
	last := t.Header.Context
	c.Apply(&Step{
		Position: last - 1, KVRow: last - 1, KVLen: last, TokenIndex: last - 1,
		Row: t.Header.Chunk - 1, Rows: p.MaxRows,
	}, &e.second)
	return e, nil
}

// Kernel returns the command's kernel.
func (e *Env) Kernel() KernelID { return e.c.Kernel }

// Value implements decl.Env.
func (e *Env) Value(name string) (uint64, bool) {
	if off, typ, ok := e.k.Param(name); ok {
		return uint64(e.c.u32(off)), typ == decl.U32
	}
	for _, s := range e.k.Second {
		if s.Name == name {
			return uint64(Field(&e.second, s.Offset)), true
		}
	}
	if i, ok := e.k.Spec(name); ok {
		return uint64(e.s.Values[i]), true
	}
	switch name {
	case "context":
		return uint64(e.t.Header.Context), true
	case "program_rows":
		return uint64(e.rows), true
	case "threads":
		return uint64(e.c.Threadgroup[0]), true
	}
	return 0, false
}

// Extent returns the number of bytes, from its offset on, that binding i may access.
func (e *Env) Extent(i int) (uint64, error) { return e.k.Extent(i, e) }

// ThreadgroupBytes returns the threadgroup memory that the command needs on a GPU.
func (e *Env) ThreadgroupBytes() (uint64, error) {
	return e.k.ThreadgroupBytes(e, int(e.c.Threadgroup[0]))
}

// WorkerBytes returns the private memory that each worker of a CPU team needs.
func (e *Env) WorkerBytes() (uint64, error) { return e.k.WorkerBytes(e) }
