package dtype

// TileForm describes a strip's block, 16 rows of one block of the type in layout Tiled16.
// Offsets are in bytes and count from the start of the strip's block.
type TileForm struct {
	Parts      int // number of 64-byte runs of a tile's quants, without their high bits
	Tiles      int // tiles in the block
	Bytes      int // size of the block
	Quants     int // offset of the first tile's quants
	QuantsStep int // distance from one tile's quants to the next tile's
	High       int // distance from a tile's quants to their high bits
	Scales     int // offset of the first tile's integer scales
	ScalesStep int // distance from one tile's integer scales to the next tile's
	D, M       int // offsets of the 16 rows' D and M
}

// Tile returns the layout of the type's tiles.
func (f *Form) Tile() TileForm { return f.tiles }

// tileForm derives the layout of tiles. If no scale spans several tiles, each tile is a
// block of its own: its quants, then its scales.
func (f *Form) tileForm() TileForm {
	t := TileForm{Parts: f.Quants[0].Bits, Tiles: 1}
	if t.Parts == 0 {
		t.Parts = 2 // digits of base 3 are pairs in tiles
	}
	quants := 64 * t.Parts
	if len(f.Quants) > 1 {
		t.High = quants
		quants += 64 * f.Quants[1].Bits
	}
	scales := 0
	if len(f.Scales) > 0 {
		if scales = TileRows * 32 / f.Sub; f.Minimum && !f.PackedTile {
			scales *= 2
		}
	}
	head := map[ScaleType]int{Half: 2 * TileRows, HalfE8M0: TileRows}[f.D]
	if f.Minimum {
		t.M = head
		head *= 2
	}
	switch {
	case f.Elems == 32 || f.D == Constant:
		t.D, t.Scales = quants, quants+head
		if f.Minimum {
			t.M += quants
		}
		t.Bytes = quants + head + scales
		if scales == 0 {
			t.Scales = 0
		}
		if f.D == Constant {
			t.D = 0
		}
		return t
	case f.Interleaved:
		t.Scales, t.ScalesStep = head, scales+quants
		t.Quants, t.QuantsStep = head+scales, scales+quants
	default:
		t.Scales, t.ScalesStep = head, scales
		t.Quants, t.QuantsStep = head+f.Elems/32*scales, quants
	}
	if scales == 0 {
		t.Scales = 0
	}
	t.Tiles = f.Elems / 32
	t.Bytes = head + t.Tiles*(scales+quants)
	return t
}

// strip returns the size in bytes of 16 rows of one block, and the distances between the
// scales and between the quants of neighbouring tiles.
func (f *Form) strip() (size, scalesStep, quantsStep int) {
	t := &f.tiles
	size = f.Elems / 32 / t.Tiles * t.Bytes
	if t.Tiles == 1 {
		return size, t.Bytes, t.Bytes
	}
	return size, t.ScalesStep, t.QuantsStep
}

// SameTiles reports whether the tiles of two types have the same meaning, so that one
// product kernel serves both.
func (f *Form) SameTiles(g *Form) bool {
	return f.tiles == g.tiles && f.Elems == g.Elems && f.Zero == g.Zero && f.Levels == g.Levels && f.Signed == g.Signed &&
		f.D == g.D && f.Minimum == g.Minimum && f.Sub == g.Sub && f.ScaleType == g.ScaleType && f.PackedTile == g.PackedTile
}

// tile writes a block to row r of a strip.
func (f *Form) tile(strip []byte, r int, block []byte) {
	t := &f.tiles
	switch f.D {
	case Half:
		tileHalf(strip[t.D:], r, block[f.DAt:])
	case HalfE8M0:
		strip[t.D+r] = block[f.DAt]
	}
	if f.Minimum {
		tileHalf(strip[t.M:], r, block[f.MAt:])
	}
	_, scalesStep, step := f.strip()
	if parts := f.Parts(); parts > 0 {
		var n [32]uint8
		readFields(n[:len(f.scales[0].at)], f.scales, block)
		for p := range parts {
			at := strip[t.Scales+p*f.Sub/32*scalesStep+TileRows*(p%(32/f.Sub))+r:]
			switch {
			case f.PackedTile:
				at[0] = n[p] | n[parts+p]<<4
			case f.Minimum:
				at[0], at[TileRows] = n[p], n[parts+p]
			default:
				at[0] = n[p] - uint8(f.ScaleZero)
			}
		}
	}
	var pairs [64]byte
	for i, q := range f.Quants {
		to := strip[t.Quants:]
		if i > 0 {
			to = strip[t.Quants+t.High:]
		}
		from := block[q.At:]
		if q.Bits == 0 {
			pairsOfTrits(&pairs, block)
			q, from = Field{Bits: 2, Run: 32}, pairs[:]
		}
		if !q.swizzled(f.Elems / 32) {
			f.quants[i].tile(to, step, r, q.Bits, block, f.Elems/32)
			continue
		}
		q.tile(to, step, r, from, f.Elems/32)
	}
}

// untile is the inverse of tile.
func (f *Form) untile(block, strip []byte, r int) {
	t := &f.tiles
	clear(block)
	switch f.D {
	case Half:
		untileHalf(block[f.DAt:], strip[t.D:], r)
	case HalfE8M0:
		block[f.DAt] = strip[t.D+r]
	}
	if f.Minimum {
		untileHalf(block[f.MAt:], strip[t.M:], r)
	}
	_, scalesStep, step := f.strip()
	if parts := f.Parts(); parts > 0 {
		var n [32]uint8
		for p := range parts {
			at := strip[t.Scales+p*f.Sub/32*scalesStep+TileRows*(p%(32/f.Sub))+r:]
			switch {
			case f.PackedTile:
				n[p], n[parts+p] = at[0]&15, at[0]>>4
			case f.Minimum:
				n[p], n[parts+p] = at[0], at[TileRows]
			default:
				n[p] = at[0] + uint8(f.ScaleZero)
			}
		}
		writeFields(block, f.scales, n[:len(f.scales[0].at)])
	}
	var pairs [64]byte
	for i, q := range f.Quants {
		from := strip[t.Quants:]
		if i > 0 {
			from = strip[t.Quants+t.High:]
		}
		if q.Bits == 0 {
			Field{Bits: 2, Run: 32}.untile(pairs[:], from, step, r, f.Elems/32)
			tritsOfPairs(block, &pairs)
			continue
		}
		if !q.swizzled(f.Elems / 32) {
			f.quants[i].untile(block, from, step, r, q.Bits, f.Elems/32)
			continue
		}
		q.untile(block[q.At:], from, step, r, f.Elems/32)
	}
}

// swizzled reports whether the methods tile and untile support the shape of the field, which has
// items for a number of tiles. Those of places support every shape, one item at a time.
func (f Field) swizzled(tiles int) bool {
	switch {
	case len(f.Runs) > 0:
		return false
	case f.Bits == 8:
		return f.Run%32 == 0
	case f.Bits == 4:
		return f.Run == 8 || f.Run == 16 || f.Run%32 == 0 && tiles%(f.Run/16) == 0
	case f.Bits == 2:
		return f.Run == 32 && tiles%4 == 0
	case f.Bits == 1:
		return f.Run == 1 || f.Run == 32 && tiles == 8
	}
	return false
}

// inTile returns the byte of a row's item of a field with a number of bits, from the field's first
// byte in the tile on, and its lowest bit. The layout is described at Tiled16.
func inTile(bits, r, column int) (at, shift int) {
	g, c := column/4, column%4
	switch bits {
	case 8:
		return 64*g + 4*r + c, 0
	case 4:
		return 64*(g%4) + 4*r + c, g / 4 * 4
	case 2:
		return 64*(g%4/2) + 4*r + c, 2*(g/4) + 4*(g%2)
	}
	return 4*r + c, g
}

// tile writes the items of a block to row r of a number of tiles, each step bytes after the one
// before.
func (p *places) tile(strip []byte, step, r, bits int, block []byte, tiles int) {
	for i := range 32 * tiles {
		at, shift := inTile(bits, r, i%32)
		to := &strip[step*(i/32)+at]
		*to = *to&^(p.mask<<shift) | block[p.at[i]]>>p.shift[i]&p.mask<<shift
	}
}

// untile is the inverse of tile, for a block whose bytes are 0.
func (p *places) untile(block, strip []byte, step, r, bits, tiles int) {
	for i := range 32 * tiles {
		at, shift := inTile(bits, r, i%32)
		block[p.at[i]] |= strip[step*(i/32)+at] >> shift & p.mask << p.shift[i]
	}
}

// tile writes the items of a field, whose bytes begin at quants, to row r of a number of
// tiles. The first tile is at strip[0], and each next one step bytes further.
func (f Field) tile(strip []byte, step, r int, quants []byte, tiles int) {
	switch {
	case f.Bits == 8:
		for j := range tiles {
			tileGroups(strip[step*j:], r, quants[32*j:][:32])
		}
	case f.Bits == 4 && f.Run == 16:
		for j := range tiles {
			tileGroups(strip[step*j:], r, quants[16*j:][:16])
		}
	case f.Bits == 4 && f.Run == 8:
		for j := range tiles {
			tileEights(strip[step*j:], r, quants[16*j:][:16])
		}
	case f.Bits == 4:
		n := f.Run / 32 // tiles from the low nibbles of a run to the high ones
		for j := range tiles / 2 {
			at := j/n*2*n + j%n
			tileNibbles(strip[step*at:], strip[step*(at+n):], r, quants[32*j:])
		}
	case f.Bits == 2:
		for j := range tiles / 4 {
			tilePairs(strip[4*step*j:], step, r, quants[32*j:])
		}
	case f.Run == 1:
		for j := range tiles {
			putWord(strip[step*j+4*r:], groupBits(word(quants[4*j:])))
		}
	default:
		tileBits(strip, step, r, quants)
	}
}

// untile is the inverse of tile.
func (f Field) untile(quants, strip []byte, step, r, tiles int) {
	switch {
	case f.Bits == 8:
		for j := range tiles {
			untileGroups(quants[32*j:][:32], strip[step*j:], r)
		}
	case f.Bits == 4 && f.Run == 16:
		for j := range tiles {
			untileGroups(quants[16*j:][:16], strip[step*j:], r)
		}
	case f.Bits == 4 && f.Run == 8:
		for j := range tiles {
			untileEights(quants[16*j:][:16], strip[step*j:], r)
		}
	case f.Bits == 4:
		n := f.Run / 32
		for j := range tiles / 2 {
			at := j/n*2*n + j%n
			untileNibbles(quants[32*j:], strip[step*at:], strip[step*(at+n):], r)
		}
	case f.Bits == 2:
		for j := range tiles / 4 {
			untilePairs(quants[32*j:], strip[4*step*j:], step, r)
		}
	case f.Run == 1:
		for j := range tiles {
			putWord(quants[4*j:], columnBits(word(strip[step*j+4*r:])))
		}
	default:
		untileBits(quants, strip, step, r)
	}
}

// tileEights converts 16 bytes to the nibbles of a tile. The first 8 bytes hold columns 0
// to 15, low nibbles first; the other 8 hold columns 16 to 31.
func tileEights(strip []byte, r int, quants []byte) {
	for g := range 2 {
		a, b := word(quants[4*g:]), word(quants[8+4*g:])
		putWord(strip[64*g+4*r:], a&lowNibbles|b&lowNibbles<<4)
		putWord(strip[64*(g+2)+4*r:], a>>4&lowNibbles|b&^lowNibbles)
	}
}

func untileEights(quants, strip []byte, r int) {
	for g := range 2 {
		a, b := word(strip[64*g+4*r:]), word(strip[64*(g+2)+4*r:])
		putWord(quants[4*g:], a&lowNibbles|b&lowNibbles<<4)
		putWord(quants[8+4*g:], a>>4&lowNibbles|b&^lowNibbles)
	}
}
