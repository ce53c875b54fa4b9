package dtype

// Blocks of 256 are rearranged four columns at a time, as words. Sub-block j of
// the file, 32 columns, is tile j of the strip.

const (
	lowNibbles = 0x0f0f0f0f
	bits45     = 0x30303030 // the highest two bits of a scale of 6
)

// tileNibbles makes 32 bytes the nibbles of two tiles: their low nibbles are
// the columns of the first, their high nibbles those of the second.
func tileNibbles(first, second []byte, r int, quants []byte) {
	quants = quants[:32]
	for g := range 4 {
		a, b := word(quants[4*g:]), word(quants[16+4*g:])
		putWord(first[64*g+4*r:], a&lowNibbles|b&lowNibbles<<4)
		putWord(second[64*g+4*r:], a>>4&lowNibbles|b&^lowNibbles)
	}
}

func untileNibbles(quants, first, second []byte, r int) {
	quants = quants[:32]
	for g := range 4 {
		a, b := word(first[64*g+4*r:]), word(second[64*g+4*r:])
		putWord(quants[4*g:], a&lowNibbles|b&lowNibbles<<4)
		putWord(quants[16+4*g:], a>>4&lowNibbles|b&^lowNibbles)
	}
}

// tilePairs makes 32 bytes the pairs of four tiles, the first at strip[0] and
// each step bytes after the one before: pair k of a byte belongs to tile k.
func tilePairs(strip []byte, step, r int, quants []byte) {
	quants = quants[:32]
	for k := range 2 {
		q := quants[8*k:]
		w := transposePairs([4]uint32{word(q), word(q[16:]), word(q[4:]), word(q[20:])})
		for j, w := range w {
			putWord(strip[step*j+64*k+4*r:], w)
		}
	}
}

func untilePairs(quants, strip []byte, step, r int) {
	quants = quants[:32]
	for k := range 2 {
		var w [4]uint32
		for j := range w {
			w[j] = word(strip[step*j+64*k+4*r:])
		}
		w = transposePairs(w)
		q := quants[8*k:]
		putWord(q, w[0])
		putWord(q[16:], w[1])
		putWord(q[4:], w[2])
		putWord(q[20:], w[3])
	}
}

// transposePairs swaps, in each byte, pair i of word j with pair j of word i.
func transposePairs(w [4]uint32) [4]uint32 {
	w[0], w[1] = swap(w[0], w[1], 2, 0x33333333)
	w[2], w[3] = swap(w[2], w[3], 2, 0x33333333)
	w[0], w[2] = swap(w[0], w[2], 4, lowNibbles)
	w[1], w[3] = swap(w[1], w[3], 4, lowNibbles)
	return w
}

// swap swaps the bits of b in mask with those of a that are shift places
// higher.
func swap(a, b uint32, shift int, mask uint32) (uint32, uint32) {
	d := (a>>shift ^ b) & mask
	return a ^ d<<shift, b ^ d
}

// tileBits makes 32 bytes the bits of eight tiles, the first at strip[0] and
// each step bytes after the one before: bit j of a byte belongs to tile j.
func tileBits(strip []byte, step, r int, quants []byte) {
	quants = quants[:32]
	var w [8]uint32
	for g := range w {
		w[g] = word(quants[4*g:])
	}
	transposeBits(&w)
	for j, w := range w {
		putWord(strip[step*j+4*r:], w)
	}
}

func untileBits(quants, strip []byte, step, r int) {
	quants = quants[:32]
	var w [8]uint32
	for j := range w {
		w[j] = word(strip[step*j+4*r:])
	}
	transposeBits(&w)
	for g, w := range w {
		putWord(quants[4*g:], w)
	}
}

// transposeBits swaps, in each byte, bit i of word j with bit j of word i.
func transposeBits(w *[8]uint32) {
	for i := 0; i < 8; i += 2 {
		w[i], w[i+1] = swap(w[i], w[i+1], 1, 0x55555555)
	}
	for i := 0; i < 8; i += 4 {
		w[i], w[i+2] = swap(w[i], w[i+2], 2, 0x33333333)
		w[i+1], w[i+3] = swap(w[i+1], w[i+3], 2, 0x33333333)
	}
	for i := range 4 {
		w[i], w[i+4] = swap(w[i], w[i+4], 4, lowNibbles)
	}
}

func tileQ2_K(strip []byte, r int, block []byte) {
	scales, quants := block[:16], block[16:80]
	tileHalf(strip, r, block[80:])
	tileHalf(strip[32:], r, block[82:])
	for s, v := range scales {
		strip[64+16*s+r] = v
	}
	for half := range 2 {
		tilePairs(strip[320+512*half:], 128, r, quants[32*half:])
	}
}

func untileQ2_K(block, strip []byte, r int) {
	scales, quants := block[:16], block[16:80]
	untileHalf(block[80:], strip, r)
	untileHalf(block[82:], strip[32:], r)
	for s := range scales {
		scales[s] = strip[64+16*s+r]
	}
	for half := range 2 {
		untilePairs(quants[32*half:], strip[320+512*half:], 128, r)
	}
}

func tileQ3_K(strip []byte, r int, block []byte) {
	high, quants, scales := block[:32], block[32:96], block[96:108]
	tileHalf(strip, r, block[108:])
	for i, w := range unpackQ3_K(scales) {
		signed := w ^ 0x20202020
		signed |= signed&0x20202020<<1 | signed&0x20202020<<2
		for s := range 4 {
			strip[32+64*i+16*s+r] = byte(signed >> (8 * s))
		}
	}
	for half := range 2 {
		tilePairs(strip[288+768*half:], 192, r, quants[32*half:])
	}
	tileBits(strip[288+128:], 192, r, high)
}

func untileQ3_K(block, strip []byte, r int) {
	high, quants, scales := block[:32], block[32:96], block[96:108]
	untileHalf(block[108:], strip, r)
	var unpacked [4]uint32
	for i := range unpacked {
		for s := range 4 {
			unpacked[i] |= uint32((strip[32+64*i+16*s+r]+32)&63) << (8 * s)
		}
	}
	packQ3_K(scales, unpacked)
	for half := range 2 {
		untilePairs(quants[32*half:], strip[288+768*half:], 192, r)
	}
	untileBits(high, strip[288+128:], 192, r)
}

// unpackQ3_K returns the 16 scales that scaleQ3_K does, 4 in a word.
func unpackQ3_K(scales []byte) [4]uint32 {
	a, b, high := word(scales), word(scales[4:]), word(scales[8:])
	return [4]uint32{
		a&lowNibbles | high<<4&bits45, b&lowNibbles | high<<2&bits45,
		a>>4&lowNibbles | high&bits45, b>>4&lowNibbles | high>>2&bits45,
	}
}

func packQ3_K(scales []byte, w [4]uint32) {
	putWord(scales, w[0]&lowNibbles|w[2]&lowNibbles<<4)
	putWord(scales[4:], w[1]&lowNibbles|w[3]&lowNibbles<<4)
	putWord(scales[8:], w[0]&bits45>>4|w[1]&bits45>>2|w[2]&bits45|w[3]&bits45<<2)
}

// tileScalesK4 unpacks the scales and minimums of Q4_K and Q5_K; those of tile j
// go to strip[step*j].
func tileScalesK4(strip []byte, step, r int, packed []byte) {
	a, b, c := word(packed), word(packed[4:]), word(packed[8:])
	scales := [2]uint32{a &^ 0xc0c0c0c0, c&lowNibbles | a>>2&bits45}
	mins := [2]uint32{b &^ 0xc0c0c0c0, c>>4&lowNibbles | b>>2&bits45}
	for j := range 8 {
		strip[step*j+r] = byte(scales[j/4] >> (8 * (j % 4)))
		strip[step*j+16+r] = byte(mins[j/4] >> (8 * (j % 4)))
	}
}

func untileScalesK4(packed, strip []byte, step, r int) {
	var scales, mins [2]uint32
	for j := range 8 {
		scales[j/4] |= uint32(strip[step*j+r]&63) << (8 * (j % 4))
		mins[j/4] |= uint32(strip[step*j+16+r]&63) << (8 * (j % 4))
	}
	putWord(packed, scales[0]|scales[1]&bits45<<2)
	putWord(packed[4:], mins[0]|mins[1]&bits45<<2)
	putWord(packed[8:], scales[1]&lowNibbles|mins[1]&lowNibbles<<4)
}

func tileQ4_K(strip []byte, r int, block []byte) {
	tileHalf(strip, r, block)
	tileHalf(strip[32:], r, block[2:])
	tileScalesK4(strip[64:], 288, r, block[4:16])
	for k := range 4 {
		at := 64 + 32 + 2*288*k
		tileNibbles(strip[at:], strip[at+288:], r, block[16+32*k:])
	}
}

func untileQ4_K(block, strip []byte, r int) {
	untileHalf(block, strip, r)
	untileHalf(block[2:], strip[32:], r)
	untileScalesK4(block[4:16], strip[64:], 288, r)
	for k := range 4 {
		at := 64 + 32 + 2*288*k
		untileNibbles(block[16+32*k:], strip[at:], strip[at+288:], r)
	}
}

func tileQ5_K(strip []byte, r int, block []byte) {
	tileHalf(strip, r, block)
	tileHalf(strip[32:], r, block[2:])
	tileScalesK4(strip[64:], 32, r, block[4:16])
	for k := range 4 {
		at := 320 + 2*320*k
		tileNibbles(strip[at:], strip[at+320:], r, block[48+32*k:])
	}
	tileBits(strip[320+256:], 320, r, block[16:])
}

func untileQ5_K(block, strip []byte, r int) {
	untileHalf(block, strip, r)
	untileHalf(block[2:], strip[32:], r)
	untileScalesK4(block[4:16], strip[64:], 32, r)
	for k := range 4 {
		at := 320 + 2*320*k
		untileNibbles(block[48+32*k:], strip[at:], strip[at+320:], r)
	}
	untileBits(block[16:], strip[320+256:], 320, r)
}

func tileQ6_K(strip []byte, r int, block []byte) {
	low, high, scales := block[:128], block[128:192], block[192:208]
	tileHalf(strip, r, block[208:])
	for s, v := range scales {
		strip[32+416*(s/2)+16*(s%2)+r] = v
	}
	// A half is 128 columns. In it, tiles k and k+2 share bytes of low bits.
	for half := range 2 {
		tiles := strip[32+32+4*416*half:]
		for k := range 2 {
			tileNibbles(tiles[416*k:], tiles[416*(k+2):], r, low[64*half+32*k:])
		}
		tilePairs(tiles[256:], 416, r, high[32*half:])
	}
}

func untileQ6_K(block, strip []byte, r int) {
	low, high, scales := block[:128], block[128:192], block[192:208]
	untileHalf(block[208:], strip, r)
	for s := range scales {
		scales[s] = strip[32+416*(s/2)+16*(s%2)+r]
	}
	for half := range 2 {
		tiles := strip[32+32+4*416*half:]
		for k := range 2 {
			untileNibbles(low[64*half+32*k:], tiles[416*k:], tiles[416*(k+2):], r)
		}
		untilePairs(high[32*half:], tiles[256:], 416, r)
	}
}

func tileIQ4_XS(strip []byte, r int, block []byte) {
	tileHalf(strip, r, block)
	high, low, quants := uint16(block[2])|uint16(block[3])<<8, block[4:8], block[8:136]
	for j := range 8 {
		scale := low[j/2]>>(4*(j%2))&15 | byte(high>>(2*j)&3)<<4
		strip[32+16*j+r] = scale - 32
		tileGroups(strip[160+256*j:], r, quants[16*j:][:16])
	}
}

func untileIQ4_XS(block, strip []byte, r int) {
	untileHalf(block, strip, r)
	var high uint16
	var low uint32
	for j := range 8 {
		scale := strip[32+16*j+r] + 32
		low |= uint32(scale&15) << (4 * j)
		high |= uint16(scale>>4&3) << (2 * j)
		untileGroups(block[8+16*j:][:16], strip[160+256*j:], r)
	}
	block[2], block[3] = byte(high), byte(high>>8)
	putWord(block[4:], low)
}
