package safetensors

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

	"github.com/pianola-engine/pianola/internal/dtype"
)

// file returns a safetensors file with the given header and n bytes of data.
func file(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	return append(b, make([]byte, n)...)
}

func decode(b []byte) (*Header, error) { return Decode(bytes.NewReader(b), int64(len(b))) }

// allocated returns the number of bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

const sample = `{"__metadata__":{"format":"pt","x":"\u00e9\n"},` +
	`"b.weight":{"shape":[3,2],"dtype":"BF16","data_offsets":[4,16]},` +
	`"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},` +
	`"mask":{"dtype":"BOOL","shape":[1,3],"data_offsets":[16,19]},` +
	`"scale":{"dtype":"F8_E4M3","shape":[5],"data_offsets":[19,24]},` +
	`"four":{"dtype":"F4","shape":[2,3],"data_offsets":[24,27]},` +
	`"new":{"dtype":"F2_NEW","shape":[100],"data_offsets":[27,30]}}   `

func TestDecode(t *testing.T) {
	b := file(sample, 30)
	got, err := decode(b)
	if err != nil {
		t.Fatal(err)
	}
	data := uint64(8 + len(sample))
	want := &Header{
		DataOffset: data,
		Metadata:   map[string]string{"format": "pt", "x": "é\n"},
		Tensors: []Tensor{
			{"a", dtype.F32, "F32", []uint64{}, data, 4},
			{"b.weight", dtype.BF16, "BF16", []uint64{3, 2}, data + 4, 12},
			{"mask", dtype.U8, "BOOL", []uint64{1, 3}, data + 16, 3},
			{"scale", dtype.Invalid, "F8_E4M3", []uint64{5}, data + 19, 5},
			{"four", dtype.Invalid, "F4", []uint64{2, 3}, data + 24, 3},
			{"new", dtype.Invalid, "F2_NEW", []uint64{100}, data + 27, 3},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestElementTypes checks that the element sizes agree with package dtype.
func TestElementTypes(t *testing.T) {
	for name, e := range elementTypes {
		if elems, size := e.dtype.Block(); e.dtype.Valid() && (elems != 1 || uint64(size)*8 != e.bits) {
			t.Errorf("%s has %d bits, %v has %d bytes", name, e.bits, e.dtype, size)
		}
	}
	for _, typ := range dtype.All() {
		if e, ok := elementTypes[typ.String()]; !typ.Quantized() && (!ok || e.dtype != typ) {
			t.Errorf("%v is not an element type", typ)
		}
	}
}

var hostile = []struct {
	name string
	file []byte
	want string
}{
	{"empty", nil, "not a safetensors file: 0 bytes long"},
	{"short", []byte("12345678"), "not a safetensors file: 8 bytes long"},
	{"other magic", []byte("GGUF\x03\x00\x00\x00 and more"), "not a safetensors file: header starts with"},
	{"not an object", file("[]", 0), "not a safetensors file: header starts with \"[\""},
	{"header past the end", binary.LittleEndian.AppendUint64(nil, 20)[:8:8], "not a safetensors file"},
	{"header past the end", append(binary.LittleEndian.AppendUint64(nil, 3), "{}"...), "safetensors: header length 3 is past the end of the file at 10"},
	{"header past the limit", append(binary.LittleEndian.AppendUint64(nil, maxHeader+1), "{}"...), "header length 100000001 is above the limit of 100000000"},
	{"header of 2^63", append(binary.LittleEndian.AppendUint64(nil, 1<<63), "{}"...), "header length 9223372036854775808 is above the limit"},
	{"header of 2^64-1", append(binary.LittleEndian.AppendUint64(nil, math.MaxUint64), "{}"...), "is above the limit"},
	{"no header", append(make([]byte, 8), "{}"...), "safetensors: header: at byte 0: unexpected EOF"},
	{"open object", file(`{"a":`, 0), "unexpected EOF"},
	{"behind the object", file(`{} {}`, 0), "at byte 4: {, want the end"},
	{"trailing comma", file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},}`, 1), "invalid character"},
	{"tensor is a number", file(`{"a":7}`, 0), "safetensors: header: tensor a: at byte 6: 7, want an object"},
	{"tensor is null", file(`{"a":null}`, 0), "null, want an object"},
	{"metadata is an array", file(`{"__metadata__":[]}`, 0), "__metadata__: at byte 17: [, want an object"},
	{"metadata is not text", file(`{"__metadata__":{"a":true}}`, 0), "true, want a string"},
	{"metadata key twice", file(`{"__metadata__":{"a":"","a":""}}`, 0), "safetensors: header: __metadata__: duplicate key a"},
	{"metadata twice", file(`{"__metadata__":{},"__metadata__":{}}`, 0), "duplicate key __metadata__"},
	{"deep", file(`{"a":`+strings.Repeat("[", 100000), 0), "[, want an object"},
	{"tensor twice", file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2), "duplicate key a"},
	{"field twice", file(`{"a b":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1), `tensor "a b": duplicate key dtype`},
	{"field unknown", file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":0}}`, 1), "tensor a: field x is unknown"},
	{"no dtype", file(`{"a":{"shape":[1],"data_offsets":[0,1]}}`, 1), "tensor a: has no dtype"},
	{"no shape", file(`{"a":{"dtype":"U8","data_offsets":[0,1]}}`, 1), "tensor a: has no shape"},
	{"no offsets", file(`{"a":{"dtype":"U8","shape":[1]}}`, 1), "tensor a: 0 data_offsets, want 2"},
	{"one offset", file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}}`, 1), "1 data_offsets"},
	{"three offsets", file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}}`, 2), "tensor a: data_offsets: at byte 52: more than 2 numbers"},
	{"17 dimensions", file(`{"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}}`, 1), "tensor a: shape: at byte 61: more than 16 numbers"},
	{"dtype is a number", file(`{"a":{"dtype":1,"shape":[1],"data_offsets":[0,1]}}`, 1), "tensor a: dtype: at byte 15: 1, want a string"},
	{"dtype is no name", file(`{"a":{"dtype":"U 8","shape":[1],"data_offsets":[0,1]}}`, 1), `dtype "U 8" is not a valid type name`},
	{"dtype is long", file(`{"a":{"dtype":"`+strings.Repeat("U", 33)+`","shape":[1],"data_offsets":[0,1]}}`, 1), "is not a valid type name"},
	{"negative", file(`{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}`, 1), "-1, want an integer"},
	{"fraction", file(`{"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}}`, 1), "1.5, want an integer"},
	{"exponent", file(`{"a":{"dtype":"U8","shape":[1e0],"data_offsets":[0,1]}}`, 1), "1e0, want an integer"},
	{"large number", file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551616]}}`, 1), "18446744073709551616, want an integer"},
	{"shape is text", file(`{"a":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}}`, 1), "a string, want a number"},
	{"empty dimension", file(`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,1]}}`, 1), "tensor a: shape [0] has an empty dimension"},
	{"empty tensor", file(`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 1), "tensor a: data_offsets [0 0] are not in order"},
	{"offsets turned round", file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}}`, 1), "data_offsets [1 0] are not in order"},
	{"product overflows", file(`{"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,1]}}`, 1), "more than 2^63 elements"},
	{"size overflows", file(`{"a":{"dtype":"F64","shape":[4611686018427387905],"data_offsets":[0,8]}}`, 8), "is not the size of shape [4611686018427387905] in F64"},
	{"size too small", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, 4), "tensor a: data_offsets [0 4] span 4 bytes, which is not the size of shape [2] in F32"},
	{"size too large", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,9]}}`, 9), "span 9 bytes"},
	{"half a byte", file(`{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}`, 1), "is not the size of shape [3] in F4"},
	{"past the end", file(`{"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}`, 8), "safetensors: tensor a: offset 0 + 9 bytes is past the end of the file, which has 8 bytes of data"},
	{"far past the end", file(`{"a":{"dtype":"X","shape":[9],"data_offsets":[9223372036854775808,18446744073709551615]}}`, 8), "is past the end"},
	{"overlap", file(`{"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}`, 6), "tensor b: offset 2 overlaps tensor a, which ends at 4"},
	{"hole", file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}}`, 6), "tensor b: offset 4 leaves a gap after tensor a, which ends at 2"},
	{"hole in front", file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}`, 4), "leaves a gap after the header"},
	{"data behind", file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 4), "2 bytes of data follow the last tensor"},
	{"long string", file(`{"__metadata__":{"a":"`+strings.Repeat("a", 8<<20)+`"}}`, 0), "has a string of more than 4 MiB"},
}

func TestHostile(t *testing.T) {
	for _, tc := range hostile {
		t.Run(tc.name, func(t *testing.T) {
			var err error
			n := allocated(func() { _, err = decode(tc.file) })
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if n > 64<<20 {
				t.Errorf("%d bytes allocated", n)
			}
		})
	}
}

func TestCut(t *testing.T) {
	b := file(sample, 30)
	for n := range len(b) {
		if _, err := decode(b[:n]); err == nil {
			t.Fatalf("cut at %d: no error", n)
		} else if n > 8 && n < 8+len(sample) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut at %d: %v", n, err)
		}
		// Here the reader ends before the size that is passed to Decode.
		if n < 8+len(sample)-3 {
			if _, err := Decode(bytes.NewReader(b[:n]), int64(len(b))); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("reader cut at %d: %v", n, err)
			}
		}
	}
}

// watched is a file that records the largest live heap during reads.
type watched struct {
	io.ReaderAt
	reads int
	peak  uint64
}

func (w *watched) ReadAt(b []byte, off int64) (int, error) {
	if w.reads++; w.reads%100 == 0 {
		w.peak = max(w.peak, live())
	}
	return w.ReaderAt.ReadAt(b, off)
}

// live returns the number of live bytes in the heap.
func live() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestMemoryLimit decodes a header of the largest size, which is full of small tensors.
func TestMemoryLimit(t *testing.T) {
	b := make([]byte, 8, maxHeader+8)
	b = append(b, '{')
	for i := 0; len(b) < maxHeader-100; i++ {
		b = fmt.Appendf(b, `"%d":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]},`, i, i, i+1)
	}
	binary.LittleEndian.PutUint64(b, uint64(len(b)-8))
	before := live()
	w := &watched{ReaderAt: bytes.NewReader(b)}
	if _, err := Decode(w, int64(len(b))); !errors.Is(err, errMemory) {
		t.Errorf("error %v, want %v", err, errMemory)
	}
	if w.peak < before+10<<20 || w.peak > before+150<<20 {
		t.Errorf("the heap grew by %d bytes during %d reads, want more than 0 and at most 150 MiB", w.peak-before, w.reads)
	}
	runtime.KeepAlive(b)
}

func TestManyTensors(t *testing.T) {
	const count = 100_000
	var b bytes.Buffer
	b.WriteString("{")
	for i := range count {
		fmt.Fprintf(&b, `"model.layers.%d.mlp.experts.%d.down_proj.weight":{"dtype":"F8_E4M3","shape":[1,1],"data_offsets":[%d,%d]},`, i/1000, i%1000, i, i+1)
	}
	b.Truncate(b.Len() - 1)
	b.WriteString("}")
	h, err := decode(file(b.String(), count))
	if err != nil {
		t.Fatal(err)
	}
	if len(h.Tensors) != count || h.Tensors[count-1].Name != "model.layers.99.mlp.experts.999.down_proj.weight" {
		t.Errorf("%d tensors, last %+v", len(h.Tensors), h.Tensors[len(h.Tensors)-1])
	}
}

func TestIndex(t *testing.T) {
	const text = `{"metadata":{"total_size":[1,{"a":[]}]},"weight_map":{"x":"model-00002-of-00002.safetensors",` +
		`"y":"model-00001-of-00002.safetensors","z":"model-00002-of-00002.safetensors"},"more":null}`
	got, err := DecodeIndex(strings.NewReader(text), int64(len(text)))
	if err != nil {
		t.Fatal(err)
	}
	want := &Index{
		Shards: []string{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"},
		Shard:  map[string]int{"x": 1, "y": 0, "z": 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for n := range len(text) {
		if _, err := DecodeIndex(strings.NewReader(text[:n]), int64(n)); err == nil {
			t.Errorf("cut at %d: no error", n)
		}
	}
}

func TestIndexHostile(t *testing.T) {
	for text, want := range map[string]string{
		`{}`:                     "safetensors: index: weight_map is missing or empty",
		`{"weight_map":{}}`:      "weight_map is missing or empty",
		`{"weight_map":[]}`:      "[, want an object",
		`{"weight_map":{"x":1}}`: "tensor x: at byte 20: 1, want a string",
		`{"weight_map":{"x":"a.safetensors","x":"b.safetensors"}}`: "duplicate key x",
		`{"weight_map":{"x":"a.safetensors"},"weight_map":{}}`:     "duplicate key weight_map",
		`{"weight_map":{"x":""}}`:                                  `tensor x: shard "" is not the name`,
		`{"weight_map":{"x":"a.bin"}}`:                             "shard a.bin is not the name of a safetensors file in the index's directory",
		`{"weight_map":{"x":"../a.safetensors"}}`:                  "is not the name",
		`{"weight_map":{"x":"..safetensors"}}`:                     "is not the name",
		`{"weight_map":{"x":"/a.safetensors"}}`:                    "is not the name",
		`{"weight_map":{"x":"d/a.safetensors"}}`:                   "is not the name",
		`{"weight_map":{"x":"d\\a.safetensors"}}`:                  "is not the name",
		`{"weight_map":{"x":"c:a.safetensors"}}`:                   "is not the name",
		`{"weight_map":{"x":"a\u0000b.safetensors"}}`:              "is not the name",
		`{"weight_map":{"x":"a.safetensors"}} x`:                   "invalid character",
		`{"deep":` + strings.Repeat(`[`, 1<<20):                    "unexpected EOF",
	} {
		_, err := DecodeIndex(strings.NewReader(text), int64(len(text)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: error %v, want %q", text, err, want)
		}
	}
	if _, err := DecodeIndex(strings.NewReader("{}"), maxIndex+1); err == nil || !strings.Contains(err.Error(), "above the limit") {
		t.Errorf("large index: %v", err)
	}
	var b strings.Builder
	for i := range maxShards + 1 {
		fmt.Fprintf(&b, `,"%d":"%d.safetensors"`, i, i)
	}
	text := `{"weight_map":{` + b.String()[1:] + `}}`
	if _, err := DecodeIndex(strings.NewReader(text), int64(len(text))); err == nil || !strings.Contains(err.Error(), "4097 shards, more than the limit of 4096") {
		t.Errorf("many shards: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(file(sample, 30))
	for _, tc := range hostile {
		if len(tc.file) < 1<<10 {
			f.Add(tc.file)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h *Header
		var err error
		if n := allocated(func() { h, err = decode(b) }); n > 64<<20 {
			t.Fatalf("%d bytes allocated", n)
		}
		if err != nil {
			return
		}
		end := h.DataOffset
		names := map[string]bool{}
		for _, x := range h.Tensors {
			if x.Offset != end || x.Size == 0 || names[x.Name] {
				t.Errorf("tensor %+v, want it at %d", x, end)
			}
			names[x.Name] = true
			end += x.Size
			n := uint64(1)
			for _, dim := range x.Shape {
				n *= dim
			}
			if want, ok := x.Type.Bytes(n); x.Type.Valid() && (!ok || want != x.Size) {
				t.Errorf("tensor %+v, want %d bytes", x, want)
			}
		}
		if end != uint64(len(b)) {
			t.Errorf("tensors end at %d in a file of %d bytes", end, len(b))
		}
	})
}

func FuzzDecodeIndex(f *testing.F) {
	f.Add(`{"metadata":{"total_size":1},"weight_map":{"x":"model-00001-of-00001.safetensors"}}`)
	f.Add(`{"weight_map":{"x":"../a.safetensors"}}`)
	f.Fuzz(func(t *testing.T, text string) {
		x, err := DecodeIndex(strings.NewReader(text), int64(len(text)))
		if err != nil {
			return
		}
		for _, name := range x.Shards {
			if strings.ContainsAny(name, `/\`) || strings.Contains(name, "..") {
				t.Errorf("shard %q", name)
			}
		}
		for tensor, i := range x.Shard {
			if i < 0 || i >= len(x.Shards) {
				t.Errorf("tensor %q in shard %d of %d", tensor, i, len(x.Shards))
			}
		}
	})
}
