package cost

import (
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// view is a command at a point, with the values that several formulas need.
type view struct {
	*table.Env
	t *table.Table
	c *table.Cmd
	k *decl.Kernel

	sequences bool   // each row belongs to a sequence of its own
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
	first += v.value("behind")
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
		v.pairs, v.seen = v.rows*one, v.rows*one
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
	extent, err := v.Extent(i)
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
	if kind == table.SlotWeight || kind == table.SlotKV {
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
	if v.value("split") != 0 {
		n = n / max(v.value("splits"), 1) * v.splits
	}
	return max(n, 1)
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
	to.Other = v.otherOperations(to)
}

// matrixUnits reports whether a kernel for chunks uses the matrix units of a kind of device. The
// kernels gemm and attn_tile have instructions of NVIDIA GPUs; on Apple GPUs the lanes exchange
// words and multiply on vector units.
func (v *view) matrixUnits(device string) bool {
	switch device {
	case chip.CUDA:
		return true
	case chip.Metal:
		return v.c.Kernel != kernels.GEMM && v.c.Kernel != kernels.AttnTile
	}
	return false
}

// otherOperations estimates the operations that are not multiply-adds.
func (v *view) otherOperations(to *Command) uint64 {
	switch {
	case v.product():
		return v.unpacking(to)
	case v.attends():
		return 8 * v.pairs * v.value("heads") // exponentials, maxima and scales of the scores
	}
	return 2 * (to.Read + to.Written) / 4 // elementwise kernels
}

// unpacking returns the operations that convert quantised weights: about one per weight, each
// time that the weight is read.
func (v *view) unpacking(to *Command) uint64 {
	elements := v.value("in") * v.value("out") * max(v.value("used"), 1)
	switch v.c.Kernel {
	case kernels.GEMV, kernels.ExpertGEMV:
		return elements * v.rows
	}
	group := max(v.value("row_group"), 1)
	if !v.has("row_group") {
		group = v.rows
	}
	return elements * ((v.rows + group - 1) / group)
}
