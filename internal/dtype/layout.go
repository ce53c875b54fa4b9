package dtype

import "fmt"

// Layout is the order of the blocks of a matrix in memory. Values are part of the
// .roll format: append only.
type Layout uint8

const (
	// Rows is the layout of model files: rows follow one another, and each row is a
	// sequence of blocks.
	Rows Layout = iota
	// Tiled16 interleaves 16 rows. A strip of 16 rows is a sequence of tiles of 32
	// columns. The lanes of a vector register hold values of different rows, so
	// products need no horizontal sums. A column group is 4 neighbouring columns,
	// 0 to 7 in a tile; within 64 bytes, bytes 4r to 4r+3 belong to row r. The 16
	// rows' scales of a kind are adjacent. A tile's quants are stored in one or two
	// of these forms, depending on the type and in this order,
	//
	//	bytes    8 groups of 64 bytes
	//	nibbles  4 times 64 bytes, low nibbles group g, high nibbles group g+4
	//	pairs    twice 64 bytes of 2 bits: in the k-th, bits 0-1 belong to
	//	         group 2k, 2-3 to group 2k+4, 4-5 to group 2k+1, 6-7 to group
	//	         2k+5
	//	bits     64 bytes, bit g of each belongs to group g
	//
	// where the first are a quant's lowest bits. In types with blocks of 32, a
	// tile is its quants and then its scales, as large as 16 blocks:
	//
	//	Q8_0    bytes (signed); 16 float16 d
	//	Q4_0    nibbles (8 is zero); 16 float16 d
	//	Q4_1    nibbles; 16 float16 d, 16 float16 m
	//	Q5_0    nibbles, bits (16 is zero); 16 float16 d
	//	Q5_1    nibbles, bits; 16 float16 d, 16 float16 m
	//	IQ4_NL  nibbles, indices of levels; 16 float16 d
	//	MXFP4   nibbles, indices of levels; 16 E8M0 bytes
	//
	// In those with blocks of 256, 8 tiles are a block of the strip. It begins
	// with 16 float16 d and, in types with minimums, 16 float16 dmin. Integer
	// scales follow: those of all 8 tiles, one tile after another, and then
	// their quants, or in Q4_K and Q6_K each tile's scales before its quants.
	// Scales of 6 bits are stored as bytes, which makes some blocks larger than
	// the 16 blocks of the file, by the given percentage:
	//
	//	Q2_K    16 bytes of columns 0 to 15, 16 of columns 16 to 31 (scale in
	//	        the low nibble, minimum in the high); pairs
	//	Q3_K    16 scales of columns 0 to 15, 16 of columns 16 to 31 (signed
	//	        bytes, -32 to 31); pairs, bits (4 is zero); 3.6 %
	//	Q4_K    16 scales, 16 minimums (unsigned bytes); nibbles; 2.8 %
	//	Q5_K    16 scales, 16 minimums (unsigned bytes); nibbles, bits; 2.3 %
	//	Q6_K    16 scales of columns 0 to 15, 16 of columns 16 to 31 (signed
	//	        bytes); nibbles, pairs (32 is zero)
	//	IQ4_XS  16 scales (signed bytes, -32 to 31); nibbles, indices of
	//	        levels; 1.5 %
	//
	// In MLX's affine types a block of the strip is one group: 16 scales and 16
	// biases in the type's float16 or bfloat16, and the quants of its tiles:
	//
	//	2 bits  pairs           5 bits  nibbles, bits
	//	3 bits  pairs, bits     6 bits  nibbles, pairs
	//	4 bits  nibbles         8 bits  bytes (unsigned)
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

// tiling converts blocks of a type to and from strips.
type tiling struct {
	size   int // bytes of 16 rows of one block; 0 if the type has no tiles
	tile   func(strip []byte, r int, block []byte)
	untile func(block, strip []byte, r int)
}

// tilings holds the tile sizes and conversions of the types that have layout Tiled16.
var tilings = func() (of [count]tiling) {
	for _, f := range formOf {
		if f != nil && f.Elems > 1 {
			size, _, _ := f.strip()
			of[f.Type] = tiling{size, f.tile, f.untile}
		}
	}
	return of
}()

// tilingOf returns the tiling of a type, which need not be valid.
func tilingOf(t Type) tiling {
	if t >= count {
		return tiling{}
	}
	return tilings[t]
}

// Has reports whether a matrix of rows by cols can have the layout.
func (l Layout) Has(t Type, rows, cols uint64) bool {
	_, ok := l.Bytes(t, rows, cols)
	return ok
}

// Bytes returns the size of a matrix. It is not ok if the type cannot have the layout, if
// rows or cols are not whole tiles or blocks, or if the size does not fit in 63 bits.
func (l Layout) Bytes(t Type, rows, cols uint64) (size uint64, ok bool) {
	row, ok := t.Bytes(cols)
	if !ok || rows > 1<<32 || row > 1<<30 {
		return 0, false
	}
	switch l {
	case Rows:
		return rows * row, true
	case Tiled16:
		strip := uint64(tilingOf(t).size)
		if strip == 0 || rows%TileRows != 0 {
			return 0, false
		}
		elems, _ := t.Block()
		return rows / TileRows * (cols / uint64(elems)) * strip, true
	}
	return 0, false
}

// layoutError returns the error for a matrix that cannot be tiled.
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
	tiling, row := tilings[t], cols/elems*size
	strip := tiling.size
	for ; len(dst) > 0; src = src[TileRows*row:] {
		for at := 0; at < row; at += size {
			for r := range TileRows {
				tiling.tile(dst[:strip], r, src[r*row+at:][:size])
			}
			dst = dst[strip:]
		}
	}
	return nil
}

// UntileRow converts row r of a matrix in Tiled16 to a row of blocks, the same bytes as in
// the model file, for an embedding. dst is one row of cols columns; src holds the matrix at
// least to the end of the strip of row r.
func UntileRow(t Type, dst, src []byte, r, cols int) error {
	elems, size := t.Block()
	tiling := tilingOf(t)
	strip := tiling.size
	if strip == 0 || cols < 0 || cols%elems != 0 || r < 0 || len(dst) != cols/elems*size {
		return layoutError(t, r, cols)
	}
	blocks := cols / elems
	if all := blocks * strip; all > 0 && r/TileRows >= len(src)/all {
		return layoutError(t, r, cols)
	} else if all > 0 {
		src = src[r/TileRows*all:][:all]
	}
	for ; len(dst) > 0; dst, src = dst[size:], src[strip:] {
		tiling.untile(dst[:size], src[:strip], r%TileRows)
	}
	return nil
}
