package dtype

import (
	"encoding/binary"
	"fmt"
)

// Layout is how the blocks of a matrix lie in memory. Values are part of the
// .roll format: append only.
type Layout uint8

const (
	// Rows is the file's: rows one after another, each a run of blocks.
	Rows Layout = iota
	// Tiled16 interleaves 16 rows: a strip of 16 rows is a run of tiles of 32
	// columns, so that vector lanes are rows and no product needs a
	// horizontal sum. A column group is 4 neighbouring columns; within 64
	// bytes, bytes 4r to 4r+3 belong to row r. A tile is
	//
	//	Q8_0   8 groups of 64 bytes, then 16 float16 scales
	//	Q4_0   4 times 64 bytes, low nibbles group g, high nibbles group g+4
	//	       (values 0 to 15, 8 is zero), then 16 float16 scales
	//
	// and for the types with blocks of 256, 8 tiles follow 16 float16 d (and,
	// for Q4_K, 16 float16 dmin). Their tiles are
	//
	//	Q4_K   16 scales and 16 minimums (unsigned bytes), then 256 bytes of
	//	       nibbles as Q4_0
	//	Q6_K   16 scales of columns 0 to 15, 16 of columns 16 to 31 (signed
	//	       bytes), 256 bytes of low nibbles as Q4_0, then twice 64 bytes
	//	       of high bits: in the k-th, bits 0-1 belong to group 2k, 2-3 to
	//	       group 2k+4, 4-5 to group 2k+1, 6-7 to group 2k+5 (values 0 to
	//	       63, 32 is zero)
	Tiled16
	layouts
)

// TileRows is the number of rows that Tiled16 interleaves.
const TileRows = 16

// String returns "rows" or "tiled16".
func (l Layout) String() string {
	if l >= layouts {
		return fmt.Sprintf("layout(%d)", uint8(l))
	}
	return [...]string{"rows", "tiled16"}[l]
}

// tiledSize returns the bytes of a strip of 16 rows for each block of the
// type, 0 if the type has no tiled layout.
func tiledSize(t Type) uint64 {
	switch t {
	case Q8_0:
		return 16 * 34
	case Q4_0:
		return 16 * 18
	case Q4_K:
		return 64 + 8*(32+256)
	case Q6_K:
		return 16 * 210
	}
	return 0
}

// Has reports whether a matrix of rows by columns has the layout.
func (l Layout) Has(t Type, rows, cols uint64) bool {
	_, ok := l.Bytes(t, rows, cols)
	return ok
}

// Bytes returns the size of a matrix. It is not ok if the type has not the
// layout, if rows or columns are not whole tiles or blocks, or if the size does
// not fit in 63 bits.
func (l Layout) Bytes(t Type, rows, cols uint64) (size uint64, ok bool) {
	row, ok := t.Bytes(cols)
	if !ok || rows > 1<<32 || row > 1<<30 {
		return 0, false
	}
	switch l {
	case Rows:
		return rows * row, true
	case Tiled16:
		strip := tiledSize(t)
		if strip == 0 || rows%TileRows != 0 {
			return 0, false
		}
		elems, _ := t.Block()
		return rows / TileRows * (cols / uint64(elems)) * strip, true
	}
	return 0, false
}

// layoutError says what cannot be tiled.
func layoutError(t Type, rows, cols int) error {
	return fmt.Errorf("dtype: %s [%d, %d] has no layout %s", t, rows, cols, Tiled16)
}

// Tile rearranges a matrix of rows by cols from Rows, src, to Tiled16, dst.
func Tile(t Type, dst, src []byte, rows, cols int) error {
	want, ok := Tiled16.Bytes(t, uint64(rows), uint64(cols))
	have, _ := Rows.Bytes(t, uint64(rows), uint64(cols))
	if rows < 0 || cols < 0 || !ok || uint64(len(dst)) != want || uint64(len(src)) != have {
		return layoutError(t, rows, cols)
	}
	elems, size := t.Block()
	blocks, strip := cols/elems, int(tiledSize(t))
	var tile func(dst []byte, r int, block []byte)
	switch t {
	case Q8_0:
		tile = tileQ8_0
	case Q4_0:
		tile = tileQ4_0
	case Q4_K:
		tile = tileQ4_K
	case Q6_K:
		tile = tileQ6_K
	}
	for s := range rows / TileRows {
		for r := range TileRows {
			row := src[(s*TileRows+r)*blocks*size:][:blocks*size]
			for b := range blocks {
				tile(dst[(s*blocks+b)*strip:][:strip], r, row[b*size:][:size])
			}
		}
	}
	return nil
}

func tileQ8_0(dst []byte, r int, block []byte) {
	for g := range 8 {
		*(*[4]byte)(dst[64*g+4*r:]) = [4]byte(block[2+4*g:])
	}
	*(*[2]byte)(dst[512+2*r:]) = [2]byte(block)
}

func tileQ4_0(dst []byte, r int, block []byte) {
	// The block has columns i and i+16 in byte i, as the tile does.
	for g := range 4 {
		*(*[4]byte)(dst[64*g+4*r:]) = [4]byte(block[2+4*g:])
	}
	*(*[2]byte)(dst[256+2*r:]) = [2]byte(block)
}

func tileQ4_K(dst []byte, r int, block []byte) {
	*(*[2]byte)(dst[2*r:]) = [2]byte(block)
	*(*[2]byte)(dst[32+2*r:]) = [2]byte(block[2:])
	for j := range 8 {
		tile := dst[64+j*288:][:288]
		tile[r], tile[16+r] = scaleMinK4(block[4:16], j)
		// Sub-blocks 2k and 2k+1 are the low and high nibbles of 32 bytes.
		quants, shift := block[16+32*(j/2):][:32], 4*(j%2)
		for i := range 16 {
			lo, hi := quants[i]>>shift&15, quants[16+i]>>shift&15
			tile[32+64*(i/4)+4*r+i%4] = lo | hi<<4
		}
	}
}

func tileQ6_K(dst []byte, r int, block []byte) {
	low, high, scales := block[:128], block[128:192], block[192:208]
	*(*[2]byte)(dst[2*r:]) = [2]byte(block[208:])
	for j := range 8 {
		tile := dst[32+j*416:][:416]
		if r == 0 {
			clear(tile[288:]) // high bits are added below
		}
		tile[r], tile[16+r] = scales[2*j], scales[2*j+1]
		// Halves of 128 columns; within one, column 32k+i has its low bits
		// in byte i+32(k%2), nibble k/2, and its high bits in byte i, pair k.
		half, k := j/4, j%4
		value := func(i int) byte {
			l := low[64*half+32*(k%2)+i] >> (4 * (k / 2)) & 15
			h := high[32*half+i] >> (2 * k) & 3
			return l | h<<4
		}
		for i := range 16 {
			a, b := value(i), value(16+i)
			g, at := i/4, 4*r+i%4
			tile[32+64*g+at] = a&15 | b&15<<4
			tile[288+64*(g/2)+at] |= a>>4<<(4*(g%2)) | b>>4<<(4*(g%2)+2)
		}
	}
}

// UntileRow makes row r of a matrix in Tiled16 a row of blocks as the file has
// them: what an embedding reads. Q4_K's scales come back as they were packed.
func UntileRow(t Type, dst, src []byte, r, cols int) error {
	elems, size := t.Block()
	strip := int(tiledSize(t))
	if strip == 0 || cols%elems != 0 || r < 0 || len(dst) != cols/elems*size {
		return layoutError(t, r, cols)
	}
	blocks := cols / elems
	if (r/TileRows+1)*blocks*strip > len(src) {
		return layoutError(t, r, cols)
	}
	for b := range blocks {
		tile := src[(r/TileRows*blocks+b)*strip:][:strip]
		block := dst[b*size:][:size]
		switch t {
		case Q8_0:
			untile4(block[2:], tile, r%TileRows, 8)
			*(*[2]byte)(block) = [2]byte(tile[512+2*(r%TileRows):])
		case Q4_0:
			untile4(block[2:], tile, r%TileRows, 4)
			*(*[2]byte)(block) = [2]byte(tile[256+2*(r%TileRows):])
		case Q4_K:
			untileQ4_K(block, tile, r%TileRows)
		case Q6_K:
			untileQ6_K(block, tile, r%TileRows)
		}
	}
	return nil
}

func untile4(block, tile []byte, r, groups int) {
	for g := range groups {
		*(*[4]byte)(block[4*g:]) = [4]byte(tile[64*g+4*r:])
	}
}

func untileQ4_K(block, tile []byte, r int) {
	clear(block)
	*(*[2]byte)(block) = [2]byte(tile[2*r:])
	*(*[2]byte)(block[2:]) = [2]byte(tile[32+2*r:])
	packed := block[4:16]
	for j := range 8 {
		sub := tile[64+j*288:][:288]
		scale, minimum := sub[r], sub[16+r]
		if j < 4 {
			packed[j] |= scale & 63
			packed[j+4] |= minimum & 63
		} else {
			packed[j+4] |= scale&15 | minimum&15<<4
			packed[j-4] |= scale >> 4 << 6
			packed[j] |= minimum >> 4 << 6
		}
		quants, shift := block[16+32*(j/2):][:32], 4*(j%2)
		for i := range 16 {
			v := sub[32+64*(i/4)+4*r+i%4]
			quants[i] |= v & 15 << shift
			quants[16+i] |= v >> 4 << shift
		}
	}
}

func untileQ6_K(block, tile []byte, r int) {
	clear(block)
	low, high, scales := block[:128], block[128:192], block[192:208]
	binary.LittleEndian.PutUint16(block[208:], binary.LittleEndian.Uint16(tile[2*r:]))
	for j := range 8 {
		sub := tile[32+j*416:][:416]
		scales[2*j], scales[2*j+1] = sub[r], sub[16+r]
		half, k := j/4, j%4
		for i := range 32 {
			g, at := i%16/4, 4*r+i%4
			v := sub[32+64*g+at] >> (4 * (i / 16)) & 15
			h := sub[288+64*(g/2)+at] >> (4*(g%2) + 2*(i/16)) & 3
			low[64*half+32*(k%2)+i] |= v << (4 * (k / 2))
			high[32*half+i] |= h << (2 * k)
		}
	}
}
