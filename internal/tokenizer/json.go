package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// FromJSON reads a tokenizer from a Hugging Face tokenizer.json and, if it is not nil, the
// tokenizer_config.json that belongs to it.
//
// It supports models of type BPE, Unigram and WordPiece. Any other type, and an unknown
// normalizer, pre-tokenizer, pattern, post-processor or decoder, is an [*UnsupportedError].
// Truncation and padding are ignored.
//
// Encode adds BOS if add_bos_token in tokenizer_config.json is true. If that key is absent,
// Encode adds BOS if the post-processor's template begins with it. The same rules hold for
// EOS.
func FromJSON(tokenizerJSON, tokenizerConfig []byte) (*Tokenizer, error) {
	t, err := fromJSON(tokenizerJSON, tokenizerConfig)
	var unsupported *UnsupportedError
	if err == nil || errors.As(err, &unsupported) {
		return t, err
	}
	return nil, fmt.Errorf("tokenizer: %w", err)
}

type tokenizerFile struct {
	AddedTokens []struct {
		ID         int64  `json:"id"`
		Content    string `json:"content"`
		SingleWord bool   `json:"single_word"`
		Lstrip     bool   `json:"lstrip"`
		Rstrip     bool   `json:"rstrip"`
		Normalized bool   `json:"normalized"`
		Special    bool   `json:"special"`
	} `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	Model         modelFile       `json:"model"`
}

func fromJSON(tokenizerJSON, tokenizerConfig []byte) (*Tokenizer, error) {
	var f tokenizerFile
	if err := json.Unmarshal(tokenizerJSON, &f); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	kind, err := f.Model.kind()
	if err != nil {
		return nil, err
	}
	t := &Tokenizer{bos: noID, eos: noID, cache: newWordCache()}
	if t.normalizers, err = parseNormalizer(f.Normalizer); err != nil {
		return nil, err
	}
	pre, err := parsePreTokenizer(f.PreTokenizer)
	if err != nil {
		return nil, err
	}
	decoders, err := parseDecoder(f.Decoder)
	if err != nil {
		return nil, err
	}
	v, err := f.vocabulary(t, kind, pre)
	if err != nil {
		var unsupported *UnsupportedError
		if errors.As(err, &unsupported) {
			return nil, err
		}
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	t.tokens, t.kinds, t.ids = v.tokens, v.kinds, v.ids
	t.decoding = decoders.decoding(v)
	if err := t.parsePostProcessor(f.PostProcessor); err != nil {
		return nil, err
	}
	if tokenizerConfig != nil {
		var c configFile
		if err := json.Unmarshal(tokenizerConfig, &c); err != nil {
			return nil, fmt.Errorf("tokenizer_config.json: %w", err)
		}
		if err := t.apply(&c); err != nil {
			return nil, fmt.Errorf("tokenizer_config.json: %w", err)
		}
	} else if len(t.prefix) > 0 {
		t.bos = t.prefix[0]
	}
	return t, nil
}

// vocabulary returns the tokens. It also sets the parts of t that depend on them: the model,
// the last stages of the pre-tokenizer and the added tokens.
func (f *tokenizerFile) vocabulary(t *Tokenizer, kind string, pre *preStages) (*vocabulary, error) {
	var entries []vocabEntry
	var err error
	if kind == "Unigram" {
		entries, err = parseScored(f.Model.Vocab)
	} else {
		entries, err = parseVocab(f.Model.Vocab)
	}
	if err != nil {
		return nil, fmt.Errorf("model.vocab: %w", err)
	}
	// Ids may have gaps, but their range is bounded so that a small file cannot create a
	// large table.
	count := len(entries) + len(f.AddedTokens)
	limit := int64(min(2*count+4096, maxTokens))
	size := int64(0)
	check := func(token string, id int64) error {
		if id < 0 || id >= limit {
			return fmt.Errorf("token %s: id %d is outside 0 to %d for %d tokens", quote(token), id, limit-1, count)
		}
		size = max(size, id+1)
		return nil
	}
	for _, e := range entries {
		if err := check(e.token, e.id); err != nil {
			return nil, fmt.Errorf("model.vocab: %w", err)
		}
	}
	for i, a := range f.AddedTokens {
		if err := check(a.Content, a.ID); err != nil {
			return nil, fmt.Errorf("added_tokens[%d]: %w", i, err)
		}
	}
	v := newVocabulary(int(size))
	for _, e := range entries {
		if err := v.add(int32(e.id), e.token, normal); err != nil {
			return nil, fmt.Errorf("model.vocab: %w", err)
		}
	}
	b := modelBuilder{&f.Model, v, entries, v.byteIDs(newAlphabet()), pre}
	if err := f.addTokens(t, v); err != nil {
		return nil, err
	}
	if t.model, err = b.build(kind); err != nil {
		return nil, err
	}
	t.stages = pre.stages
	if m, ok := t.model.(*charBPE); ok && m.cuttable() {
		if c := newWordCutter(m, v.tokens, func(int) bool { return false }); c != nil {
			t.stages = append(t.stages, stage{cut: c})
		}
	}
	return v, nil
}

// addTokens adds the added tokens. Some of them may already be in the vocabulary.
func (f *tokenizerFile) addTokens(t *Tokenizer, v *vocabulary) error {
	var raw, normals []addedToken
	for i, a := range f.AddedTokens {
		id, kind := int32(a.ID), userDefined
		if a.Special {
			kind = special
		}
		switch {
		case a.Content == "":
			return fmt.Errorf("added_tokens[%d]: the content is empty", i)
		case v.kinds[id] == normal && v.tokens[id] == a.Content:
			v.kinds[id] = kind
		default:
			if err := v.add(id, a.Content, kind); err != nil {
				return fmt.Errorf("added_tokens[%d]: %w", i, err)
			}
		}
		token := addedToken{
			content: a.Content, id: id, special: a.Special,
			singleWord: a.SingleWord, lstrip: a.Lstrip, rstrip: a.Rstrip,
		}
		if !a.Normalized {
			raw = append(raw, token)
			continue
		}
		var err error
		if token.content, err = normalizeAll(t.normalizers, token.content); err != nil {
			return fmt.Errorf("added_tokens[%d]: %w", i, err)
		}
		if token.content != "" {
			normals = append(normals, token)
		}
	}
	t.raw, t.normals = newMatcher(raw), newMatcher(normals)
	return nil
}

type configFile struct {
	AddBOS *bool       `json:"add_bos_token"`
	AddEOS *bool       `json:"add_eos_token"`
	Class  string      `json:"tokenizer_class"`
	BOS    configToken `json:"bos_token"`
	EOS    configToken `json:"eos_token"`
	// Added holds the added tokens by id.
	Added map[uint32]struct {
		Content    string `json:"content"`
		SingleWord bool   `json:"single_word"`
		Lstrip     bool   `json:"lstrip"`
		Rstrip     bool   `json:"rstrip"`
		Special    bool   `json:"special"`
	} `json:"added_tokens_decoder"`
}

// configToken is null, a string, or an object whose content is the string.
type configToken string

func (c *configToken) UnmarshalJSON(data []byte) error {
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		var o struct {
			Content string `json:"content"`
		}
		if err := json.Unmarshal(data, &o); err != nil {
			return err
		}
		s = o.Content
	}
	*c = configToken(s)
	return nil
}

// id returns the token's id, or noID for null.
func (c configToken) id(t *Tokenizer, key string) (int32, error) {
	if c == "" {
		return noID, nil
	}
	id, ok := t.ids[string(c)]
	if !ok {
		return noID, fmt.Errorf("%s: %s is not a token", key, quote(string(c)))
	}
	return id, nil
}

// apply sets BOS and EOS to the tokens named in a tokenizer_config.json, and sets whether
// Encode adds them.
func (t *Tokenizer) apply(c *configFile) error {
	var err error
	if t.bos, err = c.BOS.id(t, "bos_token"); err != nil {
		return err
	}
	if t.eos, err = c.EOS.id(t, "eos_token"); err != nil {
		return err
	}
	t.addStop(t.eos)
	if t.bos == noID && c.BOS == "" && len(t.prefix) > 0 {
		t.bos = t.prefix[0]
	}
	if c.AddBOS != nil {
		first := len(t.prefix) > 0 && t.prefix[0] == t.bos
		switch {
		case *c.AddBOS && t.bos == noID:
			return errors.New("add_bos_token: bos_token is missing")
		case *c.AddBOS && !first:
			t.prefix = append([]int32{t.bos}, t.prefix...)
		case !*c.AddBOS && first:
			t.prefix = t.prefix[1:]
		}
	}
	if c.AddEOS != nil {
		n := len(t.suffix)
		last := n > 0 && t.suffix[n-1] == t.eos
		switch {
		case *c.AddEOS && t.eos == noID:
			return errors.New("add_eos_token: eos_token is missing")
		case *c.AddEOS && !last:
			t.suffix = append(t.suffix, t.eos)
		case !*c.AddEOS && last:
			t.suffix = t.suffix[:n-1]
		}
	}
	return nil
}

// defaults sets the values that the file lacks to the defaults of its tokenizer_class.
func (c *configFile) defaults() {
	yes := true
	switch strings.TrimSuffix(c.Class, "Fast") {
	case "LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer":
		if c.AddBOS == nil && c.BOS != "" {
			c.AddBOS = &yes
		}
	case "T5Tokenizer":
		if c.AddEOS == nil && c.EOS != "" {
			c.AddEOS = &yes
		}
	}
}

// addTokens adds the tokens of added_tokens_decoder, some of which may already be in the
// vocabulary, and returns those that are matched in text.
func (c *configFile) addTokens(v *vocabulary) ([]addedToken, error) {
	var added []addedToken
	for _, id := range slices.Sorted(maps.Keys(c.Added)) {
		a := c.Added[id]
		kind := userDefined
		if a.Special {
			kind = special
		}
		switch {
		case a.Content == "":
			return nil, fmt.Errorf("added_tokens_decoder: the content of %d is empty", id)
		case int64(id) >= int64(len(v.tokens)):
			return nil, fmt.Errorf("added_tokens_decoder: token id %d is far outside the vocabulary", id)
		case v.kinds[id] == special && v.tokens[id] == a.Content:
			continue // the token is already matched in text
		case v.kinds[id] != absent && v.tokens[id] == a.Content:
			if a.Special {
				v.kinds[id] = special
			}
		default:
			if err := v.add(int32(id), a.Content, kind); err != nil {
				return nil, fmt.Errorf("added_tokens_decoder: %w", err)
			}
		}
		added = append(added, addedToken{
			content: a.Content, id: int32(id), special: a.Special,
			singleWord: a.SingleWord, lstrip: a.Lstrip, rstrip: a.Rstrip,
		})
	}
	return added, nil
}
