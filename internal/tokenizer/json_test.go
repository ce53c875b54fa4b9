package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type object = map[string]any

// smallFile returns a tokenizer.json with a token for every byte, whose id is the byte, and a
// few merges. The ids of the merged tokens begin at 256.
func smallFile() object {
	letters := newAlphabet()
	vocab := object{}
	for b := range 256 {
		vocab[string(letters.char[b])] = b
	}
	for i, token := range []string{"ab", "abc", "Ġa", "Ġab", "xyz"} {
		vocab[token] = 256 + i
	}
	return object{
		"added_tokens":   []any{},
		"normalizer":     nil,
		"pre_tokenizer":  object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
		"post_processor": object{"type": "ByteLevel"},
		"decoder":        object{"type": "ByteLevel"},
		"model": object{
			"type": "BPE", "dropout": nil, "unk_token": nil, "byte_fallback": false, "ignore_merges": false,
			"vocab":  vocab,
			"merges": []any{"Ġ a", "Ġa b", "a b", "ab c"},
		},
	}
}

const firstFree = 261 // the first id that smallFile does not use

// edit sets the value at a path such as "model.vocab.ab". Keys must not contain dots.
type edit struct {
	path  string
	value any
}

func (e edit) apply(f object) {
	keys := strings.Split(e.path, ".")
	for _, k := range keys[:len(keys)-1] {
		f = f[k].(object)
	}
	f[keys[len(keys)-1]] = e.value
}

func encodeFile(t testing.TB, edits ...edit) []byte {
	t.Helper()
	f := smallFile()
	for _, e := range edits {
		e.apply(f)
	}
	data, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func added(id int, content string, flags ...string) object {
	o := object{"id": id, "content": content, "special": false, "normalized": false, "single_word": false, "lstrip": false, "rstrip": false}
	for _, f := range flags {
		o[f] = true
	}
	return o
}

func split(pattern, behavior string, invert bool) object {
	return object{"type": "Split", "pattern": object{"Regex": pattern}, "behavior": behavior, "invert": invert}
}

func sequence(field string, list ...any) object {
	return object{"type": "Sequence", field: list}
}

// nested returns a Sequence nested to the given depth.
func nested(field string, depth int) object {
	if depth == 0 {
		return object{"type": "NFC"}
	}
	return sequence(field, nested(field, depth-1))
}

func byteLevel(useRegex bool) object {
	return object{"type": "ByteLevel", "add_prefix_space": false, "use_regex": useRegex}
}

func TestJSONEncode(t *testing.T) {
	const llama3 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	cat := int32(firstFree)
	tests := []struct {
		name  string
		edits []edit
		text  string
		parse bool
		want  []int32
	}{
		{"plain", nil, "abc ab", false, []int32{257, 259}},
		{"pairs", []edit{{"model.merges", []any{[]any{"a", "b"}, []any{"ab", "c"}}}}, "abc ab", false, []int32{257, ' ', 256}},
		{"mixed and escaped", []edit{{"model.merges", json.RawMessage(`[["\u0061","b"],"ab c"]`)}}, "abc", false, []int32{257}},
		{"type absent", []edit{{"model.type", nil}}, "ab", false, []int32{256}},
		{"merges decide", nil, "xyz", false, []int32{'x', 'y', 'z'}},
		{"ignore_merges", []edit{{"model.ignore_merges", true}}, "xyz", false, []int32{260}},
		{"no pattern", []edit{{"pre_tokenizer.use_regex", false}}, "c ab", false, []int32{'c', 259}},
		{"prefix space", []edit{{"pre_tokenizer.add_prefix_space", true}}, "ab ab", false, []int32{259, 259}},
		{"prefix space already present", []edit{{"pre_tokenizer.add_prefix_space", true}}, " ab", false, []int32{259}},
		{"prefix space of nothing", []edit{{"pre_tokenizer.add_prefix_space", true}}, "", false, []int32{}},
		{"split", []edit{{"pre_tokenizer", sequence("pretokenizers", split(llama3, "Isolated", false), byteLevel(false))}}, "1ab", false, []int32{'1', 256}},
		{"split removing the rest", []edit{{"pre_tokenizer", sequence("pretokenizers", split(llama3, "Removed", true), byteLevel(false))}}, "1ab", false, []int32{'1', 256}},
		{"digits", []edit{{"pre_tokenizer", sequence("pretokenizers", object{"type": "Digits", "individual_digits": true}, byteLevel(true))}}, "12 ab", false, []int32{'1', '2', 259}},

		{"NFC", []edit{{"normalizer", object{"type": "NFC"}}}, "e\u0301", false, []int32{0xc3, 0xa9}},
		{"NFC in a sequence", []edit{{"normalizer", sequence("normalizers", object{"type": "NFC"})}}, "e\u0301", false, []int32{0xc3, 0xa9}},
		{"NFC keeps broken bytes", []edit{{"normalizer", object{"type": "NFC"}}}, "\xffe\u0301\xc3", false, []int32{0xff, 0xc3, 0xa9, 0xc3}},
		{"no NFC", nil, "e\u0301", false, []int32{'e', 0xcc, 0x81}},

		{"special parsed", []edit{{"added_tokens", []any{added(firstFree, "<|x|>", "special")}}}, "a<|x|>b", true, []int32{'a', cat, 'b'}},
		{"special not parsed", []edit{{"added_tokens", []any{added(firstFree, "<|x|>", "special")}}}, "<|x|>", false, []int32{'<', '|', 'x', '|', '>'}},
		{"added token that is not special", []edit{{"added_tokens", []any{added(firstFree, "<x>")}}}, "a<x>b", false, []int32{'a', cat, 'b'}},
		{"added token within a word", []edit{{"added_tokens", []any{added(firstFree, "bc")}}}, "abc", false, []int32{'a', cat}},
		{"longest wins", []edit{{"added_tokens", []any{added(firstFree, "xx"), added(firstFree+1, "xxx")}}}, "xxxxx", false, []int32{cat + 1, cat}},
		{"longest enabled match", []edit{{"added_tokens", []any{added(firstFree, "xx"), added(firstFree+1, "xxx", "special")}}}, "xxx", false, []int32{cat, 'x'}},
		{"lstrip", []edit{{"added_tokens", []any{added(firstFree, "<m>", "lstrip")}}}, "a \n\u3000<m> b", false, []int32{'a', cat, ' ', 'b'}},
		{"lstrip stops at a match", []edit{{"added_tokens", []any{added(firstFree, "<m>", "lstrip"), added(firstFree+1, " ")}}}, "  <m>", false, []int32{cat + 1, cat + 1, cat}},
		{"rstrip", []edit{{"added_tokens", []any{added(firstFree, "<m>", "rstrip")}}}, "a <m> \n b", false, []int32{'a', ' ', cat, 'b'}},
		{"single word", []edit{{"added_tokens", []any{added(firstFree, "zz", "single_word")}}}, "zz azz zzé zz. _zz zz", false,
			[]int32{cat, 258, 'z', 'z', ' ', 'z', 'z', 0xc3, 0xa9, ' ', cat, '.', ' ', '_', 'z', 'z', ' ', cat}},
		{"a failed single-word match hides shorter tokens", []edit{{"added_tokens", []any{added(firstFree, "zz", "single_word"), added(firstFree+1, "za")}}}, "bzza za", false, []int32{'b', 'z', 'z', 'a', ' ', cat + 1}},
		{"normalized", []edit{{"normalizer", object{"type": "NFC"}}, {"added_tokens", []any{added(firstFree, "e\u0301", "normalized")}}}, "xé", false, []int32{'x', cat}},
		{"not normalized", []edit{{"normalizer", object{"type": "NFC"}}, {"added_tokens", []any{added(firstFree, "e\u0301")}}}, "e\u0301é", false, []int32{cat, 0xc3, 0xa9}},
		{"in the vocabulary too", []edit{{"added_tokens", []any{added(260, "xyz")}}}, "axyz", false, []int32{'a', 260}},
		{"gap", []edit{{"added_tokens", []any{added(firstFree+100, "<x>")}}}, "<x>", false, []int32{cat + 100}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tok, err := FromJSON(encodeFile(t, tt.edits...), nil)
			if err != nil {
				t.Fatal(err)
			}
			// The id of a byte's token is the byte.
			if diff := cmp.Diff(tt.want, encode(t, tok, tt.text, EncodeOptions{ParseSpecial: tt.parse})); diff != "" {
				t.Errorf("%q (-want +got):\n%s", tt.text, diff)
			}
		})
	}
}

// TestPlainNormalized checks plain ranges with a special token that is matched in normalised text, where
// the offsets are others.
func TestPlainNormalized(t *testing.T) {
	tok, err := FromJSON(encodeFile(t, edit{"normalizer", object{"type": "NFC"}}, edit{"added_tokens", []any{added(firstFree, "<|x|>", "special", "normalized")}}), nil)
	if err != nil {
		t.Fatal(err)
	}
	x := int32(firstFree)
	for _, c := range []struct {
		plain [][2]int
		want  []int32
	}{
		{nil, []int32{0xc3, 0xa9, x, x}},
		{[][2]int{{3, 4}}, []int32{0xc3, 0xa9, '<', '|', 'x', '|', '>', x}},
		{[][2]int{{0, 1}, {8, 13}}, []int32{'e', 0xcc, 0x81, x, '<', '|', 'x', '|', '>'}},
	} {
		got := encode(t, tok, "e\u0301<|x|><|x|>", EncodeOptions{ParseSpecial: true, Plain: c.plain})
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", c.plain, diff)
		}
	}
}

func template(pieces ...string) object {
	var single []any
	specials := object{}
	for _, p := range pieces {
		if p == "A" || p == "B" {
			single = append(single, object{"Sequence": object{"id": p, "type_id": 0}})
			continue
		}
		single = append(single, object{"SpecialToken": object{"id": p, "type_id": 0}})
		specials[p] = object{"id": p, "tokens": []string{p}, "ids": []int{map[string]int{"<s>": 261, "</s>": 262}[p]}}
	}
	return object{"type": "TemplateProcessing", "single": single, "special_tokens": specials}
}

func TestJSONSpecials(t *testing.T) {
	const bos, eos = 261, 262
	specials := edit{"added_tokens", []any{added(bos, "<s>", "special"), added(eos, "</s>", "special")}}
	tests := []struct {
		name   string
		post   any
		config string
		want   []int32 // the ids of "ab"
		addBOS bool
		stop   []int32
	}{
		{"nothing", nil, "", []int32{256}, false, nil},
		{"template", template("<s>", "A"), "", []int32{bos, 256}, true, nil},
		{"template in a sequence", sequence("processors", object{"type": "ByteLevel"}, template("<s>", "A")), "", []int32{bos, 256}, true, nil},
		{"template with both", template("<s>", "A", "</s>"), `{"bos_token":"<s>","eos_token":"</s>"}`, []int32{bos, 256, eos}, true, []int32{eos}},
		{"template without", template("A"), `{"bos_token":"<s>","eos_token":"</s>"}`, []int32{256}, false, []int32{eos}},
		{"config adds", nil, `{"bos_token":"<s>","add_bos_token":true}`, []int32{bos, 256}, true, nil},
		{"config adds once", template("<s>", "A"), `{"bos_token":"<s>","add_bos_token":true}`, []int32{bos, 256}, true, nil},
		{"config overrides", template("<s>", "A", "</s>"), `{"bos_token":"<s>","eos_token":"</s>","add_bos_token":false,"add_eos_token":false}`, []int32{256}, false, []int32{eos}},
		{"config adds EOS", nil, `{"bos_token":null,"eos_token":{"content":"</s>","lstrip":false},"add_eos_token":true}`, []int32{256, eos}, false, []int32{eos}},
		{"template names BOS", template("<s>", "A"), `{}`, []int32{bos, 256}, true, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var config []byte
			if tt.config != "" {
				config = []byte(tt.config)
			}
			tok, err := FromJSON(encodeFile(t, specials, edit{"post_processor", tt.post}), config)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, encode(t, tok, "ab", EncodeOptions{AddSpecial: true})); diff != "" {
				t.Errorf("ids (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]int32{256}, encode(t, tok, "ab", EncodeOptions{})); diff != "" {
				t.Errorf("ids without AddSpecial (-want +got):\n%s", diff)
			}
			if tok.AddBOS() != tt.addBOS {
				t.Errorf("AddBOS is %v", tok.AddBOS())
			}
			if diff := cmp.Diff(tt.stop, tok.StopIDs()); diff != "" {
				t.Errorf("StopIDs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestJSONErrors(t *testing.T) {
	many := make([]int, maxTemplate+1)
	tests := []struct {
		path  string
		value any
		want  string
	}{
		{"model.vocab", nil, "model.vocab: is not an object"},
		{"model.vocab", []any{}, "model.vocab: is not an object"},
		{"model.vocab.ab", -1, `model.vocab: token "ab": id -1 is outside`},
		{"model.vocab.ab", 1 << 24, `model.vocab: token "ab": id 16777216 is outside`},
		{"model.vocab.ab", 10000, `model.vocab: token "ab": id 10000 is outside 0 to 4617 for 261 tokens`},
		{"model.vocab.ab", 1e300, `model.vocab: token "ab": "1e+300" is not a token id`},
		{"model.vocab.ab", 1.5, `model.vocab: token "ab": "1.5" is not a token id`},
		{"model.vocab.ab", "1", `model.vocab: token "ab": "\"1\"" is not a token id`},
		{"model.vocab.ab", object{"x": 1}, `model.vocab: token "ab": "{\"x\":1" is not a token id`},
		{"model.vocab.ab", 257, `id 257 belongs to token`},
		{"model.merges", []any{"a q", "a c"}, `model.merges: merge 0: "a" and "q" make "aq", which is not a token`},
		{"model.merges", []any{"a b", "nonesuch c"}, `model.merges: merge 1: "nonesuch" is not a token`},
		{"model.merges", []any{[]any{"a", "b", "c"}}, `model.merges: merge 0: is neither`},
		{"model.merges", []any{[]any{"a", "b"}, []any{"a", "b"}}, `model.merges: merge 1: "a" and "b" repeat merge 0`},
		{"model.merges", []any{"ab"}, `model.merges: merge 0: "ab" is not two tokens`},
		{"model.merges", []any{""}, `model.merges: merge 0: "" is not two tokens`},
		{"model.merges", []any{1}, `model.merges: merge 0: is neither`},
		{"model.merges", []any{"a b", []any{"a"}}, `model.merges: merge 1: is neither`},
		{"model.merges", []any{[]any{}}, `model.merges: merge 0: is neither`},
		{"model.merges", []any{[]any{"a", 1}}, `model.merges: merge 0: is neither`},
		{"model.merges", "a b", `model.merges: is not a list`},
		{"added_tokens", []any{added(firstFree, "")}, "added_tokens[0]: the content is empty"},
		{"added_tokens", []any{added(1, "<x>")}, "added_tokens[0]: token \"<x>\": id 1 belongs to token"},
		{"added_tokens", []any{added(firstFree, "ab")}, `added_tokens[0]: token "ab" has the ids 256 and 261`},
		{"added_tokens", []any{added(firstFree, "<x>"), added(firstFree, "<x>")}, `added_tokens[1]: token "<x>": id 261 belongs to`},
		{"added_tokens", []any{added(1<<30, "<x>")}, `added_tokens[0]: token "<x>": id 1073741824 is outside`},
		{"added_tokens", 1, "tokenizer.json: json: cannot unmarshal"},
		{"post_processor", template(), "the template has no place for the text"},
		{"post_processor", template("A", "B"), "single[1]: the template for a single text refers to a second text"},
		{"post_processor", template("<s>", "A"), `special_tokens: "<s>": 261 is not a token id`},
		{"post_processor", object{"type": "TemplateProcessing", "single": []any{object{"SpecialToken": object{"id": "<s>"}}}}, `single[0]: "<s>" is not among special_tokens`},
		{"post_processor", object{"type": "BertProcessing", "cls": []any{"[CLS]", 1}}, `post_processor: sep: is missing`},
		{"post_processor", object{"type": "BertProcessing", "cls": []any{"[CLS]", 1}, "sep": []any{"[SEP]", 9999}}, `"[SEP]": 9999 is not a token id`},
		{"post_processor", object{"type": "BertProcessing", "cls": []any{"[CLS]"}}, `post_processor: ["[CLS]"] is not a list of a token and its id`},
		{"normalizer", object{"type": "Precompiled", "precompiled_charsmap": "AAAA"}, "normalizer: precompiled_charsmap: the data is too short"},
		{"normalizer", object{"type": "Precompiled", "precompiled_charsmap": "//8AAAAA"}, "normalizer: precompiled_charsmap: a trie of 65535 bytes in 2"},
		{"normalizer", nested("normalizers", 10), "normalizer: sequences are nested more than 8 times"},
		{"post_processor", object{"type": "TemplateProcessing", "single": []any{object{}}}, `single[0]: is neither`},
		{"post_processor", object{
			"type":           "TemplateProcessing",
			"single":         []any{object{"SpecialToken": object{"id": "<s>"}}},
			"special_tokens": object{"<s>": object{"ids": many}},
		}, "single[0]: more than 64 tokens"},
	}
	for _, tt := range tests {
		_, err := FromJSON(encodeFile(t, edit{tt.path, tt.value}), nil)
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "tokenizer: ") {
			t.Errorf("%s = %v: error %v, want %q", tt.path, tt.value, err, tt.want)
		}
	}

	duplicate := strings.Replace(string(encodeFile(t)), `"ab":256`, `"ab":256,"ab":261`, 1)
	if _, err := FromJSON([]byte(duplicate), nil); err == nil || !strings.Contains(err.Error(), `model.vocab: token "ab" has the ids 256 and 261`) {
		t.Errorf("a duplicate key: error %v", err)
	}
	for _, text := range []string{"", "{", "null", "[]", "{}", `{"model":{}}`, `{"model":{"type":"BPE","vocab":{}}}`, strings.Repeat("[", 1<<20), `{"normalizer":` + strings.Repeat(`{"normalizers":[`, 1<<16)} {
		if _, err := FromJSON([]byte(text), nil); err == nil || !strings.HasPrefix(err.Error(), "tokenizer: ") {
			t.Errorf("%.20q: error %v", text, err)
		}
	}
	configs := []struct{ config, want string }{
		{`{`, "tokenizer_config.json: "},
		{`{"bos_token":"<s>"}`, `tokenizer_config.json: bos_token: "<s>" is not a token`},
		{`{"eos_token":{"content":"<s>"}}`, `tokenizer_config.json: eos_token: "<s>" is not a token`},
		{`{"bos_token":1}`, "tokenizer_config.json: "},
		{`{"add_bos_token":true}`, "add_bos_token: bos_token is missing"},
		{`{"add_eos_token":true}`, "add_eos_token: eos_token is missing"},
	}
	for _, tt := range configs {
		if _, err := FromJSON(encodeFile(t), []byte(tt.config)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", tt.config, err, tt.want)
		}
	}
}

func TestJSONUnsupported(t *testing.T) {
	tests := []struct {
		path  string
		value any
		want  UnsupportedError
	}{
		{"model.type", "WordLevel", UnsupportedError{"model", "WordLevel"}},
		{"model.dropout", 0.5, UnsupportedError{"model.dropout", "0.5"}},
		{"normalizer", object{"type": "ByteLevel"}, UnsupportedError{"normalizer", "ByteLevel"}},
		{"normalizer", sequence("normalizers", object{"type": "NFC"}, object{"type": "Unheard"}), UnsupportedError{"normalizer", "Unheard"}},
		{"normalizer", object{"type": "Replace", "pattern": object{"String": ""}, "content": "x"}, UnsupportedError{"normalizer Replace pattern", ""}},
		{"normalizer", object{"type": "Replace", "pattern": object{"Regex": `(?<=a)b`}, "content": "x"}, UnsupportedError{`normalizer Replace pattern (the group "(?<=")`, `(?<=a)b`}},
		{"normalizer", object{"type": "Replace", "pattern": object{"Regex": `a|\s+(?!\S)|\s+`}, "content": "x"}, UnsupportedError{"normalizer Replace pattern (lookahead)", `a|\s+(?!\S)|\s+`}},
		{"pre_tokenizer", object{"type": "FixedLength"}, UnsupportedError{"pre-tokenizer", "FixedLength"}},
		{"pre_tokenizer", object{"type": "Metaspace"}, UnsupportedError{"Metaspace replacement", ""}},
		{"pre_tokenizer", object{"type": "Metaspace", "replacement": "_", "prepend_scheme": "often"}, UnsupportedError{"Metaspace prepend_scheme", "often"}},
		{"pre_tokenizer", object{"type": "CharDelimiterSplit", "delimiter": ""}, UnsupportedError{"pre-tokenizer CharDelimiterSplit delimiter", ""}},
		{"pre_tokenizer", sequence("pretokenizers", byteLevel(false), byteLevel(false)), UnsupportedError{"pre-tokenizer", "with two ByteLevel parts"}},
		{"pre_tokenizer", sequence("pretokenizers", split(`(a+)+$`, "Isolated", false), byteLevel(false)), UnsupportedError{"pre-tokenizer pattern (the anchor $)", `(a+)+$`}},
		{"pre_tokenizer", split(`a++b`, "Isolated", false), UnsupportedError{"pre-tokenizer pattern (a possessive quantifier)", `a++b`}},
		{"pre_tokenizer", split(`\bthe\b`, "Isolated", false), UnsupportedError{`pre-tokenizer pattern (the escape \b)`, `\bthe\b`}},
		{"pre_tokenizer", split(`[a-z&&[^b]]`, "Isolated", false), UnsupportedError{"pre-tokenizer pattern (an intersection of classes)", `[a-z&&[^b]]`}},
		{"pre_tokenizer", split(`x`, "Doubled", false), UnsupportedError{"pre-tokenizer Split behavior", "Doubled"}},
		{"pre_tokenizer", object{"type": "Split", "behavior": "Isolated"}, UnsupportedError{"pre-tokenizer pattern", "none"}},
		{"post_processor", object{"type": "Unheard"}, UnsupportedError{"post-processor", "Unheard"}},
		{"decoder", object{"type": "CTC"}, UnsupportedError{"decoder", "CTC"}},
		{"decoder", sequence("decoders", object{"type": "Fuse"}, object{"type": "Strip", "content": " ", "stop": 1}), UnsupportedError{"decoder", "Strip with stop after Fuse"}},
		{"decoder", sequence("decoders", object{"type": "Fuse"}, object{"type": "WordPiece"}), UnsupportedError{"decoder", "WordPiece after Fuse"}},
	}
	for _, tt := range tests {
		_, err := FromJSON(encodeFile(t, edit{tt.path, tt.value}), nil)
		var got *UnsupportedError
		if !errors.As(err, &got) || *got != tt.want {
			t.Errorf("%s = %v: error %v, want %+v", tt.path, tt.value, err, tt.want)
		}
	}
}

// TestJSONPieces checks how the spellings of tokens in a vocabulary decode.
func TestJSONPieces(t *testing.T) {
	tok, err := FromJSON(encodeFile(t,
		edit{"model.vocab.▁odd", 261},
		edit{"added_tokens", []any{added(262, "<Ġ>"), added(263, "éé"), added(400, "<s>", "special")}},
	), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Decode([]int32{259, 261, 262, 263, 300, 400, 'x'}); got != " ab▁odd<Ġ>ééx" {
		t.Errorf("Decode returns %q", got)
	}
	if tok.Size() != 401 {
		t.Errorf("Size is %d", tok.Size())
	}
	if s, ok := tok.Token(300); ok {
		t.Errorf("Token(300), in a gap, is %q", s)
	}
	if part, err := tok.NewDecoder().Next(300); part != "" || err != nil {
		t.Errorf("Next(300), in a gap, returns %q, %v", part, err)
	}
	if s, _ := tok.Token(259); s != "Ġab" {
		t.Errorf("Token(259) is %q", s)
	}
}

func FuzzFromJSON(f *testing.F) {
	small := encodeFile(f)
	f.Add(small, []byte(`{"bos_token":"ab","add_bos_token":true}`))
	f.Add(encodeFile(f, edit{"added_tokens", []any{added(261, "<s>", "special", "lstrip", "rstrip", "single_word")}}, edit{"post_processor", template("<s>", "A")}), []byte(nil))
	f.Add(encodeFile(f, edit{"normalizer", object{"type": "NFC"}}, edit{"model.merges", []any{[]any{"a", "b"}}}), []byte("{}"))
	f.Add([]byte(`{"model":{"vocab":{"a":0},"merges":[]},"pre_tokenizer":{"type":"ByteLevel"},"decoder":{"type":"ByteLevel"}}`), []byte("null"))
	bases := readReference[map[string]object](f, "bases.json")
	seen := map[string]bool{}
	for _, v := range readVariants(f) {
		if seen[v.Base] || v.Base == "bytelevel" {
			continue
		}
		seen[v.Base] = true
		model := bases[v.Base]["model"].(object)
		small := object{"vocab": object{"a": 0, "##b": 1, "<unk>": 2, "[UNK]": 3, "ab": 4, "b": 5, "▁": 6, "▁a": 7, "</w>": 8}, "merges": []any{"a b", "▁ a"}}
		if model["type"] == "Unigram" {
			small = object{"vocab": []any{[]any{"<unk>", 0}, []any{"a", -1}, []any{"▁a", -2.5}, []any{"<0x41>", 0}}, "unk_id": 0, "byte_fallback": true}
		}
		for key, value := range model {
			if _, ok := small[key]; !ok {
				small[key] = value
			}
		}
		file := object{"model": small, "added_tokens": []any{added(9, "<s>", "special")}}
		for key, value := range v.Parts {
			if key != "post_processor" {
				file[key] = value
			}
		}
		data, err := json.Marshal(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(bytes.ReplaceAll(data, []byte("$charsmap"), nil), []byte("{}"))
	}
	f.Fuzz(func(t *testing.T, data, config []byte) {
		tok, err := FromJSON(data, config)
		if err != nil {
			if tok != nil || !strings.HasPrefix(err.Error(), "tokenizer: ") {
				t.Fatalf("tokenizer %v, error %v", tok, err)
			}
			return
		}
		if tok.Size() > 4096+len(data) {
			t.Fatalf("%d ids of %d bytes", tok.Size(), len(data))
		}
		ids, err := tok.Encode(fmt.Sprintf("%.64s ab<s>", data), EncodeOptions{AddSpecial: true, ParseSpecial: true})
		if err != nil {
			return
		}
		for _, id := range ids {
			if _, ok := tok.Token(id); !ok {
				t.Fatalf("Encode returns %d, which is not a token", id)
			}
		}
		checkStream(t, tok, ids)
	})
}
