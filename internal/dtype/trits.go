package dtype

// This file packs quants of three values as digits of base 3, as TQ1_0 does. A byte stores a number
// n of five digits as ceil(n*256/243). The highest digit is the integer part of 3*byte/256.

// trits is the field of 256 quants: five in each of 48 bytes and four in each of 4 bytes.
var trits = Field{Runs: []Run{
	{0, 32, 0}, {0, 32, 1}, {0, 32, 2}, {0, 32, 3}, {0, 32, 4},
	{32, 16, 0}, {32, 16, 1}, {32, 16, 2}, {32, 16, 3}, {32, 16, 4},
	{48, 4, 0}, {48, 4, 1}, {48, 4, 2}, {48, 4, 3},
}}

// trit returns a digit of a byte; digit 0 is the highest.
func trit(b byte, digit uint8) byte {
	return byte(uint16(b*[...]byte{1, 3, 9, 27, 81}[digit]) * 3 >> 8)
}

// PutTrits packs 256 digits, each 0 to 2, into the first 52 bytes of a block.
func PutTrits(block []byte, digits *[256]uint8) {
	var sums [52]uint16
	i := 0
	for _, run := range trits.Runs {
		for j := range run.Len {
			sums[run.At+j] += uint16(digits[i]) * [...]uint16{81, 27, 9, 3, 1}[run.Shift]
			i++
		}
	}
	for j, n := range sums {
		block[j] = byte((n*256 + 242) / 243)
	}
}

// pairsOfTrits converts the 256 digits of a block to pairs of bits in the order of TQ2_0,
// the order that tiles are made from.
func pairsOfTrits(pairs *[64]byte, block []byte) {
	clear(pairs[:])
	i := 0
	for _, run := range trits.Runs {
		for _, b := range block[run.At:][:run.Len] {
			pairs[i/128*32+i%32] |= trit(b, uint8(run.Shift)) << (i / 32 % 4 * 2)
			i++
		}
	}
}

// tritsOfPairs is the inverse of pairsOfTrits. Several bytes stand for the same digits;
// tritsOfPairs writes the one that an encoder writes.
func tritsOfPairs(block []byte, pairs *[64]byte) {
	var digits [256]uint8
	for i := range digits {
		digits[i] = min(pairs[i/128*32+i%32]>>(i/32%4*2)&3, 2)
	}
	PutTrits(block, &digits)
}
