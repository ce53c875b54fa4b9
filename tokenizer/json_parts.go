package tokenizer

import (
	"encoding/json"
	"fmt"
	"math"
)

// part is a normalizer, pre-tokenizer, post-processor or decoder of a
// tokenizer.json, as far as its kinds share fields.
type part struct {
	Type string `json:"type"`

	// Lists of kind Sequence, one name for each sort of part.
	Normalizers   []json.RawMessage `json:"normalizers"`
	Pretokenizers []json.RawMessage `json:"pretokenizers"`
	Processors    []json.RawMessage `json:"processors"`
	Decoders      []json.RawMessage `json:"decoders"`

	// ByteLevel.
	AddPrefixSpace bool  `json:"add_prefix_space"`
	UseRegex       *bool `json:"use_regex"` // true if absent

	// Digits.
	IndividualDigits bool `json:"individual_digits"`

	// Split.
	Pattern struct {
		Regex  *string `json:"Regex"`
		String *string `json:"String"`
	} `json:"pattern"`
	Behavior string `json:"behavior"`
	Invert   bool   `json:"invert"`

	// TemplateProcessing.
	Single        []templatePiece `json:"single"`
	SpecialTokens map[string]struct {
		IDs []int64 `json:"ids"`
	} `json:"special_tokens"`
}

type templatePiece struct {
	Sequence *struct {
		ID string `json:"id"`
	} `json:"Sequence"`
	SpecialToken *struct {
		ID string `json:"id"`
	} `json:"SpecialToken"`
}

// parts returns the parts of raw in order: the list of a Sequence, which may
// not hold another, or the one part, or none for null.
func parts(what string, raw json.RawMessage) ([]part, error) {
	var p *part
	if raw == nil {
		return nil, nil
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
		for i, raw := range raws {
			var p part
			if err := json.Unmarshal(raw, &p); err != nil {
				return nil, fmt.Errorf("tokenizer.json: %s %d: %w", what, i, err)
			}
			list = append(list, p)
		}
	}
	return list, nil
}

func parseNormalizer(raw json.RawMessage) (nfc bool, err error) {
	list, err := parts("normalizer", raw)
	for _, p := range list {
		if p.Type != "NFC" {
			return false, &UnsupportedError{"normalizer", p.Type}
		}
		nfc = true
	}
	return nfc, err
}

// parsePreTokenizer accepts splitters followed by ByteLevel.
func parsePreTokenizer(raw json.RawMessage) (stages []splitter, spaced bool, err error) {
	const what = "pre-tokenizer"
	list, err := parts("pre_tokenizer", raw)
	if err != nil {
		return nil, false, err
	}
	if len(list) == 0 {
		return nil, false, &UnsupportedError{what, "null"}
	}
	classes := newClassTable()
	last := list[len(list)-1]
	for _, p := range list[:len(list)-1] {
		s, err := p.splitter(classes)
		if err != nil {
			return nil, false, err
		}
		stages = append(stages, s)
	}
	if last.Type != "ByteLevel" {
		return nil, false, &UnsupportedError{what, last.Type}
	}
	if last.AddPrefixSpace && len(stages) > 0 {
		return nil, false, &UnsupportedError{what, "ByteLevel with add_prefix_space after another"}
	}
	if last.UseRegex == nil || *last.UseRegex {
		stages = append(stages, gpt2Splitter{classes})
	}
	return stages, last.AddPrefixSpace, nil
}

func (p *part) splitter(t *classTable) (splitter, error) {
	switch p.Type {
	case "Digits":
		limit := math.MaxInt
		if p.IndividualDigits {
			limit = 1
		}
		return runSplitter{classes: t, set: number, limit: limit}, nil
	case "Split":
	default:
		return nil, &UnsupportedError{"pre-tokenizer", p.Type}
	}
	if p.Pattern.Regex == nil {
		name := "none"
		if p.Pattern.String != nil {
			name = *p.Pattern.String
		}
		return nil, &UnsupportedError{"pre-tokenizer pattern", name}
	}
	s, total, ok := patternSplitter(t, *p.Pattern.Regex)
	if !ok {
		return nil, &UnsupportedError{"pre-tokenizer pattern", *p.Pattern.Regex}
	}
	// Removing what is between the matches of a pattern without gaps is the same
	// as isolating them; published conversions of GPT-4's tokenizer say so.
	if p.Behavior == "Isolated" || p.Behavior == "Removed" && p.Invert && total {
		return s, nil
	}
	return nil, &UnsupportedError{"pre-tokenizer Split behavior", p.Behavior}
}

func checkDecoder(raw json.RawMessage) error {
	list, err := parts("decoder", raw)
	if err != nil {
		return err
	}
	for _, p := range list {
		if p.Type != "ByteLevel" {
			return &UnsupportedError{"decoder", p.Type}
		}
	}
	if len(list) == 0 {
		return &UnsupportedError{"decoder", "null"}
	}
	return nil
}

// maxTemplate bounds the tokens that a template puts around the text.
const maxTemplate = 64

// parsePostProcessor sets the prefix and suffix of a TemplateProcessing.
func (t *Tokenizer) parsePostProcessor(raw json.RawMessage) error {
	list, err := parts("post_processor", raw)
	if err != nil {
		return err
	}
	for _, p := range list {
		switch p.Type {
		case "ByteLevel": // trims offsets only
		case "TemplateProcessing":
			if err := t.applyTemplate(&p); err != nil {
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
				return fmt.Errorf("single[%d]: the template of one text holds another", i)
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
	// In a sequence of templates, each goes around what the one before it made.
	t.prefix = append(around[0], t.prefix...)
	t.suffix = append(t.suffix, around[1]...)
	return nil
}
