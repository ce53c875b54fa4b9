package tokenizer

import (
	"encoding/json"
	"strings"
)

// A decodeStep rewrites one token for decoding. first reports whether the token is the
// first of a text.
type decodeStep func(token string, first bool) string

// decoders are the decoders of a tokenizer.json.
type decoders struct {
	steps     []decodeStep
	byteLevel bool // one of steps decodes the byte alphabet
	starts    bool // some step treats the first token of a text differently
	strip     string
	times     int
}

func parseDecoder(raw json.RawMessage) (*decoders, error) {
	list, err := parts("decoder", raw)
	if err != nil {
		return nil, err
	}
	d := new(decoders)
	if len(list) == 0 {
		d.starts = true
		d.steps = []decodeStep{func(token string, first bool) string {
			if first {
				return token
			}
			return " " + token
		}}
		return d, nil
	}
	fused := false
	for _, p := range list {
		if fused {
			err = d.afterFuse(&p)
		} else if p.Type == "Fuse" {
			fused = true
		} else {
			err = d.add(&p)
		}
		if err != nil {
			return nil, err
		}
	}
	return d, nil
}

// add appends a decoder that processes one token at a time.
func (d *decoders) add(p *part) error {
	step := func(s decodeStep) { d.steps = append(d.steps, s) }
	switch p.Type {
	case "ByteLevel":
		d.byteLevel = true
		letters := newAlphabet()
		step(func(token string, _ bool) string {
			if piece, ok := letters.decode(token); ok {
				return piece
			}
			return token
		})
	case "ByteFallback":
		step(func(token string, _ bool) string {
			if b, ok := byteOf(token); ok {
				return string([]byte{b})
			}
			return token
		})
	case "Metaspace":
		scheme, err := p.scheme()
		if err != nil {
			return err
		}
		d.starts = true
		step(func(token string, first bool) string {
			if first && scheme != prependNever {
				return strings.ReplaceAll(token, p.Replacement, "")
			}
			return strings.ReplaceAll(token, p.Replacement, " ")
		})
	case "Strip":
		if _, ok := oneRune(p.Content); !ok {
			return &UnsupportedError{"decoder Strip content", p.Content}
		}
		step(func(token string, _ bool) string {
			for i := 0; i < p.Start && strings.HasPrefix(token, p.Content); i++ {
				token = token[len(p.Content):]
			}
			for i := 0; i < p.Stop && strings.HasSuffix(token, p.Content); i++ {
				token = token[:len(token)-len(p.Content)]
			}
			return token
		})
	case "Replace":
		return d.replace(p)
	case "WordPiece":
		d.starts = true
		step(func(token string, first bool) string {
			if !first {
				rest, ok := strings.CutPrefix(token, p.Prefix)
				if !ok {
					rest = " " + token
				}
				token = rest
			}
			if p.Cleanup {
				token = cleanup(token)
			}
			return token
		})
	default:
		return &UnsupportedError{"decoder", p.Type}
	}
	return nil
}

// afterFuse appends a decoder that the file applies to the whole text. It fails if applying
// the decoder to one token after the other could give another result.
func (d *decoders) afterFuse(p *part) error {
	switch p.Type {
	case "Fuse":
		return nil
	case "Strip":
		if _, ok := oneRune(p.Content); !ok || d.times != 0 {
			return &UnsupportedError{"decoder Strip content", p.Content}
		}
		if p.Stop > 0 {
			return &UnsupportedError{"decoder", "Strip with stop after Fuse"}
		}
		d.strip, d.times = p.Content, p.Start
		return nil
	case "Replace":
		if p.Pattern.String != nil && d.times == 0 {
			if _, ok := oneRune(*p.Pattern.String); ok {
				return d.replace(p)
			}
		}
	}
	return &UnsupportedError{"decoder", p.Type + " after Fuse"}
}

func (d *decoders) replace(p *part) error {
	n, err := p.normalizer()
	if err != nil {
		return err
	}
	d.steps = append(d.steps, func(token string, _ bool) string {
		if token == "" {
			return ""
		}
		with, err := n(token)
		if err != nil { // the count is out of range: leave the text unchanged
			return token
		}
		return with
	})
	return nil
}

// cleanup removes spaces before punctuation, as BERT's tokenizers do. It makes one replacement
// after the other.
func cleanup(s string) string {
	for _, r := range [...][2]string{
		{" .", "."}, {" ?", "?"}, {" !", "!"}, {" ,", ","}, {" ' ", "'"}, {" n't", "n't"},
		{" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
	} {
		s = strings.ReplaceAll(s, r[0], r[1])
	}
	return s
}

// decoding returns the decoding of a vocabulary's tokens.
func (d *decoders) decoding(v *vocabulary) decoding {
	out := decoding{unk: noID, strip: d.strip, times: d.times}
	decode := func(first bool) []string {
		pieces := make([]string, len(v.tokens))
		for id, token := range v.tokens {
			switch v.kinds[id] {
			case absent, special, unused:
				continue
			case userDefined:
				if d.byteLevel && len(d.steps) == 1 { // the token represents itself
					pieces[id] = token
					continue
				}
			}
			for _, step := range d.steps {
				token = step(token, first)
			}
			pieces[id] = token
		}
		return pieces
	}
	out.pieces = decode(false)
	if d.starts {
		out.starts = decode(true)
	}
	return out
}
