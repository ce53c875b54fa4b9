package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// characterFile returns a tokenizer.json of BPE of characters, whose merges have another order than
// scores of tokens could express, and the ids of its tokens.
func characterFile(t *testing.T) (file []byte, ids map[string]int32) {
	t.Helper()
	ids = map[string]int32{}
	add := func(token string) {
		ids[token] = int32(len(ids))
	}
	for _, token := range []string{"<pad>", "<eos>", "<bos>", "<unk>"} {
		add(token)
	}
	for b := range 256 {
		add(fmt.Sprintf("<0x%02X>", b))
	}
	for c := '!'; c <= '~'; c++ {
		add(string(c))
	}
	for _, token := range []string{"▁", "\n", "\n\n", "\n\n\n", "é", "ab", "bc", "abc", "▁abc", "▁a"} {
		add(token)
	}
	merges := [][2]string{{"\n", "\n"}, {"\n\n", "\n"}, {"b", "c"}, {"a", "bc"}, {"a", "b"}, {"ab", "c"}, {"▁", "abc"}, {"▁", "a"}}
	var added []map[string]any
	for _, token := range []string{"<pad>", "<eos>", "<bos>", "<unk>"} {
		added = append(added, map[string]any{"id": ids[token], "content": token, "special": true})
	}
	file, err := json.Marshal(map[string]any{
		"added_tokens": added, "normalizer": map[string]any{"type": "Replace", "pattern": map[string]string{"String": " "}, "content": "▁"},
		"pre_tokenizer": nil, "decoder": map[string]any{"type": "Sequence", "decoders": []any{
			map[string]any{"type": "Replace", "pattern": map[string]string{"String": "▁"}, "content": " "}, map[string]string{"type": "ByteFallback"}, map[string]string{"type": "Fuse"}}},
		"model": map[string]any{"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": ids, "merges": merges},
	})
	if err != nil {
		t.Fatal(err)
	}
	return file, ids
}

// TestCharactersGGUF converts a tokenizer whose merges scores cannot express to the model gemma4, reads
// it back, and compares both with the ids that follow from the merges.
func TestCharactersGGUF(t *testing.T) {
	file, ids := characterFile(t)
	config := []byte(`{"tokenizer_class": "GemmaTokenizer", "add_bos_token": true, "bos_token": "<bos>", "eos_token": "<eos>"}`)
	entries, err := ToGGUF(Files{JSON: file, Config: config}, len(ids))
	if err != nil {
		t.Fatal(err)
	}
	if m := values(entries); m["tokenizer.ggml.model"] != "gemma4" || m["tokenizer.ggml.pre"] != nil || m["tokenizer.ggml.scores"] != nil {
		t.Errorf("model %v, pre-tokenizer %v, scores %v", m["tokenizer.ggml.model"], m["tokenizer.ggml.pre"], m["tokenizer.ggml.scores"])
	}
	tok, err := FromGGUF(entryMeta(entries))
	if err != nil {
		t.Fatal(err)
	}
	want, err := FromJSON(file, config)
	if err != nil {
		t.Fatal(err)
	}
	sameIDs(t, "characters", want, tok, corpus(t)+" <eos> x\n\n\n\n")
	for _, c := range []struct {
		text   string
		tokens string // separated by spaces
	}{
		{"abc abc", "abc ▁abc"},
		{" abx\n\n\nab", "▁ ab x \n\n\n ab"}, // a run of line ends that is a token
		{"é€", "é <0xE2> <0x82> <0xAC>"},
		{"a  a", "a ▁ ▁a"},
		{"x<bos>", "x < b o s >"}, // text does not become special tokens
	} {
		got := encode(t, tok, c.text, EncodeOptions{})
		var list []int32
		for token := range strings.SplitSeq(c.tokens, " ") {
			list = append(list, ids[token])
		}
		if !slices.Equal(got, list) {
			t.Errorf("%q: %v, want %v", c.text, got, list)
		}
		if text := tok.Decode(got); text != c.text {
			t.Errorf("%q decodes to %q", c.text, text)
		}
	}
	if !tok.AddBOS() || encode(t, tok, "a", EncodeOptions{AddSpecial: true})[0] != ids["<bos>"] {
		t.Error("the tokenizer does not add <bos>")
	}
}
