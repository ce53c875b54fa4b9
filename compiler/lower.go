package compiler

import (
	"fmt"
	"math"
	"slices"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// lower converts nodes to commands. The args of a node set the fields that depend on the kernel (see
// the files kernel_*.go); lower sets the fields that all commands have.
func (s *state) lower() error {
	for _, p := range s.programs {
		made := table.Program{
			Name: p.name, First: uint32(len(s.t.Cmds)), Count: uint32(len(p.nodes)), MaxRows: uint32(p.rows), Flags: p.flags,
		}
		for _, n := range p.nodes {
			if err := s.lowerNode(p, n, &made); err != nil {
				return fmt.Errorf("compiler: %s: command %d (%s): %w", p.name, len(s.t.Cmds), n.label(), err)
			}
		}
		s.t.Programs = append(s.t.Programs, made)
	}
	s.regions()
	return nil
}

// lowerNode appends the command of a node, its label, and its specialisation constants unless an
// earlier command has the same ones.
func (s *state) lowerNode(p *program, n *node, made *table.Program) error {
	k, ok := decl.Lookup(n.kernel())
	if !ok {
		return fmt.Errorf("kernel %d is unknown", n.kernel())
	}
	l := &lowering{s: s, p: p, n: n, k: k}
	l.cmd.Kernel, l.spec.Kernel = n.kernel(), n.kernel()
	l.cmd.Bindings = uint8(len(k.Bindings))
	if len(k.Second) > 0 {
		l.cmd.SecondSize = decl.SecondBytes
	}
	for i := range l.cmd.Bind {
		l.cmd.Bind[i].Slot = table.NoSlot
	}
	l.patch(table.PatchNone, 0)
	n.args.lower(l)
	l.cmd.Threadgroup = [3]uint32{uint32(l.threads()), 1, 1}

	i := slices.Index(s.t.Specs, l.spec)
	if i < 0 {
		i = len(s.t.Specs)
		s.t.Specs = append(s.t.Specs, l.spec)
	}
	l.cmd.Spec = uint16(i)
	env, err := s.t.NewEnv(&l.cmd, made)
	if err != nil {
		return err
	}
	if err := l.grid(env); err != nil {
		return err
	}
	if err := l.memory(env); err != nil {
		return err
	}
	s.t.Cmds = append(s.t.Cmds, l.cmd)
	s.t.Labels = append(s.t.Labels, n.label())
	return nil
}

// lowering is the conversion of one node to a command.
type lowering struct {
	s    *state
	p    *program
	n    *node
	k    *decl.Kernel
	cmd  table.Cmd
	spec table.Spec
}

// bind sets binding i to an operand.
func (l *lowering) bind(i int, o operand) {
	l.cmd.Bind[i] = table.Binding{Slot: o.v.slot, Offset: o.v.offset + uint64(o.row*o.v.width+o.off)*4}
}

// bindWeight sets binding i to a weight, unless it is nil.
func (l *lowering) bindWeight(i int, w *weight) { l.bindVector(i, w, 0) }

// bindVector sets binding i to a float32 weight, starting at element from, unless the weight is nil.
func (l *lowering) bindVector(i int, w *weight, from int) {
	if w != nil {
		l.cmd.Bind[i] = table.Binding{Slot: w.slot, Offset: uint64(from) * 4}
	}
}

// set sets specialisation constant i.
func (l *lowering) set(i int, v uint32) { l.spec.Values[i] = v }

// flag sets specialisation constant i to 0 or 1.
func (l *lowering) flag(i int, on bool) {
	l.spec.Values[i] = 0
	if on {
		l.spec.Values[i] = 1
	}
}

// patch sets the patch kind and the secondary field that it writes. In programs of several rows it
// also patches the number of rows.
func (l *lowering) patch(kind table.Patch, offset uint8) {
	l.cmd.PatchOffset = [2]uint8{table.NoPatch, table.NoPatch}
	if kind != table.PatchNone {
		l.cmd.PatchOffset[0] = offset
	}
	l.cmd.Patch = kind
	if l.n.behind > 0 {
		l.cmd.PutSecond(decl.SecondBehind, uint32(l.n.behind))
	}
	if !l.k.HasSecond(decl.SecondRows) {
		return
	}
	l.cmd.PutSecond(decl.SecondRows, 1)
	if l.p.rows > 1 && !l.n.single {
		l.cmd.Patch |= table.PatchRows
	}
}

// threads returns the threadgroup's size on the chip.
func (l *lowering) threads() int {
	if a, ok := l.n.args.(sized); ok {
		return a.threads(l)
	}
	return l.s.in.Chip.NormThreads
}

// vocab, ring and headDim return values that many kernels have as a parameter or a constant: the
// size of the vocabulary, the entries of the token ring, and the elements of a head of the layer.
func (l *lowering) vocab() uint32   { return l.s.t.Header.Vocab }
func (l *lowering) ring() uint32    { return l.s.t.Header.Context + 1 }
func (l *lowering) headDim() uint32 { return uint32(l.n.layer.headDim) }

// ropeLayout returns the constant of package decl for the configuration's RoPE layout.
func (l *lowering) ropeLayout() uint32 {
	if l.s.cfg.RopeLayout == arch.Interleaved {
		return decl.LayoutInterleaved
	}
	return decl.LayoutHalf
}

// stride returns the distance between rows of an operand, in elements.
func stride(o operand) uint32 { return uint32(o.v.width) }

// grid sets the command's grid to the size in the kernel's declaration.
func (l *lowering) grid(env *table.Env) error {
	grid, err := l.k.GridSize(env)
	if err != nil {
		return err
	}
	for d, n := range grid {
		if n == 0 || n > 1<<31-1 {
			return fmt.Errorf("the grid %v is empty or too large", grid)
		}
		l.cmd.Grid[d] = uint32(n)
	}
	return nil
}

// memory sets the memory that the command needs per worker or per threadgroup. If a threadgroup needs
// more than the chip has and the args are shrinking, memory reduces the size of the threadgroup.
func (l *lowering) memory(env *table.Env) error {
	c := l.s.in.Chip
	need := env.ThreadgroupBytes
	if c.WorkerMemory {
		need = env.WorkerBytes
	}
	mem, err := need()
	if a, ok := l.n.args.(shrinking); ok && a.shrinks() {
		for err == nil && mem > c.ThreadgroupMemory && int(l.cmd.Threadgroup[0]) > c.SIMDWidth {
			l.cmd.Threadgroup[0] = l.cmd.Threadgroup[0] / uint32(2*c.SIMDWidth) * uint32(c.SIMDWidth)
			mem, err = need()
		}
	}
	if err != nil {
		return err
	}
	if mem > c.ThreadgroupMemory {
		return fmt.Errorf("needs %d bytes of threadgroup memory, but chip %s has %d", mem, c.Name, c.ThreadgroupMemory)
	}
	l.cmd.TGMem = uint32(mem)
	return nil
}

// ceil returns a/b rounded up. roundUp returns a rounded up to a multiple of b.
func ceil(a, b int) int    { return (a + b - 1) / b }
func roundUp(a, b int) int { return ceil(a, b) * b }

// memoryOf returns the threadgroup memory of a command in bytes, which its kernel declares, for the values that the
// declaration names. Where one is missing, no memory is enough.
func memoryOf(id decl.ID, threads int, values decl.Values) uint64 {
	k, ok := decl.Lookup(id)
	if !ok {
		return math.MaxUint64
	}
	n, err := k.ThreadgroupBytes(values, threads)
	if err != nil {
		return math.MaxUint64
	}
	return n
}

// placeBarriers sets the barriers, and which commands read early. K and V of many rows that are read while gemm_halves
// multiplies delay its weights by more than attention gains (docs/rationale/cuda.md), so attention behind it does not
// read early.
func (s *state) placeBarriers() error {
	if err := s.t.PlaceBarriers(); err != nil {
		return err
	}
	for i := 1; i < len(s.t.Cmds); i++ {
		if c := &s.t.Cmds[i]; c.Kernel == kernels.RoPEAttnTile && s.t.Cmds[i-1].Kernel == kernels.GEMMHalves {
			p := kernels.RoPEAttnTileParamsOf(c)
			p.Settled = 0
			p.Put(c)
		}
	}
	return nil
}
