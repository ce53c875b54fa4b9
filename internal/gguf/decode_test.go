package gguf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pianola-engine/pianola/internal/dtype"
)

func decode(b []byte) (*File, error) { return Decode(bytes.NewReader(b), int64(len(b))) }

func TestDecode(t *testing.T) {
	b := sample()
	f, err := decode(b)
	if err != nil {
		t.Fatal(err)
	}
	data := uint64(len(b) - 400)
	want := &File{
		Version:    3,
		Alignment:  32,
		DataOffset: data,
		Metadata: []KV{
			{"general.architecture", "llama"},
			{"u8", uint8(200)},
			{"i8", int8(-128)},
			{"u16", uint16(60000)},
			{"i16", int16(math.MinInt16)},
			{"u32", uint32(math.MaxUint32)},
			{"i32", int32(math.MinInt32)},
			{"f32", float32(1e-5)},
			{"bool", true},
			{"u64", uint64(math.MaxUint64)},
			{"i64", int64(math.MinInt64)},
			{"f64", math.Pi},
			{"tokens", []string{"a", "", "Ġthe"}},
			{"scores", []float32{0.5, -1}},
			{"types", []int32{1, -1}},
			{"flags", []bool{true, false}},
			{"none", []uint16{}},
			{"nested", []any{[]uint8{1, 2}, []string{"x"}}},
		},
		Tensors: []Tensor{
			{"token_embd.weight", dtype.F16, "F16", []uint64{3, 32}, data, 192},
			{"blk.0.attn_q.weight", dtype.Q4_0, "Q4_0", []uint64{2, 64}, data + 192, 72},
			{"blk.0.attn_k.weight", dtype.Invalid, "IQ2_XS", []uint64{256}, data + 288, 74},
			{"blk.0.attn_v.weight", dtype.Invalid, "ggml type 57", []uint64{5, 7}, data + 384, 16},
		},
	}
	if diff := cmp.Diff(want, f, cmpopts.IgnoreUnexported(File{})); diff != "" {
		t.Error(diff)
	}
	for _, kv := range want.Metadata {
		if got, ok := f.Meta(kv.Key); !ok || !cmp.Equal(got, kv.Value) {
			t.Errorf("Meta(%q) = %v, %v", kv.Key, got, ok)
		}
	}
	if v, ok := f.Meta("absent"); ok || v != nil {
		t.Errorf("Meta of an absent key = %v, %v", v, ok)
	}

	binary.LittleEndian.PutUint32(b[4:], 2)
	f2, err := decode(b)
	if err != nil {
		t.Fatal(err)
	}
	want.Version = 2
	if diff := cmp.Diff(want, f2, cmpopts.IgnoreUnexported(File{})); diff != "" {
		t.Error(diff)
	}
}

// TestTypeNames checks that ggml's type names and block layouts agree with package dtype.
func TestTypeNames(t *testing.T) {
	for _, want := range dtype.All() {
		id, ok := typeID(want)
		if !ok {
			if want < dtype.U8 {
				t.Errorf("%v has no ggml type id", want)
			}
			continue
		}
		got := lookupType(id)
		elems, size := want.Block()
		if got.name != want.String() || got.dtype != want || int(got.elems) != elems || int(got.bytes) != size {
			t.Errorf("type %d is %+v, want %v", id, got, want)
		}
	}
	if _, ok := typeID(dtype.Invalid); ok {
		t.Error("typeID returns an id for Invalid")
	}
}

func TestAlignment(t *testing.T) {
	for _, tc := range []struct {
		typ   valueType
		value []byte
		want  string
	}{
		{typeUint32, le32(8), ""},
		{typeUint32, le32(64), ""},
		{typeUint32, le32(0), "gguf: key general.alignment: 0 is not a power of two up to 16777216"},
		{typeUint32, le32(48), "48 is not a power of two"},
		{typeUint32, le32(1 << 31), "2147483648 is not a power of two up to"},
		{typeInt32, le32(32), "is int32, want uint32"},
		{typeString, lstr("32"), "is string, want uint32"},
	} {
		var b image
		b.header(1, 1)
		b.kv(alignmentKey, tc.typ, tc.value)
		b.tensor("a", 0, 0, 4)
		for len(b)%64 != 0 {
			b = append(b, 0)
		}
		b = append(b, make([]byte, 16)...)
		f, err := decode(b)
		if tc.want == "" {
			if err != nil {
				t.Errorf("%x: %v", tc.value, err)
				continue
			}
			if a := uint64(binary.LittleEndian.Uint32(tc.value)); f.Alignment != a || f.DataOffset%a != 0 || f.Tensors[0].Offset != f.DataOffset {
				t.Errorf("alignment %d: got %d, data at %d, tensor at %d", a, f.Alignment, f.DataOffset, f.Tensors[0].Offset)
			}
		} else if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%x: error %v, want %q", tc.value, err, tc.want)
		}
	}
}

// hostile returns files that must be refused, each with a part of the expected error.
func hostile() map[string]struct {
	file []byte
	want string
} {
	type entry = struct {
		file []byte
		want string
	}
	files := map[string]entry{}
	add := func(name, want string, build func(b *image)) {
		var b image
		build(&b)
		files[name] = entry{b, want}
	}
	// withTensor adds a file with a valid F32 tensor "ok" of 64 bytes at offset 0, followed by 64
	// bytes of data. build adds a faulty tensor.
	withTensor := func(name, want string, build func(b *image)) {
		add(name, want, func(b *image) {
			b.header(2, 0)
			b.tensor("ok", 0, 0, 16)
			build(b)
			b.data(128)
		})
	}

	add("empty", `not a GGUF file: magic ""`, func(b *image) {})
	add("short magic", `magic "GG"`, func(b *image) { *b = append(*b, "GG"...) })
	add("other magic", `magic "PK\x03\x04"`, func(b *image) { *b = append(*b, "PK\x03\x04 and more"...) })
	add("version 1", "gguf: version 1 is not supported, want 2 or 3", func(b *image) {
		*b = append(*b, magic...)
		b.u32(1)
		b.u32(0)
		b.u32(0)
	})
	add("version 0", "gguf: version 0", func(b *image) {
		*b = append(*b, magic...)
		b.u32(0)
		b.u64(0)
		b.u64(0)
	})
	add("version 4", "gguf: version 4", func(b *image) {
		*b = append(*b, magic...)
		b.u32(4)
		b.u64(0)
		b.u64(0)
	})
	add("big-endian", "gguf: big-endian file (version 3)", func(b *image) {
		*b = append(*b, magic...)
		*b = binary.BigEndian.AppendUint32(*b, 3)
		*b = binary.BigEndian.AppendUint64(*b, 1)
		*b = binary.BigEndian.AppendUint64(*b, 1)
	})
	for _, n := range []uint64{1, 1 << 20, 1 << 32, 1 << 60, 1 << 63, math.MaxUint64} {
		add(fmt.Sprint("tensor count ", n), fmt.Sprintf("gguf: tensors: count %d does not fit", n), func(b *image) { b.header(n, 0) })
		add(fmt.Sprint("metadata count ", n), fmt.Sprintf("gguf: metadata: count %d does not fit", n), func(b *image) { b.header(0, n) })
		add(fmt.Sprint("key length ", n), "gguf: metadata entry 0 of 1: key: string: ", func(b *image) {
			b.header(0, 1)
			b.u64(n + 1<<10&^uint64(n>>63<<10)) // past the end of the file, without overflow
			*b = append(*b, make([]byte, 64)...)
		})
		add(fmt.Sprint("string length ", n), "gguf: key k: string: ", func(b *image) {
			b.header(0, 1)
			b.kv("k", typeString, le64(n))
		})
		for elem := range valueTypes {
			add(fmt.Sprintf("array of type %d, count %d", elem, n), fmt.Sprintf("gguf: key k: array: count %d does not fit", n), func(b *image) {
				b.header(0, 1)
				b.array("k", elem, n)
			})
		}
		add(fmt.Sprint("nested count ", n), "gguf: key k: element 1 of 2: array: count", func(b *image) {
			b.header(0, 1)
			b.array("k", typeArray, 2)
			*b = append(*b, cat(le32(0), le64(1), []byte{1}, le32(0), le64(n))...)
		})
		add(fmt.Sprint("element length ", n), "gguf: key k: element 1 of 2: ", func(b *image) {
			b.header(0, 1)
			b.array("k", typeString, 2)
			*b = append(*b, cat(lstr("a"), le64(n))...)
		})
	}
	add("value type", "gguf: key k: value type 13 is unknown", func(b *image) {
		b.header(0, 1)
		b.kv("k", 13, make([]byte, 8))
	})
	add("element type", "gguf: key k: array: value type 4294967295 is unknown", func(b *image) {
		b.header(0, 1)
		b.array("k", math.MaxUint32, 1)
	})
	add("no key", "gguf: metadata entry 0 of 1: key: is 0 bytes long", func(b *image) {
		b.header(0, 1)
		b.kv("", typeUint32, le32(0))
	})
	add("long key", "key: is 65536 bytes long, want 1 to 65535", func(b *image) {
		b.header(0, 1)
		b.kv(strings.Repeat("k", 1<<16), typeUint32, le32(0))
	})
	add("same key", `gguf: key "k\n": duplicate key`, func(b *image) {
		b.header(0, 2)
		b.kv("k\n", typeUint32, le32(0))
		b.kv("k\n", typeUint64, le64(0))
	})
	add("deep nesting", "arrays are nested deeper than 8", func(b *image) {
		b.header(0, 1)
		b.array("k", typeArray, 1)
		for range 100000 {
			*b = append(*b, cat(le32(uint32(typeArray)), le64(1))...)
		}
	})
	withTensor("no name", "gguf: tensor 1 of 2: name: is 0 bytes", func(b *image) { b.tensor("", 0, 64, 16) })
	withTensor("same name", "gguf: tensor ok: duplicate name", func(b *image) { b.tensor("ok", 0, 64, 16) })
	withTensor("no dimensions", "gguf: tensor x: 0 dimensions, want 1 to 4", func(b *image) { b.tensor("x", 0, 64) })
	withTensor("five dimensions", "gguf: tensor x: 5 dimensions, want 1 to 4", func(b *image) { b.tensor("x", 0, 64, 2, 2, 2, 1, 1) })
	withTensor("many dimensions", "4294967295 dimensions", func(b *image) {
		b.str("x")
		b.u32(math.MaxUint32)
	})
	withTensor("empty dimension", "gguf: tensor x: shape [0 16] has an empty dimension", func(b *image) { b.tensor("x", 0, 64, 16, 0) })
	withTensor("dimensions overflow", "more than 2^63 elements", func(b *image) { b.tensor("x", 0, 64, 1<<32, 1<<32) })
	withTensor("dimensions wrap to 16", "more than 2^63 elements", func(b *image) { b.tensor("x", 0, 64, 1<<63+8, 2) })
	withTensor("bytes overflow", "shape [1 4611686018427387904] in F32 has more than 2^63 bytes", func(b *image) { b.tensor("x", 0, 64, 1<<62, 1) })
	withTensor("row not in blocks", "gguf: tensor x: rows of 48 elements are not a multiple of the 32 elements of a Q4_0 block", func(b *image) { b.tensor("x", 2, 64, 48, 2) })
	withTensor("row not in named blocks", "256 elements of a IQ2_XS block", func(b *image) { b.tensor("x", 17, 64, 64, 4) })
	withTensor("offset unaligned", "gguf: tensor x: offset 68 is not a multiple of the alignment 32", func(b *image) { b.tensor("x", 0, 68, 8) })
	withTensor("offset at the end", "gguf: tensor x: offset 128 + 4 bytes is past the end of the file, which has 128 bytes of data", func(b *image) { b.tensor("x", 0, 128, 1) })
	withTensor("offset past the end", "is past the end", func(b *image) { b.tensor("x", 0, 1<<40, 1) })
	withTensor("offset wraps", "is past the end", func(b *image) { b.tensor("x", 0, math.MaxUint64-31, 16) })
	withTensor("size past the end", "is past the end", func(b *image) { b.tensor("x", 0, 64, 17) })
	withTensor("overlap", "gguf: tensor ok: offset 96 + 64 bytes overlaps tensor x at 128", func(b *image) { b.tensor("x", 0, 32, 8) })
	withTensor("same offset", "overlaps", func(b *image) { b.tensor("x", 0, 0, 16) })
	withTensor("same offset, unknown type", "overlaps", func(b *image) { b.tensor("x", 57, 0, 16) })
	withTensor("unknown type at the end", "gguf: tensor x: offset 128 + 0 bytes is past the end", func(b *image) { b.tensor("x", 57, 128, 16) })
	add("unknown type, no data", "gguf: tensor x: offset 0 + 0 bytes is past the end of the file, which has 0 bytes of data", func(b *image) {
		b.header(1, 0)
		b.tensor("x", 57, 0, 16)
	})
	add("no data", "gguf: tensor x: offset 0 + 64 bytes is past the end of the file, which has 0 bytes of data", func(b *image) {
		b.header(1, 0)
		b.tensor("x", 0, 0, 16)
		*b = append(*b, 0, 0)
	})
	return files
}

// allocated returns the number of bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestHostile(t *testing.T) {
	for name, tc := range hostile() {
		t.Run(name, func(t *testing.T) {
			var err error
			n := allocated(func() { _, err = decode(tc.file) })
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if n > 1<<20 {
				t.Errorf("%d bytes allocated", n)
			}
			if err != nil && strings.ContainsAny(err.Error(), "\n\x00") {
				t.Errorf("error is not one plain line: %q", err)
			}
		})
	}
}

func TestTypedErrors(t *testing.T) {
	files := hostile()
	var magicErr *MagicError
	if _, err := decode(files["other magic"].file); !errors.As(err, &magicErr) || magicErr.Magic != "PK\x03\x04" {
		t.Errorf("other magic: %v", err)
	}
	var version *VersionError
	if _, err := decode(files["version 1"].file); !errors.As(err, &version) || version.Version != 1 || version.BigEndian {
		t.Errorf("version 1: %v", err)
	}
	if _, err := decode(files["big-endian"].file); !errors.As(err, &version) || version.Version != 3 || !version.BigEndian {
		t.Errorf("big-endian: %v", err)
	}
	if _, err := Decode(bytes.NewReader(nil), -1); err == nil {
		t.Error("a negative size is accepted")
	}
}

// TestCut truncates a file at every byte. If the header is truncated, the error reports the
// end of the file; otherwise it reports a tensor past the end.
func TestCut(t *testing.T) {
	b := sample()
	last := len(b) - 16 // the last tensor takes the rest of the file, at least one byte
	for n := range last + 1 {
		_, err := decode(b[:n])
		if err == nil {
			t.Fatalf("cut at %d: no error", n)
		}
		if n >= 24 && n < last-384 && !errors.Is(err, io.ErrUnexpectedEOF) && !strings.Contains(err.Error(), "past the end") {
			t.Errorf("cut at %d: %v", n, err)
		}
	}
	// Here the reader ends before the size that is passed to Decode.
	for n := range len(b) - 400 {
		if _, err := Decode(bytes.NewReader(b[:n]), int64(len(b))); n > 4 && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("reader cut at %d: %v", n, err)
		}
	}
}

// zeros is a large file that begins with head and contains zeros otherwise, like a sparse
// file.
type zeros struct {
	head []byte
	size int64
}

func (z zeros) ReadAt(p []byte, off int64) (int, error) {
	n := int(max(0, min(int64(len(p)), z.size-off)))
	clear(p[:n])
	if off < int64(len(z.head)) {
		copy(p[:n], z.head[off:])
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// TestMemoryLimit decodes headers that declare huge numbers of items, in files long enough to
// contain them.
func TestMemoryLimit(t *testing.T) {
	const size = 1 << 40
	for name, tc := range map[string]struct {
		build func(b *image)
		want  string
	}{
		"numbers":      {func(b *image) { b.header(0, 1); b.array("k", typeUint8, 1<<39) }, "gguf: key k: array: header takes more than 96 MiB"},
		"strings":      {func(b *image) { b.header(0, 1); b.array("k", typeString, 1<<30) }, "header takes more than"},
		"long strings": {func(b *image) { b.header(0, 1); b.array("k", typeString, 2); b.u64(1 << 39) }, "header takes more than"},
		"arrays":       {func(b *image) { b.header(0, 1); b.array("k", typeArray, 1<<30) }, "header takes more than"},
		"string":       {func(b *image) { b.header(0, 1); b.kv("k", typeString, le64(1<<35)) }, "gguf: key k: header takes more than"},
		"metadata":     {func(b *image) { b.header(0, 1<<33) }, "gguf: metadata: header takes more than"},
		"tensors":      {func(b *image) { b.header(1<<33, 0) }, "gguf: tensors: header takes more than"},
		"some strings": {func(b *image) { b.header(0, 2); b.array("k", typeString, 3<<20) }, "metadata entry 1 of 2: key"},
	} {
		t.Run(name, func(t *testing.T) {
			var b image
			tc.build(&b)
			var err error
			n := allocated(func() { _, err = Decode(zeros{b, size}, size) })
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if n > 64<<20 {
				t.Errorf("%d bytes allocated", n)
			}
		})
	}
}

// TestLargeVocabulary decodes the metadata of a tokenizer with 262k tokens.
func TestLargeVocabulary(t *testing.T) {
	const tokens, merges = 262144, 514906
	var b image
	b.header(0, 3)
	b.array("tokenizer.ggml.tokens", typeString, tokens)
	for i := range tokens {
		b.str(fmt.Sprintf("token%d", i))
	}
	b.array("tokenizer.ggml.merges", typeString, merges)
	for i := range merges {
		b.str(fmt.Sprintf("left%d right%d", i, i))
	}
	b.array("tokenizer.ggml.scores", typeFloat32, tokens)
	for i := range tokens {
		b = append(b, f32(float32(i))...)
	}
	var f *File
	var err error
	n := allocated(func() { f, err = decode(b) })
	if err != nil {
		t.Fatal(err)
	}
	if limit := uint64(len(b)) + 8*(tokens+merges) + 1<<20; n > limit {
		t.Errorf("%d bytes allocated for a file of %d bytes, want at most %d", n, len(b), limit)
	}
	list := f.Metadata[0].Value.([]string)
	if len(list) != tokens || list[0] != "token0" || list[tokens-1] != "token262143" {
		t.Errorf("%d tokens, from %q to %q", len(list), list[0], list[len(list)-1])
	}
	pairs := f.Metadata[1].Value.([]string)
	for i, p := range pairs {
		if p != fmt.Sprintf("left%d right%d", i, i) {
			t.Fatalf("merge %d is %q", i, p)
		}
	}
	scores := f.Metadata[2].Value.([]float32)
	for i, s := range scores {
		if s != float32(i) {
			t.Fatalf("score %d is %g", i, s)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(sample()))
	for _, tc := range hostile() {
		if len(tc.file) < 1<<12 {
			f.Add(tc.file)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var file *File
		var err error
		if n := allocated(func() { file, err = decode(b) }); n > 64<<20 {
			t.Fatalf("%d bytes allocated", n)
		}
		if err != nil {
			return
		}
		size := uint64(len(b))
		for i, x := range file.Tensors {
			if x.Size == 0 || x.Offset%file.Alignment != 0 || x.Offset < file.DataOffset || x.Offset > size || x.Size > size-x.Offset {
				t.Errorf("tensor %+v in a file of %d", x, size)
			}
			n := uint64(1)
			for _, dim := range x.Shape {
				n *= dim
			}
			if x.Type.Valid() {
				if want, ok := x.Type.Bytes(n); !ok || want != x.Size {
					t.Errorf("tensor %+v: want %d bytes", x, want)
				}
			}
			for _, y := range file.Tensors[:i] {
				if x.Name == y.Name || x.Offset < y.Offset+y.Size && y.Offset < x.Offset+x.Size {
					t.Errorf("tensors %+v and %+v overlap", x, y)
				}
			}
		}
	})
}
