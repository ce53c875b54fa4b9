package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/text/unicode/norm"
)

// FromJSON reads a tokenizer from a Hugging Face tokenizer.json and, if it is
// not nil, the tokenizer_config.json beside it.
//
// What is not byte-level BPE, and any normalizer, pre-tokenizer, pattern,
// post-processor or decoder that it does not know, is an [*UnsupportedError].
// Truncation and padding are ignored.
//
// BOS is added if tokenizer_config.json's add_bos_token says so, else if the
// post-processor's template begins with it; EOS likewise.
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
	Model         struct {
		Type         *string         `json:"type"` // absent in old files
		Dropout      float64         `json:"dropout"`
		Prefix       string          `json:"continuing_subword_prefix"`
		Suffix       string          `json:"end_of_word_suffix"`
		IgnoreMerges bool            `json:"ignore_merges"`
		Vocab        json.RawMessage `json:"vocab"`
		Merges       json.RawMessage `json:"merges"`
	} `json:"model"`
}

func fromJSON(tokenizerJSON, tokenizerConfig []byte) (*Tokenizer, error) {
	var f tokenizerFile
	if err := json.Unmarshal(tokenizerJSON, &f); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	if err := f.checkModel(); err != nil {
		return nil, err
	}
	t := &Tokenizer{bos: noID, eos: noID, cache: newWordCache()}
	var err error
	if t.nfc, err = parseNormalizer(f.Normalizer); err != nil {
		return nil, err
	}
	if t.stages, t.spaced, err = parsePreTokenizer(f.PreTokenizer); err != nil {
		return nil, err
	}
	if err := checkDecoder(f.Decoder); err != nil {
		return nil, err
	}
	if err := f.vocabulary(t); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	if err := t.parsePostProcessor(f.PostProcessor); err != nil {
		return nil, err
	}
	if tokenizerConfig != nil {
		if err := t.applyConfig(tokenizerConfig); err != nil {
			return nil, fmt.Errorf("tokenizer_config.json: %w", err)
		}
	} else if len(t.prefix) > 0 {
		t.bos = t.prefix[0]
	}
	return t, nil
}

func (f *tokenizerFile) checkModel() error {
	m := &f.Model
	switch {
	case m.Type != nil && *m.Type != "BPE":
		return &UnsupportedError{"model", *m.Type}
	case m.Vocab == nil:
		return errors.New("tokenizer.json: model.vocab is missing")
	case m.Merges == nil:
		return errors.New("tokenizer.json: model.merges is missing")
	case m.Dropout != 0:
		return &UnsupportedError{"model.dropout", strconv.FormatFloat(m.Dropout, 'g', -1, 64)}
	case m.Prefix != "":
		return &UnsupportedError{"model.continuing_subword_prefix", m.Prefix}
	case m.Suffix != "":
		return &UnsupportedError{"model.end_of_word_suffix", m.Suffix}
	}
	return nil
}

// vocabulary sets all of t that follows from the vocabulary, the merges and the
// added tokens.
func (f *tokenizerFile) vocabulary(t *Tokenizer) error {
	entries, err := parseVocab(f.Model.Vocab)
	if err != nil {
		return fmt.Errorf("model.vocab: %w", err)
	}
	// Ids may have gaps, but not so that a small file makes a large table.
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
			return fmt.Errorf("model.vocab: %w", err)
		}
	}
	for i, a := range f.AddedTokens {
		if err := check(a.Content, a.ID); err != nil {
			return fmt.Errorf("added_tokens[%d]: %w", i, err)
		}
	}
	v := newVocabulary(int(size))
	for _, e := range entries {
		if err := v.add(int32(e.id), e.token, normal); err != nil {
			return fmt.Errorf("model.vocab: %w", err)
		}
	}
	if t.merges, err = parseMerges(v, f.Model.Merges); err != nil {
		return fmt.Errorf("model.merges: %w", err)
	}
	letters := newAlphabet()
	t.byteIDs = v.byteIDs(letters)
	if err := f.addTokens(t, v); err != nil {
		return err
	}
	if f.Model.IgnoreMerges {
		t.words = v.words(letters)
	}
	t.tokens, t.kinds, t.ids, t.pieces = v.tokens, v.kinds, v.ids, v.pieces(letters)
	return nil
}

// addTokens enters the added tokens, which may be in the vocabulary already.
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
		if t.nfc {
			token.content = norm.NFC.String(token.content)
		}
		normals = append(normals, token)
	}
	t.raw, t.normals = newMatcher(raw), newMatcher(normals)
	return nil
}

type configFile struct {
	AddBOS *bool       `json:"add_bos_token"`
	AddEOS *bool       `json:"add_eos_token"`
	BOS    configToken `json:"bos_token"`
	EOS    configToken `json:"eos_token"`
}

// configToken is a string, an object with the string as its content, or null.
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

// id returns the token's id, or noID if none is named.
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

// applyConfig reads BOS and EOS from a tokenizer_config.json and lets it decide
// whether Encode adds them.
func (t *Tokenizer) applyConfig(data []byte) error {
	var c configFile
	err := json.Unmarshal(data, &c)
	if err != nil {
		return err
	}
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
			return errors.New("add_bos_token: there is no bos_token")
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
			return errors.New("add_eos_token: there is no eos_token")
		case *c.AddEOS && !last:
			t.suffix = append(t.suffix, t.eos)
		case !*c.AddEOS && last:
			t.suffix = t.suffix[:n-1]
		}
	}
	return nil
}
