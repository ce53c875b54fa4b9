package weights

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/packed"
)

// directory writes and opens a model with the given config.json and tensors.
func directory(t *testing.T, config string, tensors map[string]packed.Tensor) *Directory {
	t.Helper()
	m := packed.Model{Tensors: tensors}
	if err := json.Unmarshal([]byte(config), &m.Config); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := m.Write(dir); err != nil {
		t.Fatal(err)
	}
	return open(t, dir)
}

// zeroed returns a tensor with n zero bytes.
func zeroed(typ string, n int, shape ...int) packed.Tensor {
	return packed.Tensor{Type: typ, Shape: shape, Data: make([]byte, n)}
}

const fourBits = `{"quantization": {"group_size": 64, "bits": 4}}`

// fourBit returns the tensors of a matrix [2, 128] with 4 bits in groups of 64.
func fourBit() map[string]packed.Tensor {
	return map[string]packed.Tensor{"a.weight": zeroed("U32", 128, 2, 16), "a.scales": zeroed("F16", 8, 2, 2), "a.biases": zeroed("F16", 8, 2, 2)}
}

func TestJoin(t *testing.T) {
	tensors := fourBit()
	tensors["norm.weight"] = zeroed("F32", 16, 4)
	d := directory(t, fourBits, tensors)
	if err := errors.Join(d.Unsupported()...); err != nil {
		t.Fatal(err)
	}
	typ, _ := dtype.MLXType(4, 64, dtype.F16)
	a, ok := d.Tensor("a.weight")
	if want := (Tensor{"a.weight", typ, "MLX4_64_F16", []uint64{2, 128}, 0, a.Offset, 144, true}); !ok || !cmp.Equal(a, want) {
		t.Errorf("%+v, want %+v", a, want)
	}
	if len(d.Tensors()) != 2 {
		t.Errorf("tensors %+v", d.Tensors())
	}
	if _, ok := d.Tensor("a.scales"); ok {
		t.Error("the directory lists the scales as a tensor")
	}
	m, err := d.Map()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if _, err := m.Tensor("a.weight"); err == nil {
		t.Error("Tensor returns bytes for a joined matrix")
	}
	if size, ok := m.Joined("a.weight"); !ok || size != 144 {
		t.Errorf("%d bytes, %v", size, ok)
	}
	if _, ok := m.Joined("norm.weight"); ok {
		t.Error("Joined returns true for a norm")
	}
	for _, c := range []struct {
		name   string
		offset uint64
		n      int
	}{{"a.weight", 1, 72}, {"a.weight", 0, 71}, {"a.weight", 144, 72}, {"a.weight", math.MaxUint64 - 71, 72}, {"norm.weight", 0, 16}, {"b", 0, 0}} {
		if err := m.ReadJoined(c.name, c.offset, make([]byte, c.n)); err == nil {
			t.Errorf("ReadJoined accepts %+v", c)
		}
	}
	m.Close()
	if err := m.ReadJoined("a.weight", 0, make([]byte, 72)); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// TestJoinMXFP4 reads nibbles in column order as a block, whose bytes hold the two halves of
// the block.
func TestJoinMXFP4(t *testing.T) {
	quants := make([]byte, 32)
	for i := range quants {
		quants[i] = byte(2*i)&15 | byte(2*i+1)<<4
	}
	d := directory(t, `{"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}}`, map[string]packed.Tensor{
		"a.weight": {Type: "U32", Shape: []int{1, 8}, Data: quants}, "a.scales": {Type: "U8", Shape: []int{1, 2}, Data: []byte{127, 128}},
	})
	if err := errors.Join(d.Unsupported()...); err != nil {
		t.Fatal(err)
	}
	m, err := d.Map()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	row, got := make([]byte, 34), make([]float32, 64)
	if err := errors.Join(m.ReadJoined("a.weight", 0, row), dtype.Dequantize(dtype.MXFP4, got, row)); err != nil {
		t.Fatal(err)
	}
	levels := []float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6}
	for i, v := range got {
		if want := levels[i%16] * float32(1+i/32); v != want {
			t.Fatalf("element %d is %v, want %v", i, v, want)
		}
	}
}

// TestJoinFP8 reads a matrix whose last scale blocks extend beyond its edges.
func TestJoinFP8(t *testing.T) {
	const rows, cols = 40, 96
	quants := bytes.Repeat([]byte{0x38}, rows*cols) // 1
	var scales []byte
	for i := range 6 { // [3, 2] blocks of [16, 64]
		scales = binary.LittleEndian.AppendUint32(scales, math.Float32bits(float32(i+1)))
	}
	d := directory(t, `{"quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 64]}}`, map[string]packed.Tensor{
		"a.weight": {Type: "F8_E4M3", Shape: []int{rows, cols}, Data: quants}, "a.weight_scale_inv": {Type: "F32", Shape: []int{3, 2}, Data: scales},
	})
	if err := errors.Join(d.Unsupported()...); err != nil {
		t.Fatal(err)
	}
	a, _ := d.Tensor("a.weight")
	if want, _ := dtype.FP8Type(32); a.Type != want {
		t.Fatalf("%+v", a)
	}
	m, err := d.Map()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	b, got := make([]byte, a.Size), make([]float32, rows*cols)
	if err := errors.Join(m.ReadJoined("a.weight", 0, b), dtype.Dequantize(a.Type, got, b)); err != nil {
		t.Fatal(err)
	}
	for i, v := range got {
		if want := float32(i/cols/16*2 + i%cols/64 + 1); v != want {
			t.Fatalf("[%d, %d] is %v, want %v", i/cols, i%cols, v, want)
		}
	}
	// Reading rows from the middle must give the same bytes.
	row := int(a.Size) / rows
	part := make([]byte, 3*row)
	if err := m.ReadJoined("a.weight", uint64(20*row), part); err != nil || !bytes.Equal(part, b[20*row:23*row]) {
		t.Errorf("rows 20 to 22 differ: %v", err)
	}
}

// TestUnsupported opens models with unsupported parts. OpenDirectory must succeed, and the
// error must name the key or the tensor.
func TestUnsupported(t *testing.T) {
	method := func(text string) string { return `{"quantization_config": ` + text + `}` }
	fp8 := func(shape ...int) map[string]packed.Tensor {
		n := 4
		for _, d := range shape {
			n *= d
		}
		return map[string]packed.Tensor{"a.weight": zeroed("F8_E4M3", 256*128, 256, 128), "a.weight_scale": zeroed("F32", n, shape...)}
	}
	for _, c := range []struct {
		config  string
		tensors map[string]packed.Tensor
		want    string
	}{
		{method(`{"quant_method": "gptq", "bits": 4, "group_size": 128}`), nil, `config.json: quantization_config.quant_method: "gptq" is not supported`},
		{method(`{"quant_method": "awq", "bits": 4, "group_size": 128}`), nil, `quant_method: "awq" is not supported`},
		{method(`{"quant_method": "bitsandbytes", "load_in_4bit": true}`), nil, `quant_method: "bitsandbytes" is not supported`},
		{method(`{"quant_method": 7}`), nil, `quant_method: "7" is not supported`},
		{method(`{"bits": 4}`), nil, `quantization_config.quant_method: missing`},
		{method(`{"quant_method": "fp8", "fmt": "e5m2"}`), nil, `quantization_config.fmt: "e5m2" is not supported`},
		{method(`{"quant_method": "fp8", "weight_block_size": [128]}`), nil, `quantization_config.weight_block_size: is [128], want two sizes`},
		{method(`{"quant_method": "fp8", "weight_block_size": [0, 128]}`), nil, `weight_block_size: is [0 128]`},
		{method(`{"quant_method": "modelopt", "quant_algo": "NVFP4"}`), nil, `quantization_config.quant_algo: "NVFP4" is not supported`},
		{method(`{"quant_method": "compressed-tensors"}`), nil, `quantization_config.config_groups: missing`},
		{method(`{"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}}`), nil,
			`quantization_config.config_groups.group_0.weights: 4 bits of type "int" is not supported`},
		{`{"quantization": "yes"}`, nil, `quantization: is yes, want an object`},
		{`{"quantization": {"bits": 4}}`, nil, `quantization.group_size: missing`},
		{`{"quantization": {"group_size": 64, "bits": -4}}`, nil, `quantization.bits: is -4`},
		{`{"quantization": {"group_size": 64, "bits": 4, "mode": "nvfp4"}}`, nil, `quantization.mode: "nvfp4" is not supported`},
		{`{"quantization": {"group_size": 64, "bits": 4, "a": {"bits": 1e9}}}`, nil, `quantization.a.bits: is 1000000000`},

		{`{}`, fourBit(), `tensor a.weight: has scales, but config.json has no quantization`},
		{`{"quantization": {"group_size": 32, "bits": 4}}`, fourBit(), `tensor a.weight: shape [2 16] and scales of shape [2 2] do not match 4 bits in groups of 32`},
		{`{"quantization": {"group_size": 64, "bits": 7}}`, fourBit(), `tensor a.weight: 7 bits in groups of 64 with scales of type F16 and mode affine are not supported`},
		{`{"quantization": {"group_size": 64, "bits": 4, "mode": "mxfp4"}}`, fourBit(), `tensor a.weight: 4 bits in groups of 64 with scales of type F16 and mode mxfp4 are not supported`},
		{fourBits, map[string]packed.Tensor{"a.weight": zeroed("U32", 128, 2, 16), "a.scales": zeroed("F16", 8, 2, 2)}, `has scales but no biases`},
		{fourBits, map[string]packed.Tensor{"a.weight": zeroed("U32", 128, 2, 16), "a.scales": zeroed("F16", 8, 2, 2), "a.biases": zeroed("F32", 16, 2, 2)}, `biases of type F32 and shape [2 2] do not match scales of type F16 and shape [2 2]`},
		{fourBits, map[string]packed.Tensor{"a.weight": zeroed("U32", 128, 2, 16), "a.scales": zeroed("F16", 4, 1, 2), "a.biases": zeroed("F16", 4, 1, 2)}, `shape [2 16] does not match scales of shape [1 2]`},
		{`{}`, map[string]packed.Tensor{"a.weight": zeroed("F8_E4M3", 4096, 32, 128)}, `tensor a.weight: is E4M3 without weight_scale`},
		{`{}`, fp8(3, 2), `E4M3 of shape [256 128] with scales of shape [3 2]: want one scale, one per row, or one per block of [128 128]`},
		{`{}`, map[string]packed.Tensor{"a.weight": zeroed("F8_E4M3", 320, 32, 10), "a.weight_scale": zeroed("F32", 4, 1)}, `rows of 10 elements and scales for 128 columns: want multiples of 32`},
	} {
		if c.tensors == nil {
			c.tensors = map[string]packed.Tensor{"x": zeroed("F32", 4, 1)}
		}
		d := directory(t, c.config, c.tensors)
		bad := d.Unsupported()
		var typed *UnsupportedError
		if len(bad) != 1 || !errors.As(bad[0], &typed) || !strings.Contains(bad[0].Error(), c.want) || strings.Contains(bad[0].Error(), "\n") {
			t.Errorf("%s: %v, want %q", c.config, bad, c.want)
		}
		if len(d.Tensors()) != len(c.tensors) {
			t.Errorf("%s: %d tensors of %d", c.config, len(d.Tensors()), len(c.tensors))
		}
	}
}

// TestOverrides reads a module with settings of its own, and a module whose setting is listed
// under its name in the file.
func TestOverrides(t *testing.T) {
	tensors := map[string]packed.Tensor{}
	for _, n := range []string{"model.a", "language_model.model.b", "language_model.model.c"} {
		tensors[n+".weight"], tensors[n+".scales"], tensors[n+".biases"] = zeroed("U32", 64, 2, 8), zeroed("BF16", 4, 2, 1), zeroed("BF16", 4, 2, 1)
	}
	d := directory(t, `{"quantization": {"group_size": 64, "bits": 4, "model.a": {"group_size": 32, "bits": 8}, "language_model.model.b": {"bits": 8, "group_size": 32}, "model.c": false}}`, tensors)
	if err := errors.Join(d.Unsupported()...); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"model.a.weight": "MLX8_32_BF16", "model.b.weight": "MLX8_32_BF16", "model.c.weight": "MLX4_64_BF16"} {
		if got, _ := d.Tensor(name); got.TypeName != want {
			t.Errorf("%s is %s, want %s", name, got.TypeName, want)
		}
	}
}

func TestCheck(t *testing.T) {
	tensors := fourBit()
	nan16, inf32 := []byte{1, 0x7c}, []byte{0, 0, 0x80, 0xff}
	copy(tensors["a.biases"].Data[4:], nan16)
	tensors["norm.weight"] = zeroed("F32", 16, 4)
	copy(tensors["norm.weight"].Data[8:], inf32)
	tensors["ok.weight"] = zeroed("BF16", 16, 8)
	tensors["f.weight"], tensors["f.weight_scale"] = zeroed("F8_E4M3", 2*touchStep, 2, touchStep), zeroed("F32", 4, 1)
	tensors["f.weight"].Data[touchStep+3], tensors["f.weight"].Data[touchStep+7] = 0x7f, 0xff
	d := directory(t, fourBits, tensors)
	m, err := d.Map()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var last, total uint64
	got, err := m.Check(t.Context(), 2, func(done, all uint64) { last, total = done, all })
	if err != nil || last != total || total == 0 {
		t.Fatalf("%v, %d of %d", err, last, total)
	}
	want := map[string]NotFinite{
		"a.biases": {"a.biases", "F16", 1, 2}, "norm.weight": {"norm.weight", "F32", 1, 2}, "f.weight": {"f.weight", "F8_E4M3", 2, touchStep + 3},
	}
	for _, f := range got {
		if f != want[f.Tensor] {
			t.Errorf("%+v, want %+v", f, want[f.Tensor])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d tensors, want %d", len(got), len(want))
	}
	text := (&NotFiniteError{"m", got}).Error()
	if !strings.Contains(text, "norm.weight (F32): 1, the first at element 2") {
		t.Error(text)
	}
	m.Close()
	if _, err := m.Check(t.Context(), 0, nil); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// FuzzQuantization opens tensors with arbitrary content in config.json.
func FuzzQuantization(f *testing.F) {
	for _, s := range []string{
		fourBits, `{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}`,
		`{"quantization": {"group_size": 32, "bits": 3, "a": {"bits": 2, "mode": "mxfp4"}, "b": true}}`,
		`{"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float", "block_structure": [1, 1]}}}}}`,
	} {
		f.Add([]byte(s), uint16(2), uint16(16), uint16(2))
	}
	f.Fuzz(func(t *testing.T, b []byte, rows, words, groups uint16) {
		config, err := decodeObject(b)
		if err != nil {
			return
		}
		d := &Directory{format: Safetensors, path: "m", files: []File{{}}, meta: config}
		n := uint64(0)
		for _, x := range []struct {
			name, typ string
			t         dtype.Type
			cols      uint64
			size      uint64
		}{
			{"a.weight", "U32", 0, uint64(words), 4}, {"a.scales", "F16", dtype.F16, uint64(groups), 2}, {"a.biases", "F16", dtype.F16, uint64(groups), 2},
			{"b.weight", "F8_E4M3", 0, uint64(words), 1}, {"b.weight_scale_inv", "BF16", dtype.BF16, uint64(groups), 2},
		} {
			size := uint64(rows) * x.cols * x.size
			if err := d.add(Tensor{x.name, x.t, x.typ, []uint64{uint64(rows), x.cols}, 0, n, size, false}); err != nil {
				t.Fatal(err)
			}
			n += size
		}
		if n > 1<<20 || d.sort() != nil {
			return
		}
		d.join()
		m := &Mapped{dir: d, files: []mapping{{data: make([]byte, n)}}}
		for _, x := range d.Tensors() {
			if x.Joined && x.Size < 1<<24 {
				if err := m.ReadJoined(x.Name, 0, make([]byte, x.Size)); err != nil && x.Size > 0 {
					t.Error(err)
				}
			}
		}
	})
}

// TestJoinedTouch touches the pages of a model with joined matrices.
func TestJoinedTouch(t *testing.T) {
	d := directory(t, fourBits, fourBit())
	m, err := d.Map()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if touched, err := m.Touch(t.Context(), 1, nil); err != nil || touched.Bytes == 0 && !touched.Skipped {
		t.Errorf("%+v, %v", touched, err)
	}
}
