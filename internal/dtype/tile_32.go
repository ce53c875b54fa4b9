package dtype

import "encoding/binary"

// word and putWord read and write four columns of a row.
func word(b []byte) uint32       { return binary.LittleEndian.Uint32(b) }
func putWord(b []byte, w uint32) { binary.LittleEndian.PutUint32(b, w) }

// tileHalf and untileHalf copy the float16 of row r. A strip begins with the numbers of its 16
// rows.
func tileHalf(strip []byte, r int, block []byte)   { *(*[2]byte)(strip[2*r:]) = [2]byte(block) }
func untileHalf(block []byte, strip []byte, r int) { *(*[2]byte)(block) = [2]byte(strip[2*r:]) }

// tileGroups copies groups of 4 bytes. For nibbles this is sufficient: byte i of a block of 32
// holds columns i and i+16, as in a tile.
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

// groupBits moves bit 4g+c, which belongs to column c of group g, to bit g of byte c. This permutes
// the five binary digits of a bit's number. Each exchange swaps two of these digits: 0 and 2, 1 and
// 3, 2 and 4, and 3 and 4.
func groupBits(w uint32) uint32 {
	w = exchange(w, 3, 0x0a0a0a0a)
	w = exchange(w, 6, 0x00cc00cc)
	w = exchange(w, 12, 0x0000f0f0)
	return exchange(w, 8, 0x0000ff00)
}

// columnBits is the inverse of groupBits.
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
