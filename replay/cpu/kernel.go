package cpu

import (
	"fmt"
	"sync/atomic"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// kernel is a command's kernel with its memory and parameters: what is left is
// to run it.
type kernel interface {
	// units returns how many independent pieces of work there are with the
	// worker's patched values.
	units(w *worker) int
	// run does the units from lo to hi-1.
	run(w *worker, lo, hi int)
}

// divisible is a kernel whose work can be handed out in pieces.
type divisible interface {
	kernel
	// pool returns how many of the last units are handed out to whoever is
	// ready, 0 for none.
	pool(w *worker) int
	// more does further units after run, on the same input.
	more(w *worker, lo, hi int)
}

// claims hand out the pool of a command. Every worker claims until nothing is
// left, so that a replay takes the same number of claims each time, and the
// number before it is known to each worker without a reset.
type claims struct {
	_    pad
	next atomic.Uint64
	_    pad
	seen []uint64 // by worker: claims of the replays before
}

// constructors make a kernel of a command, by kernel id.
var constructors = [...]func(b *binder) (kernel, error){
	kernels.Embed:      newEmbed,
	kernels.RoPEAngles: newRoPEAngles,
	kernels.RMSNorm:    newRMSNorm,
	kernels.AddRMSNorm: newAddRMSNorm,
	kernels.Add:        newAdd,
	kernels.GEMV:       newGEMV,
	kernels.GEMM:       newGEMM,
	kernels.HeadNorm:   newHeadNorm,
	kernels.RoPE:       newRoPE,
	kernels.KVWrite:    newKVWrite,
	kernels.QKRoPEKV:   newQKRoPEKV,
	kernels.Attn:       newAttn,
	kernels.AttnMerge:  newAttnMerge,
	kernels.SiLUMul:    newSiLUMul,
	kernels.Argmax:     newArgmax,
	kernels.RoPEAttn:   newRoPEAttn,
	kernels.ArgmaxPart: newArgmaxPart,
	kernels.Halves:     newHalves,
	kernels.GEMMHalves: newGEMMHalves,

	kernels.SampleAdjust: newSampleAdjust,
	kernels.SampleFilter: newSampleFilter,
	kernels.SampleDraw:   newSampleDraw,
	kernels.RankPart:     newRankPart,
	kernels.Rank:         newRank,
	kernels.Accept:       newAccept,
	kernels.Draft:        newDraft,
	kernels.Route:        newRoute,
	kernels.ExpertGEMV:   newExpertGEMV,
	kernels.ExpertSum:    newExpertSum,

	kernels.SoftCap:   newSoftCap,
	kernels.NormAdd:   newNormAdd,
	kernels.LayerNorm: newLayerNorm,
	kernels.Activate:  newActivate,
}

// binder gives a constructor the memory of one command's bindings. The first
// error sticks; slots without memory, as those of a session are while a table
// is only checked, give nil slices.
type binder struct {
	ops  *ops
	t    *table.Table
	cmd  *table.Cmd
	env  *table.Env
	mem  [][]byte // by slot
	step *table.Step
	err  error
}

// spec returns specialisation constant i.
func (b *binder) spec(i int) uint32 { return b.t.Specs[b.cmd.Spec].Values[i] }

// bytes returns the memory of binding i, as long as its extent, or nil if it
// is not there.
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
		b.err = fmt.Errorf("%s: slot %d of %d", b.name(i), bind.Slot, len(b.t.Slots))
	case bind.Offset > b.t.Slots[bind.Slot].Size || extent > b.t.Slots[bind.Slot].Size-bind.Offset:
		b.err = fmt.Errorf("%s: offset %d + %d bytes is past the end of slot %s", b.name(i), bind.Offset, extent, b.t.Slots[bind.Slot].Name)
	case b.mem[bind.Slot] != nil:
		return b.mem[bind.Slot][bind.Offset:][:extent:extent]
	}
	return nil
}

// words returns the memory of binding i, checked to be aligned to 4.
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

// gated returns the function of the activation that constant i says.
func (b *binder) gated(i int) func(dst, gate, up []float32) {
	f, ok := b.ops.gated(b.spec(i))
	b.need(ok, "activation %d is unknown", b.spec(i))
	return f
}

// need adds an error unless ok.
func (b *binder) need(ok bool, format string, args ...any) {
	if !ok && b.err == nil {
		b.err = fmt.Errorf(format, args...)
	}
}

func (b *binder) name(i int) string {
	k := b.env.Kernel()
	return k.Name + "." + k.Bindings[i].Name
}

// command is a command ready to run.
type command struct {
	kernel  kernel
	cmd     *table.Cmd
	tiles   int // at most so many workers have a share
	barrier bool
	claims  *claims // of a divisible kernel, else nil
}

// bind makes every command of the table ready to run on a set of slots. A
// command that is in no program is left out.
func bind(o *ops, t *table.Table, mem [][]byte, step *table.Step, workers int) ([]command, error) {
	cmds := make([]command, len(t.Cmds))
	// Whether all commands since the last meeting are worker 0's, and the last one
	// writes the step block.
	alone, steps := false, false
	err := device.EachCmd(name, t, func(i int, p *table.Program, cmd *table.Cmd) error {
		k, err := bindOne(o, t, p, cmd, mem, step)
		if err != nil {
			return err
		}
		about, _ := decl.Lookup(cmd.Kernel)
		first, one := uint32(i) == p.First, cmd.Tiles() == 1
		// What one worker does is in order without a meeting. Before the step block
		// changes, there is one, since others read it behind the last.
		meets := cmd.Barrier != 0 && (first || !alone || !one || about.Step && !steps)
		alone, steps = one && (meets || alone && !first), about.Step
		cmds[i] = command{kernel: k, cmd: cmd, tiles: cmd.Tiles(), barrier: meets}
		if _, ok := k.(divisible); ok {
			cmds[i].claims = &claims{seen: make([]uint64, workers)}
		}
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
		return nil, fmt.Errorf("kernel %s is not supported", env.Kernel().Name)
	}
	b := &binder{ops: o, t: t, cmd: cmd, env: env, mem: mem, step: step}
	k, err := constructors[cmd.Kernel](b)
	if b.err != nil {
		return nil, b.err
	}
	return k, err
}

// workerBytes returns the private memory that one worker needs for any command
// of the table.
func workerBytes(t *table.Table) (uint64, error) {
	var most uint64
	err := device.EachCmd(name, t, func(_ int, p *table.Program, cmd *table.Cmd) error {
		env, err := t.NewEnv(cmd, p)
		if err != nil {
			return err
		}
		n, err := env.WorkerBytes()
		most = max(most, n)
		return err
	})
	return most, err
}
