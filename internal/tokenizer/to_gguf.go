package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Entry is an entry of GGUF metadata.
type Entry struct {
	Key   string
	Value any // string, bool, uint32, []string, []int32, []float32 or []uint8
}

// Files are a Hugging Face tokenizer's files. A missing file is nil.
type Files struct {
	JSON          []byte // tokenizer.json
	SentencePiece []byte // tokenizer.model
	Config        []byte // tokenizer_config.json
}

// ToGGUF returns the tokenizer.ggml entries that are equivalent to the files. rows is the
// number of rows of the model's embedding; rows without a token become unused tokens.
//
// It returns [ErrNone] if files holds no tokenizer, and an [*UnsupportedError] for tokenizers
// that GGUF cannot represent: WordPiece, unigram in tokenizer.json, and a pre-tokenizer
// without an equivalent name in GGUF. As in llama.cpp's converter, normalizers that GGUF
// cannot represent are omitted. If the files do not specify whether BOS is added, the
// pre-tokenizer's name decides.
func ToGGUF(files Files, rows int) ([]Entry, error) {
	w, err := newGGUFWriter(files)
	if err != nil {
		return nil, err
	}
	if w.t.Size() > rows {
		return nil, fmt.Errorf("tokenizer: the vocabulary has %d tokens, more than the %d rows of the embedding", w.t.Size(), rows)
	}
	entries, err := w.entries(rows)
	if err != nil {
		return nil, err
	}
	return entries, w.verify(entries)
}

// ggufWriter converts a tokenizer to GGUF metadata.
type ggufWriter struct {
	t      *Tokenizer
	file   *tokenizerFile // the content of tokenizer.json
	pieces *pieceModel    // the content of tokenizer.model
	config configFile
	pad    configToken
	unk    configToken
	eot    configToken
}

func newGGUFWriter(files Files) (*ggufWriter, error) {
	w := &ggufWriter{}
	if files.Config != nil {
		var more struct {
			Pad configToken `json:"pad_token"`
			Unk configToken `json:"unk_token"`
			EOT configToken `json:"eot_token"`
		}
		if err := errors.Join(json.Unmarshal(files.Config, &w.config), json.Unmarshal(files.Config, &more)); err != nil {
			return nil, fmt.Errorf("tokenizer: tokenizer_config.json: %w", err)
		}
		w.pad, w.unk, w.eot = more.Pad, more.Unk, more.EOT
	}
	var err error
	switch {
	case files.SentencePiece != nil: // only tokenizer.model has scores
		if w.pieces, err = parsePieceModel(files.SentencePiece); err != nil {
			return nil, fmt.Errorf("tokenizer: tokenizer.model: %w", err)
		}
		w.t, err = FromSentencePiece(files.SentencePiece, files.Config)
	case files.JSON != nil:
		w.file = new(tokenizerFile)
		if err := json.Unmarshal(files.JSON, w.file); err != nil {
			return nil, fmt.Errorf("tokenizer: tokenizer.json: %w", err)
		}
		w.t, err = FromJSON(files.JSON, files.Config)
	default:
		err = ErrNone
	}
	return w, err
}

func (w *ggufWriter) entries(rows int) ([]Entry, error) {
	var own []Entry
	var err error
	model := "llama"
	switch m := w.t.model.(type) {
	case *byteBPE:
		model = "gpt2"
		own, err = w.byteBPE(m)
	case *charBPE:
		own, err = w.charBPE()
		if unsupported := (*UnsupportedError)(nil); errors.As(err, &unsupported) {
			model = "gemma4" // scores cannot express the merges
			own, err = w.mergeEntry()
		}
	case *unigram:
		model = "t5"
		own, err = w.unigram()
	default:
		err = &UnsupportedError{"model for GGUF", "WordPiece"}
	}
	if err != nil {
		return nil, err
	}
	if model != "gpt2" && model != "gemma4" {
		own = append([]Entry{{"tokenizer.ggml.pre", "default"}}, own...)
	}
	tokens, types := make([]string, rows), make([]int32, rows)
	for id := range tokens {
		tokens[id], types[id] = w.token(id)
	}
	entries := []Entry{{"tokenizer.ggml.model", model}, {"tokenizer.ggml.tokens", tokens}, {"tokenizer.ggml.token_type", types}}
	for i := range own { // pad the scores to one per token
		if scores, ok := own[i].Value.([]float32); ok {
			own[i].Value = append(scores, slices.Repeat([]float32{unusedScore}, rows-len(scores))...)
		}
	}
	return append(append(entries, own...), w.specials()...), nil
}

// unusedScore is the score of tokens that merging does not produce. llama.cpp's converter uses
// the same value.
const unusedScore = -10000

// token returns a token's text and type.
func (w *ggufWriter) token(id int) (string, int32) {
	if id >= w.t.Size() || w.t.kinds[id] == absent {
		return fmt.Sprintf("[PAD%d]", id), ggufUnused
	}
	text := w.t.tokens[id]
	switch w.t.kinds[id] {
	case special:
		if w.pieces != nil && id < len(w.pieces.pieces) && w.pieces.pieces[id].kind == typeUnknown || text == string(w.unk) && w.sentencePiece() {
			return text, ggufUnknown
		}
		return text, ggufControl
	case userDefined:
		return text, ggufUserDefined
	case unused:
		return text, ggufUnused
	case byteToken:
		return text, ggufByte
	}
	if _, ok := byteOf(text); ok && w.sentencePiece() {
		return text, ggufByte
	}
	return text, ggufNormal
}

// sentencePiece reports whether tokens are spelled as in SentencePiece, not in the byte
// alphabet.
func (w *ggufWriter) sentencePiece() bool {
	_, ok := w.t.model.(*byteBPE)
	return !ok
}

// byteBPE returns the merges and the name of the pre-tokenizer.
func (w *ggufWriter) byteBPE(m *byteBPE) ([]Entry, error) {
	pre, err := w.preTokenizer(m)
	if err != nil {
		return nil, err
	}
	list, err := w.mergeEntry()
	return append([]Entry{{"tokenizer.ggml.pre", pre}}, list...), err
}

// mergeEntry returns the entry of the merges.
func (w *ggufWriter) mergeEntry() ([]Entry, error) {
	rules, err := w.mergeRules()
	if err != nil {
		return nil, err
	}
	list := make([]string, len(rules))
	for i, r := range rules {
		if strings.Contains(r[0], " ") || strings.Contains(r[1], " ") {
			return nil, &UnsupportedError{"merge for GGUF", r[0] + " " + r[1]}
		}
		list[i] = r[0] + " " + r[1]
	}
	return []Entry{{"tokenizer.ggml.merges", list}}, nil
}

func (w *ggufWriter) mergeRules() (rules [][2]string, err error) {
	c := jsonCursor{text: string(w.file.Model.Merges)}
	if !c.take('[') {
		return nil, errors.New("tokenizer: tokenizer.json: model.merges: is not a list")
	}
	for !c.take(']') { // FromJSON has already checked that the list ends
		rule, err := c.mergeRule()
		if err != nil {
			return nil, fmt.Errorf("tokenizer: tokenizer.json: model.merges: %w", err)
		}
		rules = append(rules, rule)
		c.take(',')
	}
	return rules, nil
}

// preNames lists the candidate pre-tokenizers. If several names are equivalent, it contains
// the one that the most versions of llama.cpp support.
var preNames = []string{
	"llama-bpe", "dbrx", "qwen2", "gpt-2", "starcoder", "gpt-4o", "kimi-k2", "tekken", "qwen35", "falcon", "deepseek-coder",
	"deepseek-v3", "seed-coder", "minicpm5", "bloom", "viking", "default",
}

// preTokenizer returns the GGUF name whose stages are equivalent to the tokenizer's.
func (w *ggufWriter) preTokenizer(m *byteBPE) (string, error) {
	want, err := cuts(w.t.stages, probe)
	if err != nil {
		return "", err
	}
	harmless := w.merging(m)
	classes := newClassTable()
	for _, name := range preNames {
		pre, ok := ggufPreTokenizer(classes, name)
		if !ok || pre.ignoreMerges != (m.words != nil) && !harmless {
			continue
		}
		if got, err := cuts(pre.stages, probe); err == nil && slices.Equal(got, want) {
			return name, nil
		}
	}
	return "", &UnsupportedError{"pre-tokenizer for GGUF", "without an equivalent in GGUF"}
}

// merging reports whether merging the bytes of every token yields that token. In that case it
// does not matter whether words that are tokens skip merging.
func (w *ggufWriter) merging(m *byteBPE) bool {
	plain := *m
	plain.words = nil
	letters := newAlphabet()
	e := &encoder{Tokenizer: w.t}
	for id, token := range w.t.tokens {
		if w.t.kinds[id] != normal {
			continue
		}
		bytes, ok := letters.decode(token)
		if !ok || bytes == "" {
			continue
		}
		e.ids = e.ids[:0]
		if plain.encode(e, bytes) != nil || len(e.ids) != 1 || e.ids[0] != int32(id) {
			return false
		}
	}
	return true
}

// probe contains text on which pre-tokenizers differ: contractions in both cases, runs of
// digits, combining marks, changes of case, sequences of spaces, line ends and punctuation,
// and several scripts.
const probe = "I'm sure WE'LL don't they'd I'VE it's 'tis O'Neil's 1 12 123 1234 12345678 3.14159 v2.0 0x7f " +
	"camelCase HTTPServer XMLHttpRequest snake_case_name __init__ a-b a_b #!/bin/sh $x += y[0]; /* c */ //d\n\n\n\t\tif (a==b) {\r\n  return;\r\n}  \n \n" +
	"  two  spaces   three    four tab\tend\u00a0nbsp\u3000wide … — “quotes” ‘single’ «» !!! ??? ... ,,, @user #tag a@b.c http://x.y/z?q=1&r=2\n" +
	"naïve café Ärger Straße ŒUVRE ǅ ſ İstanbul ДОМ дом Ελλάδα العربية ١٢٣ हिन्दी का १२३ ไทย 日本語テスト 中文字符，标点。한국어 \U0001F600\U0001F468\u200d\U0001F469 ½ ² Ⅻ e\u0301\n\n  x\n "

// cuts returns the words into which the stages cut text.
func cuts(stages []stage, text string) ([]string, error) {
	var words recorder
	e := &encoder{Tokenizer: &Tokenizer{model: &words}}
	err := e.split(stages, text, true)
	return words, err
}

// recorder is a model that records the words it receives.
type recorder []string

func (r *recorder) encode(_ *encoder, s string) error {
	*r = append(*r, s)
	return nil
}

// charBPE returns the scores of a SentencePiece vocabulary. They come from tokenizer.model, or
// are chosen such that merging by score gives the same result as the merge rules.
func (w *ggufWriter) charBPE() ([]Entry, error) {
	if w.pieces != nil {
		return []Entry{
			{"tokenizer.ggml.scores", w.scores()},
			{"tokenizer.ggml.add_space_prefix", w.pieces.norm.dummy},
		}, nil
	}
	rules, err := w.mergeRules()
	if err != nil {
		return nil, err
	}
	scores := make([]float32, w.t.Size())
	for i := range scores {
		scores[i] = unusedScore
	}
	ranked := make([]bool, len(scores))
	last, rank := int32(noID), float32(0)
	for _, r := range rules {
		id := w.t.ids[r[0]+r[1]]
		if id == last {
			continue
		}
		if ranked[id] { // scores cannot express this order of merges
			return nil, &UnsupportedError{"merges for GGUF", "rules for " + w.t.tokens[id] + " that are not adjacent"}
		}
		ranked[id], scores[id], last = true, -rank, id
		rank++
	}
	dummy := false
	if ids, err := w.t.Encode("a", EncodeOptions{}); err == nil && len(ids) > 0 {
		dummy = strings.HasPrefix(w.t.tokens[ids[0]], spaceMark)
	}
	return []Entry{{"tokenizer.ggml.scores", scores}, {"tokenizer.ggml.add_space_prefix", dummy}}, nil
}

func (w *ggufWriter) unigram() ([]Entry, error) {
	if w.pieces == nil {
		return nil, &UnsupportedError{"model for GGUF", "Unigram without tokenizer.model"}
	}
	entries := []Entry{
		{"tokenizer.ggml.scores", w.scores()},
		{"tokenizer.ggml.add_space_prefix", w.pieces.norm.dummy},
		{"tokenizer.ggml.remove_extra_whitespaces", w.pieces.norm.squeeze},
	}
	if len(w.pieces.charsMap) > 0 {
		entries = append(entries, Entry{"tokenizer.ggml.precompiled_charsmap", w.pieces.charsMap})
	}
	return entries, nil
}

// scores returns the scores of tokenizer.model.
func (w *ggufWriter) scores() []float32 {
	scores := make([]float32, len(w.pieces.pieces))
	for i, p := range w.pieces.pieces {
		scores[i] = p.score
	}
	return scores
}

// specials returns the entries for special tokens and for the tokens that are added around a
// text.
func (w *ggufWriter) specials() []Entry {
	var out []Entry
	id := func(key string, id int32) {
		if id != noID {
			out = append(out, Entry{"tokenizer.ggml." + key, uint32(id)})
		}
	}
	named := func(key string, token configToken) {
		if n, ok := w.t.ids[string(token)]; ok && token != "" {
			id(key, n)
		}
	}
	id("bos_token_id", w.t.bos)
	id("eos_token_id", w.t.eos)
	named("unknown_token_id", w.unk)
	named("padding_token_id", w.pad)
	named("eot_token_id", w.eot)
	begins := w.t.AddBOS()
	if begins || w.config.AddBOS != nil || w.pieces != nil {
		out = append(out, Entry{"tokenizer.ggml.add_bos_token", begins})
	}
	n := len(w.t.suffix)
	ends := n > 0 && w.t.suffix[n-1] == w.t.eos && w.t.eos != noID
	if ends || w.config.AddEOS != nil || w.pieces != nil {
		out = append(out, Entry{"tokenizer.ggml.add_eos_token", ends})
	}
	return out
}

// entryMeta implements Meta for entries.
type entryMeta []Entry

func (m entryMeta) Meta(key string) (any, bool) {
	i := slices.IndexFunc(m, func(e Entry) bool { return e.Key == key })
	if i < 0 {
		return nil, false
	}
	return m[i].Value, true
}

// verify reads a tokenizer back from the entries and compares its encoding of a probe text
// with the original tokenizer's.
func (w *ggufWriter) verify(entries []Entry) error {
	back, err := FromGGUF(entryMeta(entries))
	if err != nil {
		return fmt.Errorf("read back from GGUF: %w", err)
	}
	// The probe is already in normal form, because GGUF does not record normal forms. For most
	// tokenizers this is the only difference.
	for line := range strings.Lines(strings.ReplaceAll(probe, "e\u0301", "")) {
		want, err1 := w.t.Encode(line, EncodeOptions{})
		got, err2 := back.Encode(line, EncodeOptions{})
		if (err1 == nil) != (err2 == nil) || !slices.Equal(got, want) {
			return &UnsupportedError{"tokenizer for GGUF", "that encodes " + quote(line) + " differently"}
		}
	}
	return nil
}
