package tokenizer

import (
	"encoding/json"
	"fmt"
)

// part is a normalizer, pre-tokenizer, post-processor or decoder of a tokenizer.json. It has
// the fields of all types.
type part struct {
	Type string `json:"type"`

	// The parts of a Sequence. The name of the list depends on the kind of part.
	Normalizers   []json.RawMessage `json:"normalizers"`
	Pretokenizers []json.RawMessage `json:"pretokenizers"`
	Processors    []json.RawMessage `json:"processors"`
	Decoders      []json.RawMessage `json:"decoders"`

	// Fields of ByteLevel, and of Metaspace in old files.
	AddPrefixSpace *bool `json:"add_prefix_space"`
	UseRegex       *bool `json:"use_regex"` // true if absent

	// Fields of Metaspace.
	Replacement   string  `json:"replacement"`
	PrependScheme *string `json:"prepend_scheme"`
	Split         *bool   `json:"split"` // true if absent

	// Field of Digits.
	IndividualDigits bool `json:"individual_digits"`

	// Field of CharDelimiterSplit.
	Delimiter string `json:"delimiter"`

	// Fields of Split, Replace and Punctuation.
	Pattern struct {
		Regex  *string `json:"Regex"`
		String *string `json:"String"`
	} `json:"pattern"`
	Behavior string `json:"behavior"`
	Invert   bool   `json:"invert"`
	Content  string `json:"content"` // also used by the decoder Strip

	// Fields of Strip, which is both a normalizer and a decoder.
	StripLeft  bool `json:"strip_left"`
	StripRight bool `json:"strip_right"`
	Start      int  `json:"start"`
	Stop       int  `json:"stop"`

	Prepend  string `json:"prepend"`              // field of Prepend
	CharsMap []byte `json:"precompiled_charsmap"` // field of Precompiled

	// Fields of BertNormalizer.
	CleanText    bool  `json:"clean_text"`
	ChineseChars bool  `json:"handle_chinese_chars"`
	StripAccents *bool `json:"strip_accents"` // equals Lowercase if absent
	Lowercase    bool  `json:"lowercase"`

	// Fields of WordPiece.
	Prefix  string `json:"prefix"`
	Cleanup bool   `json:"cleanup"`

	// Fields of TemplateProcessing.
	Single        []templatePiece `json:"single"`
	SpecialTokens map[string]struct {
		IDs []int64 `json:"ids"`
	} `json:"special_tokens"`

	// Fields of BertProcessing and RobertaProcessing.
	Sep tokenPair `json:"sep"`
	Cls tokenPair `json:"cls"`
}

type templatePiece struct {
	Sequence *struct {
		ID string `json:"id"`
	} `json:"Sequence"`
	SpecialToken *struct {
		ID string `json:"id"`
	} `json:"SpecialToken"`
}

// tokenPair is a JSON list of a token and its id, such as ["[SEP]", 102].
type tokenPair struct {
	token string
	id    int64
}

func (p *tokenPair) UnmarshalJSON(data []byte) error {
	list := []any{&p.token, &p.id}
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	if len(list) != 2 {
		return fmt.Errorf("%.200s is not a list of a token and its id", data)
	}
	return nil
}

// maxNesting bounds how deeply sequences may be nested.
const maxNesting = 8

// parts returns the parts of raw in order. raw is null, one part, or a Sequence of parts.
func parts(what string, raw json.RawMessage) ([]part, error) {
	return nestedParts(what, raw, 0)
}

func nestedParts(what string, raw json.RawMessage, depth int) ([]part, error) {
	var p *part
	if raw == nil {
		return nil, nil
	}
	if depth > maxNesting {
		return nil, fmt.Errorf("tokenizer.json: %s: sequences are nested more than %d times", what, maxNesting)
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %s: %w", what, err)
	}
	if p == nil {
		return nil, nil
	}
	if p.Type != "Sequence" {
		return []part{*p}, nil
	}
	var list []part
	for _, raws := range [][]json.RawMessage{p.Normalizers, p.Pretokenizers, p.Processors, p.Decoders} {
		for _, raw := range raws {
			more, err := nestedParts(what, raw, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, more...)
		}
	}
	return list, nil
}

// maxTemplate bounds the number of tokens that a template adds around the text.
const maxTemplate = 64

// parsePostProcessor sets the prefix and suffix of a TemplateProcessing.
func (t *Tokenizer) parsePostProcessor(raw json.RawMessage) error {
	list, err := parts("post_processor", raw)
	if err != nil {
		return err
	}
	for _, p := range list {
		switch p.Type {
		case "ByteLevel": // changes only character offsets, which this package does not compute
		case "TemplateProcessing":
			if err := t.applyTemplate(&p); err != nil {
				return fmt.Errorf("tokenizer.json: post_processor: %w", err)
			}
		case "BertProcessing", "RobertaProcessing":
			if err := t.applyAround(p.Cls, p.Sep); err != nil {
				return fmt.Errorf("tokenizer.json: post_processor: %w", err)
			}
		default:
			return &UnsupportedError{"post-processor", p.Type}
		}
	}
	return nil
}

func (t *Tokenizer) applyTemplate(p *part) error {
	var around [2][]int32 // before and after the text
	side := 0
	for i, piece := range p.Single {
		switch {
		case piece.Sequence != nil && piece.SpecialToken == nil:
			if side == 1 || piece.Sequence.ID != "A" {
				return fmt.Errorf("single[%d]: the template for a single text refers to a second text", i)
			}
			side = 1
		case piece.SpecialToken != nil && piece.Sequence == nil:
			name := piece.SpecialToken.ID
			token, ok := p.SpecialTokens[name]
			if !ok {
				return fmt.Errorf("single[%d]: %s is not among special_tokens", i, quote(name))
			}
			if len(token.IDs)+len(around[side]) > maxTemplate {
				return fmt.Errorf("single[%d]: more than %d tokens", i, maxTemplate)
			}
			for _, id := range token.IDs {
				if id < 0 || id >= int64(t.Size()) || !t.valid(int32(id)) {
					return fmt.Errorf("special_tokens: %s: %d is not a token id", quote(name), id)
				}
				around[side] = append(around[side], int32(id))
			}
		default:
			return fmt.Errorf("single[%d]: is neither a Sequence nor a SpecialToken", i)
		}
	}
	if side == 0 {
		return fmt.Errorf("single: the template has no place for the text")
	}
	// In a sequence of templates, each one surrounds the result of the one before it.
	t.prefix = append(around[0], t.prefix...)
	t.suffix = append(t.suffix, around[1]...)
	return nil
}

// applyAround adds one token before the text and one after it.
func (t *Tokenizer) applyAround(before, after tokenPair) error {
	for i, p := range []tokenPair{before, after} {
		if p.token == "" {
			return fmt.Errorf("%s: is missing", [...]string{"cls", "sep"}[i])
		}
		if p.id < 0 || p.id >= int64(t.Size()) || !t.valid(int32(p.id)) {
			return fmt.Errorf("%s: %d is not a token id", quote(p.token), p.id)
		}
	}
	t.prefix = append([]int32{int32(before.id)}, t.prefix...)
	t.suffix = append(t.suffix, int32(after.id))
	return nil
}
