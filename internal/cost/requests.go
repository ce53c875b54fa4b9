package cost

import (
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// requests are the bytes that the threads of a command load from and store to each binding.
// Loads that several threads, SIMD groups or threadgroups repeat count each time. TestCounts compares
// them with what the emulated kernels load and store.
type requests struct {
	loads, stores [decl.MaxBindings]uint64
}

// sum returns the bytes of all bindings.
func (r *requests) sum() uint64 {
	n := uint64(0)
	for i := range r.loads {
		n += r.loads[i] + r.stores[i]
	}
	return n
}

// repeats lists, for kernels that read a binding several times, how often they do so: times in a row,
// and again for each row if the binding is shared by all rows. The bindings that are not listed
// are read once.
var repeats = map[decl.ID][]struct {
	binding int
	times   uint64
	rows    bool
}{
	kernels.RoPEAngles: {{0, 1, true}, {1, 1, true}},
	kernels.RMSNorm:    {{0, 2, false}, {1, 1, true}}, // x for the sum of squares and for the result
	kernels.AddRMSNorm: {{0, 3, false}, {2, 1, true}}, // x also for the sum
	kernels.RankPart:   {{0, 2, false}},
	kernels.LayerNorm:  {{0, 3, false}, {1, 1, true}}, // x also for the mean
	kernels.NormAdd:    {{1, 2, false}, {2, 1, true}, {3, 1, true}},

	kernels.AltupPredict: {{kernels.AltupPredictBindX, 2, false}, {kernels.AltupPredictBindRouter, 1, true}},
	kernels.AltupCorrect: {{kernels.AltupCorrectBindX, 2, false}, {kernels.AltupCorrectBindRouter, 1, true}, {kernels.AltupCorrectBindScale, 1, true}},
	kernels.AltupAdd:     {{kernels.AltupAddBindDelta, 2, false}, {kernels.AltupAddBindW, 1, true}},
	kernels.AltupMatch:   {{kernels.AltupMatchBindRest, 2, false}},
	kernels.TopGates:     {{kernels.TopGatesBindX, 3, false}},
}

// requested returns the requests of a command. Workers of a CPU team share what they read through
// their caches, so their requests are the compulsory bytes, like those of kernels without a formula.
func (v *view) requested(device string) requests {
	r := requests{v.reads, v.writes}
	if device == chip.CPU {
		return r
	}
	for _, b := range repeats[v.c.Kernel] {
		r.loads[b.binding] *= b.times
		if b.rows {
			r.loads[b.binding] *= v.rows
		}
	}
	switch v.c.Kernel {
	case kernels.Embed:
		r.loads[0] = 4 * v.rows * v.value("threads") // every thread reads its row's token
		r.loads[1] = v.weights(r.loads[1])
	case kernels.GEMV:
		v.gemvRequests(&r, device)
	case kernels.ExpertGEMV: // every thread reads the expert of its product
		v.gemvRequests(&r, device)
		r.loads[kernels.ExpertGEMVBindIDs] = 4 * v.value("threads") * ceilDiv(v.value("out"), v.value("group")) * v.value("used") * v.rows
	case kernels.ExpertSum:
		r.loads[kernels.ExpertSumBindWeights] = r.loads[kernels.ExpertSumBindX]
	case kernels.GEMM, kernels.GEMMHalves:
		v.gemmRequests(&r, device)
	case kernels.ExpertRows: // each threadgroup reads all ids, and the lanes with products of its expert read theirs again
		products := v.rows * v.value("used")
		r.loads[kernels.ExpertRowsBindIDs] = (v.value("experts") + 4*ceilDiv(products, 128)) * 4 * products
	case kernels.Route: // the logits that are left for each choice
		used := v.value("used")
		r.loads[kernels.RouteBindLogits] = used*r.loads[kernels.RouteBindLogits] - 2*v.rows*used*(used-1)
		r.loads[kernels.RouteBindWeights] = r.stores[kernels.RouteBindWeights]
		r.stores[kernels.RouteBindWeights] *= 2
	case kernels.ExpertGEMM:
		v.expertRequests(&r)
	case kernels.GEMMFew:
		v.fewRequests(&r)
	case kernels.ExpertHalves:
		r.loads[0] = v.value("used") * v.converted(v.value("in"))
		r.loads[1] = min(r.loads[1], 1) * r.loads[0]
	case kernels.Halves:
		r.loads[0] = v.converted(v.value("in"))
		r.loads[1] = min(r.loads[1], 1) * r.loads[0]
	case kernels.AddRMSNormHalves:
		// x also for the sum and for the sum of squares. NVIDIA GPUs read a short row once, but the
		// measurements with which the model is calibrated are of kernels that did not.
		own := v.converted(v.value("n"))
		r.loads[0], r.loads[2] = 2*r.loads[0]+own, own
	case kernels.HeadNorm:
		r.loads[0] *= 2
		r.loads[1] *= v.value("heads") * v.rows
	case kernels.HeadLayerNorm:
		r.loads[0] *= 3
		r.loads[1] *= v.rows
	case kernels.RoPE:
		r.loads[1] *= v.value("heads")
	case kernels.QKRoPEKV:
		heads := v.value("heads") + v.value("kv_heads")
		r.loads[3] = 4 * v.rows * v.value("head_dim") * heads // an angle for each pair, even if RoPE does not rotate it
		r.loads[4] = r.loads[4] / 2 * heads * v.rows          // the weights of Q and of K, each for its heads
	case kernels.RoPEAttnTile: // as in qk_rope_kv, but V is read with the angles and weights of K
		all := 4 * v.rows * v.value("head_dim") * (v.value("heads") + 2*v.value("kv_heads"))
		r.loads[3] = all
		if v.value("qk_norm") != 0 {
			r.loads[4] = all
		}
	case kernels.NormAdd:
		r.loads[0] *= 1 + 2*v.value("norm")
	case kernels.KVWrite:
		if v.value("kv") == decl.KVF16 { // a lane loads four elements even if its row has fewer
			d, threads := v.value("head_dim"), v.value("threads")
			own := 16 * min(d, max(threads, d/4)) * v.value("kv_heads") * v.rows
			r.loads[0], r.loads[1] = own, own
		}
	case kernels.ScaleRows: // every thread reads the factor of its row
		r.loads[1] = 4 * v.rows * v.value("threads")
	case kernels.LatentKV:
		rotated := 8 * v.value("half") * v.rows
		r.loads[1] = 2*r.loads[1] - rotated // the latent also for the sum of squares
		r.loads[2] *= v.value("heads") + 1
		r.loads[3] *= v.rows
	case kernels.CausalConv:
		taps, n := v.value("taps"), v.value("n")
		inputs := v.rows * taps // of a channel: each row reads those of all taps
		if v.value("conv") == decl.ConvGated {
			inputs = 2*inputs + v.rows
		}
		r.loads[0] = 4 * n * inputs
		r.loads[1] *= v.rows
		r.loads[2] *= v.rows
	case kernels.DeltaRule: // each SIMD group reads Q, K and the gates of its head
		heads, values := v.value("heads"), v.value("value_dim")
		r.loads[0] = 4 * v.rows * heads * values * (2*v.value("key_dim") + 32)
		r.loads[1] = 4 * v.rows * heads * values * 64
		r.loads[2] = 4 * heads * values * 64
	case kernels.SSMScan: // each SIMD group reads B, C, its element of X and the step size of its head
		heads, values := v.value("heads"), v.value("head_dim")
		r.loads[0] = 4 * v.rows * heads * values * (2*v.value("state_dim") + 32)
		r.loads[1] = 4 * v.rows * heads * values * 32
		r.loads[2] = 4 * heads * values * 96
	case kernels.GatedNorm: // the gate is read once, x once more by the norm
		r.loads[2] *= v.rows
		if v.value("gate") != decl.GateAlone {
			r.loads[0] *= 2
		}
	case kernels.ScaleColumns:
		r.loads[1] *= v.rows
	case kernels.AltupPredict: // every thread computes the coefficients
		copies := v.value("copies")
		r.loads[kernels.AltupPredictBindCoefs] = 4 * copies * copies * copies * v.rows * v.value("threads")
	case kernels.AltupCorrect:
		copies := v.value("copies")
		r.loads[kernels.AltupCorrectBindCoefs] = 4 * copies * copies * v.rows * v.value("threads")
	case kernels.AltupMatch: // x once more, and in rest nothing is stored, if the copies are merged
		if v.value("merge") == 1 {
			r.loads[kernels.AltupMatchBindX] *= 2
			r.stores[kernels.AltupMatchBindRest] = 0
		} else {
			r.stores[kernels.AltupMatchBindX] = 0
		}
	case kernels.RoPEAttn:
		v.ropeAttnRequests(&r)
	case kernels.Attn, kernels.AttnChunk:
		v.attnRequests(&r)
	case kernels.AttnMerge: // each thread reads an element of eight splits ahead
		r.loads[0] = max(r.loads[0], 32*v.value("threads")*v.value("heads")*v.rows)
	case kernels.AttnTile:
		v.attnTileRequests(&r)
	}
	return r
}

// pieces are the bytes that a lane loads for 16 weights of a quantised type in layout Rows: quants
// and, for each piece, the scales that it shares with other pieces of the block (shaders/blocks.h).
var pieces = map[dtype.Type]uint64{
	dtype.Q4_0: 10, dtype.Q4_1: 12, dtype.Q5_0: 14, dtype.Q5_1: 16, dtype.Q8_0: 18, dtype.IQ4_NL: 10,
	dtype.Q4_K: 17, dtype.Q6_K: 20,
}

// shared are the bytes of two adjacent pieces that a lane of gemv loads once on Apple's GPUs: the scales
// that they share.
var shared = map[dtype.Type]uint64{
	dtype.Q4_0: 2, dtype.Q8_0: 2, dtype.Q4_K: 9, dtype.Q6_K: 4,
}

// weights returns the bytes that are requested to read weights of the given size once.
func (v *view) weights(size uint64) uint64 {
	if v.value("weights") == uint64(dtype.Tiled16) {
		return size
	}
	t := dtype.Type(v.value("wtype"))
	piece, ok := pieces[t]
	elems, block := t.Block()
	if !ok || block == 0 {
		return size
	}
	return size / uint64(block) * uint64(elems) / 16 * piece
}

// Bindings of gemv, expert_gemv, gemm and gemm_halves.
const (
	bindX  = 0
	bindX2 = 1
	bindW  = 2
)

// gemvRequests sets the requests of a product of a few rows. Every threadgroup reads the input, or
// computes it for itself.
func (v *view) gemvRequests(r *requests, device string) {
	in, out, t := v.value("in"), v.value("out"), dtype.Type(v.value("wtype"))
	groups := ceilDiv(out, v.value("group")) * max(v.value("used"), 1)
	stage := v.value("stage")
	if stage == 0 {
		stage = 2048
	}
	// There are three kernels: for Apple's GPUs, which stages any input; for weights in tiles, and for
	// floats whose input fits in threadgroup memory; and for other weights in rows.
	tiled := v.value("weights") == uint64(dtype.Tiled16)
	input, output := v.value("input"), v.value("output")
	apple := !tiled &&
		(device == chip.Metal || input == decl.InputScaled || output == decl.OutputGated && v.value("single") == decl.SingleOff || output == decl.OutputAddScaled)
	steps := !apple && (tiled || !t.Quantized() && in%8 == 0 && in <= stage)
	x, x2 := 4*in, uint64(0)
	switch input {
	case decl.InputNorm:
		x2 = 4 * in
		if steps || apple && in <= stage { // a thread keeps the first 16 elements that it reads for the sum of squares
			x += 4 * (in - min(in, 16*v.value("threads")))
		} else {
			x += 4 * in
		}
	case decl.InputSiLUMul:
		x2 = 4 * in
	case decl.InputMerge:
		x, x2 = 4*in*v.splits, 2*in*v.splits
	case decl.InputScaled: // each SIMD group that writes results reads all partial sums
		rows := min(v.value("group"), out)
		if output == decl.OutputGated {
			rows /= 2
		}
		x2 = 4 * v.value("splits") * ceilDiv(min(rows, v.value("threads")), 32)
	default:
		if !steps && !apple { // each unit of 4 rows reads x
			x *= ceilDiv(min(v.value("group"), out), 4)
		}
	}
	r.loads[bindX], r.loads[bindX2] = groups*v.rows*x, groups*v.rows*x2
	w := v.weights(v.reads[bindW])
	if elems, block := t.Block(); apple && t.Quantized() {
		w -= v.reads[bindW] / uint64(block) * uint64(elems) / 32 * shared[t]
	}
	if v.c.Kernel == kernels.GEMV {
		w *= v.rows
	}
	r.loads[bindW] = w
}

// appleBlocks is the number of rows of x for which gemm reads W once on a GPU without NVIDIA's matrix
// instructions.
const appleBlocks = 16

// gemmRequests sets the requests of a product of a chunk: a threadgroup reads its rows of x
// once, and its rows of W once for each block of rows of x.
func (v *view) gemmRequests(r *requests, device string) {
	groups := ceilDiv(v.value("out"), v.value("group"))
	block := max(v.value("row_group"), 1)
	if device == chip.Metal && v.c.Kernel == kernels.GEMM {
		block = min(block, appleBlocks)
	}
	for i := range v.k.Bindings {
		switch v.k.Bindings[i].Name {
		case "x", "x2":
			r.loads[i] *= groups
			if v.c.Kernel == kernels.GEMMHalves && device == chip.Metal {
				// Float16 rows, and a float32 for each element of y.
				terms := 1 + v.value("act") - decl.ActF16
				r.loads[i] = groups*v.rows*terms*128*ceilDiv(v.value("in"), 64) + 4*v.rows*v.value("out")
			}
		case "w":
			r.loads[i] = ceilDiv(v.rows, block) * v.weights(r.loads[i])
			if v.c.Kernel == kernels.GEMMHalves && device == chip.Metal { // a SIMD group reads 32 rows, the last one repeatedly
				r.loads[i] = r.loads[i] / max(v.value("out"), 1) * 32 * ceilDiv(v.value("out"), 32)
			}
		}
	}
}

// expertRequests sets the requests of expert_gemm. A tile reads the matrix of its expert, and its inputs once
// for each threadgroup. All threads read the list of the experts, in groups of 128, also those of threadgroups
// without a tile; the others read the numbers of the products too.
func (v *view) expertRequests(r *requests) {
	out, products, threads := v.value("out"), v.rows*v.value("used"), v.value("threads")
	groups := ceilDiv(out, v.value("group"))
	r.loads[kernels.ExpertGEMMBindX] = groups*products*(1+v.value("act")-decl.ActF16)*128*ceilDiv(v.value("in"), 64) + 4*products*out
	r.loads[kernels.ExpertGEMMBindW] = v.weights(r.loads[kernels.ExpertGEMMBindW]) / max(v.chosen(), 1) * v.expertTiles()
	r.loads[kernels.ExpertGEMMBindList] = uint64(v.c.Grid[0])*uint64(v.c.Grid[1])*threads*32*ceilDiv(v.value("experts"), 128) + groups*threads*4*(products+2*v.expertTiles())
}

// fewRequests sets the requests of gemm_few. A threadgroup copies x with its rows rounded up, and loads a unit
// for each result. If x is scaled, it copies float32, and loads the parts of 8 rows. In the shape whole it does so once,
// for all its rows of W. The weights of the norm that follows are loaded for each of 8 rows.
func (v *view) fewRequests(r *requests) {
	in, out, group := v.value("in"), v.value("out"), v.fewGroup()
	groups := ceilDiv(out, group)
	if v.value("shape") == decl.ShapeWhole {
		groups = uint64(v.c.Grid[0])
	}
	places := uint64(decl.FewRows(int(v.rows)))
	r.loads[kernels.GEMMFewBindX] = groups*places*2*in + 4*v.rows*out
	if v.value("input") == decl.InputScaled {
		r.loads[kernels.GEMMFewBindX] = groups * places * 4 * in
		r.loads[kernels.GEMMFewBindXParts] = groups * 2 * in
	}
	r.loads[kernels.GEMMFewBindW] *= ceilDiv(v.rows, group)
	r.loads[kernels.GEMMFewBindNext] *= 8
}

// fewGroup returns the number of rows of W, and the largest number of rows of x, of a threadgroup of gemm_few.
func (v *view) fewGroup() uint64 {
	if v.value("shape") == decl.ShapeWide {
		return 64
	}
	return 32
}

// converted returns the bytes that are requested to convert rows of n float32 to float16. A thread reads
// 4 vectors at a time, even past the end of a row, and reads all but the first ones twice.
func (v *view) converted(n uint64) uint64 {
	threads := v.value("threads")
	steps := ceilDiv(ceilDiv(n, 64)*16, 4*threads)
	return v.rows * (2*steps - 1) * 64 * threads
}

// ropeAttnRequests sets the requests of fused attention. Every threadgroup computes Q of its heads, unless its split has
// no positions, and those with the newest position also compute K and V.
func (v *view) ropeAttnRequests(r *requests) {
	splits, heads, kvHeads := max(v.splits, 1), v.value("heads"), v.value("kv_heads")
	groups := ceilDiv(v.value("shared"), v.value("head_group"))
	r.loads[0] *= splits
	r.loads[1] *= groups
	r.loads[2] *= groups
	made := splits*heads + 2*kvHeads*groups     // heads that are computed
	r.loads[3] = 4 * v.value("head_dim") * made // an angle for each pair, even if RoPE does not rotate it
	r.loads[4] = min(r.loads[4], 4*v.value("head_dim")*made)
	if v.value("qk_norm") != 0 {
		r.loads[4] = 4 * v.value("head_dim") * made
	}
	for i := 5; i <= 6; i++ {
		r.loads[i] = v.cacheLoads(groups * r.loads[i])
	}
}

// cacheLoads returns the bytes that decode attention requests to read rows of a cache of the given
// size once: whole groups of 4 positions, and each scale of a quantised cache four times.
func (v *view) cacheLoads(size uint64) uint64 {
	if v.seen > 1 {
		size = size / (v.seen - 1) * ceilDiv(v.seen-1, 4) * 4
	}
	if v.value("kv") == decl.KVQ8 {
		size = size / 17 * 20 // 32 elements and a scale of 2 bytes, read as 8
	}
	return size
}

// attnRequests sets the requests of attention for the rows of a chunk: every row reads all positions
// that it sees, and each SIMD group reads Q twice.
func (v *view) attnRequests(r *requests) {
	groups := ceilDiv(v.value("heads")/max(v.value("kv_heads"), 1), v.value("head_group"))
	r.loads[0] *= 2 * v.value("threads") / 32 * max(v.value("splits"), 1)
	for i := 1; i <= 2; i++ {
		r.loads[i] = groups * r.loads[i] / max(v.seen, 1) * v.pairs
	}
}

// attnTileRequests sets the requests of prefill attention by matrix products: each threadgroup
// reads whole tiles of the positions that one of its pairs sees. A scale of an int8 cache is read
// with each 8 of its 32 values.
func (v *view) attnTileRequests(r *requests) {
	d, kvHeads, first := v.value("head_dim"), v.value("kv_heads"), max(v.value("kv_len"), 1)
	shared := v.value("heads") / max(kvHeads, 1)
	tile, unit, window := uint64(64), uint64(64), v.value("window")
	if v.value("act") == decl.ActF32 {
		tile, unit = 32, 16
		if d > 128 {
			tile = 16
		}
	}
	if v.sees > 0 {
		first = v.sees
	}
	if v.value("windowed") == 0 {
		window = first + v.rows
	}
	each := unit * v.value("units")
	groups := ceilDiv(v.rows*shared, each)
	positions := uint64(0)
	if v.sees > 0 { // the units of each group of rows are its own
		groups = v.groups() * ceilDiv(shared, each)
		positions = groups * ceilDiv(min(first, window), tile) * tile
	} else {
		for g := range groups {
			begin := first + g*each/shared
			begin -= min(begin, window)
			end := first + min((g+1)*each-1, v.rows*shared-1)/shared
			positions += ceilDiv(end-begin/tile*tile, tile) * tile
		}
	}
	position := 2 * d
	if v.value("kv") == decl.KVQ8 {
		position = d + d/4
	}
	r.loads[0] = 4 * groups * each * kvHeads * d
	r.loads[1] = positions * kvHeads * position
	r.loads[2] = r.loads[1]
}

// ceilDiv returns a/b rounded up; b = 0 counts as 1.
func ceilDiv(a, b uint64) uint64 {
	b = max(b, 1)
	return (a + b - 1) / b
}
