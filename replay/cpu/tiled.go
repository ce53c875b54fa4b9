package cpu

import (
	"github.com/pianola-engine/pianola/internal/dtype"
)

// tiledInput is rows of quantised activations in a worker's private memory.
// Row j begins at mem[j*stride]: [in] int8, [in/32] float32 scales, [in/16]
// int16 sums of half blocks.
type tiledInput struct {
	mem    []byte
	stride int
	in     int
	rows   int
}

// row returns row j's quants, scales and sums.
func (t *tiledInput) row(j int) (q []int8, d []float32, s []int16) {
	row := t.mem[j*t.stride:]
	return int8s(row[:t.in]), float32s(row[t.in:][:t.in/8]), int16s(row[t.in+t.in/8:][:t.in/8])
}

// tiledFunc multiplies strips of 16 rows in layout dtype.Tiled16 with rows of
// activations: y[j*yStride + 16*s + r] = dot(row r of strip s, x row j).
//
// Each row of weights has one sum, to which blocks of 32 columns are added in
// order: sum += float32(d*dx) * float32(integers), products and sum rounded one
// by one, where integers is exact: the products of the quants less their
// offset, or the levels that they name, times the integer scales where the type
// has them. Minimums go to a second sum, += float32(m*dx) * float32(integers),
// which is added to the first at the end. Those integers are the minimums times
// the sums of x. As in rows, m is -dmin, or it is the minimum itself in Q4_1 and
// Q5_1, where the integer is 1.
type tiledFunc func(y []float32, yStride int, w []byte, strips int, x *tiledInput)

// tiledBlock is 32 columns of one row in integers. Scales and minimums are of
// columns 0 to 15 and 16 to 31.
type tiledBlock struct {
	q          [32]int32
	scale, min [2]int32
	d, m       float32
}

// tiledLoads decode sub-block j of row r of a tile, or of a block of tiles.
// What they do not set is 1 in integer scales and minimums.
var tiledLoads = map[dtype.Type]func(b *tiledBlock, tile []byte, j, r int){
	dtype.Q8_0:   loadQ8_0,
	dtype.Q4_0:   loadQ4_0,
	dtype.Q4_1:   loadQ4_1,
	dtype.Q5_0:   loadQ5_0,
	dtype.Q5_1:   loadQ5_1,
	dtype.Q2_K:   loadQ2_K,
	dtype.Q3_K:   loadQ3_K,
	dtype.Q4_K:   loadQ4_K,
	dtype.Q5_K:   loadQ5_K,
	dtype.Q6_K:   loadQ6_K,
	dtype.IQ4_NL: loadIQ4_NL,
	dtype.IQ4_XS: loadIQ4_XS,
	dtype.MXFP4:  loadMXFP4,
}

// tiledPortables returns the products of all types that have tiles.
func tiledPortables() map[dtype.Type]tiledFunc {
	products := map[dtype.Type]tiledFunc{}
	for t := range tiledLoads {
		products[t] = tiledPortable(t)
	}
	return products
}

// tiledRows is how many rows of activations a block is decoded for at a time.
const tiledRows = 4

// tiledPortable returns the product of a type, which is the reference.
func tiledPortable(t dtype.Type) tiledFunc {
	elems, _ := t.Block()
	size, _ := dtype.Tiled16.Bytes(t, dtype.TileRows, uint64(elems))
	per, mins, load := elems/blockElems, hasMinimum(t), tiledLoads[t]
	return func(y []float32, yStride int, w []byte, strips int, x *tiledInput) {
		blocks := x.in / elems
		b := tiledBlock{scale: [2]int32{1, 1}, min: [2]int32{1, 1}}
		for s := range strips {
			strip := w[s*blocks*int(size):][:blocks*int(size)]
			for r := range dtype.TileRows {
				for first := 0; first < x.rows; first += tiledRows {
					var sum, least [tiledRows]float32
					n := min(tiledRows, x.rows-first)
					for i := range blocks * per {
						load(&b, strip[i/per*int(size):][:size], i%per, r)
						for j := range n {
							q, d, sums := x.row(first + j)
							part := b.products(q[i*blockElems:])
							sum[j] += float32(float32(b.d*d[i]) * float32(part[0]*b.scale[0]+part[1]*b.scale[1]))
							if mins {
								least[j] += float32(float32(b.m*d[i]) * float32(b.min[0]*int32(sums[2*i])+b.min[1]*int32(sums[2*i+1])))
							}
						}
					}
					for j := range n {
						y[(first+j)*yStride+dtype.TileRows*s+r] = sum[j] + least[j]
					}
				}
			}
		}
	}
}

// products returns the sums of products with a block of q, of columns 0 to 15
// and of columns 16 to 31.
func (b *tiledBlock) products(q []int8) (part [2]int32) {
	q = q[:blockElems]
	for c, w := range b.q {
		part[c/16] += w * int32(q[c])
	}
	return part
}

// tiledHalf returns the float16 of row r, of 16 that lie at the start of p.
func tiledHalf(p []byte, r int) float32 { return half(p[2*r:]) }

// nibbles sets the quants of row r to 256 bytes of nibbles, less zero.
func (b *tiledBlock) nibbles(p []byte, r int, zero int32) {
	for c := range b.q {
		b.q[c] = int32(p[64*(c%16/4)+4*r+c%4]>>(4*(c/16))&15) - zero
	}
}

// levels sets them to the levels that the nibbles name.
func (b *tiledBlock) levels(p []byte, r int, levels *[16]int8) {
	b.nibbles(p, r, 0)
	for c, q := range b.q {
		b.q[c] = int32(levels[q])
	}
}

// addPairs adds 128 bytes of pairs of bits, times unit.
func (b *tiledBlock) addPairs(p []byte, r int, unit int32) {
	for c := range b.q {
		g := c % 16 / 4
		b.q[c] += unit * int32(p[64*(g/2)+4*r+c%4]>>(4*(g%2)+2*(c/16))&3)
	}
}

// addBits adds 64 bytes of single bits, times unit.
func (b *tiledBlock) addBits(p []byte, r int, unit int32) {
	for c := range b.q {
		b.q[c] += unit * int32(p[4*r+c%4]>>(c/4)&1)
	}
}

// fill sets the quants to a value, to which others are added.
func (b *tiledBlock) fill(v int32) {
	for c := range b.q {
		b.q[c] = v
	}
}

func loadQ8_0(b *tiledBlock, tile []byte, _, r int) {
	b.d = tiledHalf(tile[512:], r)
	for c := range b.q {
		b.q[c] = int32(int8(tile[64*(c/4)+4*r+c%4]))
	}
}

func loadQ4_0(b *tiledBlock, tile []byte, _, r int) {
	b.d = tiledHalf(tile[256:], r)
	b.nibbles(tile, r, 8)
}

func loadQ4_1(b *tiledBlock, tile []byte, _, r int) {
	b.d, b.m = tiledHalf(tile[256:], r), tiledHalf(tile[288:], r)
	b.nibbles(tile, r, 0)
}

func loadQ5_0(b *tiledBlock, tile []byte, _, r int) {
	b.d = tiledHalf(tile[320:], r)
	b.nibbles(tile, r, 16)
	b.addBits(tile[256:], r, 16)
}

func loadQ5_1(b *tiledBlock, tile []byte, _, r int) {
	b.d, b.m = tiledHalf(tile[320:], r), tiledHalf(tile[352:], r)
	b.nibbles(tile, r, 0)
	b.addBits(tile[256:], r, 16)
}

func loadIQ4_NL(b *tiledBlock, tile []byte, _, r int) {
	b.d = tiledHalf(tile[256:], r)
	b.levels(tile, r, &levelsIQ4)
}

func loadMXFP4(b *tiledBlock, tile []byte, _, r int) {
	b.d = halfE8M0(tile[256+r])
	b.levels(tile, r, &levelsMXFP4)
}

func loadQ2_K(b *tiledBlock, tile []byte, j, r int) {
	b.d, b.m = tiledHalf(tile, r), -tiledHalf(tile[32:], r)
	low, high := tile[64+32*j+r], tile[64+32*j+16+r]
	b.scale, b.min = [2]int32{int32(low & 15), int32(high & 15)}, [2]int32{int32(low >> 4), int32(high >> 4)}
	b.fill(0)
	b.addPairs(tile[320+128*j:], r, 1)
}

func loadQ3_K(b *tiledBlock, tile []byte, j, r int) {
	b.d = tiledHalf(tile, r)
	b.scale = [2]int32{int32(int8(tile[32+32*j+r])), int32(int8(tile[32+32*j+16+r]))}
	quants := tile[288+192*j:]
	b.fill(-4)
	b.addPairs(quants, r, 1)
	b.addBits(quants[128:], r, 4)
}

func loadQ4_K(b *tiledBlock, tile []byte, j, r int) {
	b.d, b.m = tiledHalf(tile, r), -tiledHalf(tile[32:], r)
	tile = tile[64+288*j:]
	b.scaleMin(tile, r)
	b.nibbles(tile[32:], r, 0)
}

func loadQ5_K(b *tiledBlock, tile []byte, j, r int) {
	b.d, b.m = tiledHalf(tile, r), -tiledHalf(tile[32:], r)
	b.scaleMin(tile[64+32*j:], r)
	quants := tile[320+320*j:]
	b.nibbles(quants, r, 0)
	b.addBits(quants[256:], r, 16)
}

// scaleMin sets scale and minimum, of all 32 columns, to bytes r and 16+r.
func (b *tiledBlock) scaleMin(p []byte, r int) {
	scale, min := int32(p[r]), int32(p[16+r])
	b.scale, b.min = [2]int32{scale, scale}, [2]int32{min, min}
}

func loadQ6_K(b *tiledBlock, tile []byte, j, r int) {
	b.d = tiledHalf(tile, r)
	tile = tile[32+416*j:]
	b.scale = [2]int32{int32(int8(tile[r])), int32(int8(tile[16+r]))}
	b.nibbles(tile[32:], r, 32)
	b.addPairs(tile[288:], r, 16)
}

func loadIQ4_XS(b *tiledBlock, tile []byte, j, r int) {
	b.d = tiledHalf(tile, r)
	scale := int32(int8(tile[32+16*j+r]))
	b.scale = [2]int32{scale, scale}
	b.levels(tile[160+256*j:], r, &levelsIQ4)
}
