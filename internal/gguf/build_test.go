package gguf

import (
	"encoding/binary"
	"math"
)

// image builds GGUF files by hand, valid and invalid ones.
type image []byte

func (b *image) u32(v uint32) { *b = binary.LittleEndian.AppendUint32(*b, v) }
func (b *image) u64(v uint64) { *b = binary.LittleEndian.AppendUint64(*b, v) }
func (b *image) str(s string) {
	b.u64(uint64(len(s)))
	*b = append(*b, s...)
}

// header starts a file of version 3.
func (b *image) header(tensors, kvs uint64) {
	*b = append(*b, magic...)
	b.u32(3)
	b.u64(tensors)
	b.u64(kvs)
}

func (b *image) kv(key string, t valueType, value []byte) {
	b.str(key)
	b.u32(uint32(t))
	*b = append(*b, value...)
}

// array starts the entry of an array with count elements.
func (b *image) array(key string, elem valueType, count uint64) {
	b.str(key)
	b.u32(uint32(typeArray))
	b.u32(uint32(elem))
	b.u64(count)
}

// tensor adds a tensor info. The dimensions are in the order of the file, innermost first.
func (b *image) tensor(name string, id uint32, offset uint64, dims ...uint64) {
	b.str(name)
	b.u32(uint32(len(dims)))
	for _, dim := range dims {
		b.u64(dim)
	}
	b.u32(id)
	b.u64(offset)
}

// data pads to the alignment and adds n bytes of tensor data.
func (b *image) data(n int) {
	for len(*b)%defaultAlignment != 0 {
		*b = append(*b, 0)
	}
	*b = append(*b, make([]byte, n)...)
}

func le16(v uint16) []byte { return binary.LittleEndian.AppendUint16(nil, v) }
func le32(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }
func le64(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }
func f32(v float32) []byte { return le32(math.Float32bits(v)) }
func f64(v float64) []byte { return le64(math.Float64bits(v)) }
func lstr(s string) []byte { return append(le64(uint64(len(s))), s...) }
func cat(p ...[]byte) (b []byte) {
	for _, s := range p {
		b = append(b, s...)
	}
	return b
}

// sample returns a file with every value type. Its tensors have types that package dtype
// supports, types that only have a name, and an unknown type.
func sample() image {
	var b image
	b.header(4, 18)
	b.kv("general.architecture", typeString, lstr("llama"))
	b.kv("u8", typeUint8, []byte{200})
	b.kv("i8", typeInt8, []byte{0x80})
	b.kv("u16", typeUint16, le16(60000))
	b.kv("i16", typeInt16, le16(0x8000))
	b.kv("u32", typeUint32, le32(math.MaxUint32))
	b.kv("i32", typeInt32, le32(0x80000000))
	b.kv("f32", typeFloat32, f32(1e-5))
	b.kv("bool", typeBool, []byte{1})
	b.kv("u64", typeUint64, le64(math.MaxUint64))
	b.kv("i64", typeInt64, le64(1<<63))
	b.kv("f64", typeFloat64, f64(math.Pi))
	b.array("tokens", typeString, 3)
	b = append(b, cat(lstr("a"), lstr(""), lstr("Ġthe"))...)
	b.array("scores", typeFloat32, 2)
	b = append(b, cat(f32(0.5), f32(-1))...)
	b.array("types", typeInt32, 2)
	b = append(b, cat(le32(1), le32(0xffffffff))...)
	b.array("flags", typeBool, 2)
	b = append(b, 1, 0)
	b.array("none", typeUint16, 0)
	b.array("nested", typeArray, 2)
	b = append(b, cat(le32(uint32(typeUint8)), le64(2), []byte{1, 2}, le32(uint32(typeString)), le64(1), lstr("x"))...)
	b.tensor("token_embd.weight", 1, 0, 32, 3)     // F16, 192 bytes
	b.tensor("blk.0.attn_q.weight", 2, 192, 64, 2) // Q4_0, 72 bytes
	b.tensor("blk.0.attn_k.weight", 17, 288, 256)  // IQ2_XS, 74 bytes
	b.tensor("blk.0.attn_v.weight", 57, 384, 7, 5) // unknown type: takes the rest of the file
	b.data(400)
	return b
}
