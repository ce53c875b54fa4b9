package weights

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/gguf"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

// st is a tensor of a safetensors file to be written.
type st struct {
	name, typ string
	shape     []uint64
	data      []byte
}

func f32s(name string, n uint64, fill byte) st {
	return st{name, "F32", []uint64{n}, bytes.Repeat([]byte{fill}, int(4*n))}
}

// safetensorsFile encodes a safetensors file with the tensors in order.
func safetensorsFile(t *testing.T, tensors ...st) []byte {
	t.Helper()
	type entry struct {
		DType   string    `json:"dtype"`
		Shape   []uint64  `json:"shape"`
		Offsets [2]uint64 `json:"data_offsets"`
	}
	header := map[string]entry{}
	var data []byte
	for _, x := range tensors {
		start := uint64(len(data))
		data = append(data, x.data...)
		header[x.name] = entry{x.typ, x.shape, [2]uint64{start, uint64(len(data))}}
	}
	text, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	return append(append(b, text...), data...)
}

// ggufFile encodes a GGUF file of version 3 with one F32 tensor "x" of n elements, a string
// key "k", and the key split.count if split is not 0.
func ggufFile(n uint64, split uint16) []byte {
	le := binary.LittleEndian
	str := func(b []byte, s string) []byte { return append(le.AppendUint64(b, uint64(len(s))), s...) }
	b := le.AppendUint32([]byte("GGUF"), 3)
	b = le.AppendUint64(b, 1)
	b = le.AppendUint64(b, 2)
	b = le.AppendUint32(str(b, "k"), 8)
	b = str(b, "v")
	b = le.AppendUint32(str(b, "split.count"), 2)
	b = le.AppendUint16(b, split)
	b = le.AppendUint32(str(b, "x"), 1)
	b = le.AppendUint64(b, n)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint64(b, 0)
	b = append(b, make([]byte, (len(b)+31)&^31-len(b))...)
	for i := range 4 * n {
		b = append(b, byte(i))
	}
	return b
}

// writeDir writes files into a new directory.
func writeDir(t *testing.T, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func open(t *testing.T, path string) *Directory {
	t.Helper()
	d, err := OpenDirectory(path)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func mapped(t *testing.T, d *Directory) *Mapped {
	t.Helper()
	m, err := d.Map()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func names(d *Directory) []string {
	var list []string
	for _, x := range d.Tensors() {
		list = append(list, x.Name)
	}
	return list
}

func TestGGUF(t *testing.T) {
	path := filepath.Join(writeDir(t, map[string][]byte{"m.gguf": ggufFile(16, 1)}), "m.gguf")
	d := open(t, path)
	if d.Format() != GGUF || d.Kind() != "gguf" || d.Path() != path {
		t.Errorf("format %v, kind %s, path %s", d.Format(), d.Kind(), d.Path())
	}
	if diff := cmp.Diff([]File{{path, 192}}, d.Files()); diff != "" {
		t.Error(diff)
	}
	want := Tensor{"x", dtype.F32, "F32", []uint64{16}, 0, 128, 64, false}
	if got, ok := d.Tensor("x"); !ok || !cmp.Equal(got, want) {
		t.Errorf("tensor %+v, want %+v", got, want)
	}
	if diff := cmp.Diff([]Tensor{want}, d.Tensors()); diff != "" {
		t.Error(diff)
	}
	if shape, ok := d.Shape("x"); !ok || !slices.Equal(shape, []uint64{16}) {
		t.Errorf("shape %d", shape)
	}
	if _, ok := d.Tensor("y"); ok {
		t.Error("Tensor finds the missing tensor y")
	}
	if shape, ok := d.Shape("y"); ok || shape != nil {
		t.Errorf("shape of y: %d", shape)
	}
	if v, ok := d.Meta("k"); !ok || v != "v" {
		t.Errorf("Meta(k) = %v", v)
	}
	if _, ok := d.Meta("l"); ok {
		t.Error("Meta finds the missing key l")
	}
	if keys := d.MetaKeys(); !slices.Equal(keys, []string{"k", "split.count"}) {
		t.Errorf("keys %q", keys)
	}
}

func TestHuggingFace(t *testing.T) {
	model := func(names ...string) []byte {
		var list []st
		for i, name := range names {
			list = append(list, f32s(name, 4, byte(i)))
		}
		return safetensorsFile(t, list...)
	}
	config := []byte(`{"model_type":"llama","rope_theta":500000.0,"tie":true,"none":null,"list":[1,"a"],"rope":{"factor":8.0}}`)
	index := func(pairs ...string) []byte {
		m := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		b, err := json.Marshal(map[string]any{"metadata": map[string]int{"total_size": 1}, "weight_map": m})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, tc := range []struct {
		name  string
		files map[string][]byte
		path  string   // relative to the directory
		want  []string // names of the expected tensors
		err   string
	}{
		{"single", map[string][]byte{"config.json": config, "model.safetensors": model("a", "b"), "adapter.safetensors": model("c")}, "", []string{"a", "b"}, ""},
		{"single before index", map[string][]byte{"config.json": config, "model.safetensors": model("a"), "model.safetensors.index.json": []byte("broken")}, "", []string{"a"}, ""},
		{"other name", map[string][]byte{"config.json": config, "weights.safetensors": model("a")}, "", []string{"a"}, ""},
		{"file", map[string][]byte{"config.json": config, "weights.safetensors": model("a")}, "weights.safetensors", []string{"a"}, ""},
		{"file without config", map[string][]byte{"weights.safetensors": model("a")}, "weights.safetensors", []string{"a"}, ""},
		{"shards", map[string][]byte{"config.json": config, "m-2.safetensors": model("b", "d"), "m-1.safetensors": model("c"), "m-3.safetensors": []byte("not named"),
			"model.safetensors.index.json": index("b", "m-2.safetensors", "c", "m-1.safetensors", "d", "m-2.safetensors")}, "", []string{"c", "b", "d"}, ""},
		{"index decides", map[string][]byte{"config.json": config, "1.safetensors": model("a", "b"), "2.safetensors": model("a", "c"),
			"model.safetensors.index.json": index("a", "2.safetensors", "b", "1.safetensors")}, "", []string{"b", "a"}, ""},
		{"index of another name", map[string][]byte{"config.json": config, "1.safetensors": model("a"), "x.safetensors.index.json": index("a", "1.safetensors")}, "", []string{"a"}, ""},
		{"index itself", map[string][]byte{"config.json": config, "1.safetensors": model("a"), "x.safetensors.index.json": index("a", "1.safetensors")},
			"x.safetensors.index.json", []string{"a"}, ""},
		{"prefixes", map[string][]byte{"config.json": config, "model.safetensors": model("language_model.model.norm.weight", "language_model.lm_head.weight",
			"model.language_model.layers.0.x", "vision_tower.x", "language_model.", "x.language_model.y")}, "",
			[]string{"model.norm.weight", "lm_head.weight", "model.layers.0.x", "vision_tower.x", "language_model.", "x.language_model.y"}, ""},

		{"prefix collision", map[string][]byte{"config.json": config, "model.safetensors": model("model.x", "model.language_model.x")}, "", nil, "two tensors are named model.x"},
		{"collision between shards", map[string][]byte{"config.json": config, "1.safetensors": model("x"), "2.safetensors": model("language_model.x"),
			"model.safetensors.index.json": index("x", "1.safetensors", "language_model.x", "2.safetensors")}, "", nil, "two tensors are named x"},
		{"no config", map[string][]byte{"model.safetensors": model("a")}, "", nil, "config.json is missing"},
		{"no weights", map[string][]byte{"config.json": config}, "", nil, "model.safetensors is missing"},
		{"many weights", map[string][]byte{"config.json": config, "a.safetensors": model("a"), "b.safetensors": model("b")}, "", nil, "2 *.safetensors files but no model.safetensors.index.json"},
		{"many indexes", map[string][]byte{"config.json": config, "a.safetensors.index.json": nil, "b.safetensors.index.json": nil}, "", nil, "2 *.safetensors.index.json files"},
		{"no shard", map[string][]byte{"config.json": config, "model.safetensors.index.json": index("a", "1.safetensors")}, "", nil, "1.safetensors is missing"},
		{"shard outside", map[string][]byte{"config.json": config, "model.safetensors.index.json": index("a", "../1.safetensors")}, "", nil, "shard ../1.safetensors is not the name"},
		{"tensor not in shard", map[string][]byte{"config.json": config, "1.safetensors": model("a"), "model.safetensors.index.json": index("a", "1.safetensors", "b", "1.safetensors")},
			"", nil, "1.safetensors: tensor b is missing, although model.safetensors.index.json lists it"},
		{"broken config", map[string][]byte{"config.json": []byte(`{"a":`), "model.safetensors": model("a")}, "", nil, "config.json: unexpected EOF"},
		{"null config", map[string][]byte{"config.json": []byte(`null`), "model.safetensors": model("a")}, "", nil, "config.json: null, want an object"},
		{"list config", map[string][]byte{"config.json": []byte(`[]`), "model.safetensors": model("a")}, "", nil, "config.json: json: cannot unmarshal array"},
		{"two configs", map[string][]byte{"config.json": []byte(`{} {}`), "model.safetensors": model("a")}, "", nil, "config.json: byte 4: more than one value"},
		{"empty config", map[string][]byte{"config.json": nil, "model.safetensors": model("a")}, "", nil, "config.json: is empty"},
		{"large config", map[string][]byte{"config.json": make([]byte, maxConfig+1), "model.safetensors": model("a")}, "", nil, "config.json: size 4.0 MiB exceeds the limit of 4.0 MiB"},
		{"deep config", map[string][]byte{"config.json": []byte(`{"a":` + strings.Repeat("[", 1<<20)), "model.safetensors": model("a")}, "", nil, "exceeded max depth"},
		{"broken generation config", map[string][]byte{"config.json": config, "generation_config.json": []byte(`7`), "model.safetensors": model("a")}, "", nil, "generation_config.json: json:"},
		{"empty weights", map[string][]byte{"config.json": config, "model.safetensors": nil}, "", nil, "model.safetensors: is empty"},
		{"cut weights", map[string][]byte{"config.json": config, "model.safetensors": model("a")[:60]}, "", nil, "is past the end of the file at 60"},
		{"pointer", map[string][]byte{"config.json": config, "model.safetensors": []byte("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n")}, "", nil, "is a Git LFS pointer"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := writeDir(t, tc.files)
			path := filepath.Join(dir, tc.path)
			var d *Directory
			var err error
			if n := allocated(func() { d, err = OpenDirectory(path) }); n > 64<<20 {
				t.Errorf("%d bytes allocated", n)
			}
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) || !strings.HasPrefix(err.Error(), "weights: "+dir) {
					t.Fatalf("error %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d.Format() != Safetensors || d.Kind() != "safetensors" {
				t.Errorf("format %v", d.Format())
			}
			if diff := cmp.Diff(tc.want, names(d)); diff != "" {
				t.Error(diff)
			}
			_, has := tc.files["config.json"]
			if v, ok := d.Meta("rope_theta"); ok != has || has && v != json.Number("500000.0") {
				t.Errorf("rope_theta: %v, %v", v, ok)
			}
			m := mapped(t, d)
			for _, x := range d.Tensors() {
				if b, err := m.Tensor(x.Name); err != nil || len(b) != 16 || cap(b) != 16 || b[0] != b[15] {
					t.Errorf("tensor %s: %d, error %v", x.Name, b, err)
				}
			}
		})
	}
}

func TestMeta(t *testing.T) {
	dir := writeDir(t, map[string][]byte{
		"config.json":            []byte(`{"a":1e3,"b":[true,null],"c":{"d":"e"},"f":null}`),
		"generation_config.json": []byte(`{"eos_token_id":[1,2]}`),
		"model.safetensors":      safetensorsFile(t, f32s("x", 1, 0)),
	})
	d := open(t, dir)
	got := map[string]any{}
	for _, key := range d.MetaKeys() {
		got[key], _ = d.Meta(key)
	}
	want := map[string]any{
		"a":                 json.Number("1e3"),
		"b":                 []any{true, nil},
		"c":                 map[string]any{"d": "e"},
		"f":                 nil,
		"generation_config": map[string]any{"eos_token_id": []any{json.Number("1"), json.Number("2")}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if v, ok := d.Meta("f"); !ok || v != nil {
		t.Errorf("Meta(f) = %v, %v: want null and true", v, ok)
	}
}

func TestErrors(t *testing.T) {
	dir := writeDir(t, map[string][]byte{
		"empty.gguf": nil,
		"zip.gguf":   []byte("PK\x03\x04..."),
		"lfs.gguf":   []byte("version https://git-lfs.github.com/spec/v1\n"),
		"cut.gguf":   ggufFile(16, 1)[:100],
		"split.gguf": ggufFile(16, 3),
	})
	for name, want := range map[string]string{
		"absent.gguf":        "absent.gguf: no such file or directory",
		"absent.safetensors": "absent.safetensors: no such file or directory",
		"empty.gguf":         "empty.gguf: is empty",
		"zip.gguf":           `zip.gguf: not a GGUF file: magic "PK\x03\x04", want "GGUF"`,
		"lfs.gguf":           "lfs.gguf: is a Git LFS pointer",
		"cut.gguf":           "cut.gguf: gguf: ",
		"split.gguf":         "split.gguf: is a part of a model in 3 parts",
	} {
		if runtime.GOOS == "windows" && strings.HasPrefix(name, "absent") {
			want = name + ": " // the operating system's message follows
		}
		_, err := OpenDirectory(filepath.Join(dir, name))
		if err == nil || !strings.HasPrefix(err.Error(), "weights: "+filepath.Join(dir, "")) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want %q", name, err, want)
		}
	}
	if _, err := OpenDirectory(filepath.Join(dir, "absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent path: %v", err)
	}
	var magic *gguf.MagicError
	if _, err := OpenDirectory(filepath.Join(dir, "zip.gguf")); !errors.As(err, &magic) {
		t.Errorf("wrong magic: %v", err)
	}
	if _, err := OpenDirectory(filepath.Join(dir, "cut.gguf")); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut file: %v", err)
	}
	var missing *MissingFileError
	if _, err := OpenDirectory(dir); !errors.As(err, &missing) || missing.Name != "config.json" || missing.Dir != dir || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("directory without config.json: %v", err)
	}
}

func TestFingerprint(t *testing.T) {
	dir := func(tensors ...st) [32]byte {
		return open(t, filepath.Join(writeDir(t, map[string][]byte{"x.safetensors": safetensorsFile(t, tensors...)}), "x.safetensors")).Fingerprint()
	}
	i32 := func(name string, shape ...uint64) st { return st{name, "I32", shape, make([]byte, 24)} }
	base := dir(i32("a", 6), i32("b", 6))
	if base != dir(i32("b", 6), i32("a", 6)) {
		t.Error("the fingerprint depends on the order in the file")
	}
	sharded := open(t, writeDir(t, map[string][]byte{
		"config.json":                  []byte(`{"x":1}`),
		"1.safetensors":                safetensorsFile(t, i32("b", 6)),
		"2.safetensors":                safetensorsFile(t, i32("a", 6)),
		"model.safetensors.index.json": []byte(`{"weight_map":{"a":"2.safetensors","b":"1.safetensors"}}`),
	})).Fingerprint()
	if base != sharded {
		t.Error("the fingerprint depends on the files or the metadata")
	}
	seen := map[[32]byte]string{base: "base"}
	for name, fp := range map[string][32]byte{
		"name":    dir(i32("a", 6), i32("c", 6)),
		"type":    dir(i32("a", 6), st{"b", "F32", []uint64{6}, make([]byte, 24)}),
		"shape":   dir(i32("a", 6), i32("b", 2, 3)),
		"turned":  dir(i32("a", 6), i32("b", 3, 2)),
		"rank":    dir(i32("a", 6), i32("b", 6, 1)),
		"fewer":   dir(i32("a", 6)),
		"more":    dir(i32("a", 6), i32("b", 6), i32("c", 6)),
		"unknown": dir(i32("a", 6), st{"b", "X32", []uint64{6}, make([]byte, 24)}),
		"size":    dir(i32("a", 6), st{"b", "X32", []uint64{6}, make([]byte, 23)}),
		"unnamed": dir(i32("a", 6), i32("b", 6), st{"", "I32", []uint64{6}, make([]byte, 24)}),
	} {
		if other, dup := seen[fp]; dup {
			t.Errorf("%s and %s have the same fingerprint", name, other)
		}
		seen[fp] = name
	}
}

func TestModels(t *testing.T) {
	for _, tc := range []struct {
		path    string
		tensors int
		name    string
		want    dtype.Type
		shape   []uint64
		key     string
		meta    any
	}{
		{"gopher-q8_0.gguf", 74, "blk.7.ffn_down.weight", dtype.Q8_0, []uint64{256, 768}, "llama.block_count", uint32(8)},
		{"gopher/gopher-q4_0.gguf", 74, "blk.7.ffn_down.weight", dtype.Q4_0, []uint64{256, 768}, "llama.block_count", uint32(8)},
		{"gopher", 74, "model.layers.7.mlp.down_proj.weight", dtype.F16, []uint64{256, 768}, "num_hidden_layers", json.Number("8")},
		{"tiny/llama/model.gguf", 22, "output_norm.weight", dtype.F32, []uint64{256}, "general.architecture", "llama"},
		{"tiny/llama", 21, "model.norm.weight", dtype.F16, []uint64{256}, "model_type", "llama"},
		{"tiny/mistral", 21, "model.norm.weight", dtype.F16, []uint64{256}, "model_type", "mistral"},
		{"tiny/qwen2/model.gguf", 27, "output_norm.weight", dtype.F32, []uint64{256}, "general.architecture", "qwen2"},
		{"tiny/qwen2", 27, "model.norm.weight", dtype.F16, []uint64{256}, "model_type", "qwen2"},
		{"tiny/qwen3/model.gguf", 24, "output_norm.weight", dtype.F32, []uint64{256}, "general.architecture", "qwen3"},
		{"tiny/qwen3", 24, "model.norm.weight", dtype.F16, []uint64{256}, "model_type", "qwen3"},
	} {
		t.Run(tc.path, func(t *testing.T) {
			d := open(t, testmodels.Path(t, filepath.Join("..", "testdata", filepath.FromSlash(tc.path))))
			x, ok := d.Tensor(tc.name)
			if !ok || x.Type != tc.want || x.TypeName != tc.want.String() || !slices.Equal(x.Shape, tc.shape) {
				t.Errorf("tensor %+v, %v", x, ok)
			}
			if len(d.Tensors()) != tc.tensors {
				t.Errorf("%d tensors, want %d", len(d.Tensors()), tc.tensors)
			}
			if v, ok := d.Meta(tc.key); !ok || v != tc.meta {
				t.Errorf("%s is %v (%T), want %v", tc.key, v, v, tc.meta)
			}
			m := mapped(t, d)
			whole, err := os.ReadFile(d.Files()[0].Path)
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range d.Tensors() {
				b, err := m.Tensor(x.Name)
				if err != nil || !bytes.Equal(b, whole[x.Offset:x.Offset+x.Size]) {
					t.Errorf("tensor %s: %d bytes, error %v", x.Name, len(b), err)
				}
			}
		})
	}
}

// allocated returns the number of bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func ExampleOpenDirectory() {
	d, err := OpenDirectory("../testdata/gopher-q8_0.gguf")
	if err != nil {
		fmt.Println(err)
		return
	}
	arch, _ := d.Meta("general.architecture")
	t, _ := d.Tensor("token_embd.weight")
	fmt.Println(d.Format(), arch, len(d.Tensors()), "tensors")
	fmt.Println(t.Name, t.TypeName, t.Shape, t.Size)
	// Output:
	// gguf llama 74 tensors
	// token_embd.weight Q8_0 [4096 256] 1114112
}

func ExampleDirectory_Map() {
	d, err := OpenDirectory("../testdata/gopher")
	if err != nil {
		fmt.Println(err)
		return
	}
	m, err := d.Map()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close()
	b, err := m.Tensor("model.norm.weight")
	fmt.Println(len(b), err)
	_, err = m.Tensor("model.norm.bias")
	fmt.Println(err)
	// Output:
	// 512 <nil>
	// weights: ../testdata/gopher: no tensor model.norm.bias
}
