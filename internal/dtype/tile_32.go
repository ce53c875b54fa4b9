package dtype

import "encoding/binary"

// word and putWord are four columns of a row at a time.
func word(b []byte) uint32       { return binary.LittleEndian.Uint32(b) }
func putWord(b []byte, w uint32) { binary.LittleEndian.PutUint32(b, w) }

// tileHalf and untileHalf copy the float16 of row r, of 16 that begin a strip.
func tileHalf(strip []byte, r int, block []byte)   { *(*[2]byte)(strip[2*r:]) = [2]byte(block) }
func untileHalf(block []byte, strip []byte, r int) { *(*[2]byte)(block) = [2]byte(strip[2*r:]) }

// tileGroups copies groups of 4 bytes. Nibbles need no more: a block of 32 has
// columns i and i+16 in byte i, as a tile does.
func tileGroups(strip []byte, r int, quants []byte) {
	for strip = strip[4*r:]; len(quants) >= 8; quants = quants[8:] {
		w := binary.LittleEndian.Uint64(quants)
		putWord(strip, uint32(w))
		putWord(strip[64:], uint32(w>>32))
		strip = strip[min(128, len(strip)):]
	}
}

func untileGroups(quants, strip []byte, r int) {
	for strip = strip[4*r:]; len(quants) >= 8; quants = quants[8:] {
		w := uint64(word(strip)) | uint64(word(strip[64:]))<<32
		binary.LittleEndian.PutUint64(quants, w)
		strip = strip[min(128, len(strip)):]
	}
}

// groupBits moves bit 4g+c, which is of column c of group g, to bit g of byte
// c. It exchanges bits of the bit's number two at a time: 0 and 2, 1 and 3, 2
// and 4, 3 and 4.
func groupBits(w uint32) uint32 {
	w = exchange(w, 3, 0x0a0a0a0a)
	w = exchange(w, 6, 0x00cc00cc)
	w = exchange(w, 12, 0x0000f0f0)
	return exchange(w, 8, 0x0000ff00)
}

// columnBits undoes groupBits.
func columnBits(w uint32) uint32 {
	w = exchange(w, 8, 0x0000ff00)
	w = exchange(w, 12, 0x0000f0f0)
	w = exchange(w, 6, 0x00cc00cc)
	return exchange(w, 3, 0x0a0a0a0a)
}

// exchange swaps the bits in mask with those that are shift places higher.
func exchange(w uint32, shift int, mask uint32) uint32 {
	d := (w>>shift ^ w) & mask
	return w ^ d ^ d<<shift
}
