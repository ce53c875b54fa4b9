package dtype

// A Form declares a type of ggml's: everything that decoders, tiles, kernels and
// documents know about it follows from here. A type of a known shape is an entry of
// [forms]. An element of a quantised type is
//
//	D * scale * quant + M * minimum
//
// where D and M are floats of the block, and scale and minimum integers of a part
// of it. What a type lacks is 1, and a type without a minimum has no M.
type Form struct {
	Type         Type
	Name         string
	ID           int // ggml's number of the type, which GGUF files have; -1 for none
	Elems, Bytes int // of a block

	// Quants are the fields whose bits make up the quants, the lowest bits first.
	Quants []Field
	Signed bool      // quants are two's complement
	Zero   int       // is subtracted from the quants
	Levels *[16]int8 // the code book that the quants are indices of, or nil
	Codes  int       // how many of the quants' values have a meaning; 0 for all

	D ScaleType // of the whole block
	// DAt and MAt are the offsets of D and M. M is a float16 too, and subtracted if
	// minimums are integers.
	DAt, MAt int
	Minimum  bool

	// Scales holds integer scales, each for Sub elements, and as many integer
	// minimums behind them if the type has both.
	Sub         int
	Scales      []Field
	ScaleType   IntegerType
	ScaleZero   int
	Interleaved bool // in tiles, each tile's scales lie before its quants
	PackedTile  bool // in tiles, a byte holds a scale in 4 bits and a minimum

	// Deviation is the standard deviation of the elements if D is 1 and quants and
	// scales are those of [RandomBlocks].
	Deviation float32

	quants, scales []places
	tiles          TileForm
}

// ScaleType is the encoding of a block's scale.
type ScaleType uint8

const (
	Half     ScaleType = iota // float16
	HalfE8M0                  // 2^(e-128) of a byte e: levels are doubled
	Constant                  // 2^-10, the unit of scales of type HalfUE4M3
)

// ConstantScale is the scale of blocks whose scale is Constant.
const ConstantScale = 0x1p-10

// IntegerType is the encoding of the scales of parts of a block.
type IntegerType uint8

const (
	Unsigned  IntegerType = iota // less ScaleZero
	Signed                       // int8
	HalfUE4M3                    // half of an unsigned E4M3 number, in units of 2^-10
)

// A Field is a place of a block that holds a number of Bits bits for each of several
// items. In the byte i of a run of Run bytes from At on, the lowest bits belong to
// item i, those above to item i+Run, and so on; the next run follows.
type Field struct {
	Bits    int // 0 if digits are of base 3
	At, Run int
	Runs    []Run // the items in order, if they have no such rule
}

// A Run is the place of Len items: in as many bytes from At on, from bit Shift on. In
// base 3 it is digit Shift, the first of which is the highest.
type Run struct{ At, Len, Shift int }

// Code books. Those of E2M1 are doubled.
var (
	levelsIQ4  = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
	levelsE2M1 = [16]int8{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}
)

// packedK4 are 8 scales and 8 minimums of 6 bits in 12 bytes, as Q4_K and Q5_K pack
// them.
var packedK4 = []Field{
	{Bits: 4, Runs: []Run{{4, 4, 0}, {12, 4, 0}, {8, 4, 0}, {12, 4, 4}}},
	{Bits: 2, Runs: []Run{{4, 4, 4}, {4, 4, 6}, {8, 4, 4}, {8, 4, 6}}},
}

// trits are 256 digits of base 3, five a byte but for the last 4 bytes.
var trits = Field{Runs: []Run{
	{0, 32, 0}, {0, 32, 1}, {0, 32, 2}, {0, 32, 3}, {0, 32, 4},
	{32, 16, 0}, {32, 16, 1}, {32, 16, 2}, {32, 16, 3}, {32, 16, 4},
	{48, 4, 0}, {48, 4, 1}, {48, 4, 2}, {48, 4, 3},
}}

// forms holds ggml's types. Offsets are the same as in the structs of ggml-common.h.
//
// Deviations are the root mean squares of: q-8 or q-16 over all q, which are
// not quite symmetric; the steps of 0..2^n-1 about their middle, where a minimum
// is subtracted, times that of the scales of parts where a type has those.
var forms = [...]Form{
	{Type: F32, Name: "F32", ID: 0, Elems: 1, Bytes: 4},
	{Type: F16, Name: "F16", ID: 1, Elems: 1, Bytes: 2},
	{Type: BF16, Name: "BF16", ID: 30, Elems: 1, Bytes: 2},
	{
		Type: Q8_0, Name: "Q8_0", ID: 8, Elems: 32, Bytes: 34, Deviation: 73.9,
		Quants: []Field{{Bits: 8, At: 2, Run: 32}}, Signed: true,
	},
	{
		Type: Q4_0, Name: "Q4_0", ID: 2, Elems: 32, Bytes: 18, Deviation: 4.637,
		Quants: []Field{{Bits: 4, At: 2, Run: 16}}, Zero: 8,
	},
	{
		Type: Q4_1, Name: "Q4_1", ID: 3, Elems: 32, Bytes: 20, Deviation: 4.610,
		Quants: []Field{{Bits: 4, At: 4, Run: 16}}, Minimum: true, MAt: 2,
	},
	{
		Type: Q5_0, Name: "Q5_0", ID: 6, Elems: 32, Bytes: 22, Deviation: 9.247,
		Quants: []Field{{Bits: 4, At: 6, Run: 16}, {Bits: 1, At: 2, Run: 1}}, Zero: 16,
	},
	{
		Type: Q5_1, Name: "Q5_1", ID: 7, Elems: 32, Bytes: 24, Deviation: 9.233,
		Quants: []Field{{Bits: 4, At: 8, Run: 16}, {Bits: 1, At: 4, Run: 1}}, Minimum: true, MAt: 2,
	},
	{
		Type: Q2_K, Name: "Q2_K", ID: 10, Elems: 256, Bytes: 84, Deviation: 1.118 * 11.73,
		Quants: []Field{{Bits: 2, At: 16, Run: 32}}, DAt: 80, Minimum: true, MAt: 82,
		Sub: 16, Scales: []Field{{Bits: 4, At: 0, Run: 16}}, PackedTile: true,
	},
	{
		Type: Q3_K, Name: "Q3_K", ID: 11, Elems: 256, Bytes: 110, Deviation: 2.345 * 18.48,
		Quants: []Field{{Bits: 2, At: 32, Run: 32}, {Bits: 1, At: 0, Run: 32}}, Zero: 4, DAt: 108,
		Sub: 16, Scales: []Field{{Bits: 4, At: 96, Run: 8}, {Bits: 2, At: 104, Run: 4}}, ScaleZero: 32,
	},
	{
		Type: Q4_K, Name: "Q4_K", ID: 12, Elems: 256, Bytes: 144, Deviation: 4.610 * 48.39,
		Quants: []Field{{Bits: 4, At: 16, Run: 32}}, Minimum: true, MAt: 2,
		Sub: 32, Scales: packedK4, Interleaved: true,
	},
	{
		Type: Q5_K, Name: "Q5_K", ID: 13, Elems: 256, Bytes: 176, Deviation: 9.233 * 48.39,
		Quants: []Field{{Bits: 4, At: 48, Run: 32}, {Bits: 1, At: 16, Run: 32}}, Minimum: true, MAt: 2,
		Sub: 32, Scales: packedK4,
	},
	{
		Type: Q6_K, Name: "Q6_K", ID: 14, Elems: 256, Bytes: 210, Deviation: 18.48 * 73.9,
		Quants: []Field{{Bits: 4, At: 0, Run: 64}, {Bits: 2, At: 128, Run: 32}}, Zero: 32, DAt: 208,
		Sub: 16, Scales: []Field{{Bits: 8, At: 192, Run: 16}}, ScaleType: Signed, Interleaved: true,
	},
	{
		Type: IQ4_NL, Name: "IQ4_NL", ID: 20, Elems: 32, Bytes: 18, Deviation: 67.44,
		Quants: []Field{{Bits: 4, At: 2, Run: 16}}, Levels: &levelsIQ4,
	},
	{
		Type: IQ4_XS, Name: "IQ4_XS", ID: 23, Elems: 256, Bytes: 136, Deviation: 67.44 * 18.48,
		Quants: []Field{{Bits: 4, At: 8, Run: 16}}, Levels: &levelsIQ4,
		Sub: 32, Scales: []Field{{Bits: 4, At: 4, Run: 1}, {Bits: 2, At: 2, Run: 1}}, ScaleZero: 32,
	},
	{
		Type: MXFP4, Name: "MXFP4", ID: 39, Elems: 32, Bytes: 17, Deviation: 5.852,
		Quants: []Field{{Bits: 4, At: 1, Run: 16}}, Levels: &levelsE2M1, D: HalfE8M0,
	},
	{
		Type: NVFP4, Name: "NVFP4", ID: 40, Elems: 64, Bytes: 36, Deviation: 5.852,
		Quants: []Field{{Bits: 4, At: 4, Run: 8}}, Levels: &levelsE2M1, D: Constant,
		Sub: 16, Scales: []Field{{Bits: 8, At: 0, Run: 4}}, ScaleType: HalfUE4M3,
	},
	{
		Type: TQ1_0, Name: "TQ1_0", ID: 34, Elems: 256, Bytes: 54, Deviation: 0.8165,
		Quants: []Field{trits}, Codes: 3, Zero: 1, DAt: 52,
	},
	{
		Type: TQ2_0, Name: "TQ2_0", ID: 35, Elems: 256, Bytes: 66, Deviation: 0.8165,
		Quants: []Field{{Bits: 2, At: 0, Run: 32}}, Codes: 3, Zero: 1, DAt: 64,
	},
	{Type: I8, Name: "I8", ID: 24, Elems: 1, Bytes: 1},
	{Type: I16, Name: "I16", ID: 25, Elems: 1, Bytes: 2},
	{Type: I32, Name: "I32", ID: 26, Elems: 1, Bytes: 4},
	{Type: I64, Name: "I64", ID: 27, Elems: 1, Bytes: 8},
	{Type: F64, Name: "F64", ID: 28, Elems: 1, Bytes: 8},
	{Type: U8, Name: "U8", ID: -1, Elems: 1, Bytes: 1},
}

// formOf is forms by type.
var formOf = func() (of [count]*Form) {
	for i := range forms {
		f := &forms[i]
		for _, q := range f.Quants {
			f.quants = append(f.quants, q.places(f.Elems))
		}
		n := f.Parts()
		if f.Minimum {
			n *= 2
		}
		for _, s := range f.Scales {
			f.scales = append(f.scales, s.places(n))
		}
		if f.Elems > 1 {
			f.tiles = f.tileForm()
		}
		of[f.Type] = f
	}
	return of
}()

// FormOf returns the declaration of a type of ggml's, or nil.
func FormOf(t Type) *Form {
	if t >= count {
		return nil
	}
	return formOf[t]
}

// Forms returns the declarations of ggml's types in the order of their values.
func Forms() []*Form {
	var list []*Form
	for t := F32; t < count; t++ {
		if f := formOf[t]; f != nil {
			list = append(list, f)
		}
	}
	return list
}

// Parts returns how many parts of a block have integer scales; 0 for a type without.
func (f *Form) Parts() int {
	if len(f.Scales) == 0 {
		return 0
	}
	return f.Elems / f.Sub
}

// Offsets returns where a block, or an element of F16, has float16 numbers.
func (f *Form) Offsets() []int {
	if f.Elems == 1 && f.Type != F16 || f.D != Half {
		return nil
	}
	if f.Minimum {
		return []int{f.DAt, f.MAt}
	}
	return []int{f.DAt}
}

// places is a field's items: item i is in byte at[i], from bit shift[i] on.
type places struct {
	at    []uint16
	shift []uint8
	mask  uint8 // 0 if it is a digit of base 3
}

func (f Field) places(n int) places {
	p := places{mask: uint8(1<<f.Bits - 1)}
	for _, r := range f.Runs {
		for i := range r.Len {
			p.at, p.shift = append(p.at, uint16(r.At+i)), append(p.shift, uint8(r.Shift))
		}
	}
	for i := len(p.at); i < n; i++ {
		whole := f.Run * 8 / f.Bits
		p.at = append(p.at, uint16(f.At+i/whole*f.Run+i%f.Run))
		p.shift = append(p.shift, uint8(i%whole/f.Run*f.Bits))
	}
	return p
}

// fields returns the numbers of all items of fields.
func readFields(n []uint8, fields []places, block []byte) {
	up := uint8(0)
	for i, f := range fields {
		at, shift := f.at[:len(n)], f.shift[:len(n)]
		switch {
		case f.mask == 0:
			for j := range n {
				n[j] = trit(block[at[j]], shift[j])
			}
		case i == 0:
			for j := range n {
				n[j] = block[at[j]] >> shift[j] & f.mask
			}
		default:
			for j := range n {
				n[j] |= block[at[j]] >> shift[j] & f.mask << up
			}
		}
		for m := f.mask; m != 0; m >>= 1 {
			up++
		}
	}
}

// writeFields puts numbers into fields whose bytes are 0. It has no digits of base 3.
func writeFields(block []byte, fields []places, n []uint8) {
	up := uint8(0)
	for _, f := range fields {
		for j := range n {
			block[f.at[j]] |= n[j] >> up & f.mask << f.shift[j]
		}
		for m := f.mask; m != 0; m >>= 1 {
			up++
		}
	}
}

// trit returns a digit of base 3 of a byte, which is a fraction of 256.
func trit(b byte, digit uint8) byte {
	return byte(uint16(b*[...]byte{1, 3, 9, 27, 81}[digit]) * 3 >> 8)
}
