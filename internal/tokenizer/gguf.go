package tokenizer

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// Meta gives access to the metadata of a GGUF file. A value is a string, a bool, a float, an
// integer of any Go kind, or a slice: []string, []int32, []uint32 or []float32.
type Meta interface {
	Meta(key string) (any, bool)
}

// FromGGUF reads a tokenizer from the tokenizer.ggml keys of GGUF metadata.
//
// It returns [ErrNone] if there is no tokenizer, and an [*UnsupportedError] for unknown
// pre-tokenizers and for models other than gpt2 (byte-level BPE), llama (SentencePiece's BPE), gemma4
// (BPE of characters with merges), t5 (unigram) and bert (WordPiece).
//
// As in llama.cpp, text for gpt2 and llama is not normalised, because GGUF does not record
// whether the original tokenizer normalised it. tokenizer.ggml.add_bos_token, add_eos_token
// and add_sep_token determine the tokens added around the text; without them, the model or the
// pre-tokenizer's name does. Unlike in llama.cpp, merging never produces tokens of the types
// CONTROL, UNKNOWN and BYTE.
func FromGGUF(m Meta) (*Tokenizer, error) {
	t, err := fromGGUF(ggufMeta{m})
	var unsupported *UnsupportedError
	if err == nil || errors.Is(err, ErrNone) || errors.As(err, &unsupported) {
		return t, err
	}
	return nil, fmt.Errorf("tokenizer: %w", err)
}

func fromGGUF(m ggufMeta) (*Tokenizer, error) {
	model, ok, err := m.text("tokenizer.ggml.model")
	switch {
	case err != nil:
		return nil, err
	case !ok, model == "none", model == "no_vocab":
		return nil, ErrNone
	}
	switch model {
	case "gpt2":
		return m.byteLevel()
	case "llama":
		return m.sentencePiece(true)
	case "gemma4":
		return m.characters()
	case "t5":
		return m.sentencePiece(false)
	case "bert":
		return m.wordPiece()
	}
	return nil, &UnsupportedError{"model", model}
}

// byteLevel reads a tokenizer of model gpt2.
func (m ggufMeta) byteLevel() (*Tokenizer, error) {
	preName, _, err := m.text("tokenizer.ggml.pre")
	if err != nil {
		return nil, err
	}
	pre, ok := ggufPreTokenizer(newClassTable(), preName)
	if !ok {
		return nil, &UnsupportedError{"pre-tokenizer", preName}
	}
	v, added, err := m.vocabulary()
	if err != nil {
		return nil, err
	}
	merges, err := m.merges(v)
	if err != nil {
		return nil, err
	}
	letters := newAlphabet()
	b := &byteBPE{merges: merges, bytes: v.byteIDs(letters)}
	if pre.ignoreMerges {
		b.words = v.words(letters)
	}
	t := v.tokenizer(b, added)
	t.stages, t.decoding = pre.stages, decoding{pieces: v.pieces(letters), unk: noID}
	return t, m.specials(t, specialIDs{noID, noID, noID}, adds{bos: pre.addBOS})
}

// merges reads the merge rules of a vocabulary.
func (m ggufMeta) merges(v *vocabulary) (*merges, error) {
	rules, err := m.texts("tokenizer.ggml.merges")
	if err != nil {
		return nil, err
	}
	list, err := v.merges(len(rules), 0, func(i int) (string, string, error) { return cutMerge(rules[i]) })
	if err != nil {
		return nil, fmt.Errorf("tokenizer.ggml.merges: %w", err)
	}
	return list, nil
}

// tokenizer returns a tokenizer with the vocabulary, the model and the added tokens, but
// without normalizers and pre-tokenizer stages.
func (v *vocabulary) tokenizer(m model, added []addedToken) *Tokenizer {
	return &Tokenizer{
		tokens: v.tokens, kinds: v.kinds, ids: v.ids,
		raw: newMatcher(added), normals: newMatcher(nil),
		model: m,
		bos:   noID, eos: noID,
		cache: newWordCache(),
	}
}

// cutMerge splits a merge written "left right" into its two tokens.
func cutMerge(rule string) (left, right string, err error) {
	if rule != "" {
		if i := strings.IndexByte(rule[1:], ' '); i >= 0 {
			return rule[:1+i], rule[1+i+1:], nil
		}
	}
	return "", "", fmt.Errorf("%s is not two tokens separated by a space", quote(rule))
}

type ggufMeta struct{ Meta }

// Token types of llama.cpp's enum llama_token_type.
const (
	ggufUndefined = iota
	ggufNormal
	ggufUnknown
	ggufControl
	ggufUserDefined
	ggufUnused
	ggufByte
)

func (m ggufMeta) vocabulary() (*vocabulary, []addedToken, error) {
	tokens, err := m.texts("tokenizer.ggml.tokens")
	if err != nil {
		return nil, nil, err
	}
	if len(tokens) == 0 || len(tokens) > maxTokens {
		return nil, nil, fmt.Errorf("tokenizer.ggml.tokens: %d tokens, want 1 to %d", len(tokens), maxTokens)
	}
	types, err := m.tokenTypes(len(tokens))
	if err != nil {
		return nil, nil, err
	}
	v := newVocabulary(len(tokens))
	var added []addedToken
	for i, token := range tokens {
		id, kind := int32(i), normal
		switch typ := types(i); typ {
		case ggufNormal:
		case ggufByte:
			if _, ok := byteOf(token); ok {
				kind = byteToken
			}
		case ggufUnknown, ggufControl:
			kind = special
		case ggufUserDefined:
			kind = userDefined
		case ggufUndefined, ggufUnused:
			kind = unused
		default:
			return nil, nil, fmt.Errorf("tokenizer.ggml.token_type: token %d has the unknown type %d", i, typ)
		}
		if token == "" {
			v.kinds[id] = unused
			continue
		}
		if err := v.add(id, token, kind); err != nil {
			return nil, nil, fmt.Errorf("tokenizer.ggml.tokens: %w", err)
		}
		if kind == special || kind == userDefined {
			added = append(added, addedToken{content: token, id: id, special: kind == special})
		}
	}
	return v, added, nil
}

// tokenTypes returns the type of each token by id. If the key is absent all tokens are
// normal.
func (m ggufMeta) tokenTypes(tokens int) (at func(i int) int64, err error) {
	const key = "tokenizer.ggml.token_type"
	n := 0
	switch types, _ := m.Meta.Meta(key); types := types.(type) {
	case nil:
		return func(int) int64 { return ggufNormal }, nil
	case []int32:
		n, at = len(types), func(i int) int64 { return int64(types[i]) }
	case []uint32:
		n, at = len(types), func(i int) int64 { return int64(types[i]) }
	default:
		return nil, fmt.Errorf("%s: is %T, want an array of integers", key, types)
	}
	if n < tokens {
		return nil, fmt.Errorf("%s: %d types for %d tokens", key, n, tokens)
	}
	return at, nil
}

// specialIDs are the default special tokens of a model, for files that name none.
type specialIDs struct{ bos, eos, sep int32 }

// adds selects the tokens that Encode adds around a text, for files that do not specify them.
type adds struct{ bos, eos, sep bool }

// specials sets the special tokens and the tokens that Encode adds.
func (m ggufMeta) specials(t *Tokenizer, defaults specialIDs, add adds) error {
	eot, eom := int32(noID), int32(noID)
	sep := defaults.sep
	t.bos, t.eos = defaults.bos, defaults.eos
	for _, s := range [...]struct {
		key string
		id  *int32
	}{
		{"tokenizer.ggml.bos_token_id", &t.bos},
		{"tokenizer.ggml.eos_token_id", &t.eos},
		{"tokenizer.ggml.eot_token_id", &eot},
		{"tokenizer.ggml.eom_token_id", &eom},
		{"tokenizer.ggml.seperator_token_id", &sep}, // GGUF misspells "separator"
	} {
		id, err := m.tokenID(s.key, t.Size())
		if err != nil {
			return err
		}
		if id != noID {
			*s.id = id
		}
		if *s.id != noID && !t.valid(*s.id) { // the default id is outside the vocabulary
			*s.id = noID
		}
	}
	for _, id := range [...]int32{t.eos, eot, eom} {
		t.addStop(id)
	}
	for _, s := range [...]struct {
		add   string
		given bool
		id    int32
		key   string
		to    *[]int32
	}{
		{"tokenizer.ggml.add_bos_token", add.bos, t.bos, "bos_token_id", &t.prefix},
		{"tokenizer.ggml.add_sep_token", add.sep, sep, "seperator_token_id", &t.suffix},
		{"tokenizer.ggml.add_eos_token", add.eos, t.eos, "eos_token_id", &t.suffix},
	} {
		adds, given, err := m.flag(s.add)
		switch {
		case err != nil:
			return err
		case !given:
			adds = s.given && s.id != noID
		case adds && s.id == noID:
			return fmt.Errorf("%s: tokenizer.ggml.%s is missing", s.add, s.key)
		}
		if adds {
			*s.to = append(*s.to, s.id)
		}
	}
	return nil
}

// addStop adds a token that ends generation unless it is noID or already in the list.
func (t *Tokenizer) addStop(id int32) {
	for _, s := range t.stop {
		if s == id {
			return
		}
	}
	if id != noID {
		t.stop = append(t.stop, id)
	}
}

func (m ggufMeta) text(key string) (s string, ok bool, err error) {
	v, ok := m.Meta.Meta(key)
	if !ok {
		return "", false, nil
	}
	if s, ok = v.(string); !ok {
		return "", false, fmt.Errorf("%s: is %T, want a string", key, v)
	}
	return s, true, nil
}

func (m ggufMeta) texts(key string) ([]string, error) {
	v, ok := m.Meta.Meta(key)
	if !ok {
		return nil, fmt.Errorf("%s: is missing", key)
	}
	s, ok := v.([]string)
	if !ok {
		return nil, fmt.Errorf("%s: is %T, want an array of strings", key, v)
	}
	return s, nil
}

func (m ggufMeta) flag(key string) (value, ok bool, err error) {
	v, ok := m.Meta.Meta(key)
	if !ok {
		return false, false, nil
	}
	if value, ok = v.(bool); !ok {
		return false, false, fmt.Errorf("%s: is %T, want a bool", key, v)
	}
	return value, true, nil
}

// tokenID returns the id stored under key, or noID if the key is absent.
func (m ggufMeta) tokenID(key string, size int) (int32, error) {
	v, ok := m.Meta.Meta(key)
	if !ok {
		return noID, nil
	}
	id, ok := integer(v)
	if !ok {
		return noID, fmt.Errorf("%s: is %T, want an integer", key, v)
	}
	if id < 0 || id >= int64(size) {
		return noID, fmt.Errorf("%s: %v is outside the vocabulary of %d", key, v, size)
	}
	return int32(id), nil
}

// integer converts v, a value of any integer kind, to int64. It reduces larger values to the
// largest int64.
func integer(v any) (int64, bool) {
	switch v := v.(type) {
	case int:
		return int64(v), true
	case int8:
		return int64(v), true
	case int16:
		return int64(v), true
	case int32:
		return int64(v), true
	case int64:
		return v, true
	case uint:
		return int64(min(uint64(v), math.MaxInt64)), true
	case uint8:
		return int64(v), true
	case uint16:
		return int64(v), true
	case uint32:
		return int64(v), true
	case uint64:
		return int64(min(v, math.MaxInt64)), true
	}
	return 0, false
}
