package table

import (
	"context"
	"fmt"
	"math"
	"runtime/trace"
	"slices"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/recurrent"
	"github.com/pianola-engine/pianola/internal/sampler"
	"github.com/pianola-engine/pianola/internal/sequence"
)

// Limits of a table. They far exceed what models need and keep every sum within 64 bits.
const (
	MaxContext = 1 << 28
	maxChunk   = 1 << 16
	maxVocab   = 1 << 24
	MaxCmds    = 1 << 20
	maxStops   = 1 << 12
	maxSlot    = 1 << 46
	maxTiles   = math.MaxInt32
)

// Fault is one violated invariant of a table.
type Fault struct {
	Cmd   int    // index of the command, or -1 if the fault is not a command's
	Label string // the command's label
	What  string
}

// Error implements error.
func (f *Fault) Error() string {
	if f.Cmd < 0 {
		return "table: " + f.What
	}
	return fmt.Sprintf("table: command %d (%s): %s", f.Cmd, f.Label, f.What)
}

func (t *Table) fault(cmd int, format string, args ...any) *Fault {
	if len(args) > 0 {
		format = fmt.Sprintf(format, args...)
	}
	return &Fault{Cmd: cmd, Label: t.Label(cmd), What: format}
}

// validator collects faults.
type validator struct {
	t      *Table
	faults []error
}

func (v *validator) add(cmd int, format string, args ...any) {
	v.faults = append(v.faults, v.t.fault(cmd, format, args...))
}

// TraceValidate is the type of the region of runtime/trace that Validate runs in.
const TraceValidate = "table.Validate"

// Validate returns every fault of the table, or nil if there is none. It checks that
//
// - each command's kernel, bindings, parameters and patch match the kernel's declaration
// - each binding is within its slot for every patched value up to the context
// - no command reads memory that it also writes
// - no command writes weights
// - the uploads fill every weight slot
// - the commands of a pooled table name its sequences and stay within its page tables
// - the commands with recurrent state arrange the states at positions as the header says
// - the commands of a table for batching have one arithmetic for each matrix and each KV cache
// - the commands have all barriers that their hazards need
// - no command reads early what the commands before its barrier write
//
// An execution trace shows each call as a region of type TraceValidate.
func (t *Table) Validate() []error {
	defer trace.StartRegion(context.Background(), TraceValidate).End()
	v := &validator{t: t}
	v.header()
	v.slots()
	v.specs()
	v.programs()
	v.uploads()
	if len(v.faults) > 0 {
		return v.faults // the checks below rely on these
	}
	for i := range t.Programs {
		p := &t.Programs[i]
		if want := t.declared(p); p.Flags != want {
			v.add(-1, "program %d (%s): its flags are %s, its commands declare %s", i, p.Name, p.Flags, want)
		}
		for c := p.First; c < p.First+p.Count; c++ {
			v.command(int(c), p)
		}
	}
	if len(v.faults) > 0 {
		return v.faults
	}
	if t.Header.Batching() {
		v.batching()
	}
	if len(v.faults) > 0 {
		return v.faults
	}
	hazards, err := newHazards(t)
	if err != nil {
		return append(v.faults, err)
	}
	for _, c := range hazards.missingBarriers() {
		v.add(c, "a barrier is missing: it touches what a command before it writes, or writes what one touches")
	}
	for _, c := range hazards.unsettled() {
		v.add(c, "settled is 1, but the commands before its barrier may write what it reads early")
	}
	return v.faults
}

func (v *validator) header() {
	h := &v.t.Header
	within := func(name string, n, lo, hi uint32) {
		if n < lo || n > hi {
			v.add(-1, "%s %d is not in %d..%d", name, n, lo, hi)
		}
	}
	within("context", h.Context, 1, MaxContext)
	within("chunk", h.Chunk, 1, maxChunk)
	within("rows of the logits program", h.LogitsRows, 0, maxChunk)
	within("vocabulary", h.Vocab, 1, maxVocab)
	within("stop ids", h.MaxStops, 0, maxStops)
	if len(v.t.Cmds) > MaxCmds {
		v.add(-1, "%d commands are more than %d", len(v.t.Cmds), MaxCmds)
	}
	if len(v.t.Labels) != len(v.t.Cmds) {
		v.add(-1, "%d labels for %d commands", len(v.t.Labels), len(v.t.Cmds))
	}
}

// scopeOf is the required scope of each kind of slot.
var scopeOf = [SlotKinds]Scope{
	SlotWeight: ScopeModel, SlotKV: ScopeSession, SlotScratch: ScopeExecutor, SlotTokens: ScopeSession,
	SlotLogits: ScopeSession, SlotStops: ScopeSession, SlotStep: ScopeSession,
	SlotSampler: ScopeSession, SlotHidden: ScopeSession, SlotRanks: ScopeSession, SlotState: ScopeSession,
}

func (v *validator) slots() {
	h := &v.t.Header
	pool, pooled := sequence.Of(h.Options, int(h.Context))
	if pooled {
		if err := pool.Check(); err != nil {
			v.add(-1, "%v", err)
			return
		}
	}
	if ring, recurs := recurrent.Of(h.Options); recurs {
		if err := ring.Check(); err != nil {
			v.add(-1, "%v", err)
			return
		}
	}
	n := uint64(max(pool.Sequences, 1))
	var seen [SlotKinds]int
	names := make(map[string]bool, len(v.t.Slots))
	for i, s := range v.t.Slots {
		if s.Kind >= SlotKinds {
			v.add(-1, "slot %d (%s): kind %d is unknown", i, s.Name, s.Kind)
			continue
		}
		seen[s.Kind]++
		if s.Scope != scopeOf[s.Kind] {
			v.add(-1, "slot %d (%s): a %s slot has scope %s, not %s", i, s.Name, s.Kind, scopeOf[s.Kind], s.Scope)
		}
		if s.Size == 0 || s.Size > maxSlot {
			v.add(-1, "slot %d (%s): size %d is not in 1..%d", i, s.Name, s.Size, uint64(maxSlot))
		}
		if names[s.Name] {
			v.add(-1, "slot %d: the name %s is there twice", i, s.Name)
		}
		names[s.Name] = true
		want := uint64(0)
		switch s.Kind {
		case SlotTokens:
			want = (uint64(h.Context) + 1) * 4 * n
		case SlotStops:
			want = (uint64(h.MaxStops) + 1) * 4 * n
		case SlotStep:
			if want = StepSize; pooled {
				want = pool.Size()
			}
		case SlotSampler:
			want = sampler.Size * n
		case SlotHidden:
			want = uint64(h.Chunk) * uint64(h.Width) * 4
		case SlotRanks:
			want = sampler.RanksSize * n
		case SlotLogits:
			rows := max(h.LogitsRows, 1)
			for _, p := range v.t.Programs {
				if p.Flags.Has(FlagAdvances) || p.Flags.Has(FlagBatch|FlagChooses) {
					rows = max(rows, p.MaxRows)
				}
			}
			want = uint64(rows) * uint64(h.Vocab) * 4
		}
		if want != 0 && s.Size != want {
			v.add(-1, "slot %d (%s): size %d, want %d", i, s.Name, s.Size, want)
		}
	}
	for _, k := range []SlotKind{SlotTokens, SlotLogits, SlotStops, SlotStep} {
		if seen[k] != 1 {
			v.add(-1, "%d slots of kind %s, want 1", seen[k], k)
		}
	}
	if seen[SlotScratch] > 1 {
		v.add(-1, "%d scratch slots, want one arena", seen[SlotScratch])
	}
	for _, k := range []SlotKind{SlotSampler, SlotHidden, SlotRanks} {
		if seen[k] > 1 {
			v.add(-1, "%d slots of kind %s, want at most 1", seen[k], k)
		}
	}
}

func (v *validator) specs() {
	for i, s := range v.t.Specs {
		k, ok := decl.Lookup(s.Kernel)
		if !ok {
			v.add(-1, "spec %d: kernel %d is unknown", i, s.Kernel)
			continue
		}
		for j, value := range s.Values {
			if j < len(k.Specs) {
				if err := k.Specs[j].Check(value); err != nil {
					v.add(-1, "spec %d (%s): %v", i, k.Name, err)
				}
			} else if value != 0 {
				v.add(-1, "spec %d (%s): constant %d is not 0 and the kernel has %d", i, k.Name, j, len(k.Specs))
			}
		}
	}
}

func (v *validator) programs() {
	next := uint32(0)
	names := map[string]bool{}
	for i, p := range v.t.Programs {
		if p.First != next || p.Count == 0 || uint64(p.First)+uint64(p.Count) > uint64(len(v.t.Cmds)) {
			v.add(-1, "program %d (%s): commands %d to %d do not follow the program before it or are past the %d commands",
				i, p.Name, p.First, uint64(p.First)+uint64(p.Count), len(v.t.Cmds))
			return
		}
		next = p.First + p.Count
		most := max(v.t.Header.Chunk, v.t.Header.LogitsRows, 1)
		if unknown := p.Flags &^ allFlags; unknown != 0 {
			v.add(-1, "program %d (%s): flags %#x are unknown", i, p.Name, uint32(unknown))
		}
		if p.Flags.Has(FlagAdvances) {
			most = min(1+MaxDraft, v.t.Header.Context)
		}
		if p.Flags.Has(FlagBatch) {
			pool, _ := sequence.Of(v.t.Header.Options, int(v.t.Header.Context))
			most = uint32(pool.Rows)
		}
		if p.MaxRows == 0 || p.MaxRows > most {
			v.add(-1, "program %d (%s): %d rows are not in 1..%d", i, p.Name, p.MaxRows, most)
		}
		if names[p.Name] {
			v.add(-1, "program %d: the name %s is there twice", i, p.Name)
		}
		names[p.Name] = true
	}
	if int(next) != len(v.t.Cmds) {
		v.add(-1, "the commands from %d on belong to no program", next)
	}
	if !names[ProgramDecode] {
		v.add(-1, "there is no program %s", ProgramDecode)
	}
}

// uploads checks that sources and destinations are well-formed, and that the parts of each weight
// slot follow one another without a gap.
func (v *validator) uploads() {
	filled := make([]uint64, len(v.t.Slots))
	for i := range v.t.Uploads {
		u := &v.t.Uploads[i]
		if u.Op >= uploadOps || int(u.Slot) >= len(v.t.Slots) || v.t.Slots[u.Slot].Kind != SlotWeight {
			v.add(-1, "upload %d: operation %d or slot %d is unknown, or the slot holds no weights", i, u.Op, u.Slot)
			continue
		}
		size, ok := u.DstSize()
		if !ok || size == 0 || u.SrcOffset > maxSlot || u.SrcSize > maxSlot {
			v.add(-1, "upload %d (%s): source range %d + %d does not fit its type %s", i, u.Tensor, u.SrcOffset, u.SrcSize, u.Type)
			continue
		}
		if (u.Step != 0 || u.Phase != 0) && u.Op != UploadToF32 && !u.Transposes() && u.Op != UploadTile && u.Op != UploadJoin {
			v.add(-1, "upload %d (%s): steps of %d from %d on are not used", i, u.Tensor, u.Step, u.Phase)
		}
		if u.Op != UploadTile && u.Op != UploadJoin && !u.Transposes() && u.Cols != 0 {
			v.add(-1, "upload %d (%s): columns %d are not used", i, u.Tensor, u.Cols)
		}
		if u.Op == UploadConst && u.SrcOffset+u.SrcSize > uint64(len(v.t.Const)) {
			v.add(-1, "upload %d: constants %d + %d are past the %d there are", i, u.SrcOffset, u.SrcSize, len(v.t.Const))
		}
		if u.DstOffset != filled[u.Slot] {
			v.add(-1, "upload %d (%s): goes to offset %d of slot %s, of which %d bytes are filled", i, u.Tensor, u.DstOffset, v.t.Slots[u.Slot].Name, filled[u.Slot])
			continue
		}
		filled[u.Slot] += size
	}
	for i, s := range v.t.Slots {
		if s.Kind == SlotWeight && filled[i] != s.Size {
			v.add(-1, "slot %d (%s): uploads fill %d of %d bytes", i, s.Name, filled[i], s.Size)
		}
	}
}

// command checks one command of program p against its declaration.
func (v *validator) command(i int, p *Program) {
	t, c := v.t, &v.t.Cmds[i]
	env, err := t.NewEnv(c, p)
	if err != nil {
		v.add(i, "%v", err)
		return
	}
	k := env.k
	if t.Specs[c.Spec].Kernel != c.Kernel {
		v.add(i, "spec %d is not one of kernel %s", c.Spec, k.Name)
		return
	}
	if int(c.ParamSize) != 4*len(k.Params) {
		v.add(i, "%d bytes of parameters, kernel %s has %d", c.ParamSize, k.Name, 4*len(k.Params))
		return
	}
	want := uint8(0)
	if len(k.Second) > 0 {
		want = decl.SecondBytes
	}
	if c.SecondSize != want {
		v.add(i, "%d secondary bytes, kernel %s has %d", c.SecondSize, k.Name, want)
		return
	}
	if !v.patch(i, c, k) {
		return
	}
	if n := int(c.Bindings); n > len(k.Bindings) || n < needed(k, env) {
		v.add(i, "%d bindings, kernel %s has %d", c.Bindings, k.Name, len(k.Bindings))
		return
	}
	if err := k.Check(env); err != nil {
		v.add(i, "%v", err)
		return
	}
	// Kernels share code that reads fields which not all of them declare.
	for off := 0; off < decl.SecondBytes; off += 4 {
		if n := Field(&c.Second, off); n != 0 && !k.HasSecond(off) {
			v.add(i, "secondary bytes at %d are %d, kernel %s has no field there", off, n, k.Name)
			return
		}
	}
	for j := range k.Second {
		if s := &k.Second[j]; !c.patches(s.Offset) {
			if err := k.CheckSecond(s, env); err != nil {
				v.add(i, "%v", err)
				return
			}
		}
	}
	v.sequences(i, c, p, env)
	v.states(i, c, p, env)
	v.grid(i, c, env)
	v.bindings(i, c, env)
}

// patchFields names the secondary fields that each patch kind writes.
var patchFields = [patchKinds][]string{
	PatchToken: {"token"}, PatchPosition: {"pos"}, PatchKVLen: {"kv_len"},
	PatchArgmax: {"token"}, PatchRow: {"row"},
}

func (v *validator) patch(i int, c *Cmd, k *decl.Kernel) bool {
	kind := c.Patch.Kind()
	if kind >= patchKinds {
		v.add(i, "patch kind %d is unknown", uint8(c.Patch))
		return false
	}
	has := func(field string, offset int) bool {
		return slices.ContainsFunc(k.Second, func(s decl.Second) bool { return s.Name == field && s.Offset == offset })
	}
	for j, off := range c.PatchOffset {
		if j >= len(patchFields[kind]) {
			if off != NoPatch {
				v.add(i, "patch %s: offset %d is not used, but is %d", c.Patch, j, off)
				return false
			}
			continue
		}
		if int(off)+4 > decl.SecondBytes {
			v.add(i, "patch %s: offset %d is past the %d secondary bytes", c.Patch, off, decl.SecondBytes)
			return false
		}
		if !has(patchFields[kind][j], int(off)) {
			v.add(i, "patch %s: kernel %s has no field %s at offset %d", c.Patch, k.Name, patchFields[kind][j], off)
			return false
		}
	}
	if c.Patch&PatchRows != 0 && !has("rows", decl.SecondRows) {
		v.add(i, "patch %s: kernel %s has no field rows", c.Patch, k.Name)
		return false
	}
	return true
}

func (v *validator) grid(i int, c *Cmd, env *Env) {
	want, err := env.k.GridSize(env)
	if err != nil {
		v.add(i, "%v", err)
		return
	}
	tiles := uint64(1)
	for d := range want {
		if uint64(c.Grid[d]) != want[d] || want[d] == 0 {
			v.add(i, "grid %v, kernel %s has %v", c.Grid, env.k.Name, want)
			return
		}
		if tiles *= want[d]; tiles > maxTiles {
			v.add(i, "grid %v has more than %d threadgroups", c.Grid, maxTiles)
			return
		}
	}
	threads := uint64(c.Threadgroup[0]) * uint64(c.Threadgroup[1])
	if threads == 0 || threads > 1024 || c.Threadgroup[2] == 0 || c.Threadgroup[2] > 1024 || threads*uint64(c.Threadgroup[2]) > 1024 {
		v.add(i, "threadgroup %v does not have 1 to 1024 threads", c.Threadgroup)
	}
	if _, err := env.WorkerBytes(); err != nil {
		v.add(i, "%v", err)
	}
}

// needed returns the number of bindings without those at the end that the command's constants exclude.
// A roll lacks bindings that its kernel did not have when the roll was made.
func needed(k *decl.Kernel, env *Env) int {
	n := len(k.Bindings)
	for n > 0 && !k.Bindings[n-1].Present(env) {
		n--
	}
	return n
}

func (v *validator) bindings(i int, c *Cmd, env *Env) {
	t, k := v.t, env.k
	var reads, writes []access
	for b := range c.Bind {
		bind := c.Bind[b]
		if b >= len(k.Bindings) {
			if bind.Slot != NoSlot || bind.Offset != 0 {
				v.add(i, "binding %d is set and kernel %s has %d", b, k.Name, len(k.Bindings))
			}
			continue
		}
		d := &k.Bindings[b]
		there := d.Present(env)
		if there != (bind.Slot != NoSlot) {
			v.add(i, "binding %s: bound is %t, its kernel's constants say %t", d.Name, !there, there)
			continue
		}
		if !there {
			continue
		}
		if int64(bind.Slot) >= int64(len(t.Slots)) {
			v.add(i, "binding %s: slot %d of %d", d.Name, bind.Slot, len(t.Slots))
			continue
		}
		s := &t.Slots[bind.Slot]
		n, err := env.Extent(b)
		if err != nil {
			v.add(i, "%v", err)
			continue
		}
		if bind.Offset > s.Size || n > s.Size-bind.Offset {
			v.add(i, "binding %s: %d + %d bytes are past the end of slot %s, which has %d", d.Name, bind.Offset, n, s.Name, s.Size)
			continue
		}
		if bind.Offset%4 != 0 {
			v.add(i, "binding %s: offset %d is not a multiple of 4", d.Name, bind.Offset)
		}
		a := access{slot: bind.Slot, lo: bind.Offset, hi: bind.Offset + n, write: d.Role.Writes()}
		if a.write {
			if s.Kind == SlotWeight {
				v.add(i, "binding %s writes slot %s, which holds weights", d.Name, s.Name)
			}
			writes = append(writes, a)
		} else {
			reads = append(reads, a)
		}
	}
	for j, w := range writes {
		for _, r := range slices.Concat(reads, writes[:j]) {
			if w.conflicts(r) {
				v.add(i, "it writes bytes %d to %d of slot %s, which another of its bindings touches", max(w.lo, r.lo), min(w.hi, r.hi), t.Slots[w.slot].Name)
			}
		}
	}
}
