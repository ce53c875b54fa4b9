package tokenizer

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// The files of testdata/reference hold the results of tokenizers 0.23.2 and sentencepiece
// 0.2.2 for a list of texts. The small tokenizers were trained by these libraries on
// heldout.txt and corpus.txt. All strings in the files are valid UTF-8.

// reference reads a file of testdata/reference.
func reference(t testing.TB, name string) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(readFile(t, "testdata", "reference", name+".gz")))
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func readReference[T any](t testing.TB, name string) (v T) {
	t.Helper()
	if err := json.Unmarshal(reference(t, name), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// withCharsMap inserts SentencePiece's map nmt_nfkc, which the files of the reference leave
// out.
func withCharsMap(t testing.TB, data []byte) []byte {
	if !bytes.Contains(data, []byte("$charsmap")) {
		return data
	}
	m, err := parsePieceModel(reference(t, "unigram.model"))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.ReplaceAll(data, []byte("$charsmap"), []byte(base64.StdEncoding.EncodeToString(m.norm.charsMap.bytes())))
}

// component is a file with the results of a list of parts for each text.
type component[T any] struct {
	Parts   []json.RawMessage // [name, part]
	Results [][]*T            // by text and part; null repeats the result before it
}

func (c *component[T]) each(t *testing.T, f func(t *testing.T, part json.RawMessage, want []T)) {
	if len(c.Parts) == 0 {
		t.Fatal("no parts")
	}
	for i, raw := range c.Parts {
		var named [2]json.RawMessage
		var name string
		if err := errors.Join(json.Unmarshal(raw, &named), json.Unmarshal(named[0], &name)); err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			want := make([]T, len(c.Results))
			for j, row := range c.Results {
				k := i
				for row[k] == nil {
					k--
				}
				want[j] = *row[k]
			}
			f(t, withCharsMap(t, named[1]), want)
		})
	}
}

func TestNormalizersAgainstReference(t *testing.T) {
	cases := readReference[[]string](t, "cases.json")
	file := readReference[component[string]](t, "norm.json")
	file.each(t, func(t *testing.T, part json.RawMessage, want []string) {
		list, err := parseNormalizer(part)
		var unsupported *UnsupportedError
		if errors.As(err, &unsupported) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		for i, text := range cases {
			got, err := normalizeAll(list, text)
			if err != nil || got != want[i] {
				t.Errorf("%+q becomes %+q, %v\nwant %+q", text, got, err, want[i])
			}
		}
	})
}

func TestPreTokenizersAgainstReference(t *testing.T) {
	cases := readReference[[]string](t, "cases.json")
	file := readReference[component[[]string]](t, "pre.json")
	letters := newAlphabet()
	file.each(t, func(t *testing.T, part json.RawMessage, want [][]string) {
		pre, err := parsePreTokenizer(part)
		var unsupported *UnsupportedError
		if errors.As(err, &unsupported) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		pre.unmap()
		name := t.Name()
		newer := strings.Contains(name, "scripts") || strings.Contains(name, "posix")
		for i, text := range cases {
			if newer && strings.ContainsFunc(text, newerProperties) {
				continue
			}
			got := []string{}
			e := encoder{Tokenizer: &Tokenizer{model: wordLister{&got}}}
			if err := e.split(pre.stages, text, true); err != nil {
				t.Fatal(err)
			}
			if pre.byteLevel {
				for i, word := range got {
					got[i] = letters.encode(word)
				}
			}
			if !cmp.Equal(got, want[i]) {
				t.Errorf("%+q is cut into\n%+q, want\n%+q", text, got, want[i])
			}
		}
	})
}

// newerProperties reports whether a character has changed its properties since the version of
// Unicode that the reference uses: it has been given a script or has become alphabetic.
func newerProperties(r rune) bool {
	return 0x363 <= r && r <= 0x36f || 0x1f900 <= r && r <= 0x1faff
}

// wordLister is a model that lists the words it receives.
type wordLister struct{ words *[]string }

func (l wordLister) encode(_ *encoder, s string) error {
	*l.words = append(*l.words, s)
	return nil
}

// variant is a tokenizer.json with its results. It stores the differences from one of a few
// trained tokenizers.
type variant struct {
	Name          string
	Base          string
	Parts         object
	Model         object
	AddedTokens   []any `json:"added_tokens"`
	Special       bool
	Lossy         bool // the reference decodes added tokens to their normalised text
	Random        [][]int32
	RandomDecoded []string `json:"random_decoded"`

	ids     [][]int32 // by text
	decoded []string
}

// readVariants reads the file of variants. In the file, null stands for a result equal to that
// of the variant before.
func readVariants(t testing.TB) []variant {
	t.Helper()
	file := readReference[struct {
		Variants []variant
		IDs      [][][]int32 // by text and variant
		Decoded  [][]*string
	}](t, "variants.json")
	for i := range file.IDs {
		var ids []int32
		var decoded string
		for j := range file.Variants {
			v := &file.Variants[j]
			if file.IDs[i][j] != nil {
				ids = file.IDs[i][j]
			}
			if file.Decoded[i][j] != nil {
				decoded = *file.Decoded[i][j]
			}
			v.ids, v.decoded = append(v.ids, ids), append(v.decoded, decoded)
		}
	}
	return file.Variants
}

// load builds the tokenizer of a variant.
func (v *variant) load(t testing.TB, bases map[string]object) *Tokenizer {
	t.Helper()
	file := object{}
	for k, value := range bases[v.Base] {
		file[k] = value
	}
	model := object{}
	for k, value := range file["model"].(object) {
		model[k] = value
	}
	for k, value := range v.Model {
		model[k] = value
	}
	file["model"], file["added_tokens"] = model, v.AddedTokens
	for _, k := range []string{"normalizer", "pre_tokenizer", "decoder", "post_processor"} {
		file[k] = v.Parts[k]
	}
	data, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := FromJSON(withCharsMap(t, data), nil)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestTokenizersAgainstReference(t *testing.T) {
	cases := readReference[[]string](t, "cases.json")
	bases := readReference[map[string]object](t, "bases.json")
	for _, v := range readVariants(t) {
		t.Run(v.Name, func(t *testing.T) {
			tok := v.load(t, bases)
			for i, text := range cases {
				checkCase(t, tok, text, EncodeOptions{AddSpecial: v.Special, ParseSpecial: true}, v.ids[i])
				if !v.Lossy {
					checkDecode(t, tok, v.ids[i], v.decoded[i])
				}
			}
			for i, ids := range v.Random {
				checkDecode(t, tok, ids, v.RandomDecoded[i])
			}
		})
	}
}

func checkCase(t *testing.T, tok *Tokenizer, text string, o EncodeOptions, want []int32) {
	t.Helper()
	got := encode(t, tok, text, o)
	if !cmp.Equal(got, want) && len(got)+len(want) > 0 {
		t.Errorf("%+.300q encodes to\n%v %+.600q, want\n%v %+.600q", text, got, tokensOf(tok, got), want, tokensOf(tok, want))
	}
}

// checkDecode compares the decoded text of ids with want. For invalid UTF-8 the reference
// writes U+FFFD for each maximal part of a character, as Decoder does. There is one exception:
// for a run of byte tokens of a tokenizer.json that is not valid UTF-8, it writes one U+FFFD
// for each byte of the run.
func checkDecode(t *testing.T, tok *Tokenizer, ids []int32, want string) {
	t.Helper()
	got := checkStream(t, tok, ids)
	if got != want && !utf8.ValidString(tok.Decode(ids)) {
		var b strings.Builder
		var st decodeState
		run := ""
		flush := func() {
			if !utf8.ValidString(run) {
				run = strings.Repeat("\ufffd", len(run))
			}
			b.WriteString(run)
			run = ""
		}
		for _, id := range ids {
			piece := tok.decoding.piece(&st, id, tok.kinds[id])
			if _, ok := byteOf(tok.tokens[id]); ok {
				run += piece
				continue
			}
			if tok.kinds[id] != special {
				flush()
			}
			b.WriteString(piece)
		}
		flush()
		got = b.String()
	}
	if got != want {
		t.Errorf("%v %+.300q decodes to %+.300q, want %+.300q", ids, tokensOf(tok, ids), got, want)
	}
}

// tokensOf returns the tokens of ids in the vocabulary's spelling.
func tokensOf(tok *Tokenizer, ids []int32) (out []string) {
	for _, id := range ids {
		s, _ := tok.Token(id)
		out = append(out, s)
	}
	return out
}

// pieceResult is a tokenizer.model with its results.
type pieceResult struct {
	Name, File    string
	IDs           [][]int32
	Decoded       []string
	Random        [][]int32
	RandomDecoded []string `json:"random_decoded"`
	// Long describes the ids of the first 20,000 characters of heldout.txt.
	Long struct {
		Count int
		FNV   uint64
	}
	BOS, EOS, Unk int32
	Size          int
}

func TestSentencePieceAgainstReference(t *testing.T) {
	cases := readReference[[]string](t, "cases.json")
	for _, r := range readReference[[]pieceResult](t, "spm.json") {
		t.Run(r.Name, func(t *testing.T) {
			tok, err := FromSentencePiece(reference(t, r.File), nil)
			if err != nil {
				t.Fatal(err)
			}
			if tok.Size() != r.Size {
				t.Errorf("Size is %d, want %d", tok.Size(), r.Size)
			}
			for i, text := range cases {
				checkPieces(t, tok, text, r.IDs[i])
				checkDecode(t, tok, r.IDs[i], withoutUnknown(r.Decoded[i]))
			}
			for i, ids := range r.Random {
				checkDecode(t, tok, ids, withoutUnknown(r.RandomDecoded[i]))
			}
			ids := encode(t, tok, string([]rune(heldout(t))[:20000]), EncodeOptions{})
			if len(ids) != r.Long.Count || hashIDs(ids) != r.Long.FNV {
				t.Errorf("heldout: %d ids with hash %d, want %d with %d", len(ids), hashIDs(ids), r.Long.Count, r.Long.FNV)
			}
		})
	}
}

func checkPieces(t *testing.T, tok *Tokenizer, text string, want []int32) {
	t.Helper()
	got := encode(t, tok, text, EncodeOptions{})
	if !cmp.Equal(got, want) && len(got)+len(want) > 0 {
		if len(got) > 200 {
			t.Errorf("%+.100q (-want +got):\n%s", text, cmp.Diff(want, got))
			return
		}
		t.Errorf("%+.300q encodes to\n%v %+.600q, want\n%v %+.600q", text, got, tokensOf(tok, got), want, tokensOf(tok, want))
	}
}

// withoutUnknown removes the text that SentencePiece writes for its unknown token.
func withoutUnknown(s string) string { return strings.ReplaceAll(s, " \u2047 ", "") }

// llamaResult is a GGUF vocabulary, either listed or made from a tokenizer.model, with the
// results of llama.cpp v0.5.0.
type llamaResult struct {
	Meta    map[string]any
	File    string
	Extra   []string  // control tokens after the file's tokens
	IDs     [][]int32 // without AddSpecial and ParseSpecial
	Text    []string  // the decoded text of IDs, in hexadecimal
	Special [][]int32 // with AddSpecial and ParseSpecial
}

// meta returns the metadata.
func (r *llamaResult) meta(t testing.TB) metaMap {
	t.Helper()
	m := metaMap{}
	for key, v := range r.Meta {
		if f, ok := v.(float64); ok {
			v = uint32(f)
		}
		m[key] = v
	}
	list := func(key string) []any {
		v, _ := r.Meta[key].([]any)
		delete(m, key)
		return v
	}
	var tokens []string
	var scores []float32
	var types []int32
	for _, v := range list("tokens") {
		tokens = append(tokens, v.(string))
	}
	for _, v := range list("types") {
		types = append(types, int32(v.(float64)))
	}
	if r.File != "" {
		file := reference(t, r.File+".model")
		p, err := parsePieceModel(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, piece := range p.pieces {
			text := piece.text
			if piece.kind == typeUserDefined { // llama.cpp's converter writes them in this form
				text = strings.ReplaceAll(text, spaceMark, " ")
			}
			tokens, scores, types = append(tokens, text), append(scores, piece.score), append(types, int32(piece.kind))
		}
		for _, s := range r.Extra {
			tokens, scores, types = append(tokens, s), append(scores, 0), append(types, typeControl)
		}
		m["tokenizer.ggml.scores"] = scores
		if c := p.norm.charsMap; c != nil {
			m["tokenizer.ggml.precompiled_charsmap"] = c.bytes()
		}
	}
	m["tokenizer.ggml.tokens"], m["tokenizer.ggml.token_type"] = tokens, types
	return m
}

func TestGGUFModelsAgainstLlamaCpp(t *testing.T) {
	golden := readReference[struct {
		Cases  []string
		Models map[string]llamaResult
	}](t, "llamacpp.json")
	for name, r := range golden.Models {
		t.Run(name, func(t *testing.T) {
			tok, err := FromGGUF(r.meta(t))
			if err != nil {
				t.Fatal(err)
			}
			bert := strings.HasPrefix(name, "bert")
			for i, c := range golden.Cases {
				text := string(unhex(t, c))
				if !utf8.ValidString(text) {
					continue // llama.cpp trusts a character's first byte for its length
				}
				if bert && strings.ContainsFunc(text, func(r rune) bool { return unicode.In(r, unicode.Hangul, unicode.Mc, unicode.Me) || r == 0x85 }) {
					continue // the package follows BERT's tokenizer here, llama.cpp does not
				}
				checkPieces(t, tok, text, r.IDs[i])
				// llama.cpp omits unused tokens and cleans up spaces in whole texts.
				if want := string(unhex(t, r.Text[i])); !bert && name != "unused" && tok.Decode(r.IDs[i]) != want {
					t.Errorf("%v decodes to %+.300q, want %+.300q", r.IDs[i], tok.Decode(r.IDs[i]), want)
				}
				got := encode(t, tok, text, EncodeOptions{AddSpecial: true, ParseSpecial: true})
				if !cmp.Equal(got, r.Special[i]) && len(got)+len(r.Special[i]) > 0 {
					t.Errorf("%+.100q with special tokens encodes to\n%v, want\n%v", text, got, r.Special[i])
				}
			}
		})
	}
}

func unhex(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// bytes encodes a map in the form that model files store.
func (m *charsMap) bytes() []byte {
	out := binary.LittleEndian.AppendUint32(nil, uint32(4*len(m.units)))
	for _, u := range m.units {
		out = binary.LittleEndian.AppendUint32(out, u)
	}
	return append(out, m.replacements...)
}
