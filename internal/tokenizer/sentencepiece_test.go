package tokenizer

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
)

// protoModel builds an encoded ModelProto.
type protoModel []byte

func (m protoModel) message(num protowire.Number, fields ...[]byte) protoModel {
	var body []byte
	for _, f := range fields {
		body = append(body, f...)
	}
	return protowire.AppendBytes(protowire.AppendTag(m, num, protowire.BytesType), body)
}

func protoText(num protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, num, protowire.BytesType), s)
}

func protoInt(num protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, num, protowire.VarintType), v)
}

func protoFloat(num protowire.Number, v float32) []byte {
	return protowire.AppendFixed32(protowire.AppendTag(nil, num, protowire.Fixed32Type), math.Float32bits(v))
}

func (m protoModel) piece(text string, score float32, kind uint64) protoModel {
	return m.message(1, protoText(1, text), protoFloat(2, score), protoInt(3, kind))
}

// smallPieces returns a BPE model whose ids 0 to 2 are <unk>, <s> and </s>.
func smallPieces() protoModel {
	return protoModel{}.
		piece("<unk>", 0, typeUnknown).piece("<s>", 0, typeControl).piece("</s>", 0, typeControl).
		piece("▁", -1, typeNormal).piece("a", -2, typeNormal).piece("b", -3, typeNormal).piece("▁a", -0.5, typeNormal).piece("ab", -0.25, typeNormal).
		message(2, protoInt(3, 2)).message(3, protoInt(4, 0))
}

func TestSentencePieceConfig(t *testing.T) {
	const extra = `"added_tokens_decoder":{"8":{"content":"<|end|>","special":true,"rstrip":true},"1":{"content":"<s>","special":true},"9":{"content":"zz"}}`
	tests := []struct {
		config string
		want   []int32 // the ids of "ab<|end|>  azz", with AddSpecial and ParseSpecial
		stop   []int32
	}{
		{"", []int32{3, 7, 0, 3, 6, 0}, []int32{2}},
		{`{}`, []int32{3, 7, 0, 3, 6, 0}, nil},
		{`{"tokenizer_class":"LlamaTokenizer","bos_token":"<s>","eos_token":"</s>"}`, []int32{1, 3, 7, 0, 3, 6, 0}, []int32{2}},
		{`{"tokenizer_class":"LlamaTokenizerFast","bos_token":"<s>","add_bos_token":false,` + extra + `}`, []int32{3, 7, 8, 6, 9}, nil},
		{`{"tokenizer_class":"T5Tokenizer","eos_token":{"content":"</s>"},` + extra + `}`, []int32{3, 7, 8, 6, 9, 2}, []int32{2}},
	}
	for _, tt := range tests {
		var config []byte
		if tt.config != "" {
			config = []byte(tt.config)
		}
		tok, err := FromSentencePiece(smallPieces(), config)
		if err != nil {
			t.Fatalf("%s: %v", tt.config, err)
		}
		if diff := cmp.Diff(tt.want, encode(t, tok, "ab<|end|>  azz", EncodeOptions{AddSpecial: true, ParseSpecial: true})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.config, diff)
		}
		if diff := cmp.Diff(tt.stop, tok.StopIDs()); diff != "" {
			t.Errorf("%s: StopIDs (-want +got):\n%s", tt.config, diff)
		}
	}
}

// TestControlPiecesNeedParseSpecial checks that text which spells a control piece does not
// encode to it without ParseSpecial.
func TestControlPiecesNeedParseSpecial(t *testing.T) {
	for _, c := range modelCases(t) {
		for id := range int32(c.tok.Size()) {
			token, ok := c.tok.Token(id)
			if !ok || !c.tok.Special(id) {
				continue
			}
			for _, got := range encode(t, c.tok, "a "+token+" b"+token, EncodeOptions{}) {
				if c.tok.Special(got) && c.tok.tokens[got] == token && !strings.Contains(strings.ToLower(token), "unk") {
					t.Errorf("%s: text encodes to the control piece %s", c.name, token)
				}
			}
		}
	}
}

func TestSentencePieceErrors(t *testing.T) {
	long := strings.Repeat("ab", 1<<16)
	tests := []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "tokenizer.model: the file has no pieces"},
		{"no protobuf", []byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), "tokenizer.model: "},
		{"cut off", smallPieces()[:40], "tokenizer.model: field 1: unexpected EOF"},
		{"a length beyond the end", []byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f}, "tokenizer.model: field 1: "},
		{"a piece cut off", protoModel{}.message(1, []byte{0x0a, 0x05, 'a'}), "tokenizer.model: piece 0: field 1: unexpected EOF"},
		{"empty piece", smallPieces().piece("", 0, typeNormal), "tokenizer.model: piece 8 is empty or not UTF-8"},
		{"broken piece", smallPieces().piece("\xff", 0, typeNormal), "tokenizer.model: piece 8 is empty or not UTF-8"},
		{"twice", smallPieces().piece("ab", 0, typeNormal), `tokenizer.model: token "ab" has the ids 7 and 8`},
		{"type", smallPieces().piece("x", 0, 9), "tokenizer.model: piece 8: has the unknown type 9"},
		{"byte", smallPieces().piece("<0xZZ>", 0, typeByte), `tokenizer.model: piece 8 of type BYTE is "<0xZZ>"`},
		{"NaN", smallPieces().piece("x", float32(math.NaN()), typeNormal), "tokenizer.model: token 8 has the score NaN"},
		{"infinite", smallPieces().piece("x", float32(math.Inf(-1)), typeNormal), "tokenizer.model: token 8 has the score -Inf"},
		{"no unknown", protoModel{}.piece("a", 0, typeNormal), "no piece has the type UNKNOWN"},
		{"long", smallPieces().piece(long, 0, typeNormal), "its tokens are too long"},
		{"long in unigram", protoModel(smallPieces()).message(2, protoInt(3, 1)).piece(long, 0, typeNormal), "is longer than 4096 bytes"},
		{"map", smallPieces().message(3, protoText(2, "\x08\x00\x00\x00abcd")), "precompiled_charsmap: a trie of 8 bytes in 4"},
		{"word", smallPieces().message(2, protoInt(3, 3)), `trainer_spec.model_type "WORD" is not supported`},
		{"char", smallPieces().message(2, protoInt(3, 4)), `trainer_spec.model_type "CHAR" is not supported`},
		{"denormalizer", smallPieces().message(5, protoText(2, "x")), `denormalizer_spec "precompiled_charsmap" is not supported`},
	}
	if _, err := FromSentencePiece(smallPieces(), nil); err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		tok, err := FromSentencePiece(tt.data, nil)
		if tok != nil || err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "tokenizer: ") {
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.want)
		}
	}
	for _, tt := range []struct{ config, want string }{
		{`{`, "tokenizer_config.json: "},
		{`{"added_tokens_decoder":{"7":{"content":"x"}}}`, `tokenizer_config.json: added_tokens_decoder: token "x": id 7 belongs to token "ab"`},
		{`{"added_tokens_decoder":{"8":{"content":""}}}`, "added_tokens_decoder: the content of 8 is empty"},
		{`{"added_tokens_decoder":{"4000000000":{"content":"x"}}}`, "added_tokens_decoder: token id 4000000000 is far outside the vocabulary"},
		{`{"bos_token":"nonesuch"}`, `tokenizer_config.json: bos_token: "nonesuch" is not a token`},
	} {
		if _, err := FromSentencePiece(smallPieces(), []byte(tt.config)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", tt.config, err, tt.want)
		}
	}
}

func TestPieceUnknown(t *testing.T) {
	tok, err := FromSentencePiece(smallPieces(), nil)
	if err != nil {
		t.Fatal(err)
	}
	// Adjacent unknown characters share one token.
	if diff := cmp.Diff([]int32{6, 0, 5, 0, 3, 0}, encode(t, tok, "axyzb\xff\xfe \u00e9", EncodeOptions{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestModelErrors(t *testing.T) {
	unigram := object{"type": "Unigram", "unk_id": 0, "vocab": []any{[]any{"<unk>", 0}, []any{"a", -1.5}}}
	wordPiece := object{"type": "WordPiece", "unk_token": "[UNK]", "vocab": object{"[UNK]": 0, "a": 1, "##b": 2}}
	with := func(m object, key string, value any) object {
		out := object{}
		for k, v := range m {
			out[k] = v
		}
		out[key] = value
		return out
	}
	tests := []struct {
		model object
		want  string
	}{
		{unigram, ""},
		{wordPiece, ""},
		{with(unigram, "vocab", object{"a": 1}), "model.vocab: is not a list"},
		{with(unigram, "vocab", []any{"a"}), `model.vocab: token 0: is not ["token", score]`},
		{with(unigram, "vocab", []any{[]any{"a"}}), `model.vocab: token 0: is not ["token", score]`},
		{with(unigram, "vocab", []any{[]any{"a", "b"}}), `model.vocab: token "a": "\"b\"" is not a score`},
		{with(unigram, "vocab", []any{[]any{"a", 1, 2}}), `model.vocab: token 0: is not ["token", score]`},
		{with(unigram, "vocab", []any{[]any{"a", 1}, []any{"a", 2}}), `model.vocab: token "a" has the ids 0 and 1`},
		{with(unigram, "vocab", []any{[]any{"<unk>", 1}, []any{strings.Repeat("a", 5000), 2}}), "is longer than 4096 bytes"},
		{with(unigram, "unk_id", 2), "model.unk_id: 2 is outside the vocabulary of 2"},
		{with(unigram, "unk_id", -1), "model.unk_id: -1 is outside the vocabulary of 2"},
		{with(wordPiece, "unk_token", "x"), `model.unk_token: "x" is not a token`},
		{with(wordPiece, "unk_token", nil), "model.unk_token: is missing"},
		{with(wordPiece, "max_input_chars_per_word", -1), "model.max_input_chars_per_word: is -1"},
		{with(wordPiece, "vocab", []any{}), "model.vocab: is not an object"},
	}
	for _, tt := range tests {
		_, err := FromJSON(encodeFile(t, edit{"model", tt.model}, edit{"pre_tokenizer", nil}, edit{"decoder", nil}), nil)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%.200v: error %v, want %q", tt.model, err, tt.want)
		}
	}
}

// TestNormalizerGrowth checks that a text is refused if normalizers make it many times longer.
func TestNormalizerGrowth(t *testing.T) {
	replace := func(old, with string) object {
		return object{"type": "Replace", "pattern": object{"String": old}, "content": with}
	}
	regex := object{"type": "Replace", "pattern": object{"Regex": "a"}, "content": strings.Repeat("b", 1000)}
	for _, n := range []object{
		replace("a", strings.Repeat("a", 1000)),
		regex,
		sequence("normalizers", replace("a", strings.Repeat("a", 20)), replace("a", strings.Repeat("a", 20)), replace("a", strings.Repeat("a", 20))),
		object{"type": "Prepend", "prepend": strings.Repeat("a", 1<<20)},
	} {
		tok, err := FromJSON(encodeFile(t, edit{"normalizer", n}), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tok.Encode(strings.Repeat("a", 10000), EncodeOptions{}); err == nil || !strings.Contains(err.Error(), "tokenizer: the normalizer makes a text of") {
			t.Errorf("%.100v: error %v", n, err)
		}
	}
}

func FuzzFromSentencePiece(f *testing.F) {
	f.Add([]byte(smallPieces()), []byte(nil))
	f.Add([]byte(smallPieces().message(2, protoInt(3, 1))), []byte(`{"bos_token":"<s>","add_bos_token":true,"added_tokens_decoder":{"8":{"content":"x"}}}`))
	f.Add([]byte(smallPieces().piece("<0x41>", 0, typeByte).piece("ba", 0, typeUserDefined).piece("aab", 1, typeUnused)), []byte("{}"))
	f.Add(reference(f, "unigram_tsv.model"), []byte("{}"))
	f.Add(reference(f, "gemma.model"), []byte("null"))
	f.Fuzz(func(t *testing.T, data, config []byte) {
		tok, err := FromSentencePiece(data, config)
		if err != nil {
			if tok != nil || !strings.HasPrefix(err.Error(), "tokenizer: ") {
				t.Fatalf("tokenizer %v, error %v", tok, err)
			}
			return
		}
		ids, err := tok.Encode(string(data[:min(len(data), 300)])+" ab<s>", EncodeOptions{AddSpecial: true, ParseSpecial: true})
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

// FuzzCharsMap applies a normalizer to text, with arbitrary bytes as its map.
func FuzzCharsMap(f *testing.F) {
	var m *pieceModel
	m, err := parsePieceModel(reference(f, "unigram_tsv.model"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(m.norm.charsMap.bytes(), "A é\u0301\t½...\u200b\r\n🇩🇪")
	f.Add([]byte("\x04\x00\x00\x00abcd"), "a")
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		m, err := newCharsMap(data)
		if err != nil {
			return
		}
		for _, n := range []normalizer{m.normalize, (&pieceNormalizer{charsMap: m, squeeze: true, dummy: true, escape: true}).normalize} {
			if _, err := n(text); err != nil && !strings.Contains(err.Error(), "the normalizer makes") {
				t.Fatal(err)
			}
		}
	})
}
