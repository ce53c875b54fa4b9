package tokenizer

import (
	"encoding/json"
	"fmt"
	"regexp"

	"golang.org/x/text/unicode/norm"
)

func parseNormalizer(raw json.RawMessage) ([]normalizer, error) {
	list, err := parts("normalizer", raw)
	if err != nil {
		return nil, err
	}
	var out []normalizer
	for _, p := range list {
		n, err := p.normalizer()
		if err != nil {
			return nil, err
		}
		if n != nil {
			out = append(out, n)
		}
	}
	return out, nil
}

// normalizer returns the normalizer that p describes, or nil if it does nothing.
func (p *part) normalizer() (normalizer, error) {
	form := func(f norm.Form) (normalizer, error) {
		return func(s string) (string, error) { return normalForm(f, s), nil }, nil
	}
	switch p.Type {
	case "NFC":
		return form(norm.NFC)
	case "NFD":
		return form(norm.NFD)
	case "NFKC":
		return form(norm.NFKC)
	case "NFKD":
		return form(norm.NFKD)
	case "Lowercase":
		return lowercase, nil
	case "StripAccents":
		return stripAccents, nil
	case "Nmt":
		return nmt, nil
	case "Strip":
		return stripping(p.StripLeft, p.StripRight), nil
	case "Prepend":
		return prepending(p.Prepend), nil
	case "Precompiled":
		if len(p.CharsMap) == 0 {
			return nil, nil
		}
		m, err := newCharsMap(p.CharsMap)
		if err != nil {
			return nil, fmt.Errorf("tokenizer.json: normalizer: %w", err)
		}
		return m.normalize, nil
	case "BertNormalizer":
		n := bertNormalizer{p.CleanText, p.ChineseChars, p.Lowercase, p.Lowercase}
		if p.StripAccents != nil {
			n.accents = *p.StripAccents
		}
		return n.normalize, nil
	case "Replace":
		switch {
		case p.Pattern.String != nil && *p.Pattern.String != "":
			return replacing(*p.Pattern.String, p.Content), nil
		case p.Pattern.Regex != nil:
			re, err := compileRegex(*p.Pattern.Regex)
			if err != nil {
				return nil, &UnsupportedError{"normalizer Replace pattern (" + err.Error() + ")", *p.Pattern.Regex}
			}
			return replacingMatches(re, p.Content), nil
		}
		return nil, &UnsupportedError{"normalizer Replace pattern", ""}
	}
	return nil, &UnsupportedError{"normalizer", p.Type}
}

// compileRegex translates an Oniguruma expression and compiles it with package regexp.
func compileRegex(expr string) (*regexp.Regexp, error) {
	p, err := newRegexPattern(expr)
	if err != nil {
		return nil, err
	}
	if p.spaces {
		return nil, fmt.Errorf("lookahead")
	}
	return p.re, nil
}
