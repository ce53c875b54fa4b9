// Package table is the dispatch table: commands, slots, programs and the upload
// section, with their validation, their text and JSON dumps, their form on
// disk (the roll) and their comparison.
//
// A table is plain data. It knows kernels by their declarations (package
// decl), and no device, no model file and no architecture.
package table

import (
	"fmt"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
)

// SlotKind says what a slot holds.
type SlotKind uint8

// The kinds of slots.
const (
	SlotWeight  SlotKind = iota // uploaded once, read only
	SlotKV                      // one layer's K or V, [kvHeads, capacity, headDim] as the kernels' constant kv says
	SlotScratch                 // the arena of activations
	SlotTokens                  // the token ring, [context + 1] uint32
	SlotLogits                  // [rows, vocab] float32
	SlotStops                   // stop ids: uint32 count, then the ids
	SlotStep                    // the step block
	SlotSampler                 // how tokens are chosen: a Sampler, then [MaxBias, 2] ids and biases
	SlotHidden                  // the last hidden states of a chunk, [chunk, width] float32
	SlotRanks                   // log-probabilities of the last tokens, [RankEntries] of RankWords words
	SlotKinds
)

// String returns the kind's name.
func (k SlotKind) String() string {
	if k >= SlotKinds {
		return "invalid"
	}
	return [...]string{"weight", "kv", "scratch", "tokens", "logits", "stops", "step", "sampler", "hidden", "ranks"}[k]
}

// Scope says who owns a slot's memory.
type Scope uint8

// The scopes.
const (
	ScopeModel    Scope = iota // one for all sessions
	ScopeSession               // one a session
	ScopeExecutor              // one a team or queue; sessions take turns by submission
	scopes
)

// String returns the scope's name.
func (s Scope) String() string {
	if s >= scopes {
		return "invalid"
	}
	return [...]string{"model", "session", "executor"}[s]
}

// Slot is a named buffer of the plan.
type Slot struct {
	Name  string
	Kind  SlotKind
	Scope Scope
	Size  uint64 // bytes
}

// Spec is one kernel's specialisation constants, in the order of its
// declaration.
type Spec struct {
	Kernel decl.ID
	Values [decl.MaxSpecs]uint32
}

// Program is a named range of commands.
type Program struct {
	Name    string
	First   uint32 // first command
	Count   uint32
	MaxRows uint32 // rows that the program is compiled for
}

// Names of the programs.
const (
	ProgramDecode  = "decode"  // one token: embedding to argmax
	ProgramPrefill = "prefill" // a chunk of the prompt, up to the last residual
	ProgramHead    = "head"    // the chunk's last row: norm, logits, argmax
	ProgramLogits  = "logits"  // a block of the chunk's rows: norm, logits
	ProgramHidden  = "hidden"  // the chunk's rows: norm, into the hidden slot

	ProgramSample     = "sample"      // decode, with the token chosen as the sampler slot says
	ProgramSampleHead = "sample_head" // head, likewise
	ProgramRanked     = "ranked"      // sample, with log-probabilities left in the ranks slot
	ProgramRankedHead = "ranked_head" // sample_head, likewise

	// ProgramVerify is decode for the pending token and a draft of those that
	// follow it, a row each. It says itself how far it has come.
	ProgramVerify = "verify"
)

// UploadOp says how a source becomes a slot's bytes.
type UploadOp uint8

// The upload operations.
const (
	UploadCopy      UploadOp = iota // bytes as they are
	UploadToF32                     // F16, BF16 or F32 elements to float32
	UploadConst                     // bytes of the table's own constants
	UploadTile                      // rows of blocks, rearranged to dtype.Tiled16
	UploadPlusOne                   // F16, BF16 or F32 elements to float32, and 1 added
	UploadTranspose                 // elements of a matrix with Cols rows, which become columns
	UploadJoin                      // rows of blocks as they are, of a source that is several tensors
	uploadOps
)

// String returns the operation's name.
func (o UploadOp) String() string {
	if o >= uploadOps {
		return "invalid"
	}
	return [...]string{"copy", "f32", "const", "tile", "1+f32", "transpose", "join"}[o]
}

// Upload is one step of the upload section, executed once at load: bytes
// [SrcOffset, SrcOffset + SrcSize) of a tensor, or of the table's constants,
// become bytes of a slot.
type Upload struct {
	Op     UploadOp
	Type   dtype.Type // of the source's elements
	Slot   uint32
	Tensor string // "" for UploadConst
	Cols   uint32 // elements of a row there, for UploadTile, UploadJoin and UploadTranspose; 0 otherwise
	// Of UploadToF32's elements, UploadTranspose's columns, and the rows of
	// UploadTile and UploadJoin, each Step-th from Phase on is taken; 0 is all.
	Step, Phase uint8
	SrcOffset   uint64
	SrcSize     uint64
	DstOffset   uint64
}

// Rows returns the rows of the source of an UploadTile or UploadJoin.
func (u *Upload) Rows() (rows uint64, ok bool) {
	row, ok := u.Type.Bytes(uint64(u.Cols))
	if !ok || row == 0 || u.SrcSize%row != 0 {
		return 0, false
	}
	return u.SrcSize / row, true
}

// stepped returns how many of them are taken.
func (u *Upload) stepped() (rows uint64, ok bool) {
	rows, ok = u.Rows()
	step := uint64(max(u.Step, 1))
	return rows / step, ok && step <= maxStep && rows%step == 0 && uint64(u.Phase) < step
}

// maxStep is the largest step: pieces of an upload are whole multiples of it.
const maxStep = 2

// DstSize returns how many bytes the upload writes.
func (u *Upload) DstSize() (uint64, bool) {
	switch u.Op {
	case UploadToF32, UploadPlusOne, UploadTranspose:
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
	if u.Op == UploadTranspose {
		cols := uint64(u.Cols)
		if cols == 0 || n%cols != 0 || n/cols%step != 0 {
			return 0, false
		}
		return n / step * uint64(size), true
	}
	return n / step * 4, true
}

// InPlace reports, for each upload, whether a device may use the source's bytes
// where they are: it is a copy that alone fills its slot.
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

// Region names a part of a slot during a range of a program's commands: what
// the arena holds when. It serves dumps and inspection; replay does not read
// it.
type Region struct {
	Name    string
	Slot    uint32
	Offset  uint64
	Size    uint64
	Program uint32 // index in Programs
	First   uint32 // commands, from the start of the table, first and last included
	Last    uint32
}

// Header says what the table was compiled from and for.
type Header struct {
	Arch   string // architecture
	Model  string // the model's own name
	Chip   string
	Device string // kind of device the chip is

	Vocab      uint32
	Width      uint32
	Layers     uint32
	Context    uint32 // positions the table is compiled for
	Chunk      uint32 // rows of the prefill program
	LogitsRows uint32 // rows of the logits program, 0 without one
	MaxStops   uint32 // stop ids that fit

	Options string   // compile options that change the commands, for the dump
	ModelFP [32]byte // fingerprint of the tensor directory
	ChipFP  [32]byte // fingerprint of the chip's data
}

// Table is a compiled model: what a device loads and a session replays. It is
// immutable after compiling or loading.
type Table struct {
	Header   Header
	Slots    []Slot
	Specs    []Spec
	Programs []Program
	Cmds     []Cmd
	Uploads  []Upload
	Const    []byte // constants that uploads copy from

	Labels  []string // one a command, apart from the commands
	Regions []Region
}

// Program returns a program and its index.
func (t *Table) Program(name string) (*Program, int, bool) {
	for i := range t.Programs {
		if t.Programs[i].Name == name {
			return &t.Programs[i], i, true
		}
	}
	return nil, 0, false
}

// Moves reports whether the program says itself how far it has come: the step
// block then says where the next replay is.
func (p *Program) Moves() bool { return p.Name == ProgramVerify }

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

// KVCapacity returns the rows of the smallest KV cache: the context, unless
// some layer sees a window and its cache rotates.
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

// ProgramCmds returns the commands of a program that Validate has bounded.
func (t *Table) ProgramCmds(p *Program) []Cmd {
	return t.Cmds[p.First : p.First+p.Count]
}

// Env evaluates a declaration's expressions for one command: static parameters
// as they are, patched secondary fields at the largest value that the program
// and the context allow.
type Env struct {
	t      *Table
	c      *Cmd
	k      *decl.Kernel
	s      *Spec
	second [decl.SecondBytes]byte
}

// NewEnv returns the environment of a command of program p. The kernel and the
// spec must be ones the table has.
func (t *Table) NewEnv(c *Cmd, p *Program) (*Env, error) {
	k, ok := decl.Lookup(c.Kernel)
	if !ok {
		return nil, fmt.Errorf("kernel %d is unknown", c.Kernel)
	}
	if int(c.Spec) >= len(t.Specs) {
		return nil, fmt.Errorf("spec %d of %d", c.Spec, len(t.Specs))
	}
	e := &Env{t: t, c: c, k: k, s: &t.Specs[c.Spec], second: c.Second}
	last := t.Header.Context
	c.Apply(&Step{
		Position: last - 1, KVRow: last - 1, KVLen: last, TokenIndex: last - 1,
		Row: t.Header.Chunk - 1, Rows: p.MaxRows,
	}, &e.second)
	return e, nil
}

// Kernel returns the command's declaration.
func (e *Env) Kernel() *decl.Kernel { return e.k }

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
	case "threads":
		return uint64(e.c.Threadgroup[0]), true
	}
	return 0, false
}

// Extent returns how many bytes from its offset binding i may touch.
func (e *Env) Extent(i int) (uint64, error) { return e.k.Extent(i, e) }

// ThreadgroupBytes returns the threadgroup memory that the command needs on a
// GPU.
func (e *Env) ThreadgroupBytes() (uint64, error) {
	return e.k.ThreadgroupBytes(e, int(e.c.Threadgroup[0]))
}

// WorkerBytes returns the private memory that one worker of a CPU team needs.
func (e *Env) WorkerBytes() (uint64, error) { return e.k.WorkerBytes(e) }
