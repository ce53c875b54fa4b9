package dtype

import (
	"encoding/binary"
	"fmt"
	"math"
)

// MLX's affine types. A group of 32, 64 or 128 elements shares a scale and a bias;
// the value of an element is scale*q + bias, where the quant q is an unsigned
// integer of 2 to 8 bits. A file stores quants, scales and biases in three tensors.
// Here a block is one group: its scale and its bias in the file's element type, then
// its quants. The quants are packed without gaps, the lowest bit first: the quant of
// element i occupies bits i*bits to (i+1)*bits-1 of the bytes.
//
// The constants below are families of types, one for each number of bits. The upper
// four bits of a Type are the family. The lower four bits are two bits for the size
// of the group and two bits for the type of scales and biases. Each constant is also
// the first type of its family; MLX2 is the type MLX2_32_F16.
const (
	MLX2 Type = 0x40
	MLX3 Type = 0x50
	MLX4 Type = 0x60
	MLX5 Type = 0x70
	MLX6 Type = 0x80
	MLX8 Type = 0x90

	// FP8 is the family of types with E4M3 elements. A block is a float32 scale,
	// followed by 32, 64 or 128 elements of one byte each. If a file has a scale for
	// more elements, for a row or for a whole tensor, every block repeats it.
	FP8 Type = 0xa0

	count = 0xb0
)

// FamilyMask is the mask of the bits of a Type that hold its family.
const FamilyMask = 0xf0

// Family returns the first type of t's family, whose types differ only in the size
// of the group and the type of scales. For a type without a family it returns t.
func (t Type) Family() Type {
	if t < MLX2 {
		return t
	}
	return t & FamilyMask
}

// Families returns the first type of each family.
func Families() []Type { return []Type{MLX2, MLX3, MLX4, MLX5, MLX6, MLX8, FP8} }

var (
	mlxBits   = [...]int{2, 3, 4, 5, 6, 8}
	mlxGroups = [...]int{32, 64, 128}
	mlxScales = [...]Type{F16, BF16, F32}
)

// MLXType returns the affine type with the given bits per quant, elements per group
// and type of scales and biases.
func MLXType(bits, group int, scale Type) (t Type, ok bool) {
	for b, have := range mlxBits {
		for g, size := range mlxGroups {
			for s, typ := range mlxScales {
				if have == bits && size == group && typ == scale {
					return MLX2 + Type(b<<4|g<<2|s), true
				}
			}
		}
	}
	return Invalid, false
}

// MLX returns the arguments with which MLXType returns t.
func (t Type) MLX() (bits, group int, scale Type, ok bool) {
	if t < MLX2 || t >= FP8 || !t.Valid() {
		return 0, 0, Invalid, false
	}
	return mlxBits[(t-MLX2)>>4], mlxGroups[t>>2&3], mlxScales[t&3], true
}

// FP8Type returns the type with E4M3 elements and the given number of elements per
// scale.
func FP8Type(group int) (t Type, ok bool) {
	for g, size := range mlxGroups {
		if size == group {
			return FP8 + Type(g<<2), true
		}
	}
	return Invalid, false
}

// Integers reports whether the elements are stored as integers of at most 8 bits, so
// that they can be multiplied by 8-bit activations.
func (t Type) Integers() bool { return t.Quantized() && t.Family() != FP8 }

func init() {
	for b, bits := range mlxBits {
		for g, group := range mlxGroups {
			for s, scale := range mlxScales {
				t := MLX2 + Type(b<<4|g<<2|s)
				f := &mlx{bits: bits, group: group, scale: scale}
				_, f.size = scale.Block()
				blocks[t] = block{fmt.Sprintf("MLX%d_%d_%s", bits, group, scale), uint32(group), uint32(2*f.size + group*bits/8)}
				decoders[t], randomizers[t] = f.decode, randomizer{f.deviation(), f.random}
				if scale != F32 {
					tilings[t] = tiling{64 + 2*group*bits, f.tile, f.untile}
				}
			}
		}
	}
	for g, group := range mlxGroups {
		t := FP8 + Type(g<<2)
		blocks[t] = block{fmt.Sprintf("FP8_%d", group), uint32(group), uint32(4 + group)}
		decoders[t], randomizers[t] = decodeFP8, randomizer{99.67, randomFP8}
	}
}

// mlx implements the conversions of one affine type.
type mlx struct {
	bits, group int
	scale       Type
	size        int // bytes of a scale
}

// float reads a scale or a bias.
func (f *mlx) float(b []byte) float32 {
	switch f.scale {
	case F16:
		return half(b)
	case BF16:
		return BF16ToF32(binary.LittleEndian.Uint16(b))
	}
	return math.Float32frombits(word(b))
}

func (f *mlx) put(b []byte, v float32) {
	switch f.scale {
	case F16:
		putHalf(b, v)
	case BF16:
		binary.LittleEndian.PutUint16(b, F32ToBF16(v))
	default:
		putWord(b, math.Float32bits(v))
	}
}

// eight unpacks 8 quants from f.bits bytes, to one byte each.
func (f *mlx) eight(b []byte) uint64 {
	if f.bits == 8 {
		return binary.LittleEndian.Uint64(b)
	}
	var v, q uint64
	for i, c := range b[:f.bits] {
		v |= uint64(c) << (8 * i)
	}
	for i := range 8 {
		q |= v >> (f.bits * i) & (1<<f.bits - 1) << (8 * i)
	}
	return q
}

// putEight packs 8 quants; it is the inverse of eight.
func (f *mlx) putEight(b []byte, q uint64) {
	var v uint64
	for i := range 8 {
		v |= q >> (8 * i) & (1<<f.bits - 1) << (f.bits * i)
	}
	for i := range b[:f.bits] {
		b[i] = byte(v >> (8 * i))
	}
}

func (f *mlx) decode(dst []float32, b []byte) {
	d, m, qs := f.float(b), f.float(b[f.size:]), b[2*f.size:]
	for i := 0; i < f.group; i += 8 {
		q := f.eight(qs[i/8*f.bits:])
		for j := range 8 {
			dst[i+j] = float32(d*float32(byte(q>>(8*j)))) + m
		}
	}
}

// tile stores a block as row r of a strip in layout Tiled16, which splits quants of
// 3, 5 and 6 bits into two pieces.
func (f *mlx) tile(strip []byte, r int, b []byte) {
	tileHalf(strip, r, b)
	tileHalf(strip[32:], r, b[2:])
	strip, b = strip[64+4*r:], b[4:]
	for range f.group / 32 {
		var q [8]uint32 // quants of 4 columns each
		for i := range 4 {
			w := f.eight(b[i*f.bits:])
			q[2*i], q[2*i+1] = uint32(w), uint32(w>>32)
		}
		switch f.bits {
		case 2, 3:
			putPairs(strip, &q, 0)
			if f.bits == 3 {
				putBits(strip[128:], &q, 2)
			}
		case 8:
			for g, w := range q {
				putWord(strip[64*g:], w)
			}
		default:
			for g := range 4 {
				putWord(strip[64*g:], q[g]&0x0f0f0f0f|q[g+4]&0x0f0f0f0f<<4)
			}
			if f.bits == 5 {
				putBits(strip[256:], &q, 4)
			} else if f.bits == 6 {
				putPairs(strip[256:], &q, 4)
			}
		}
		strip, b = strip[min(64*f.bits, len(strip)):], b[4*f.bits:]
	}
}

func (f *mlx) untile(b, strip []byte, r int) {
	untileHalf(b, strip, r)
	untileHalf(b[2:], strip[32:], r)
	strip, b = strip[64+4*r:], b[4:]
	for range f.group / 32 {
		var q [8]uint32
		switch f.bits {
		case 2, 3:
			addPairs(&q, strip, 0)
			if f.bits == 3 {
				addBits(&q, strip[128:], 2)
			}
		case 8:
			for g := range q {
				q[g] = word(strip[64*g:])
			}
		default:
			for g := range 4 {
				w := word(strip[64*g:])
				q[g], q[g+4] = w&0x0f0f0f0f, w>>4&0x0f0f0f0f
			}
			if f.bits == 5 {
				addBits(&q, strip[256:], 4)
			} else if f.bits == 6 {
				addPairs(&q, strip[256:], 4)
			}
		}
		for i := range 4 {
			f.putEight(b[i*f.bits:], uint64(q[2*i])|uint64(q[2*i+1])<<32)
		}
		strip, b = strip[min(64*f.bits, len(strip)):], b[4*f.bits:]
	}
}

// putPairs stores bits at and at+1 of each quant; addPairs reads them back.
func putPairs(strip []byte, q *[8]uint32, at int) {
	pair := func(g int) uint32 { return q[g] >> at & 0x03030303 }
	for k := range 2 {
		putWord(strip[64*k:], pair(2*k)|pair(2*k+4)<<2|pair(2*k+1)<<4|pair(2*k+5)<<6)
	}
}

func addPairs(q *[8]uint32, strip []byte, at int) {
	for k := range 2 {
		w := word(strip[64*k:])
		for i, g := range [...]int{2 * k, 2*k + 4, 2*k + 1, 2*k + 5} {
			q[g] |= w >> (2 * i) & 0x03030303 << at
		}
	}
}

// putBits stores bit at of each quant; addBits reads it back.
func putBits(strip []byte, q *[8]uint32, at int) {
	var w uint32
	for g := range q {
		w |= q[g] >> at & 0x01010101 << g
	}
	putWord(strip, w)
}

func addBits(q *[8]uint32, strip []byte, at int) {
	w := word(strip)
	for g := range q {
		q[g] |= w >> g & 0x01010101 << at
	}
}

// deviation returns the standard deviation of the integers 0 to 2^bits-1.
func (f *mlx) deviation() float32 {
	n := float64(int(1) << f.bits)
	return float32(math.Sqrt((n*n - 1) / 12))
}

func (f *mlx) random(b []byte, d float32, _ *splitMix) {
	f.put(b, d)
	f.put(b[f.size:], -float32(int(1)<<f.bits-1)/2*f.float(b))
}

// e4m3 holds the value of each E4M3 byte (OCP FP8). The exponent's bias is 7. There
// are no infinities; if all bits except the sign are 1, the value is NaN.
var e4m3 = func() (v [256]float32) {
	for i := range v {
		e, m := i>>3&15, float64(i&7)
		x := math.Ldexp(m, -9)
		if e > 0 {
			x = math.Ldexp(8+m, e-10)
		}
		if i&0x7f == 0x7f {
			x = math.NaN()
		}
		v[i] = float32(math.Copysign(x, float64(0x7f-i)))
	}
	return v
}()

// E4M3 returns the value of an E4M3 byte.
func E4M3(b byte) float32 { return e4m3[b] }

func decodeFP8(dst []float32, b []byte) {
	d := math.Float32frombits(word(b))
	for i, c := range b[4:] {
		dst[i] = d * e4m3[c]
	}
}

// randomFP8 sets the scale. It keeps the random bytes of the elements but changes
// NaNs to numbers.
func randomFP8(b []byte, d float32, r *splitMix) {
	putWord(b, math.Float32bits(r.sign(d)))
	for i, c := range b[4:] {
		if c&0x7f == 0x7f {
			b[4+i] = c &^ 0x40
		}
	}
}
