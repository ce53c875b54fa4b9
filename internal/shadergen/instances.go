package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/shaders"
)

// architecture is a PTX target.
type architecture struct {
	name, isa string
	number    int
	file      string // the only source compiled for it; "" means all
	defines   []string
}

// architectures are the PTX targets with their PTX versions. A PTX text also runs on later
// architectures, because the driver compiles it. An architecture with a single source is used
// only for that source and only on that architecture.
var architectures = []architecture{
	{name: "sm_70", isa: "+ptx63", number: 70},
	{name: "sm_80", isa: "+ptx78", number: 80},
	{name: "sm_90", isa: "+ptx78", number: 90},
	{name: "sm_90a", isa: "+ptx83", number: 90, file: "halves.metal", defines: []string{"PIANOLA_WARPGROUPS=1"}},
	{name: "sm_90a", isa: "+ptx80", number: 90, file: "attn_tile.metal", defines: []string{"PIANOLA_WARPGROUPS=1"}},
	{name: "sm_90a", isa: "+ptx80", number: 90, file: "few.metal", defines: []string{"PIANOLA_WARPGROUPS=1"}},
}

// compiled lists the entries of a kernel. A kernel without such a list has only the generic
// entry, which reads every constant at run time.
type compiled struct {
	kernel  string
	generic bool // add the generic entry, for values that no other entry serves
	fixed   sets // one entry per set
}

// sets is a list of assignments. Each assignment gives values to some constants.
type sets [][]shaders.Fixed

// fix returns one assignment for each value of a constant.
func fix(name string, values ...uint32) sets { return sets{nil}.and(name, values...) }

// and combines every assignment with every value of another constant.
func (s sets) and(name string, values ...uint32) sets {
	var out sets
	for _, set := range s {
		for _, v := range values {
			out = append(out, append(slices.Clip(set), shaders.Fixed{Name: name, Value: v}))
		}
	}
	return out
}

// families returns one assignment per family of quantized types. It fixes how quants are
// packed; the entry reads the group size and the type of the scale at run time.
func families(list ...dtype.Type) sets {
	var out sets
	for _, t := range list {
		out = append(out, []shaders.Fixed{{Name: wtype, Value: uint32(t), Mask: dtype.FamilyMask}})
	}
	return out
}

// below makes the entries of all assignments serve only the values of a constant that are below n, a
// power of two. It does not fix the constant and is not in the entries' names.
func (s sets) below(name string, n uint32) sets {
	var out sets
	for _, set := range s {
		out = append(out, append(slices.Clip(set), shaders.Fixed{Name: name, Value: 0, Mask: ^(n - 1)}))
	}
	return out
}

// pooled adds assignments for pooled tables, those in list with each of their values of the constant
// sequences. The entries of s are then for other tables, and keep their names.
func (s sets) pooled(list sets) sets {
	var out sets
	for _, set := range s {
		out = append(out, append(slices.Clip(set), shaders.Fixed{Name: sequences, Value: decl.SequencesOwn}))
	}
	return append(out, list.and(sequences, decl.SequencesOne, decl.SequencesMany)...)
}

// sequences is the name of the constant.
const sequences = "sequences"

// alone is the list of an entry that fixes nothing else.
var alone = sets{nil}

// mlx are MLX's affine types.
var mlx = families(dtype.MLX2, dtype.MLX3, dtype.MLX4, dtype.MLX5, dtype.MLX6, dtype.MLX8)

// quantised are the types with quantization blocks.
var quantised = func() (list []uint32) {
	for _, f := range dtype.Forms() {
		if f.Type.Quantized() {
			list = append(list, uint32(f.Type))
		}
	}
	return list
}()

// expanded are the quantised types whose weights are within the range of float16.
var expanded = slices.DeleteFunc(slices.Clone(quantised), func(t uint32) bool { return !dtype.FormOf(dtype.Type(t)).HalfRange() })

// floats are the types without quantization blocks.
var floats = []uint32{uint32(dtype.F32), uint32(dtype.F16), uint32(dtype.BF16)}

// tiled are the assignments for products of quantized activations with weights in tiles.
var tiled = append(fix("wtype", quantised...), mlx...).and("act", decl.ActQ8).and("weights", uint32(dtype.Tiled16))

// rows are the assignments for products of unquantized activations with weights in the layout
// of the files.
var rows = slices.Concat(fix("wtype", append(floats, quantised...)...), mlx, families(dtype.FP8)).and("act", decl.ActF32).and("weights", uint32(dtype.Rows))

// segments, division, factors, single, shape and halves are names of constants. Entries for which they are 0 do not have them in
// their names.
const (
	segments = "segments"
	division = "division"
	factors  = "factors"
	halves   = "halves"
	single   = "single"
	shape    = "shape"
)

// frequent are the quantised types for which gemv has entries for a single row and gemm_few has those for few.
var frequent = slices.DeleteFunc(slices.Clone(quantised), func(t uint32) bool { return !dtype.FormOf(dtype.Type(t)).Frequent })

// singles are the assignments of gemv for a single row. Each has one kind of input, so that it needs few
// registers and little code.
var singles = append(fix("wtype", uint32(dtype.F16), uint32(dtype.BF16)).and("act", decl.ActF32).and("weights", uint32(dtype.Rows)),
	fix("wtype", frequent...).and("act", decl.ActQ8).and("weights", uint32(dtype.Tiled16))...).
	and("input", decl.InputPlain, decl.InputSiLUMul, decl.InputNorm, decl.InputMerge).and(single, decl.SingleOn, decl.SinglePaired)

// singleThreads is the largest number of threads of a threadgroup of these entries and of wholes, and singleRegisters
// that of registers of a thread: a multiprocessor has 65,536.
const (
	singleThreads   = 512
	singleRegisters = 128
)

// ownRegisters is that of the entries of rope_attn_tile for one size of heads: a multiprocessor then has room
// for two of its threadgroups.
const ownRegisters = 128

// expertRegisters is that of the entries of expert_gemm for NVIDIA GPUs, of which a multiprocessor has room for
// two threadgroups of 384 threads.
const expertRegisters = 80

// isSingle reports whether an entry is one of gemv for a single row, or of gemm_few in the shape whole.
func isSingle(entry string) bool {
	return strings.Contains(entry, "_"+single) || strings.Contains(entry, fmt.Sprintf("_%s%d", shape, decl.ShapeWhole))
}

// threadsOf returns the largest number of threads of a threadgroup of an entry, of a kernel whose source says most.
func threadsOf(entry string, most int) int {
	if isSingle(entry) {
		return singleThreads
	}
	return most
}

// registersOf returns the largest number of registers of a thread of an entry, or 0 if the assembler may
// choose it.
func registersOf(entry string) int {
	switch {
	case isSingle(entry):
		return singleRegisters
	case strings.HasPrefix(entry, "rope_attn_tile__head_dim"):
		return ownRegisters
	case strings.HasPrefix(entry, "expert_gemm__"):
		return expertRegisters
	}
	return 0
}

// fewFloats and fewQuantised are the assignments of gemm_few and expert_gemm.
var (
	fewFloats    = fix("wtype", uint32(dtype.F16), uint32(dtype.BF16)).and("act", decl.ActF16).and("weights", uint32(dtype.Rows))
	fewQuantised = fix("wtype", expanded...).and("act", decl.ActF16).and("weights", uint32(dtype.Tiled16))
)

// wholes are the assignments of gemm_few in the shape whole.
var wholes = fix("wtype", frequent...).and("act", decl.ActF16).and("weights", uint32(dtype.Tiled16)).and(shape, decl.ShapeWhole).
	and("input", decl.InputPlain, decl.InputScaled).and("output", decl.OutputStore, decl.OutputGated, decl.OutputAddScaled)

// embedded are the assignments of embed.
var embedded = append(slices.Concat(fix("wtype", append(floats, quantised...)...), mlx, families(dtype.FP8)).and("weights", uint32(dtype.Rows)),
	append(fix("wtype", quantised...), mlx...).and("weights", uint32(dtype.Tiled16))...)

var instances = []compiled{
	// Only Apple's GPUs scale inputs and outputs, and only they gate outputs in the general form.
	{kernel: "gemv", fixed: append(append(slices.Clone(rows), tiled...).below("input", decl.InputScaled).below("output", decl.OutputGated).and(single, decl.SingleOff), singles...)},
	{kernel: "gemm", fixed: append(rows, tiled...)},
	{kernel: "expert_gemv", fixed: append(slices.Clone(rows), tiled...)},
	{kernel: "gemm_halves", fixed: slices.Concat(fix("wtype", uint32(dtype.F16), uint32(dtype.BF16)).and("act", decl.ActF16, decl.ActF16x2).and("weights", uint32(dtype.Rows)).and(segments, 0).and(division, decl.Undivided),
		fewQuantised.and(segments, 0).and(division, decl.Undivided),
		append(slices.Clone(fewFloats), fewQuantised...).and(segments, 1).and(division, decl.Undivided, decl.DivisionClusters, decl.DivisionApart))},
	{kernel: "expert_gemm", fixed: slices.Concat(fewFloats, fewQuantised, fix("wtype", uint32(dtype.MXFP4)).and("act", decl.ActF16).and("weights", uint32(dtype.Tiled16)))},
	{kernel: "gemm_few", fixed: append(append(slices.Clone(fewFloats), fewQuantised...).and(shape, decl.ShapeUsual).and("input", decl.InputPlain, decl.InputScaled).
		and("output", decl.OutputStore, decl.OutputGated, decl.OutputAddScaled), append(fewQuantised.and(shape, decl.ShapeWide).and("input", decl.InputPlain).and("output", decl.OutputStore), wholes...)...)},
	{kernel: "embed", fixed: embedded.pooled(embedded)},
	{kernel: "attn", fixed: append(slices.Concat(fix("kv", decl.KVF16, decl.KVQ8), fix("head_dim", 64, 80, 96, 128, 256).and("kv", decl.KVF16),
		fix("head_dim", 64, 128, 256).and("kv", decl.KVQ8)).and("sinks", 0), fix("kv", decl.KVF16, decl.KVQ8).and("sinks", 1)...).
		pooled(fix("kv", decl.KVF16, decl.KVQ8))},
	// Exact tables use the entries for any size of heads, except for the most frequent sizes. Tables for batching divide the
	// positions into segments.
	{kernel: "attn_tile", fixed: append(append(append(fix("kv", decl.KVF16, decl.KVQ8), fix("head_dim", 64, 128, 256).and("kv", decl.KVF16, decl.KVQ8)...).and("act", decl.ActF16, decl.ActF16x2),
		append(fix("head_dim", 80, 96, 160, 192).and("kv", decl.KVF16), fix("head_dim", 96).and("kv", decl.KVQ8)...).and("act", decl.ActF16)...).
		pooled(append(fix("kv", decl.KVF16, decl.KVQ8).and("act", decl.ActF16, decl.ActF16x2), fix("head_dim", 64, 128).and("kv", decl.KVF16, decl.KVQ8).and("act", decl.ActF16)...)).and(segments, 0),
		append(fix("kv", decl.KVF16, decl.KVQ8), fix("head_dim", 64, 128).and("kv", decl.KVF16, decl.KVQ8)...).and("act", decl.ActF16).and(sequences, decl.SequencesOwn, decl.SequencesOne, decl.SequencesMany).and(segments, 1)...)},
	{kernel: "rope_attn_tile", fixed: fix("kv", decl.KVF16, decl.KVQ8).pooled(append(fix("kv", decl.KVF16, decl.KVQ8), fix("head_dim", 64, 128).and("kv", decl.KVF16, decl.KVQ8)...))},
	{kernel: "qk_rope_kv", fixed: append(alone, fix("head_dim", 64, 128)...).pooled(append(alone, fix("head_dim", 64, 128)...))},
	{kernel: "kv_write", fixed: alone.pooled(alone)},
	{kernel: "rope_angles", fixed: alone.pooled(alone)},
	{kernel: "route_scored", fixed: fix(factors, 0, 1)},
	{kernel: "causal_conv", fixed: alone.pooled(alone)},
	{kernel: "delta_rule", fixed: alone.pooled(alone)},
	{kernel: "ssm_scan", fixed: alone.pooled(alone)},
	{kernel: "argmax", fixed: fix(sequences, decl.SequencesOwn, decl.SequencesOne)},
	{kernel: "sample_adjust", fixed: alone.pooled(alone)},
	{kernel: "sample_filter", fixed: alone.pooled(alone)},
	{kernel: "sample_draw", fixed: alone.pooled(alone)},
	{kernel: "rank_part", fixed: alone.pooled(alone)},
	{kernel: "rank", fixed: alone.pooled(alone)},
	{kernel: "rope_attn", generic: true, fixed: slices.Concat(fix("head_dim", 64, 80, 96, 128, 256).and("kv", decl.KVF16), fix("head_dim", 64, 128, 256).and("kv", decl.KVQ8))},
}

// appleInstances are the instances of the kernels whose constants have other values in Apple's
// configuration.
var appleInstances = []compiled{
	{kernel: "expert_gemm", generic: true},
	{kernel: "gemv", fixed: append(slices.Clone(rows), tiled...)},
	{kernel: "gemm_halves", fixed: slices.Concat(fix("wtype", append(floats[1:], quantised...)...), mlx, families(dtype.FP8)).and("weights", uint32(dtype.Rows)).and("act", decl.ActF16, decl.ActF16x2).and(segments, 0).and(division, decl.Undivided)},
	{kernel: "attn_tile", fixed: slices.Concat(fix("kv", decl.KVF16, decl.KVQ8), fix("head_dim", 64, 80, 96, 128, 256).and("kv", decl.KVF16), fix("head_dim", 64, 128, 256).and("kv", decl.KVQ8)).and("act", decl.ActF32).pooled(fix("kv", decl.KVF16, decl.KVQ8).and("act", decl.ActF32))},
}

// entries returns the entries of a kernel. The generic one comes first.
func entries(name string) ([]shaders.Entry, error) { return entriesOf(instances, name) }

// appleEntries returns the entries of a kernel in Apple's configuration.
func appleEntries(name string) ([]shaders.Entry, error) {
	return entriesOf(slices.Concat(appleInstances, instances), name)
}

// listed returns the entries of a kernel that a list names: a line is the kernel and its constants, as
// in "gemv wtype=4 act=0". Every kernel that it does not name has its usual entries.
func listed(list string) func(kernel string) ([]shaders.Entry, error) {
	return func(kernel string) ([]shaders.Entry, error) {
		c := compiled{kernel: kernel}
		for _, line := range strings.Split(list, "\n") {
			words := strings.Fields(line)
			if len(words) < 2 || words[0] != kernel {
				continue
			}
			var fixed []shaders.Fixed
			for _, word := range words[1:] {
				name, text, _ := strings.Cut(word, "=")
				value, err := strconv.ParseUint(text, 10, 32)
				if err != nil {
					return nil, fmt.Errorf("instances of kernel %s: %q: %w", kernel, word, err)
				}
				fixed = append(fixed, shaders.Fixed{Name: name, Value: uint32(value)})
			}
			if !slices.ContainsFunc(c.fixed, func(o []shaders.Fixed) bool { return slices.Equal(o, fixed) }) {
				c.fixed = append(c.fixed, fixed)
			}
		}
		if c.fixed == nil {
			return appleEntries(kernel)
		}
		return entriesOf([]compiled{c}, kernel)
	}
}

// entriesOf returns the entries of a kernel. Of several instances in the list, the first counts.
func entriesOf(instances []compiled, name string) ([]shaders.Entry, error) {
	i := slices.IndexFunc(instances, func(c compiled) bool { return c.kernel == name })
	if i < 0 {
		return []shaders.Entry{{Name: name}}, nil
	}
	var list []shaders.Entry
	if instances[i].generic {
		list = append(list, shaders.Entry{Name: name})
	}
	constants := constantsOf(name)
	for _, fixed := range instances[i].fixed {
		var parts []string
		for _, f := range fixed {
			if !slices.ContainsFunc(constants, func(c decl.Constant) bool { return c.Name == f.Name }) {
				return nil, fmt.Errorf("instances of kernel %s: it has no constant %s", name, f.Name)
			}
			if f.Value == 0 && (f.Mask != 0 || f.Name == sequences || f.Name == segments || f.Name == division || f.Name == factors || f.Name == single || f.Name == shape || f.Name == halves) {
				continue
			}
			parts = append(parts, fmt.Sprintf("%s%d", f.Name, f.Value))
		}
		e := shaders.Entry{Name: name, Fixed: fixed}
		if len(parts) > 0 {
			e.Name += "__" + strings.Join(parts, "_")
		}
		if slices.ContainsFunc(list, func(o shaders.Entry) bool { return o.Name == e.Name }) {
			return nil, fmt.Errorf("instances of kernel %s: %s is listed twice", name, e.Name)
		}
		list = append(list, e)
	}
	return list, nil
}

// constantsOf returns the constants of a kernel in the order of its declaration.
func constantsOf(name string) []decl.Constant {
	k, ok := decl.Declared(name)
	if !ok {
		return nil
	}
	return k.Specs
}
