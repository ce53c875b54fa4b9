package arch

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/testmodels"
)

// fakeSource is a Source of plain maps.
type fakeSource struct {
	kind   string
	meta   map[string]any
	shapes map[string][]uint64
	floats map[string][]float32 // contents of one-dimensional F32 tensors of real files
}

func (s *fakeSource) Kind() string                       { return s.kind }
func (s *fakeSource) Meta(key string) (any, bool)        { v, ok := s.meta[key]; return v, ok }
func (s *fakeSource) Shape(name string) ([]uint64, bool) { v, ok := s.shapes[name]; return v, ok }

// with returns a copy with some metadata replaced; a value of absent removes it.
func (s *fakeSource) with(meta map[string]any) *fakeSource {
	out := &fakeSource{kind: s.kind, meta: maps.Clone(s.meta), shapes: maps.Clone(s.shapes)}
	for key, v := range meta {
		if v == absent {
			delete(out.meta, key)
		} else {
			out.meta[key] = v
		}
	}
	return out
}

type absence struct{}

var absent = absence{}

// object parses a JSON object as config.json is parsed.
func object(t testing.TB, text string) map[string]any {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var m map[string]any
	if err := dec.Decode(&m); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return m
}

func hfSource(t testing.TB, config string, shapes map[string][]uint64) *fakeSource {
	t.Helper()
	return &fakeSource{kind: kindSafetensors, meta: object(t, config), shapes: shapes}
}

// size is a model's shape, for tensors written out without the code under test.
type size struct {
	layers, width, heads, kvHeads, headDim, ff, vocab uint64
	head, qkNorm                                      bool
	bias                                              string // of the projections, such as "q k v"
}

func (z size) hfShapes() map[string][]uint64 {
	m := map[string][]uint64{
		"model.embed_tokens.weight": {z.vocab, z.width},
		"model.norm.weight":         {z.width},
	}
	if z.head {
		m["lm_head.weight"] = []uint64{z.vocab, z.width}
	}
	q, kv := z.heads*z.headDim, z.kvHeads*z.headDim
	for i := range z.layers {
		layer := fmt.Sprintf("model.layers.%d.", i)
		m[layer+"input_layernorm.weight"] = []uint64{z.width}
		m[layer+"post_attention_layernorm.weight"] = []uint64{z.width}
		m[layer+"self_attn.q_proj.weight"] = []uint64{q, z.width}
		m[layer+"self_attn.k_proj.weight"] = []uint64{kv, z.width}
		m[layer+"self_attn.v_proj.weight"] = []uint64{kv, z.width}
		m[layer+"self_attn.o_proj.weight"] = []uint64{z.width, q}
		m[layer+"mlp.gate_proj.weight"] = []uint64{z.ff, z.width}
		m[layer+"mlp.up_proj.weight"] = []uint64{z.ff, z.width}
		m[layer+"mlp.down_proj.weight"] = []uint64{z.width, z.ff}
		if z.qkNorm {
			m[layer+"self_attn.q_norm.weight"] = []uint64{z.headDim}
			m[layer+"self_attn.k_norm.weight"] = []uint64{z.headDim}
		}
		for _, name := range strings.Fields(z.bias) {
			stem := layer + "self_attn." + name + "_proj"
			if len(name) > 1 {
				stem = layer + "mlp." + name + "_proj"
			}
			m[stem+".bias"] = m[stem+".weight"][:1]
		}
	}
	return m
}

// tinyHF reads a small model of testdata in Hugging Face form.
func tinyHF(t testing.TB, dir string) *fakeSource {
	t.Helper()
	dir = filepath.Join("..", "testdata", dir)
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(filepath.Join(testmodels.Path(t, dir), "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(file)
	var header map[string]struct{ Shape []uint64 }
	if err := json.Unmarshal(file[8:8+n], &header); err != nil {
		t.Fatal(err)
	}
	shapes := map[string][]uint64{}
	for name, h := range header {
		if name != "__metadata__" {
			shapes[name] = h.Shape
		}
	}
	return hfSource(t, string(config), shapes)
}

// tinyGGUF reads a small GGUF file of testdata. It trusts the file.
func tinyGGUF(t testing.TB, path string) *fakeSource {
	t.Helper()
	file, err := os.ReadFile(testmodels.Path(t, filepath.Join("..", "testdata", path)))
	if err != nil {
		t.Fatal(err)
	}
	r := bytes.NewReader(file)
	src := &fakeSource{
		kind: kindGGUF, meta: map[string]any{}, shapes: map[string][]uint64{}, floats: map[string][]float32{},
	}
	skip(r, 8)
	tensors, keys := read[uint64](r), read[uint64](r)
	for range keys {
		key := ggufString(r)
		src.meta[key] = ggufValue(r, read[uint32](r))
	}
	type place struct {
		name   string
		offset uint64
		n      uint64
	}
	var f32 []place
	for range tensors {
		name := ggufString(r)
		dims := make([]uint64, read[uint32](r))
		for i := range dims {
			dims[len(dims)-1-i] = read[uint64](r)
		}
		src.shapes[name] = dims
		typ, offset := read[uint32](r), read[uint64](r)
		if typ == 0 && len(dims) == 1 {
			f32 = append(f32, place{name, offset, dims[0]})
		}
	}
	const align = 32
	start := (len(file) - r.Len() + align - 1) / align * align
	for _, p := range f32 {
		src.floats[p.name] = make([]float32, p.n)
		at := uint64(start) + p.offset
		if _, err := binary.Decode(file[at:at+4*p.n], binary.LittleEndian, src.floats[p.name]); err != nil {
			t.Fatal(err)
		}
	}
	return src
}

func read[T any](r *bytes.Reader) (v T) {
	if err := binary.Read(r, binary.LittleEndian, &v); err != nil {
		panic(err)
	}
	return v
}

func skip(r *bytes.Reader, n int64) { _, _ = r.Seek(n, 1) }

func ggufString(r *bytes.Reader) string {
	b := make([]byte, read[uint64](r))
	_, _ = r.Read(b)
	return string(b)
}

func ggufValue(r *bytes.Reader, typ uint32) any {
	switch typ {
	case 4:
		return read[uint32](r)
	case 5:
		return read[int32](r)
	case 6:
		return read[float32](r)
	case 7:
		return read[bool](r)
	case 8:
		return ggufString(r)
	case 9:
		elem := read[uint32](r)
		list := make([]any, read[uint64](r))
		for i := range list {
			list[i] = ggufValue(r, elem)
		}
		return list
	}
	panic(fmt.Sprintf("GGUF value type %d", typ))
}

// closeTo reports the first element that differs by more than a relative tol.
func closeTo(got []float32, want []float64, tol float64) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d elements, want %d", len(got), len(want))
	}
	for i := range got {
		if math.Abs(float64(got[i])-want[i]) > tol*math.Abs(want[i]) {
			return fmt.Errorf("element %d: %g, want %g", i, got[i], want[i])
		}
	}
	return nil
}
