package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// values returns entries by key.
func values(entries []Entry) map[string]any {
	m := map[string]any{}
	for _, e := range entries {
		m[e.Key] = e.Value
	}
	return m
}

// sameIDs compares the ids that two tokenizers return for each line of text.
func sameIDs(t *testing.T, what string, a, b *Tokenizer, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		x, err1 := a.Encode(line, EncodeOptions{ParseSpecial: true})
		y, err2 := b.Encode(line, EncodeOptions{ParseSpecial: true})
		if err1 != nil || err2 != nil || !slices.Equal(x, y) {
			t.Fatalf("%s: %q: %v, %v and %v, %v", what, line, x, err1, y, err2)
		}
	}
}

// TestGopherToGGUF converts gopher's tokenizer.json for an embedding with more rows than
// tokens.
func TestGopherToGGUF(t *testing.T) {
	files := Files{JSON: readFile(t, "..", "..", "testdata", "gopher", "tokenizer.json"), Config: readFile(t, "..", "..", "testdata", "gopher", "tokenizer_config.json")}
	entries, err := ToGGUF(files, 4100)
	if err != nil {
		t.Fatal(err)
	}
	m := values(entries)
	tokens, _ := m["tokenizer.ggml.tokens"].([]string)
	types, _ := m["tokenizer.ggml.token_type"].([]int32)
	if m["tokenizer.ggml.pre"] != "llama-bpe" || len(tokens) != 4100 || tokens[4099] != "[PAD4099]" || len(types) != 4100 || types[4099] != ggufUnused || types[1] != ggufControl {
		t.Errorf("%v, %d tokens, %d types", m["tokenizer.ggml.pre"], len(tokens), len(types))
	}
	want, err := FromJSON(files.JSON, files.Config)
	if err != nil {
		t.Fatal(err)
	}
	got, err := FromGGUF(entryMeta(entries))
	if err != nil {
		t.Fatal(err)
	}
	text := string(readFile(t, "..", "..", "testdata", "gopher", "heldout.txt"))
	sameIDs(t, "gopher", want, got, text[:20_000]+"\n<|eot_id|>x")
	if _, err := ToGGUF(files, 4095); err == nil || !strings.Contains(err.Error(), "the vocabulary has 4096 tokens, more than the 4095 rows of the embedding") {
		t.Errorf("got %v", err)
	}
	if _, err := ToGGUF(Files{Config: files.Config}, 1); !errors.Is(err, ErrNone) {
		t.Errorf("got %v", err)
	}
}

// TestPreTokenizersToGGUF checks the GGUF names of the model families' pre-tokenizers.
func TestPreTokenizersToGGUF(t *testing.T) {
	split := func(expr string) string {
		return fmt.Sprintf(`{"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": %q}, "behavior": "Isolated", "invert": false}, {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]}`, expr)
	}
	const (
		tail   = `|\s*[\r\n]+|\s+(?!\S)|\s+`
		o200k  = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*` + tail
		cl100k = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*` + tail
	)
	for _, test := range []struct{ pre, want string }{
		{`{"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}`, "gpt-2"},
		{split(fmt.Sprintf(cl100k, "")), "qwen2"},
		{split(fmt.Sprintf(cl100k, "{1,3}")), "llama-bpe"},
		{split(o200k), "gpt-4o"},
		{`{"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}]}`, "starcoder"},
		{split(`\p{L}+`), ""},
	} {
		var file map[string]json.RawMessage
		if err := json.Unmarshal(readFile(t, "..", "..", "testdata", "gopher", "tokenizer.json"), &file); err != nil {
			t.Fatal(err)
		}
		file["pre_tokenizer"] = json.RawMessage(test.pre)
		data, err := json.Marshal(file)
		if err != nil {
			t.Fatal(err)
		}
		entries, err := ToGGUF(Files{JSON: data}, 4096)
		var unsupported *UnsupportedError
		switch {
		case test.want == "":
			if !errors.As(err, &unsupported) {
				t.Errorf("%s: got %v", test.pre, err)
			}
		case err != nil:
			t.Errorf("%s: %v", test.want, err)
		case values(entries)["tokenizer.ggml.pre"] != test.want:
			t.Errorf("got %v, want %s", values(entries)["tokenizer.ggml.pre"], test.want)
		}
	}
}

// TestPiecesToGGUF converts models of tokenizer.model, with and without a configuration.
func TestPiecesToGGUF(t *testing.T) {
	corpus, err := os.ReadFile("testdata/corpus.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"llama", "gemma", "unigram"} {
		model := reference(t, name+".model")
		want, err := FromSentencePiece(model, nil)
		if err != nil {
			t.Fatal(err)
		}
		entries, err := ToGGUF(Files{SentencePiece: model}, want.Size()+3)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := FromGGUF(entryMeta(entries))
		if err != nil {
			t.Fatal(err)
		}
		sameIDs(t, name, want, got, "func main() {\n\tfmt.Println(\"hi\")\n}\n"+string(corpus[:600]))
		scores, _ := values(entries)["tokenizer.ggml.scores"].([]float32)
		if len(scores) != want.Size()+3 || scores[len(scores)-1] != unusedScore {
			t.Errorf("%s: %d scores for %d tokens", name, len(scores), want.Size())
		}
	}
}

// TestBytesToGGUF checks that unigram with byte fallback is refused, because GGUF cannot
// represent it.
func TestBytesToGGUF(t *testing.T) {
	var unsupported *UnsupportedError
	if _, err := ToGGUF(Files{SentencePiece: reference(t, "unigram_bytes.model")}, 1<<16); !errors.As(err, &unsupported) {
		t.Errorf("got %v", err)
	}
}

// TestMergesToGGUF converts a SentencePiece tokenizer in tokenizer.json. Its merges become
// scores.
func TestMergesToGGUF(t *testing.T) {
	file := func(merges string) []byte {
		return []byte(`{"added_tokens": [{"id": 0, "content": "<unk>", "special": true}, {"id": 1, "content": "<s>", "special": true}],
			"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
			"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"<s>": {"ids": [1]}}},
			"decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
			"model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
			"vocab": {"<unk>": 0, "<s>": 1, "a": 2, "b": 3, "▁": 4, "ab": 5, "▁a": 6, "▁ab": 7, "aba": 8}, "merges": [` + merges + `]}}`)
	}
	entries, err := ToGGUF(Files{JSON: file(`"a b", "▁ a", "▁ ab", "▁a b", "ab a"`)}, 9)
	if err != nil {
		t.Fatal(err)
	}
	m := values(entries)
	if m["tokenizer.ggml.model"] != "llama" || m["tokenizer.ggml.add_bos_token"] != true || m["tokenizer.ggml.add_space_prefix"] != true {
		t.Errorf("%v", m)
	}
	scores, _ := m["tokenizer.ggml.scores"].([]float32)
	if len(scores) != 9 || !(scores[5] > scores[6] && scores[6] > scores[7] && scores[7] > scores[8] && scores[8] > scores[2]) {
		t.Errorf("scores %v", scores)
	}
	var unsupported *UnsupportedError
	if _, err := ToGGUF(Files{JSON: file(`"▁ ab", "a b", "▁ a", "▁a b", "ab a"`)}, 9); !errors.As(err, &unsupported) {
		t.Errorf("rules that are not adjacent: got %v", err)
	}
}
