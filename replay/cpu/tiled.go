package cpu

import (
	"github.com/pianola-engine/pianola/internal/dtype"
)

// tiledInput holds rows of quantised activations in a worker's private memory. Row j begins at
// mem[j*stride]: [in] int8, [in/32] float32 scales, and [in/16] int16 sums of half blocks or, if the weights'
// type has wholeSums, [in/32] float32 sums of blocks times their scales.
type tiledInput struct {
	mem    []byte
	stride int
	in     int
	rows   int
}

// row returns row j's quants, scales and sums.
func (t *tiledInput) row(j int) (q []int8, d []float32, s []byte) {
	row := t.mem[j*t.stride:]
	return int8s(row[:t.in]), float32s(row[t.in:][:t.in/8]), row[t.in+t.in/8:][:t.in/8]
}

// wholeSums reports whether tiled products of a type need the sums of whole blocks of the activations, times their
// scales, because one minimum belongs to a block. Those of other types need the sums of half blocks, if any.
func wholeSums(t dtype.Type) bool {
	f := dtype.FormOf(t)
	return f != nil && f.Minimum && f.Sub != blockElems/2
}

// sum sets s to the sums of activations, of whole blocks or of half blocks.
func (o *ops) sum(s []byte, q []int8, d []float32, whole bool) {
	if whole {
		o.sumBlocks(float32s(s), q, d)
	} else {
		o.sumHalves(int16s(s), q)
	}
}

// sumBlocks sets s to the sums of the blocks of q times their scales d.
func sumBlocks(s []float32, q []int8, d []float32) {
	for i := range s {
		var sum int32
		for _, v := range q[blockElems*i:][:blockElems] {
			sum += int32(v)
		}
		s[i] = d[i] * float32(sum)
	}
}

// tiledFunc multiplies strips of 16 rows in layout dtype.Tiled16 with rows of activations:
// y[j*yStride + 16*s + r] = dot(row r of strip s, x row j).
//
// Each row of weights has one sum, to which blocks of 32 columns are added in order, each by a fused
// multiplication and addition: sum += float32(d*dx) * float32(integers). integers is exact: the sum of
// the products of x and the quants minus their offset (or the levels that the quants select), times the
// integer scales, if the type has them. If there is one scale for all 32 columns, sum += (d*scale) *
// float32(dx*integers) instead, where the first factor is exact and integers are the products without the
// scale: the first factor belongs to the weights alone, so rows of x share it.
//
// Minimums are added to the same sum, after the products of their block: sum += (m*min) * float32(dx*s),
// where s is the sum of x, or if there are two minimums sum += float32(m*dx) * float32(integers), where
// integers is the sum of x times the minimums. As in rows, m is -dmin; in Q4_1 and Q5_1 m is the minimum
// itself and the integer minimum is 1.
type tiledFunc func(y []float32, yStride int, w []byte, strips int, x *tiledInput)

// scaledTiles reports whether a type has integer scales, and whether there are two of them, and two minimums, for 32
// columns.
func scaledTiles(t dtype.Type) (scaled, two bool) {
	f := dtype.FormOf(t)
	if f == nil {
		return false, false // MLX
	}
	return f.Sub > 0, f.Sub == blockElems/2
}

// tiledBlock holds 32 columns of one row as integers. Scales and minimums have one value for
// columns 0 to 15 and one for columns 16 to 31.
type tiledBlock struct {
	q          [32]int32
	scale, min [2]int32
	d, m       float32
}

// tiledLoads decode sub-block j of row r of a tile, or of a block of tiles. Integer scales and
// minimums that they do not set are 1.
var tiledLoads = func() map[dtype.Type]tiledLoad {
	loads := map[dtype.Type]tiledLoad{}
	for _, f := range dtype.Forms() {
		if f.Type.Quantized() {
			loads[f.Type] = loadForm(f)
		}
	}
	return loads
}()

type tiledLoad func(b *tiledBlock, tile []byte, j, r int)

// tiledPortables returns the portable product of every type that can be tiled.
func tiledPortables() map[dtype.Type]tiledFunc {
	products := map[dtype.Type]tiledFunc{}
	for t := range tiledLoads {
		products[t] = tiledPortable(t)
	}
	return products
}

// shareTiles sets the product of each type that lacks one to the product of a type with the same
// tiles.
func shareTiles(products map[dtype.Type]tiledFunc) {
	for _, f := range dtype.Forms() {
		if _, ok := products[f.Type]; ok {
			continue
		}
		for _, g := range dtype.Forms() {
			if product, ok := products[g.Type]; ok && f.SameTiles(g) {
				products[f.Type] = product
			}
		}
	}
}

// tiledRows is the number of rows of activations that a block is decoded for at a time.
const tiledRows = 4

// tiledPortable returns the product of a type, which is the reference for the assembly.
func tiledPortable(t dtype.Type) tiledFunc {
	elems, _ := t.Block()
	size, _ := dtype.Tiled16.Bytes(t, dtype.TileRows, uint64(elems))
	per, mins, whole, load := elems/blockElems, hasMinimum(t), wholeSums(t), tiledLoads[t]
	scaled, two := scaledTiles(t)
	return func(y []float32, yStride int, w []byte, strips int, x *tiledInput) {
		blocks := x.in / elems
		b := tiledBlock{scale: [2]int32{1, 1}, min: [2]int32{1, 1}}
		for s := range strips {
			strip := w[s*blocks*int(size):][:blocks*int(size)]
			for r := range dtype.TileRows {
				for first := 0; first < x.rows; first += tiledRows {
					var sum [tiledRows]float32
					n := min(tiledRows, x.rows-first)
					for i := range blocks * per {
						load(&b, strip[i/per*int(size):][:size], i%per, r)
						for j := range n {
							q, d, sums := x.row(first + j)
							part := b.products(q[i*blockElems:])
							if scaled && !two {
								sum[j] = fma32(float32(b.d*float32(b.scale[0])), float32(d[i]*float32(part[0]+part[1])), sum[j])
							} else {
								// The sum has up to 33 bits in types with scales of UE4M3.
								integer := int64(part[0])*int64(b.scale[0]) + int64(part[1])*int64(b.scale[1])
								sum[j] = fma32(float32(b.d*d[i]), float32(integer), sum[j])
							}
							switch {
							case whole:
								sum[j] = fma32(float32(b.m*float32(b.min[0])), float32s(sums)[i], sum[j])
							case mins:
								low, high := int32(int16s(sums)[2*i]), int32(int16s(sums)[2*i+1])
								if two {
									sum[j] = fma32(float32(b.m*d[i]), float32(b.min[0]*low+b.min[1]*high), sum[j])
								} else {
									sum[j] = fma32(b.m, float32(d[i]*float32(low+high)), sum[j])
								}
							}
						}
					}
					for j := range n {
						y[(first+j)*yStride+dtype.TileRows*s+r] = sum[j]
					}
				}
			}
		}
	}
}

// products returns the sums of products with a block of q, of columns 0 to 15 and of columns 16
// to 31.
func (b *tiledBlock) products(q []int8) (part [2]int32) {
	q = q[:blockElems]
	for c, w := range b.q {
		part[c/16] += w * int32(q[c])
	}
	return part
}

// tiledHalf returns the float16 of row r of the 16 at the start of p.
func tiledHalf(p []byte, r int) float32 { return half(p[2*r:]) }

// nibbles sets the quants of row r from p, 256 bytes of 4-bit values, and subtracts zero from each.
func (b *tiledBlock) nibbles(p []byte, r int, zero int32) {
	for c := range b.q {
		b.q[c] = int32(p[64*(c%16/4)+4*r+c%4]>>(4*(c/16))&15) - zero
	}
}

// addPairs adds the 2-bit values of row r in p, 128 bytes, multiplied by unit.
func (b *tiledBlock) addPairs(p []byte, r int, unit int32) {
	for c := range b.q {
		g := c % 16 / 4
		b.q[c] += unit * int32(p[64*(g/2)+4*r+c%4]>>(4*(g%2)+2*(c/16))&3)
	}
}

// addBits adds the bits of row r in p, 64 bytes, multiplied by unit.
func (b *tiledBlock) addBits(p []byte, r int, unit int32) {
	for c := range b.q {
		b.q[c] += unit * int32(p[4*r+c%4]>>(c/4)&1)
	}
}

// fill sets all quants to v; other functions add to them.
func (b *tiledBlock) fill(v int32) {
	for c := range b.q {
		b.q[c] = v
	}
}

// loadForm returns the function of tiledLoads for a declared type.
func loadForm(f *dtype.Form) tiledLoad {
	t, zero := f.Tile(), int32(f.Zero)
	high := 0 // bits of the further part of a quant
	if len(f.Quants) > 1 {
		high = f.Quants[1].Bits
	}
	return func(b *tiledBlock, tile []byte, j, r int) {
		tile = tile[j/t.Tiles*t.Bytes:]
		j %= t.Tiles
		b.loadFloats(f, &t, tile, r)
		quants := tile[t.Quants+j*t.QuantsStep:]
		switch t.Parts {
		case 8:
			for c := range b.q {
				b.q[c] = int32(int8(quants[64*(c/4)+4*r+c%4]))
			}
		case 4:
			b.nibbles(quants, r, zero)
		case 2:
			b.fill(-zero)
			b.addPairs(quants, r, 1)
		}
		switch {
		case f.Levels != nil:
			for c, q := range b.q {
				b.q[c] = int32(f.Levels[q])
			}
		case high == 1:
			b.addBits(quants[t.High:], r, 1<<t.Parts)
		case high == 2:
			b.addPairs(quants[t.High:], r, 1<<t.Parts)
		}
		if f.Parts() > 0 {
			b.loadScales(f, tile[t.Scales+j*t.ScalesStep+r:])
		}
	}
}

// loadFloats sets d and m to the scales and minimums of row r.
func (b *tiledBlock) loadFloats(f *dtype.Form, t *dtype.TileForm, tile []byte, r int) {
	switch f.D {
	case dtype.Half:
		b.d = tiledHalf(tile[t.D:], r)
	case dtype.HalfE8M0:
		b.d = dtype.E8M0Half(tile[t.D+r])
	case dtype.Constant:
		b.d = dtype.ConstantScale
	}
	if f.Minimum {
		if b.m = tiledHalf(tile[t.M:], r); f.Parts() > 0 {
			b.m = -b.m
		}
	}
}

// loadScales sets the integer scales and minimums from the bytes at p, which points to row r's
// first one. The first byte is the scale of columns 0 to 15, or of all 32. The byte 16 further on
// is the scale of columns 16 to 31, or the minimum.
func (b *tiledBlock) loadScales(f *dtype.Form, p []byte) {
	first, second := p[0], p[0]
	if f.Sub == 16 {
		second = p[dtype.TileRows]
	}
	switch {
	case f.PackedTile:
		b.scale = [2]int32{int32(first & 15), int32(second & 15)}
		b.min = [2]int32{int32(first >> 4), int32(second >> 4)}
	case f.Minimum:
		min := int32(p[dtype.TileRows])
		b.scale, b.min = [2]int32{int32(first), int32(first)}, [2]int32{min, min}
	case f.ScaleType == dtype.HalfUE4M3:
		b.scale = [2]int32{dtype.UE4M3Half(first), dtype.UE4M3Half(second)}
	default:
		b.scale = [2]int32{int32(int8(first)), int32(int8(second))}
	}
}
