package dtype

// Blocks of 256 are rearranged four columns at a time, as words. Sub-block j of
// the file, 32 columns, is tile j of the strip.

const lowNibbles = 0x0f0f0f0f

// tileNibbles converts 32 bytes to the nibbles of two tiles. The low nibbles are
// the columns of the first tile, the high nibbles the columns of the second.
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

// tilePairs converts 32 bytes to the pairs of bits of four tiles: pair k of a byte belongs
// to tile k. The first tile is at strip[0], and each next one step bytes further.
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

// tileBits converts 32 bytes to the bits of eight tiles: bit j of a byte belongs to tile j.
// The first tile is at strip[0], and each next one step bytes further.
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
