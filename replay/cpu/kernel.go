package cpu

import (
	"fmt"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// kernel is a command's kernel with its memory and parameters, ready to run.
type kernel interface {
	// units returns the number of independent work items, given the worker's patched values.
	units(w *worker) int
	// run executes units lo to hi-1.
	run(w *worker, lo, hi int)
}

// divisible is a kernel whose units can also be claimed one by one by idle workers.
type divisible interface {
	kernel
	// pool returns how many of the last units idle workers claim; 0 for none.
	pool(w *worker) int
	// more executes further units after run, on the same input.
	more(w *worker, lo, hi int)
}

// sharable is a kernel that may be shared by more workers than its grid has threadgroups.
type sharable interface {
	kernel
	// shared reports whether one unit is enough for a worker.
	shared(w *worker) bool
}

// prepared is a kernel whose workers can prepare its input together, in memory that all of them
// read, instead of each preparing all of it for itself.
type prepared interface {
	kernel
	// pieces returns the number of pieces of the input, or 0 if each worker is to prepare it alone. homes
	// is the largest number of workers that share the units.
	pieces(w *worker, homes int) int
	// prepare prepares pieces lo to hi-1 in w.prepared().
	prepare(w *worker, lo, hi int)
}

// constructors creates the kernel of a command, by kernel id.
var constructors = [...]func(b *binder) (kernel, error){
	kernels.Embed:            newEmbed,
	kernels.RoPEAngles:       newRoPEAngles,
	kernels.RMSNorm:          newRMSNorm,
	kernels.AddRMSNorm:       newAddRMSNorm,
	kernels.AddRMSNormHalves: newAddRMSNormHalves,
	kernels.Add:              newAdd,
	kernels.GEMV:             newGEMV,
	kernels.GEMM:             newGEMM,
	kernels.HeadNorm:         newHeadNorm,
	kernels.RoPE:             newRoPE,
	kernels.KVWrite:          newKVWrite,
	kernels.QKRoPEKV:         newQKRoPEKV,
	kernels.LatentKV:         newLatentKV,
	kernels.CausalConv:       newCausalConv,
	kernels.DeltaRule:        newDeltaRule,
	kernels.SigmoidMul:       newSigmoidMul,
	kernels.SSMScan:          newSSMScan,
	kernels.GatedNorm:        newGatedNorm,
	kernels.ScaleColumns:     newScaleColumns,
	kernels.AltupPredict:     newAltUpPredict,
	kernels.AltupCorrect:     newAltUpCorrect,
	kernels.AltupAdd:         newAltUpAdd,
	kernels.AltupMatch:       newAltUpMatch,
	kernels.TopGates:         newTopGates,
	kernels.HeadLayerNorm:    newHeadLayerNorm,
	kernels.Attn:             newAttn,
	kernels.AttnMerge:        newAttnMerge,
	kernels.AttnTile:         newAttnTile,
	kernels.AttnChunk:        newAttnChunk,
	kernels.SiLUMul:          newSiLUMul,
	kernels.Argmax:           newArgmax,
	kernels.RoPEAttn:         newRoPEAttn,
	kernels.RoPEAttnTile:     newRoPEAttnTile,
	kernels.ArgmaxPart:       newArgmaxPart,
	kernels.Halves:           newHalves,
	kernels.GEMMHalves:       newGEMMHalves,
	kernels.GEMMFew:          newGEMMFew,

	kernels.SampleAdjust: newSampleAdjust,
	kernels.SampleFilter: newSampleFilter,
	kernels.SampleDraw:   newSampleDraw,
	kernels.RankPart:     newRankPart,
	kernels.Rank:         newRank,
	kernels.Accept:       newAccept,
	kernels.Draft:        newDraft,
	kernels.ChooseRows:   newChoose,
	kernels.Route:        newRoute,
	kernels.RouteScored:  newRouteScored,
	kernels.ScaleRows:    newScaleRows,
	kernels.ExpertGEMV:   newExpertGEMV,
	kernels.ExpertSum:    newExpertSum,
	kernels.ExpertRows:   newExpertRows,
	kernels.ExpertHalves: newExpertHalves,
	kernels.ExpertGEMM:   newExpertGEMM,

	kernels.SoftCap:   newSoftCap,
	kernels.NormAdd:   newNormAdd,
	kernels.LayerNorm: newLayerNorm,
	kernels.Activate:  newActivate,
}

// binder gives a constructor the memory of one command's bindings. It keeps the first error.
// Slots without memory give nil slices; session slots have none while a table is only checked.
type binder struct {
	ops  *ops
	t    *table.Table
	cmd  *table.Cmd
	env  *table.Env
	mem  [][]byte // memory of each slot
	step *table.Step
	// block is the memory of the step slot, or nil while a table is only checked.
	block []byte
	err   error
}

// spec returns specialisation constant i.
func (b *binder) spec(i int) uint32 { return b.t.Specs[b.cmd.Spec].Values[i] }

// bytes returns the memory of binding i, as long as its extent, or nil if the binding is absent.
func (b *binder) bytes(i int) []byte {
	bind := b.cmd.Bind[i]
	if b.err != nil || i >= int(b.cmd.Bindings) || bind.Slot == table.NoSlot {
		return nil
	}
	extent, err := b.env.Extent(i)
	switch {
	case err != nil:
		b.err = err
	case int(bind.Slot) >= len(b.t.Slots):
		b.err = fmt.Errorf("%s: slot %d: the table has %d slots", b.name(i), bind.Slot, len(b.t.Slots))
	case bind.Offset > b.t.Slots[bind.Slot].Size || extent > b.t.Slots[bind.Slot].Size-bind.Offset:
		b.err = fmt.Errorf("%s: offset %d + %d bytes exceeds slot %s", b.name(i), bind.Offset, extent, b.t.Slots[bind.Slot].Name)
	case b.mem[bind.Slot] != nil:
		return b.mem[bind.Slot][bind.Offset:][:extent:extent]
	}
	return nil
}

// words returns the memory of binding i and checks that it is aligned to 4.
func (b *binder) words(i int) []byte {
	p := b.bytes(i)
	if !aligned(p, 4) && b.err == nil {
		b.err = fmt.Errorf("%s: offset %d of slot %s is not aligned to 4", b.name(i), b.cmd.Bind[i].Offset, b.t.Slots[b.cmd.Bind[i].Slot].Name)
	}
	if b.err != nil {
		return nil
	}
	return p
}

// f32 returns binding i as float32.
func (b *binder) f32(i int) []float32 { return float32s(b.words(i)) }

// u32 returns binding i as uint32.
func (b *binder) u32(i int) []uint32 { return uint32s(b.words(i)) }

// gated returns the function of the activation that constant i selects.
func (b *binder) gated(i int) func(dst, gate, up []float32) {
	f, ok := b.ops.gated(b.spec(i))
	b.need(ok, "activation %d is unknown", b.spec(i))
	return f
}

// need records an error unless ok is true.
func (b *binder) need(ok bool, format string, args ...any) {
	if !ok && b.err == nil {
		b.err = fmt.Errorf(format, args...)
	}
}

// declOf returns the declaration of a command's kernel, which the table has validated.
func declOf(env *table.Env) *decl.Kernel {
	k, _ := decl.Lookup(env.Kernel())
	return k
}

func (b *binder) name(i int) string {
	k := declOf(b.env)
	return k.Name + "." + k.Bindings[i].Name
}

// command is a command that is ready to run.
type command struct {
	kernel  kernel
	cmd     *table.Cmd
	index   int // in the table
	tiles   int // largest number of workers that share it
	barrier bool
}

// bind prepares the table's commands to run on a set of slots. It skips commands that belong to
// no program.
func bind(o *ops, t *table.Table, mem [][]byte, step *table.Step) ([]command, error) {
	cmds := make([]command, len(t.Cmds))
	// alone reports that a single worker has run the commands since the last barrier. owed reports
	// that one of these commands needed a barrier after the ones before it, which the order of the
	// worker's commands replaces for that worker only.
	alone, owed := false, false
	err := device.EachCmd(name, t, func(i int, p *table.Program, cmd *table.Cmd) error {
		k, err := bindOne(o, t, p, cmd, mem, step)
		if err != nil {
			return err
		}
		first, one := uint32(i) == p.First, cmd.Tiles() == 1
		// Commands of a single worker are ordered without a barrier.
		meets := cmd.Barrier != 0 && (first || !alone || !one) || owed && !one
		alone = one && (meets || alone && !first)
		owed = alone && !meets && !first && (owed || cmd.Barrier != 0)
		cmds[i] = command{kernel: k, cmd: cmd, index: i, tiles: cmd.Tiles(), barrier: meets}
		return nil
	})
	return cmds, err
}

func bindOne(o *ops, t *table.Table, p *table.Program, cmd *table.Cmd, mem [][]byte, step *table.Step) (kernel, error) {
	env, err := t.NewEnv(cmd, p)
	if err != nil {
		return nil, err
	}
	if int(cmd.Kernel) >= len(constructors) {
		return nil, fmt.Errorf("kernel %s is not supported", declOf(env).Name)
	}
	b := &binder{ops: o, t: t, cmd: cmd, env: env, mem: mem, step: step}
	if _, slot, ok := t.Slot(table.SlotStep); ok {
		b.block = mem[slot]
	}
	k, err := constructors[cmd.Kernel](b)
	if b.err != nil {
		return nil, b.err
	}
	return k, err
}

// workerBytes returns the private memory that one worker needs for any command of the table.
func workerBytes(t *table.Table) (uint64, error) {
	var most uint64
	err := device.EachCmd(name, t, func(_ int, p *table.Program, cmd *table.Cmd) error {
		env, err := t.NewEnv(cmd, p)
		if err != nil {
			return err
		}
		n, err := env.WorkerBytes()
		if a, ok := attentionOf(t, cmd); ok {
			n += uint64(wideBytes(a.headDim) + foldBytes(a.headDim))
		}
		most = max(most, n)
		return err
	})
	return (most + 63) &^ 63, err // wideBytes and foldBytes before the end must be aligned
}
