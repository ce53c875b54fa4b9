package cpu

import (
	"encoding/binary"

	"github.com/pianola-engine/pianola/dtype"
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
// offset, times the integer scales where the type has them. Minimums go to a
// second sum, += float32(-dmin*dx) * float32(min*sum of x), which is added to
// the first at the end.
type tiledFunc func(y []float32, yStride int, w []byte, strips int, x *tiledInput)

// tiledBlock is 32 columns of one row in integers.
type tiledBlock struct {
	q     [32]int32
	scale [2]int32 // of columns 0 to 15 and 16 to 31
	min   int32
	d, m  float32
}

// tiledPortable returns the product of a type, which is the reference.
func tiledPortable(t dtype.Type) tiledFunc {
	elems, _ := t.Block()
	size, _ := dtype.Tiled16.Bytes(t, dtype.TileRows, uint64(elems))
	per, mins := elems/blockElems, hasMinimum(t)
	return func(y []float32, yStride int, w []byte, strips int, x *tiledInput) {
		blocks := x.in / elems
		var b tiledBlock
		for s := range strips {
			strip := w[s*blocks*int(size):][:blocks*int(size)]
			for r := range dtype.TileRows {
				for j := range x.rows {
					q, d, sums := x.row(j)
					var sum, least float32
					for i, dx := range d {
						b.load(t, strip[i/per*int(size):][:size], i%per, r)
						v := q[i*blockElems:][:blockElems]
						var part [2]int32
						for c, w := range b.q {
							part[c/16] += w * int32(v[c])
						}
						sum += float32(float32(b.d*dx) * float32(part[0]*b.scale[0]+part[1]*b.scale[1]))
						if mins {
							least += float32(float32(b.m*dx) * float32(b.min*(int32(sums[2*i])+int32(sums[2*i+1]))))
						}
					}
					y[j*yStride+dtype.TileRows*s+r] = sum + least
				}
			}
		}
	}
}

// load decodes sub-block j of row r of a tile, or of a block of tiles.
func (b *tiledBlock) load(t dtype.Type, tile []byte, j, r int) {
	f16 := func(at int) float32 { return dtype.F16ToF32(binary.LittleEndian.Uint16(tile[at:])) }
	b.scale, b.min, b.m = [2]int32{1, 1}, 0, 0
	switch t {
	case dtype.Q8_0:
		b.d = f16(512 + 2*r)
		for c := range b.q {
			b.q[c] = int32(int8(tile[64*(c/4)+4*r+c%4]))
		}
	case dtype.Q4_0:
		b.d = f16(256 + 2*r)
		b.nibbles(tile, r, 8)
	case dtype.Q4_K:
		b.d, b.m = f16(2*r), -f16(32+2*r)
		sub := tile[64+288*j:][:288]
		b.scale, b.min = [2]int32{int32(sub[r]), int32(sub[r])}, int32(sub[16+r])
		b.nibbles(sub[32:], r, 0)
	case dtype.Q6_K:
		b.d = f16(2 * r)
		sub := tile[32+416*j:][:416]
		b.scale = [2]int32{int32(int8(sub[r])), int32(int8(sub[16+r]))}
		b.nibbles(sub[32:], r, 0)
		for c := range b.q {
			g := c % 16 / 4
			high := sub[288+64*(g/2)+4*r+c%4] >> (4*(g%2) + 2*(c/16)) & 3
			b.q[c] += int32(high)<<4 - 32
		}
	}
}

// nibbles decodes 256 bytes of nibbles for row r.
func (b *tiledBlock) nibbles(p []byte, r int, zero int32) {
	for c := range b.q {
		b.q[c] = int32(p[64*(c%16/4)+4*r+c%4]>>(4*(c/16))&15) - zero
	}
}
