package weights

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// joined is a matrix that is stored as separate tensors for quants, scales and biases. It is
// read as quantization blocks of its type.
type joined struct {
	t              dtype.Type
	rows, cols     uint64 // rows is the product of all dimensions but the last
	quants, scales Tensor
	biases         Tensor // only for MLX's affine types
	block          [2]uint64
	across         uint64 // number of scales per row of blocks
}

// join joins the matrices whose scales are separate tensors. If it cannot join a matrix, it
// leaves its tensors unchanged and adds the reason to unsupported.
func (d *Directory) join() {
	d.raw = d.tensors
	if d.format != Safetensors {
		return
	}
	q, bad := readQuantization(d.meta)
	if bad != nil {
		d.unsupported = append(d.unsupported, &UnsupportedError{Path: d.path, Key: bad.key, What: bad.what})
		return
	}
	d.joined = map[string]*joined{}
	parts := map[string]bool{}
	list := make([]Tensor, 0, len(d.raw))
	for _, t := range d.raw {
		j, names, what := d.joinBlocks(t)
		module, ok := strings.CutSuffix(t.Name, ".weight")
		switch {
		case j != nil || what != "":
		case ok && t.TypeName == "U32":
			j, names, what = d.joinMLX(&q, module, t)
		case ok && t.TypeName == "F8_E4M3":
			j, names, what = d.joinFP8(&q, module, t)
		}
		if what != "" {
			d.unsupported = append(d.unsupported, &UnsupportedError{Path: d.path, Tensor: t.Name, What: what})
		}
		if j == nil {
			continue
		}
		if _, ok := dtype.Rows.Bytes(j.t, j.rows, j.cols); !ok {
			d.unsupported = append(d.unsupported, &UnsupportedError{Path: d.path, Tensor: t.Name, What: fmt.Sprintf("[%d, %d] of %s is too large", j.rows, j.cols, j.t)})
			continue
		}
		d.joined[t.Name] = j
		for _, n := range names {
			parts[n] = true
		}
	}
	if len(d.joined) == 0 {
		return
	}
	for _, t := range d.raw {
		if parts[t.Name] {
			continue
		}
		if j := d.joined[t.Name]; j != nil {
			t.Joined, t.Type, t.TypeName = true, j.t, j.t.String()
			t.Shape = append(slices.Clone(j.quants.Shape[:len(j.quants.Shape)-1]), j.cols)
			t.Size, _ = dtype.Rows.Bytes(j.t, j.rows, j.cols)
		}
		list = append(list, t)
	}
	d.tensors = list
	_ = d.reindex() // cannot fail, because joining only removes names
}

// rowsOf returns the product of all dimensions but the last, and the last dimension.
func rowsOf(shape []uint64) (rows, last uint64, ok bool) {
	if len(shape) < 2 {
		return 0, 0, false
	}
	rows = 1
	for _, n := range shape[:len(shape)-1] {
		hi, lo := bits.Mul64(rows, n)
		if hi != 0 {
			return 0, 0, false
		}
		rows = lo
	}
	return rows, shape[len(shape)-1], rows > 0 && rows <= 1<<32
}

// joinMLX returns the matrix of an MLX module and the names of its tensors, or the reason why
// they cannot be joined. A module without scales is not an MLX module.
func (d *Directory) joinMLX(q *quantization, module string, t Tensor) (j *joined, names []string, what string) {
	scales, ok := d.Tensor(module + ".scales")
	if !ok {
		return nil, nil, ""
	}
	s, ok := q.of(module, d.original(module))
	if !ok {
		return nil, nil, "has scales, but " + configName + " has no quantization"
	}
	rows, words, ok := rowsOf(t.Shape)
	_, groups, ok2 := rowsOf(scales.Shape)
	if !ok || !ok2 || !slices.Equal(t.Shape[:len(t.Shape)-1], scales.Shape[:len(scales.Shape)-1]) || groups == 0 || groups > 1<<24 || words > 1<<26 {
		return nil, nil, fmt.Sprintf("shape %v does not match scales of shape %v", t.Shape, scales.Shape)
	}
	j = &joined{rows: rows, cols: groups * uint64(s.group), quants: t, scales: scales, across: groups}
	names = []string{scales.Name}
	if s.mode == "mxfp4" {
		j.t, ok = dtype.MXFP4, s.bits == 4 && s.group == 32 && scales.TypeName == "U8"
	} else {
		j.t, ok = dtype.MLXType(s.bits, s.group, scales.Type)
	}
	if !ok {
		return nil, nil, fmt.Sprintf("%d bits in groups of %d with scales of type %s and mode %s are not supported", s.bits, s.group, scales.TypeName, s.mode)
	}
	if words*32 != j.cols*uint64(s.bits) {
		return nil, nil, fmt.Sprintf("shape %v and scales of shape %v do not match %d bits in groups of %d", t.Shape, scales.Shape, s.bits, s.group)
	}
	if s.mode == "affine" {
		if j.biases, ok = d.Tensor(module + ".biases"); !ok {
			return nil, nil, "has scales but no biases"
		}
		if j.biases.Type != scales.Type || !slices.Equal(j.biases.Shape, scales.Shape) {
			return nil, nil, fmt.Sprintf("biases of type %s and shape %v do not match scales of type %s and shape %v", j.biases.TypeName, j.biases.Shape, scales.TypeName, scales.Shape)
		}
		names = append(names, j.biases.Name)
	}
	return j, names, ""
}

// joinFP8 is like joinMLX for E4M3. There is one scale for the matrix, one per row, or one per
// block.
func (d *Directory) joinFP8(q *quantization, module string, t Tensor) (j *joined, names []string, what string) {
	var scale Tensor
	ok := false
	for _, suffix := range []string{".weight_scale_inv", ".weight_scale"} {
		if scale, ok = d.Tensor(module + suffix); ok {
			break
		}
	}
	if !ok {
		return nil, nil, "is E4M3 without weight_scale or weight_scale_inv"
	}
	if len(t.Shape) != 2 {
		return nil, nil, fmt.Sprintf("E4M3 of shape %v is not supported", t.Shape)
	}
	if scale.Type != dtype.F32 && scale.Type != dtype.F16 && scale.Type != dtype.BF16 {
		return nil, nil, fmt.Sprintf("scales of type %s are not supported", scale.TypeName)
	}
	j = &joined{rows: t.Shape[0], cols: t.Shape[1], quants: t, scales: scale, across: 1}
	n := uint64(1)
	for _, dim := range scale.Shape {
		if n *= min(dim, 1<<24); n > 1<<32 {
			break
		}
	}
	up := func(a, b uint64) uint64 { return a/b + min(1, a%b) }
	whole := uint64(fp8Block)
	switch {
	case n == 1:
		j.block = [2]uint64{max(j.rows, 1), max(j.cols, 1)}
	case n == j.rows && scale.Shape[0] == n:
		j.block = [2]uint64{1, max(j.cols, 1)}
	case len(scale.Shape) == 2 && scale.Shape[0] == up(j.rows, q.block[0]) && scale.Shape[1] == up(j.cols, q.block[1]):
		j.block, j.across, whole = q.block, scale.Shape[1], q.block[1]
	default:
		return nil, nil, fmt.Sprintf("E4M3 of shape %v with scales of shape %v: want one scale, one per row, or one per block of %v", t.Shape, scale.Shape, q.block)
	}
	for _, group := range []uint64{128, 64, 32} {
		if whole%group == 0 && j.cols%group == 0 {
			j.t, _ = dtype.FP8Type(int(group))
			return j, []string{scale.Name}, ""
		}
	}
	return nil, nil, fmt.Sprintf("E4M3 with rows of %d elements and scales for %d columns: want multiples of 32", j.cols, whole)
}

// read writes rows, beginning at row first, as blocks to dst, which holds a whole number of
// rows. data returns the bytes of a tensor.
func (j *joined) read(dst []byte, first uint64, data func(Tensor) []byte) {
	size, _ := j.t.Bytes(j.cols)
	quants, scales := data(j.quants), data(j.scales)
	for r := first; len(dst) > 0; r++ {
		row := dst[:size]
		dst = dst[size:]
		switch {
		case j.t.Family() == dtype.FP8:
			j.rowFP8(row, quants[r*j.cols:][:j.cols], scales, r)
		case j.t == dtype.MXFP4:
			j.rowMXFP4(row, quants[r*j.across*16:], scales[r*j.across:][:j.across])
		default:
			j.rowMLX(row, quants, scales, data(j.biases), r)
		}
	}
}

func (j *joined) rowMLX(row, quants, scales, biases []byte, r uint64) {
	_, size := j.scales.Type.Block()
	at := int(r*j.across) * size
	scales, biases = scales[at:], biases[at:]
	_, block := j.t.Block()
	n := block - 2*size
	quants = quants[int(r*j.across)*n:]
	for g := range int(j.across) {
		copy(row, scales[g*size:][:size])
		copy(row[size:], biases[g*size:][:size])
		copy(row[2*size:], quants[g*n:][:n])
		row = row[block:]
	}
}

func (j *joined) rowFP8(row, quants, scales []byte, r uint64) {
	group, block := j.t.Block()
	_, size := j.scales.Type.Block()
	from := r / j.block[0] * j.across
	for c := 0; c < len(quants); c += group {
		at := int(from+uint64(c)/j.block[1]) * size
		binary.LittleEndian.PutUint32(row, math.Float32bits(float(j.scales.Type, scales[at:])))
		copy(row[4:], quants[c:][:group])
		row = row[block:]
	}
}

// rowMXFP4 converts nibbles in column order to blocks, in which byte i holds columns i and
// i+16.
func (j *joined) rowMXFP4(row, quants, scales []byte) {
	for _, e := range scales {
		row[0] = e
		for i := range 8 {
			low, high := quants[i], quants[8+i]
			row[1+2*i], row[2+2*i] = low&15|high<<4, low>>4|high&0xf0
		}
		row, quants = row[17:], quants[16:]
	}
}

// float reads an element of F32, F16 or BF16.
func float(t dtype.Type, b []byte) float32 {
	switch t {
	case dtype.F16:
		return dtype.F16ToF32(binary.LittleEndian.Uint16(b))
	case dtype.BF16:
		return dtype.BF16ToF32(binary.LittleEndian.Uint16(b))
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(b))
}

// Joined returns the size in bytes of a matrix that consists of several tensors, which equals
// Tensor.Size. ok is false for other tensors.
func (m *Mapped) Joined(name string) (size uint64, ok bool) {
	if m.dir.joined[name] == nil {
		return 0, false
	}
	t, ok := m.dir.Tensor(name)
	return t.Size, ok
}

// ReadJoined writes whole rows of a joined matrix to dst, beginning at byte offset of the
// matrix.
func (m *Mapped) ReadJoined(name string, offset uint64, dst []byte) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.files == nil {
		return ErrClosed
	}
	j := m.dir.joined[name]
	if j == nil {
		return fmt.Errorf("weights: %s: tensor %s does not consist of several tensors", m.dir.path, printable(name))
	}
	row, _ := j.t.Bytes(j.cols)
	if n := uint64(len(dst)); row == 0 || offset%row != 0 || n%row != 0 || offset/row > j.rows || n/row > j.rows-offset/row {
		return fmt.Errorf("weights: %s: tensor %s: offset %d + %d bytes are not whole rows", m.dir.path, printable(name), offset, n)
	}
	if len(dst) == 0 {
		return nil
	}
	first, n := offset/row, uint64(len(dst))/row
	data := func(t Tensor) []byte { return m.files[t.File].data[t.Offset:][:t.Size] }
	j.read(dst, first, data)
	of := j.quants.Size / j.rows // an integer, as join has checked
	m.letGo(data(j.quants)[first*of:][:n*of])
	return nil
}
