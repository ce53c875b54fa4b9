package cost

import (
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/recurrent"
	"github.com/pianola-engine/pianola/internal/sampler"
	"github.com/pianola-engine/pianola/table"
)

// view is a command at a point, with the values that several formulas need.
type view struct {
	*table.Env
	t *table.Table
	c *table.Cmd
	k *decl.Kernel

	sequences bool   // each row belongs to a sequence of its own
	sees      uint64 // in a batch program, the positions that each row record makes visible; else 0
	rows      uint64 // active rows that the command computes

	// Attention: the positions that any row sees, and the sum of the positions that each row sees.
	seen, pairs uint64
	splits      uint64 // splits with at least one position, of the command or of its input; 1 without splits

	reads, writes [decl.MaxBindings]uint64 // compulsory bytes of each binding
	model         uint64                   // part of them in weights and KV caches
}

// value returns a parameter, a secondary field or a constant, or 0 if the kernel does not have it.
func (v *view) value(name string) uint64 {
	n, _ := v.Value(name)
	return n
}

// has reports whether the kernel has a parameter.
func (v *view) has(param string) bool {
	_, _, ok := v.k.Param(param)
	return ok
}

// read computes the fields of the view.
func (v *view) read() error {
	v.k, _ = decl.Lookup(v.c.Kernel) // which EnvAt has found
	v.rows = 1
	if n, ok := v.Value("rows"); ok {
		v.rows = n
	}
	v.positions()
	for i := range v.k.Bindings {
		if err := v.binding(i); err != nil {
			return err
		}
	}
	return nil
}

// positions computes the visible positions of a command with a KV length.
func (v *view) positions() {
	v.splits = 1
	first, ok := v.Value("kv_len")
	if !ok {
		return
	}
	if first += v.value("behind"); v.sees > 0 {
		first = v.sees
	}
	window := v.value("window")
	if window == 0 || v.value("windowed") == 0 && v.hasSpec("windowed") {
		window = first + v.rows
	}
	sinks := uint64(0)
	if v.value("sinks") != 0 {
		sinks = v.value("first")
	}
	if v.sequences {
		one := min(first, window+sinks)
		v.pairs, v.seen = v.rows*one, v.groups()*one
		return
	}
	for r := range v.rows {
		all := first + r
		v.pairs += min(all, window+min(sinks, all-min(all, window)))
	}
	last := first + v.rows - 1
	v.seen = min(last, window+v.rows-1+sinks, max(v.value("cap"), window))
	if n := v.value("splits"); n > 1 {
		v.splits = used(min(last, window), n, max(v.value("span"), 1))
	}
}

// groups returns the number of groups of rows of which each reads its K and V once, if each row belongs to a sequence:
// with the parameter joined most rows follow each other, otherwise each row is a group.
func (v *view) groups() uint64 {
	if v.value("joined") == 0 || v.c.Kernel != kernels.AttnTile {
		return v.rows
	}
	return ceilDiv(v.rows, max(1, 64*v.value("units")*v.value("kv_heads")/max(v.value("heads"), 1)))
}

// used returns the number of splits that have positions. The declaration of attn defines their size.
func used(positions, splits, span uint64) uint64 {
	power := uint64(1)
	for 2*power <= splits {
		power *= 2
	}
	each := max(span, (positions+power-1)/power)
	each = (each + 15) / 16 * 16
	if each < 16 {
		each = 16
	}
	return max(1, min(splits, (positions+each-1)/each))
}

// oneRow is the environment of a command of which one row is active.
type oneRow struct{ *table.Env }

// Value implements decl.Env.
func (e oneRow) Value(name string) (uint64, bool) {
	n, ok := e.Env.Value(name)
	if name == "rows" {
		n = min(n, 1)
	}
	return n, ok
}

// extent returns the bytes of a binding without the gaps between its rows.
func (v *view) extent(i int) (uint64, error) {
	all, err := v.Extent(i)
	if err != nil || v.rows <= 1 {
		return all, err
	}
	one, err := v.k.Extent(i, oneRow{v.Env})
	return min(all, one*v.rows), err
}

// hasSpec reports whether the kernel has a specialisation constant.
func (v *view) hasSpec(name string) bool {
	_, ok := v.k.Spec(name)
	return ok
}

// binding computes the compulsory bytes of binding i.
func (v *view) binding(i int) error {
	slot := v.c.Bind[i].Slot
	if i >= int(v.c.Bindings) || slot == table.NoSlot || !v.k.Bindings[i].Present(v) {
		return nil
	}
	role := v.k.Role(i, v)
	extent, err := v.extent(i)
	if err != nil {
		return err
	}
	b := &v.k.Bindings[i]
	kind := v.t.Slots[slot].Kind
	read, write := extent, extent
	switch {
	case b.Elem == decl.KVType:
		read, write = v.cacheBytes(extent, role)
	case kind == table.SlotTokens:
		read, write = 4*v.rows, 4*v.rows
		if v.c.Kernel == kernels.Draft {
			read = 4 * (v.value("token") + 1)
		}
	case kind == table.SlotRanks: // one entry
		read, write = 4*sampler.RankWords, 4*sampler.RankWords
	case kind == table.SlotState: // one state, and those at borders
		if read, err = v.k.ReadBytes(i, v); err != nil {
			return err
		}
		write = read * (1 + v.rows/recurrent.Border)
	case b.Elem == decl.WeightType && role == decl.Read:
		if read, err = v.k.ReadBytes(i, v); err != nil {
			return err
		}
		if v.c.Kernel == kernels.Embed {
			read *= v.rows
		}
	case b.Reads != "":
		if read, err = v.k.ReadBytes(i, v); err != nil {
			return err
		}
	case v.has("x_rows") && b.Name == "x":
		read = extent / max(v.value("x_rows"), 1) * v.rows
	case v.splits < v.value("splits") && v.ofSplits(b.Name):
		read = extent / v.value("splits") * v.splits
		write = read
	}
	if role.Reads() {
		v.reads[i] = read
	}
	if role.Writes() {
		v.writes[i] = write
	}
	if kind == table.SlotWeight || kind == table.SlotKV || kind == table.SlotState {
		v.model += v.reads[i] + v.writes[i]
	}
	return nil
}

// ofSplits reports whether a binding of a kernel with splits holds their sums.
func (v *view) ofSplits(name string) bool {
	switch v.c.Kernel {
	case kernels.GEMV:
		return v.value("input") == decl.InputMerge && (name == "x" || name == "x2")
	case kernels.AttnMerge:
		return name == "part"
	}
	return name == "out"
}

// cacheBytes returns the bytes of a KV cache that a command reads and writes.
func (v *view) cacheBytes(extent uint64, role decl.Role) (read, write uint64) {
	row := extent / max(v.value("cap"), 1) // of all heads
	read, write = row*v.seen, row*v.rows
	if role == decl.ReadWrite { // the newest position is not read from the cache
		read -= min(read, write)
	}
	return read, write
}

// bytes sets the compulsory bytes.
func (v *view) bytes(to *Command) {
	for i := range v.reads {
		to.Read += v.reads[i]
		to.Written += v.writes[i]
	}
	to.Model = v.model
}

// threadgroups returns the threadgroups that have work: those of a grid for a whole chunk of which
// only some rows are active exit at once.
func (v *view) threadgroups() uint64 {
	n := uint64(1)
	grid, err := v.k.GridSize(v)
	for d, g := range v.c.Grid {
		if err == nil && grid[d] > 0 {
			g = min(g, uint32(grid[d]))
		}
		n *= uint64(g)
	}
	if v.c.Kernel == kernels.ExpertGEMM { // the grid is for the largest possible number of tiles
		n = ceilDiv(v.value("out"), v.value("group")) * v.expertTiles()
	}
	if v.c.Kernel == kernels.GEMMHalves { // of 64 rows of W each, as long as there are few
		if small := ceilDiv(v.value("out"), 64) * ceilDiv(v.rows, v.value("row_group")); small <= v.value("spread") {
			n = small
		}
	}
	if v.value("split") != 0 {
		n = n / max(v.value("splits"), 1) * v.splits
	}
	return max(n, 1)
}

// chosen returns the number of experts that rows choose, if the rows choose different ones.
func (v *view) chosen() uint64 { return min(v.value("experts"), v.rows*v.value("used")) }

// expertTiles returns the number of tiles of expert_gemm if the experts that rows choose have equally many
// products.
func (v *view) expertTiles() uint64 {
	n := max(v.chosen(), 1)
	return n * ceilDiv(ceilDiv(v.rows*v.value("used"), n), max(v.value("row_group"), 1))
}

// phases returns the chains of dependent accesses of a command. Kernels that reduce a row before they
// use it have two.
func (v *view) phases() float64 {
	switch v.c.Kernel {
	case kernels.RMSNorm, kernels.AddRMSNorm, kernels.AddRMSNormHalves, kernels.NormAdd, kernels.LayerNorm,
		kernels.AltupPredict, kernels.AltupCorrect, kernels.AltupAdd, kernels.AltupMatch, kernels.TopGates, kernels.Halves, kernels.Attn, kernels.AttnTile, kernels.AttnChunk, kernels.RoPEAttnTile:
		return 2
	}
	return 1
}

// tiles returns the rows that the tiles of a product with matrix units compute, divided by the active
// rows. On Apple GPUs the last tile has 8, 16, 32 or 64 rows.
func (v *view) tiles(device string) float64 {
	if v.c.Kernel != kernels.GEMMHalves || device != chip.Metal {
		return 1
	}
	group := max(v.value("row_group"), 1)
	last := uint64(0)
	if rest := v.rows % group; rest > 0 {
		for last = 8; last < rest; last *= 2 {
		}
	}
	return float64(v.rows/group*group+last) / float64(v.rows)
}

// product reports whether the kernel multiplies a matrix by rows.
func (v *view) product() bool {
	return v.has("in") && v.has("out") && v.hasSpec("wtype")
}

// attends reports whether the kernel computes attention over the cache.
func (v *view) attends() bool {
	return v.hasSpec("head_dim") && v.has("cap") && v.has("heads") && v.has("scale")
}

// operations sets the operations.
func (v *view) operations(to *Command, rates *Rates) {
	var adds uint64
	switch {
	case v.product():
		adds = v.rows * max(v.value("used"), 1) * v.value("in") * v.value("out")
	case v.attends():
		adds = 2 * v.pairs * v.value("heads") * v.value("head_dim")
	}
	if v.k.Chunk && v.matrixUnits(rates.device) {
		to.Matrix = adds
	} else {
		to.Vector = adds
	}
	if rates.device != chip.CPU { // the rates of a CPU include them
		to.Other = v.otherOperations(to)
	}
}

// matrixUnits reports whether a kernel for chunks uses the matrix units of a kind of device. The
// kernel gemm has instructions of NVIDIA GPUs; on Apple GPUs the lanes exchange words and multiply on
// vector units.
func (v *view) matrixUnits(device string) bool {
	switch device {
	case chip.CUDA:
		return true
	case chip.Metal:
		return v.c.Kernel != kernels.GEMM
	}
	return false
}

// unpack is the number of operations of gemv per weight in layout Rows besides its multiply-add, from
// the PTX of its innermost loop: all arithmetic instructions, with half of the conversions, because
// PTX needs two instructions for the conversion of a byte.
var unpack = map[dtype.Type]float64{
	dtype.F32: 0.9, dtype.F16: 1.4, dtype.BF16: 1.9, dtype.Q4_0: 4.3, dtype.Q4_1: 4.3, dtype.Q5_0: 7.3, dtype.Q5_1: 6.8, dtype.Q8_0: 3.2,
	dtype.Q2_K: 5.6, dtype.Q3_K: 8, dtype.Q4_K: 4, dtype.Q5_K: 4.5, dtype.Q6_K: 6, dtype.IQ4_NL: 5.2, dtype.IQ4_XS: 5.3, dtype.MXFP4: 6,
}

const (
	unpackOther = 6   // unpack of the types that are not listed
	unpackTiled = 0.6 // unpack in layout Tiled16, where a lane converts four weights of a word at once
	// Operations of gemm_halves and gemm_few per weight that they expand to float16, from the times of
	// down and o of llama-3.1-8b Q4_0 for 512 rows, and of gate_up for 8 rows (docs/BENCHMARKS.md). In
	// gemm_halves only 4 of 12 SIMD groups expand weights.
	expandHalves = 13
	expandFew    = 5

	inputWork = 12  // operations per element of the input that a threadgroup of gemv normalises, activates or merges
	gemmWork  = 8   // operations of gemm per multiply-add without matrix instructions: three products of halves of the terms, and shuffles
	attnWork  = 0.7 // operations of attention per multiply-add: conversions of K and V, once for several heads, and reductions; a guess
)

// otherOperations estimates the operations that are not multiply-adds.
func (v *view) otherOperations(to *Command) uint64 {
	switch {
	case v.product():
		return v.productOperations(to)
	case v.attends():
		return uint64(attnWork*float64(to.Vector)) + 8*v.pairs*v.value("heads") // exponentials, maxima and scales of the scores
	}
	return 2 * (to.Read + to.Written) / 4 // elementwise kernels
}

// productOperations estimates the operations of a product besides its multiply-adds.
func (v *view) productOperations(to *Command) uint64 {
	t := dtype.Type(v.value("wtype"))
	tiled := v.value("weights") == uint64(dtype.Tiled16)
	perWeight, ok := unpack[t]
	if !ok {
		perWeight = unpackOther
	}
	weights := float64(v.value("in") * v.value("out") * max(v.value("used"), 1))
	switch v.c.Kernel {
	case kernels.GEMV, kernels.ExpertGEMV:
		if tiled {
			perWeight = unpackTiled
		}
		n := perWeight * weights
		if in := v.value("input"); in != decl.InputPlain && in != decl.InputScaled {
			n += inputWork * weights / float64(max(v.value("group"), 1))
		}
		return uint64(n * float64(v.rows))
	case kernels.GEMM:
		if to.Matrix == 0 {
			return gemmWork * to.Vector
		}
	case kernels.GEMMFew:
		perWeight = expandFew
	case kernels.GEMMHalves, kernels.ExpertGEMM:
		if tiled {
			perWeight = expandHalves
		}
	}
	if !t.Quantized() && v.k.Chunk {
		perWeight = 0
	}
	passes := uint64(1)
	switch {
	case v.c.Kernel == kernels.ExpertGEMM:
		weights, passes = float64(v.value("in")*v.value("out")), v.expertTiles()
	case v.has("row_group"):
		passes = ceilDiv(v.rows, v.value("row_group"))
	case v.c.Kernel == kernels.GEMMFew:
		passes = ceilDiv(v.rows, v.fewGroup())
	}
	return uint64(perWeight * weights * float64(passes))
}
