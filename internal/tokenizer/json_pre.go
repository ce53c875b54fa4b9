package tokenizer

import (
	"encoding/json"
	"math"
	"unicode/utf8"
)

// preStages are the stages of a tokenizer.json's pre-tokenizer.
type preStages struct {
	stages []stage
	// byteLevel reports whether words are in the byte alphabet after some stage. mapped reports
	// whether the stages convert them to it.
	byteLevel, mapped bool
}

// unmap removes the conversion to the byte alphabet for a model that merges bytes. Usually the
// last stage converts the words, and no conversion remains.
func (p *preStages) unmap() {
	if !p.mapped {
		return
	}
	p.mapped = false
	if last := len(p.stages) - 1; p.stages[last].alphabet {
		p.stages = p.stages[:last]
		return
	}
	letters := newAlphabet()
	p.stages = append(p.stages, stage{rewrite: func(s string, _ bool) string {
		if bytes, ok := letters.decode(s); ok {
			return bytes
		}
		return s
	}})
}

func parsePreTokenizer(raw json.RawMessage) (*preStages, error) {
	list, err := parts("pre_tokenizer", raw)
	if err != nil {
		return nil, err
	}
	pre := new(preStages)
	if len(list) == 0 {
		return pre, nil
	}
	classes := newClassTable()
	for _, p := range list {
		if p.Type == "ByteLevel" {
			if pre.byteLevel {
				return nil, &UnsupportedError{"pre-tokenizer", "with two ByteLevel parts"}
			}
			pre.byteLevel, pre.mapped = true, true
			if p.AddPrefixSpace != nil && *p.AddPrefixSpace {
				pre.stages = append(pre.stages, stage{rewrite: prefixSpace})
			}
			if p.UseRegex == nil || *p.UseRegex {
				pre.stages = append(pre.stages, isolating(gpt2Pattern{classes})...)
			}
			letters := newAlphabet()
			pre.stages = append(pre.stages, stage{rewrite: func(s string, _ bool) string { return letters.encode(s) }, alphabet: true})
			continue
		}
		stages, err := p.preTokenizer(classes)
		if err != nil {
			return nil, err
		}
		pre.stages = append(pre.stages, stages...)
	}
	return pre, nil
}

// preTokenizer returns the stages of a part other than ByteLevel.
func (p *part) preTokenizer(t *classTable) ([]stage, error) {
	spaces := classPattern{classes: t, set: space}
	marks := classPattern{classes: t, set: punct, ascii: asciiPunctuation}
	switch p.Type {
	case "Whitespace":
		return []stage{{cut: removed{inverted{wordPattern{t}}}}}, nil
	case "WhitespaceSplit":
		return []stage{{cut: removed{spaces}}}, nil
	case "BertPreTokenizer":
		return []stage{{cut: removed{spaces}}, {cut: isolated{marks}}}, nil
	case "Punctuation":
		behavior := p.Behavior
		if behavior == "" {
			behavior = "Isolated"
		}
		return behaving(marks, behavior)
	case "Digits":
		limit := math.MaxInt
		if p.IndividualDigits {
			limit = 1
		}
		return isolating(runPattern{classes: t, set: number, limit: limit}), nil
	case "UnicodeScripts":
		return []stage{{cut: newScriptCutter()}}, nil
	case "CharDelimiterSplit":
		if _, ok := oneRune(p.Delimiter); !ok {
			return nil, &UnsupportedError{"pre-tokenizer CharDelimiterSplit delimiter", p.Delimiter}
		}
		return []stage{{cut: removed{stringPattern(p.Delimiter)}}}, nil
	case "Metaspace":
		return p.metaspace()
	case "Split":
		pattern, err := p.splitPattern(t)
		if err != nil {
			return nil, err
		}
		if p.Invert {
			pattern = inverted{pattern}
		}
		return behaving(pattern, p.Behavior)
	}
	return nil, &UnsupportedError{"pre-tokenizer", p.Type}
}

func behaving(p pattern, behavior string) ([]stage, error) {
	c, ok := withBehavior(p, behavior)
	if !ok {
		return nil, &UnsupportedError{"pre-tokenizer Split behavior", behavior}
	}
	return []stage{{cut: c}}, nil
}

func (p *part) splitPattern(t *classTable) (pattern, error) {
	const what = "pre-tokenizer pattern"
	switch {
	case p.Pattern.Regex != nil:
		if s, ok := knownPattern(t, *p.Pattern.Regex); ok {
			return s, nil
		}
		s, err := newRegexPattern(*p.Pattern.Regex)
		if err != nil {
			return nil, &UnsupportedError{what + " (" + err.Error() + ")", *p.Pattern.Regex}
		}
		return s, nil
	case p.Pattern.String != nil && *p.Pattern.String != "":
		return stringPattern(*p.Pattern.String), nil
	}
	return nil, &UnsupportedError{what, "none"}
}

// scheme returns when a Metaspace adds a mark at the beginning of a text.
func (p *part) scheme() (prependScheme, error) {
	switch {
	case p.PrependScheme == nil && p.AddPrefixSpace != nil && !*p.AddPrefixSpace:
		return prependNever, nil
	case p.PrependScheme == nil || *p.PrependScheme == "always":
		return prependAlways, nil
	case *p.PrependScheme == "first":
		return prependFirst, nil
	case *p.PrependScheme == "never":
		return prependNever, nil
	}
	return 0, &UnsupportedError{"Metaspace prepend_scheme", *p.PrependScheme}
}

func (p *part) metaspace() ([]stage, error) {
	scheme, err := p.scheme()
	if err != nil {
		return nil, err
	}
	if utf8.RuneCountInString(p.Replacement) != 1 {
		return nil, &UnsupportedError{"Metaspace replacement", p.Replacement}
	}
	st := stage{rewrite: metaspace{p.Replacement, scheme}.rewrite}
	if p.Split == nil || *p.Split {
		st.cut = markCutter(p.Replacement)
	}
	return []stage{st}, nil
}
