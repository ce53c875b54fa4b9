package tokenizer

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// Meta is the metadata of a GGUF file. A value is a string, a bool, a float, an
// integer of any Go kind, or a slice of such: []string, []int32, []uint32,
// []float32.
type Meta interface {
	Meta(key string) (any, bool)
}

// FromGGUF reads a tokenizer from the tokenizer.ggml keys of GGUF metadata.
//
// It returns [ErrNone] if there is no tokenizer, and an [*UnsupportedError] for
// models other than gpt2 and for pre-tokenizers that it does not know.
//
// As in llama.cpp, text is not normalised, whatever the original tokenizer did,
// because GGUF does not say. BOS is added if tokenizer.ggml.add_bos_token says
// so, else if the pre-tokenizer's name implies it and there is one.
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
	case model != "gpt2":
		return nil, &UnsupportedError{"model", model}
	}
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
	rules, err := m.texts("tokenizer.ggml.merges")
	if err != nil {
		return nil, err
	}
	merges, err := v.merges(len(rules), func(i int) (string, string, error) { return cutMerge(rules[i]) })
	if err != nil {
		return nil, fmt.Errorf("tokenizer.ggml.merges: %w", err)
	}
	letters := newAlphabet()
	t := &Tokenizer{
		tokens: v.tokens, kinds: v.kinds, ids: v.ids,
		pieces:  v.pieces(letters),
		byteIDs: v.byteIDs(letters),
		merges:  merges,
		stages:  pre.stages,
		raw:     newMatcher(added),
		normals: newMatcher(nil),
		cache:   newWordCache(),
	}
	if pre.ignoreMerges {
		t.words = v.words(letters)
	}
	return t, m.specials(t, pre)
}

// cutMerge returns the sides of a merge written "left right".
func cutMerge(rule string) (left, right string, err error) {
	if rule != "" {
		if i := strings.IndexByte(rule[1:], ' '); i >= 0 {
			return rule[:1+i], rule[1+i+1:], nil
		}
	}
	return "", "", fmt.Errorf("%s is not two tokens with a space between them", quote(rule))
}

type ggufMeta struct{ Meta }

// Token types, llama.cpp's enum llama_token_type.
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
		case ggufNormal, ggufByte:
		case ggufUnknown, ggufControl:
			kind = special
		case ggufUserDefined:
			kind = userDefined
		case ggufUndefined, ggufUnused:
			kind = unused
		default:
			return nil, nil, fmt.Errorf("tokenizer.ggml.token_type: token %d is of type %d", i, typ)
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

// tokenTypes returns the type of each token by id; without the key all are normal.
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

// specials sets the special tokens and what Encode adds.
func (m ggufMeta) specials(t *Tokenizer, pre preTokenizer) error {
	ids := [...]struct {
		key string
		id  int32
	}{
		{key: "tokenizer.ggml.bos_token_id"},
		{key: "tokenizer.ggml.eos_token_id"},
		{key: "tokenizer.ggml.eot_token_id"},
		{key: "tokenizer.ggml.eom_token_id"},
	}
	for i := range ids {
		var err error
		if ids[i].id, err = m.tokenID(ids[i].key, t.Size()); err != nil {
			return err
		}
	}
	t.bos, t.eos = ids[0].id, ids[1].id
	for _, s := range ids[1:] {
		t.addStop(s.id)
	}
	addBOS, given, err := m.flag("tokenizer.ggml.add_bos_token")
	switch {
	case err != nil:
		return err
	case !given:
		addBOS = pre.addBOS && t.bos != noID
	case addBOS && t.bos == noID:
		return errors.New("tokenizer.ggml.add_bos_token: there is no tokenizer.ggml.bos_token_id")
	}
	if addBOS {
		t.prefix = []int32{t.bos}
	}
	addEOS, _, err := m.flag("tokenizer.ggml.add_eos_token")
	switch {
	case err != nil:
		return err
	case addEOS && t.eos == noID:
		return errors.New("tokenizer.ggml.add_eos_token: there is no tokenizer.ggml.eos_token_id")
	case addEOS:
		t.suffix = []int32{t.eos}
	}
	return nil
}

// addStop adds a token that ends generation, if it is one and is not there yet.
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

// tokenID returns the id that key holds, or noID without the key.
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

// integer returns v, of any integer kind; what int64 cannot hold is its maximum.
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
