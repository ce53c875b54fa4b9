package dtype

// A Form declares one of ggml's types. Decoders, tiles, kernels and documents derive
// everything that they need to know about the type from its Form. A quantised element is
//
//	D * scale * quant + M * minimum
//
// where D and M are floats of the whole block, and scale and minimum are integers that
// belong to a part of the block. A type without integer scales has scale 1 and minimum 1;
// a type without minimums has M 0.
type Form struct {
	Type         Type
	Name         string
	ID           int // ggml's number of the type, as in GGUF files; -1 if it has none
	Elems, Bytes int // the size of a block in elements and in bytes

	// Quants are the fields whose bits make up the quants, the lowest bits first.
	Quants []Field
	Signed bool      // quants are two's complement
	Zero   int       // an integer subtracted from each quant
	Levels *[16]int8 // the code book if quants are its indices, or nil
	Codes  int       // the number of valid quant values, counted from 0; 0 if all are valid

	D ScaleType // the encoding of D
	// DAt and MAt are the offsets of D and M in the block. M is a float16 value; types with
	// integer minimums store its negative.
	DAt, MAt int
	Minimum  bool

	// Scales are the fields of the integer scales, one scale for each Sub elements. In a
	// type with integer minimums, the same fields hold the minimums after the scales.
	Sub         int
	Scales      []Field
	ScaleType   IntegerType
	ScaleZero   int
	Interleaved bool // a tile's scales directly precede its quants
	PackedTile  bool // a byte of a tile holds a 4-bit scale and a 4-bit minimum

	// Frequent quantised types have kernels of their own for products of one row and of a few.
	Frequent bool

	// Deviation is the standard deviation of the elements of [RandomBlocks] for D = 1.
	Deviation float32

	quants, scales []places
	tiles          TileForm
}

// ScaleType is the encoding of a block's scale.
type ScaleType uint8

const (
	Half     ScaleType = iota // float16
	HalfE8M0                  // 2^(e-128), stored as the byte e; the code book holds doubled levels
	Constant                  // 2^-10, not stored: the unit of HalfUE4M3 scales
)

// ConstantScale is the value of D in types whose D is Constant.
const ConstantScale = 0x1p-10

// IntegerType is the encoding of the scales of parts of a block.
type IntegerType uint8

const (
	Unsigned  IntegerType = iota // an unsigned number minus ScaleZero
	Signed                       // int8
	HalfUE4M3                    // half the value of an unsigned E4M3 number, in units of 2^-10
)

// A Field stores one number of Bits bits for each item, such as an element's quant. It
// consists of runs of Run bytes, the first at offset At. In byte i of the first run, the
// lowest Bits bits are item i, the next Bits bits are item i+Run, and so on.
type Field struct {
	Bits    int // 0 if items are digits of base 3
	At, Run int
	Runs    []Run // the runs in the order of their items, if they are irregular
}

// A Run stores Len items in Len bytes at offset At, each in the bits from Shift on. For
// digits of base 3, Shift is the digit's number; digit 0 is the highest.
type Run struct{ At, Len, Shift int }

// Code books. The values of E2M1 are doubled to be integers.
var (
	levelsIQ4  = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
	levelsE2M1 = [16]int8{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}
)

// packedK4 packs 8 scales and 8 minimums of 6 bits into 12 bytes, in Q4_K and Q5_K.
var packedK4 = []Field{
	{Bits: 4, Runs: []Run{{4, 4, 0}, {12, 4, 0}, {8, 4, 0}, {12, 4, 4}}},
	{Bits: 2, Runs: []Run{{4, 4, 4}, {4, 4, 6}, {8, 4, 4}, {8, 4, 6}}},
}

// forms declares ggml's types. Offsets are those of the structs in ggml-common.h.
//
// A Deviation is the root mean square of the quants that RandomBlocks writes: of q-Zero, or
// of the distance from the middle of the range in types with a minimum. It is multiplied
// by the root mean square of the integer scales in types that have them.
var forms = [...]Form{
	{Type: F32, Name: "F32", ID: 0, Elems: 1, Bytes: 4},
	{Type: F16, Name: "F16", ID: 1, Elems: 1, Bytes: 2},
	{Type: BF16, Name: "BF16", ID: 30, Elems: 1, Bytes: 2},
	{
		Type: Q8_0, Name: "Q8_0", ID: 8, Elems: 32, Bytes: 34, Frequent: true, Deviation: 73.9,
		Quants: []Field{{Bits: 8, At: 2, Run: 32}}, Signed: true,
	},
	{
		Type: Q4_0, Name: "Q4_0", ID: 2, Elems: 32, Bytes: 18, Frequent: true, Deviation: 4.637,
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
		Type: Q4_K, Name: "Q4_K", ID: 12, Elems: 256, Bytes: 144, Frequent: true, Deviation: 4.610 * 48.39,
		Quants: []Field{{Bits: 4, At: 16, Run: 32}}, Minimum: true, MAt: 2,
		Sub: 32, Scales: packedK4, Interleaved: true,
	},
	{
		Type: Q5_K, Name: "Q5_K", ID: 13, Elems: 256, Bytes: 176, Frequent: true, Deviation: 9.233 * 48.39,
		Quants: []Field{{Bits: 4, At: 48, Run: 32}, {Bits: 1, At: 16, Run: 32}}, Minimum: true, MAt: 2,
		Sub: 32, Scales: packedK4,
	},
	{
		Type: Q6_K, Name: "Q6_K", ID: 14, Elems: 256, Bytes: 210, Frequent: true, Deviation: 18.48 * 73.9,
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

// formOf holds the entries of forms, indexed by type.
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

// FormOf returns the declaration of one of ggml's types, or nil for other types.
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

// HalfRange reports whether the type is quantised and all its weights are within the range of
// float16, which is so unless scales are powers of two of 8 bits. It is false for a nil Form.
func (f *Form) HalfRange() bool { return f != nil && f.Elems > 1 && f.D != HalfE8M0 }

// PieceRun returns the distance in columns between the two halves of a piece. A GEMV over
// layout Rows reads 16 elements at a time, a piece: they share the bytes that hold them,
// 8 consecutive columns in the low bits and 8 more, PieceRun columns further, above them.
func (f *Form) PieceRun() int {
	if q := f.Quants[0]; q.Bits > 0 && q.Bits < 8 {
		return q.Run
	}
	return 8
}

// Parts returns the number of integer scales of a block.
func (f *Form) Parts() int {
	if len(f.Scales) == 0 {
		return 0
	}
	return f.Elems / f.Sub
}

// Offsets returns the offsets of the float16 numbers of a block, or of an element of F16.
func (f *Form) Offsets() []int {
	if f.Elems == 1 && f.Type != F16 || f.D != Half {
		return nil
	}
	if f.Minimum {
		return []int{f.DAt, f.MAt}
	}
	return []int{f.DAt}
}

// places locates the items of a field: item i is in byte at[i], from bit shift[i] on.
type places struct {
	at    []uint16
	shift []uint8
	mask  uint8 // 0 if items are digits of base 3
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

// readFields sets n to the items of a block, combining the bits of all fields.
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

// writeFields writes n to the fields of a block whose bytes are 0. It does not support digits
// of base 3.
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
