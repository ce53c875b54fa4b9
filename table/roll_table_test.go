package table_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/kernels"
	. "github.com/pianola-engine/pianola/table"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
)

// Sizes of the small model that smallTable builds by hand.
const (
	smallVocab   = 320
	smallWidth   = 64
	smallHeads   = 4
	smallKVHeads = 2
	smallHeadDim = 16
	smallHidden  = 160
	smallContext = 64
	smallChunk   = 4
)

// The scratch arena of the small model. Each activation has smallChunk rows.
const (
	smallAngles = 0
	smallX      = smallAngles + smallChunk*smallHeadDim*4
	smallNormed = smallX + smallChunk*smallWidth*4
	smallQKV    = smallNormed + smallChunk*smallWidth*4
	smallQ      = smallQKV + smallChunk*(smallHeads+2*smallKVHeads)*smallHeadDim*4
	smallAttn   = smallQ + smallChunk*smallWidth*4
	smallDelta  = smallAttn + smallChunk*smallWidth*4
	smallGateUp = smallDelta + smallChunk*smallWidth*4
	smallArena  = smallGateUp + smallChunk*2*smallHidden*4
)

type builder struct {
	t   *Table
	row uint32 // rows of the program
}

// smallTable returns a valid table of a model with one layer. It has the programs decode and prefill,
// and one weight slot per tensor.
func smallTable() *Table {
	b := &builder{t: &Table{Header: Header{
		Arch: "llama", Model: "Small One", Chip: "x86-64-v3", Device: "cpu",
		Vocab: smallVocab, Width: smallWidth, Layers: 1, Context: smallContext, Chunk: smallChunk, MaxStops: 8,
		ModelFP: [32]byte{1, 2, 3, 4, 5, 6, 7, 8}, ChipFP: [32]byte{0xab, 0xcd},
	}}}
	b.slots()
	b.program(ProgramDecode, 1)
	b.program(ProgramPrefill, smallChunk)
	if err := b.t.PlaceBarriers(); err != nil {
		panic(err)
	}
	return b.t
}

func (b *builder) slots() {
	add := func(name string, kind SlotKind, size uint64) {
		b.t.Slots = append(b.t.Slots, Slot{name, kind, ScopeOf[kind], size})
	}
	weight := func(name string, op UploadOp, typ dtype.Type, elems uint64) {
		size, _ := typ.Bytes(elems)
		u := Upload{Op: op, Type: typ, Slot: uint32(len(b.t.Slots)), Tensor: name, SrcSize: size}
		if op == UploadConst {
			u.Tensor, b.t.Const = "", make([]byte, size)
			for i := range b.t.Const {
				b.t.Const[i] = byte(i)
			}
		}
		b.t.Uploads = append(b.t.Uploads, u)
		dst, _ := u.DstSize()
		add(name, SlotWeight, dst)
	}
	add("tokens", SlotTokens, (smallContext+1)*4)
	add("logits", SlotLogits, smallVocab*4)
	add("stops", SlotStops, 9*4)
	add("step", SlotStep, StepSize)
	add("scratch", SlotScratch, smallArena)
	add("kv.0.k", SlotKV, smallKVHeads*smallContext*smallHeadDim*2)
	add("kv.0.v", SlotKV, smallKVHeads*smallContext*smallHeadDim*2)
	weight("rope.inv_freq", UploadConst, dtype.F32, smallHeadDim/2)
	weight("token_embd.weight", UploadCopy, dtype.Q8_0, smallVocab*smallWidth)
	weight("blk.0.attn_norm.weight", UploadToF32, dtype.F16, smallWidth)
	weight("blk.0.attn_qkv.weight", UploadCopy, dtype.Q8_0, smallWidth*(smallHeads+2*smallKVHeads)*smallHeadDim)
	weight("blk.0.attn_output.weight", UploadCopy, dtype.Q8_0, smallWidth*smallWidth)
	weight("blk.0.ffn_norm.weight", UploadToF32, dtype.F32, smallWidth)
	weight("blk.0.ffn_gate_up.weight", UploadCopy, dtype.Q4_0, smallWidth*2*smallHidden)
	weight("blk.0.ffn_down.weight", UploadCopy, dtype.Q8_0, smallWidth*smallHidden)
}

// at returns a binding of the named slot.
func (b *builder) at(slot string, offset uint64) Binding {
	for i := range b.t.Slots {
		if b.t.Slots[i].Name == slot {
			return Binding{Slot: uint32(i), Offset: offset}
		}
	}
	panic(slot)
}

func (b *builder) scratch(offset uint64) Binding { return b.at("scratch", offset) }

// cmd appends a command of kernel id: parameters from put, patches from the kernel's secondary
// fields.
func (b *builder) cmd(label string, id decl.ID, constants []uint32, params interface{ Put(*Cmd) }, binds ...Binding) {
	t, k := b.t, &decl.Kernels[id]
	c := Cmd{Kernel: id, Bindings: uint8(len(binds)), PatchOffset: [2]uint8{NoPatch, NoPatch}, Threadgroup: [3]uint32{32, 1, 1}}
	s := Spec{Kernel: id}
	copy(s.Values[:], constants)
	at := slices.Index(t.Specs, s)
	if at < 0 {
		at = len(t.Specs)
		t.Specs = append(t.Specs, s)
	}
	c.Spec = uint16(at)
	for i := range c.Bind {
		c.Bind[i].Slot = NoSlot
	}
	copy(c.Bind[:], binds)
	params.Put(&c)
	for _, f := range k.Second {
		if f.Name == "kv_len" && id == kernels.GEMV || f.Name == "behind" {
			continue // it belongs to the input merge or to programs with a command per row
		}
		kind := map[string]Patch{"token": PatchToken, "pos": PatchPosition, "kv_len": PatchKVLen}[f.Name]
		if id == kernels.Argmax {
			kind = PatchArgmax
		}
		c.SecondSize = decl.SecondBytes
		switch {
		case f.Name != "rows":
			c.Patch, c.PatchOffset[0] = kind, uint8(f.Offset)
		case b.row == 1:
			c.PutSecond(f.Offset, 1)
		default:
			c.Patch |= PatchRows
		}
	}
	env, err := t.NewEnv(&c, &Program{MaxRows: b.row})
	if err != nil {
		panic(err)
	}
	grid, err := k.GridSize(env)
	if err != nil {
		panic(err)
	}
	for i, n := range grid {
		c.Grid[i] = uint32(n)
	}
	t.Cmds = append(t.Cmds, c)
	t.Labels = append(t.Labels, label)
}

func (b *builder) program(name string, rows uint32) {
	t := b.t
	first := uint32(len(t.Cmds))
	b.row = rows
	none := Binding{Slot: NoSlot}
	matmul, q8 := kernels.GEMV, uint32(decl.ActQ8)
	if rows > 1 {
		matmul = kernels.GEMM
	}
	q80 := []uint32{uint32(dtype.Q8_0), q8}
	const qkv = (smallHeads + 2*smallKVHeads) * smallHeadDim
	b.cmd("embed", kernels.Embed, q80[:1], kernels.EmbedParams{N: smallWidth, Vocab: smallVocab, Ring: smallContext + 1, Scale: 1},
		b.at("tokens", 0), b.at("token_embd.weight", 0), b.scratch(smallX))
	b.cmd("rope_angles", kernels.RoPEAngles, nil, kernels.RoPEAnglesParams{Half: smallHeadDim / 2, AttnFactor: 1},
		b.at("rope.inv_freq", 0), none, b.scratch(smallAngles))
	b.cmd("layer.0.attn.norm", kernels.AddRMSNorm, nil, kernels.AddRMSNormParams{N: smallWidth, Eps: 1e-6},
		b.scratch(smallX), b.scratch(smallDelta), b.at("blk.0.attn_norm.weight", 0), b.scratch(smallNormed))
	b.cmd("layer.0.attn.qkv", matmul, q80, kernels.GEMVParams{In: smallWidth, Out: qkv, XStride: smallWidth, YStride: qkv, Group: 8, RowGroup: 1},
		b.scratch(smallNormed), none, b.at("blk.0.attn_qkv.weight", 0), none, b.scratch(smallQKV))
	b.cmd("layer.0.attn.rope_kv", kernels.QKRoPEKV, []uint32{smallHeadDim, decl.LayoutInterleaved},
		kernels.QKRoPEKVParams{Heads: smallHeads, KVHeads: smallKVHeads, QStride: qkv, KStride: qkv, VStride: qkv, Half: smallHeadDim / 2, Cap: smallContext, Eps: 1e-6, HeadGroup: 1},
		b.scratch(smallQKV), b.scratch(smallQKV+smallHeads*smallHeadDim*4), b.scratch(smallQKV+(smallHeads+smallKVHeads)*smallHeadDim*4),
		b.scratch(smallAngles), none, b.scratch(smallQ), b.at("kv.0.k", 0), b.at("kv.0.v", 0))
	b.cmd("layer.0.attn.mix", kernels.Attn, []uint32{smallHeadDim},
		kernels.AttnParams{Heads: smallHeads, KVHeads: smallKVHeads, QStride: smallWidth, Cap: smallContext, Span: smallContext, Splits: 1, Scale: 0.25, HeadGroup: 1},
		b.scratch(smallQ), b.at("kv.0.k", 0), b.at("kv.0.v", 0), b.scratch(smallAttn), none, none)
	b.cmd("layer.0.attn.output", matmul, q80, kernels.GEMVParams{In: smallWidth, Out: smallWidth, XStride: smallWidth, YStride: smallWidth, Group: 8, RowGroup: 1},
		b.scratch(smallAttn), none, b.at("blk.0.attn_output.weight", 0), none, b.scratch(smallDelta))
	b.cmd("layer.0.ffn.norm", kernels.AddRMSNorm, nil, kernels.AddRMSNormParams{N: smallWidth, Eps: 1e-6},
		b.scratch(smallX), b.scratch(smallDelta), b.at("blk.0.ffn_norm.weight", 0), b.scratch(smallNormed))
	b.cmd("layer.0.ffn.gate_up", matmul, []uint32{uint32(dtype.Q4_0), q8}, kernels.GEMVParams{In: smallWidth, Out: 2 * smallHidden, XStride: smallWidth, YStride: 2 * smallHidden, Group: 8, RowGroup: 1},
		b.scratch(smallNormed), none, b.at("blk.0.ffn_gate_up.weight", 0), none, b.scratch(smallGateUp))
	b.cmd("layer.0.ffn.down", matmul, []uint32{uint32(dtype.Q8_0), q8, decl.InputSiLUMul}, kernels.GEMVParams{In: smallHidden, Out: smallWidth, XStride: 2 * smallHidden, YStride: smallWidth, Group: 8, RowGroup: 1},
		b.scratch(smallGateUp), b.scratch(smallGateUp+smallHidden*4), b.at("blk.0.ffn_down.weight", 0), none, b.scratch(smallDelta))
	flags := Flags(0)
	if rows == 1 {
		flags = FlagChooses
		b.cmd("logits", kernels.GEMV, []uint32{uint32(dtype.Q8_0), decl.ActF32}, kernels.GEMVParams{In: smallWidth, Out: smallVocab, XStride: smallWidth, YStride: smallVocab, Group: 16, RowGroup: 1},
			b.scratch(smallNormed), none, b.at("token_embd.weight", 0), none, b.at("logits", 0))
		b.cmd("argmax", kernels.Argmax, nil, kernels.ArgmaxParams{N: smallVocab, Ring: smallContext + 1, MaxStops: 8},
			b.at("logits", 0), b.at("stops", 0), b.at("tokens", 0))
	}
	end := uint32(len(t.Cmds)) - 1
	t.Programs = append(t.Programs, Program{name, first, end - first + 1, rows, flags})
	region := func(name string, offset, size uint64, lo, hi uint32) {
		t.Regions = append(t.Regions, Region{name, b.scratch(0).Slot, offset, size, uint32(len(t.Programs) - 1), first + lo, first + hi})
	}
	region("angles", smallAngles, smallX-smallAngles, 1, 4)
	region("x", smallX, smallNormed-smallX, 0, end-first)
	region("normed", smallNormed, smallQKV-smallNormed, 2, 3)
	region("qkv", smallQKV, smallQ-smallQKV, 3, 4)
	region("q", smallQ, smallAttn-smallQ, 4, 5)
	region("attn_out", smallAttn, smallDelta-smallAttn, 5, 6)
	region("delta", smallDelta, smallGateUp-smallDelta, 6, 7)
	region("normed", smallNormed, smallQKV-smallNormed, 7, end-first)
	region("gate_up", smallGateUp, smallArena-smallGateUp, 8, 9)
	region("ffn_out", smallDelta, smallGateUp-smallDelta, 9, end-first)
}

func TestSmallTableIsValid(t *testing.T) {
	if faults := smallTable().Validate(); faults != nil {
		t.Fatal(faults)
	}
}

// randomTable returns a table of random content that only has to fit the roll format; most of it
// is meaningless.
func randomTable(r *rand.Rand) *Table {
	str := func() string {
		words := []string{"", "a", "layer.3.attn.qkv", "naïve", "\x00\xff", "scratch", "two words"}
		if r.IntN(3) == 0 {
			return fmt.Sprint(r.Uint32())
		}
		return words[r.IntN(len(words))]
	}
	t := &Table{Header: Header{
		Arch: str(), Model: str(), Chip: str(), Device: str(), Options: str(),
		Vocab: r.Uint32(), Width: r.Uint32(), Layers: r.Uint32(), Context: r.Uint32(), Chunk: r.Uint32(), LogitsRows: r.Uint32(), MaxStops: r.Uint32(),
	}}
	for i := range t.Header.ModelFP {
		t.Header.ModelFP[i], t.Header.ChipFP[i] = byte(r.Uint32()), byte(r.Uint32())
	}
	for range r.IntN(5) {
		t.Slots = append(t.Slots, Slot{str(), SlotKind(r.Uint32()), Scope(r.Uint32()), r.Uint64()})
	}
	for range r.IntN(5) {
		s := Spec{Kernel: decl.ID(r.IntN(2 * len(decl.Kernels)))}
		for i := range s.Values {
			s.Values[i] = r.Uint32()
		}
		t.Specs = append(t.Specs, s)
	}
	for range r.IntN(4) {
		t.Programs = append(t.Programs, Program{str(), uint32(r.IntN(8)), uint32(r.IntN(8)), uint32(r.IntN(4)), Flags(r.Uint32())})
	}
	for range r.IntN(8) {
		t.Cmds = append(t.Cmds, randomCmd(r))
		t.Labels = append(t.Labels, str())
	}
	for range r.IntN(4) {
		t.Uploads = append(t.Uploads, Upload{UploadOp(r.Uint32()), dtype.Type(r.Uint32()), r.Uint32(), str(), r.Uint32(), uint8(r.Uint32()), uint8(r.Uint32()), r.Uint64(), r.Uint64(), r.Uint64()})
	}
	for range r.IntN(20) {
		t.Const = append(t.Const, byte(r.Uint32()))
	}
	for range r.IntN(4) {
		t.Regions = append(t.Regions, Region{str(), uint32(r.IntN(6)), r.Uint64() >> 1, r.Uint64(), r.Uint32(), uint32(r.IntN(8)), uint32(r.IntN(8))})
	}
	return t
}

func randomCmd(r *rand.Rand) Cmd {
	c := Cmd{
		Kernel: decl.ID(r.IntN(len(decl.Kernels) + 2)), Spec: uint16(r.IntN(6)), Bindings: uint8(r.IntN(12)),
		ParamSize: uint8(r.Uint32()), SecondSize: uint8(r.Uint32()), Patch: Patch(r.Uint32()),
		PatchOffset: [2]uint8{uint8(r.IntN(20)), uint8(r.Uint32())}, Barrier: uint8(r.IntN(3)), TGMem: r.Uint32(),
	}
	for i := range c.Grid {
		c.Grid[i], c.Threadgroup[i] = r.Uint32(), r.Uint32()
	}
	for i := range c.Bind {
		c.Bind[i] = Binding{Slot: uint32(r.IntN(6)), Offset: r.Uint64() >> r.IntN(64)}
		if r.IntN(4) == 0 {
			c.Bind[i].Slot = NoSlot
		}
	}
	for i := range c.Param {
		c.Param[i] = byte(r.Uint32())
	}
	for i := range c.Second {
		c.Second[i] = byte(r.Uint32())
	}
	return c
}
