package tokenizer

import (
	"bufio"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// metaMap is GGUF metadata in memory.
type metaMap map[string]any

func (m metaMap) Meta(key string) (any, bool) {
	v, ok := m[key]
	return v, ok
}

func (m metaMap) with(key string, value any) metaMap {
	out := metaMap{}
	for k, v := range m {
		out[k] = v
	}
	out[key] = value
	return out
}

// readMeta reads the metadata of a GGUF file that is known to be valid.
func readMeta(t testing.TB, path string) metaMap {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := &metaReader{t: t, r: bufio.NewReader(f)}
	r.bytes(8) // magic, version
	r.u64()    // tensors
	m := metaMap{}
	for range r.u64() {
		key := r.text()
		m[key] = r.value(r.u32())
	}
	return m
}

type metaReader struct {
	t testing.TB
	r io.Reader
}

func (r *metaReader) bytes(n uint64) []byte {
	b := make([]byte, n)
	if _, err := io.ReadFull(r.r, b); err != nil {
		r.t.Fatal(err)
	}
	return b
}

func (r *metaReader) u32() uint32  { return binary.LittleEndian.Uint32(r.bytes(4)) }
func (r *metaReader) u64() uint64  { return binary.LittleEndian.Uint64(r.bytes(8)) }
func (r *metaReader) text() string { return string(r.bytes(r.u64())) }

func (r *metaReader) value(typ uint32) any {
	switch typ {
	case 4:
		return r.u32()
	case 5:
		return int32(r.u32())
	case 6:
		return math.Float32frombits(r.u32())
	case 7:
		return r.bytes(1)[0] != 0
	case 8:
		return r.text()
	case 9:
		elem, n := r.u32(), r.u64()
		switch elem {
		case 5:
			s := make([]int32, n)
			for i := range s {
				s[i] = int32(r.u32())
			}
			return s
		case 8:
			s := make([]string, n)
			for i := range s {
				s[i] = r.text()
			}
			return s
		}
	}
	r.t.Fatalf("metadata of type %d", typ)
	return nil
}

func gopherMeta(t testing.TB) metaMap {
	return readMeta(t, filepath.Join("..", "..", "testdata", "gopher-q8_0.gguf"))
}

func gopherGGUF(t testing.TB) *Tokenizer {
	t.Helper()
	tok, err := FromGGUF(gopherMeta(t))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func readFile(t testing.TB, path ...string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func heldout(t testing.TB) string {
	return string(readFile(t, "..", "..", "testdata", "gopher", "heldout.txt"))
}

func corpus(t testing.TB) string { return string(readFile(t, "testdata", "corpus.txt")) }

func encode(t testing.TB, tok *Tokenizer, text string, o EncodeOptions) []int32 {
	t.Helper()
	ids, err := tok.Encode(text, o)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// TestAgainstLlamaCpp compares ids with testdata/reference/gopher.json.gz. That file holds the ids
// that llama.cpp v0.5.0 produces with gopher's vocabulary for each value of tokenizer.ggml.pre: all
// ids for testdata/corpus.txt, and the count and a hash of the ids for heldout.txt.
func TestAgainstLlamaCpp(t *testing.T) {
	golden := readReference[map[string]struct {
		Corpus  []int32
		Heldout struct {
			Count int
			FNV   uint64
		}
	}](t, "gopher.json")
	if len(golden) == 0 {
		t.Fatal("gopher.json has no results")
	}
	meta := gopherMeta(t)
	for pre, want := range golden {
		t.Run(pre, func(t *testing.T) {
			tok, err := FromGGUF(meta.with("tokenizer.ggml.pre", pre))
			if err != nil {
				t.Fatal(err)
			}
			ids := encode(t, tok, heldout(t), EncodeOptions{AddSpecial: true})
			if got := hashIDs(ids); len(ids) != want.Heldout.Count || got != want.Heldout.FNV {
				t.Errorf("heldout: %d ids with hash %d, want %d with %d", len(ids), got, want.Heldout.Count, want.Heldout.FNV)
			}
			if want.Corpus == nil {
				return
			}
			ids = encode(t, tok, corpus(t), EncodeOptions{AddSpecial: true})
			if diff := cmp.Diff(want.Corpus, ids); diff != "" {
				t.Errorf("corpus (-llama.cpp +got):\n%s", diff)
			}
		})
	}
}

// hashIDs returns the FNV-1a hash of the ids as little-endian int32.
func hashIDs(ids []int32) uint64 {
	h := fnv.New64a()
	for _, id := range ids {
		h.Write(binary.LittleEndian.AppendUint32(nil, uint32(id)))
	}
	return h.Sum64()
}

func TestGGUFSpecials(t *testing.T) {
	base := metaMap{
		"tokenizer.ggml.model":        "gpt2",
		"tokenizer.ggml.pre":          "gpt-2",
		"tokenizer.ggml.tokens":       []string{"a", "b", "<s>", "</s>", "<turn>", "", "ab", "é"},
		"tokenizer.ggml.token_type":   []int32{1, 1, 3, 3, 3, 1, 1, 4},
		"tokenizer.ggml.merges":       []string{"a b"},
		"tokenizer.ggml.bos_token_id": uint32(2),
		"tokenizer.ggml.eos_token_id": int64(3),
	}
	tests := []struct {
		name   string
		meta   metaMap
		addBOS bool
		stop   []int32
		ids    []int32 // of "ab<s>a" with special tokens added and parsed
	}{
		{"gpt-2 implies no BOS", base, false, []int32{3}, []int32{6, 2, 0}},
		{"llama-bpe implies BOS", base.with("tokenizer.ggml.pre", "llama-bpe"), true, []int32{3}, []int32{2, 6, 2, 0}},
		{"add_bos_token overrides to true", base.with("tokenizer.ggml.add_bos_token", true), true, []int32{3}, []int32{2, 6, 2, 0}},
		{"add_bos_token overrides to false", base.with("tokenizer.ggml.pre", "llama-bpe").with("tokenizer.ggml.add_bos_token", false), false, []int32{3}, []int32{6, 2, 0}},
		{"add_eos_token", base.with("tokenizer.ggml.add_eos_token", true), false, []int32{3}, []int32{6, 2, 0, 3}},
		{"stop ids", base.with("tokenizer.ggml.eot_token_id", uint32(4)).with("tokenizer.ggml.eom_token_id", 3), false, []int32{3, 4}, []int32{6, 2, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tok, err := FromGGUF(tt.meta)
			if err != nil {
				t.Fatal(err)
			}
			if tok.AddBOS() != tt.addBOS {
				t.Errorf("AddBOS is %v", tok.AddBOS())
			}
			if diff := cmp.Diff(tt.stop, tok.StopIDs()); diff != "" {
				t.Errorf("StopIDs (-want +got):\n%s", diff)
			}
			ids := encode(t, tok, "ab<s>a", EncodeOptions{AddSpecial: true, ParseSpecial: true})
			if diff := cmp.Diff(tt.ids, ids); diff != "" {
				t.Errorf("ids (-want +got):\n%s", diff)
			}
			if bos, ok := tok.BOS(); !ok || bos != 2 {
				t.Errorf("BOS is %d, %v", bos, ok)
			}
			if eos, ok := tok.EOS(); !ok || eos != 3 {
				t.Errorf("EOS is %d, %v", eos, ok)
			}
		})
	}

	noBOS := base.with("tokenizer.ggml.pre", "llama-bpe")
	delete(noBOS, "tokenizer.ggml.bos_token_id")
	tok, err := FromGGUF(noBOS)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := tok.BOS(); ok || tok.AddBOS() {
		t.Error("BOS returns a token without tokenizer.ggml.bos_token_id")
	}
	if got := encode(t, tok, "ab", EncodeOptions{AddSpecial: true}); !cmp.Equal(got, []int32{6}) {
		t.Errorf("without a BOS token: %v", got)
	}

	tok, err = FromGGUF(base)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tok.Encode("a<s>", EncodeOptions{}); err == nil || !strings.Contains(err.Error(), "no token for byte 0x3c") {
		t.Errorf("Encode without a token for '<': %v", err)
	}
	if got := encode(t, tok, "éa", EncodeOptions{}); !cmp.Equal(got, []int32{7, 0}) {
		t.Errorf("the user-defined token in the text was not matched: %v", got)
	}
	if got := tok.Decode([]int32{2, 7, 6, 5, -1, 99, 3}); got != "éab" {
		t.Errorf("Decode returns %q", got)
	}
	if _, ok := tok.Token(99); ok {
		t.Error("Token accepts the unused id 99")
	}
	if tok.Special(0) || !tok.Special(2) || tok.Special(-1) || tok.Special(99) {
		t.Error("Special returns the wrong result")
	}
}

func TestGGUFErrors(t *testing.T) {
	base := metaMap{
		"tokenizer.ggml.model":  "gpt2",
		"tokenizer.ggml.pre":    "qwen2",
		"tokenizer.ggml.tokens": []string{"a", "b", "ab"},
		"tokenizer.ggml.merges": []string{"a b"},
	}
	tests := []struct {
		key   string
		value any
		want  string
	}{
		{"tokenizer.ggml.model", 7, "tokenizer.ggml.model: is int, want a string"},
		{"tokenizer.ggml.pre", "nonesuch", `pre-tokenizer "nonesuch" is not supported`},
		{"tokenizer.ggml.model", "rwkv", `model "rwkv" is not supported`},
		{"tokenizer.ggml.tokens", []string{}, "tokenizer.ggml.tokens: 0 tokens"},
		{"tokenizer.ggml.tokens", []string{"a", "b", "ab", "a"}, `tokenizer.ggml.tokens: token "a" has the ids 0 and 3`},
		{"tokenizer.ggml.tokens", []int32{1}, "tokenizer.ggml.tokens: is []int32, want an array of strings"},
		{"tokenizer.ggml.merges", []string{"a b", "ab"}, `tokenizer.ggml.merges: merge 1: "ab" is not two tokens`},
		{"tokenizer.ggml.merges", []string{"a c"}, `merge 0: "c" is not a token`},
		{"tokenizer.ggml.merges", []string{"c a"}, `merge 0: "c" is not a token`},
		{"tokenizer.ggml.merges", []string{"b a"}, `merge 0: "b" and "a" make "ba", which is not a token`},
		{"tokenizer.ggml.merges", []string{"a b", "a b"}, `merge 1: "a" and "b" repeat merge 0`},
		{"tokenizer.ggml.token_type", []int32{1, 1}, "2 types for 3 tokens"},
		{"tokenizer.ggml.token_type", []int32{1, 1, 9}, "token 2 has the unknown type 9"},
		{"tokenizer.ggml.token_type", "1", "tokenizer.ggml.token_type: is string"},
		{"tokenizer.ggml.bos_token_id", uint64(math.MaxUint64), "tokenizer.ggml.bos_token_id: 18446744073709551615 is outside the vocabulary of 3"},
		{"tokenizer.ggml.eot_token_id", int8(-1), "tokenizer.ggml.eot_token_id: -1 is outside"},
		{"tokenizer.ggml.eos_token_id", 1.5, "tokenizer.ggml.eos_token_id: is float64, want an integer"},
		{"tokenizer.ggml.add_bos_token", true, "tokenizer.ggml.bos_token_id is missing"},
		{"tokenizer.ggml.add_eos_token", true, "tokenizer.ggml.eos_token_id is missing"},
		{"tokenizer.ggml.add_bos_token", 1, "tokenizer.ggml.add_bos_token: is int, want a bool"},
	}
	if _, err := FromGGUF(base); err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		_, err := FromGGUF(base.with(tt.key, tt.value))
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "tokenizer: ") {
			t.Errorf("%s = %v: error %v, want %q", tt.key, tt.value, err, tt.want)
		}
	}
	delete(base, "tokenizer.ggml.merges")
	if _, err := FromGGUF(base); err == nil || !strings.Contains(err.Error(), "tokenizer.ggml.merges: is missing") {
		t.Errorf("without merges: %v", err)
	}

	for _, m := range []metaMap{{}, {"tokenizer.ggml.model": "none"}, {"tokenizer.ggml.model": "no_vocab"}} {
		if _, err := FromGGUF(m); !errors.Is(err, ErrNone) {
			t.Errorf("%v: error %v, want ErrNone", m, err)
		}
	}
	var unsupported *UnsupportedError
	if _, err := FromGGUF(base.with("tokenizer.ggml.model", "plamo2")); !errors.As(err, &unsupported) || unsupported.What != "model" || unsupported.Name != "plamo2" {
		t.Errorf("plamo2: error %v", err)
	}
}
