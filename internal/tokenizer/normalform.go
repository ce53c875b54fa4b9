package tokenizer

import (
	"slices"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// normalForm returns s in the normal form f. It keeps bytes of invalid UTF-8.
//
// Package norm follows the Stream-Safe Text Format, which inserts U+034F after 30
// non-starters. Other libraries do not, so normalForm normalises text with longer runs
// itself, by Unicode's definition.
func normalForm(f norm.Form, s string) string {
	if f.IsNormalString(s) {
		return s
	}
	if !hasLongRun(s) {
		return f.String(s)
	}
	decompose, compose := norm.NFD, f == norm.NFC || f == norm.NFKC
	if f == norm.NFKC || f == norm.NFKD {
		decompose = norm.NFKD
	}
	chars := make([]normChar, 0, len(s))
	for i, r := range s {
		_, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			chars = append(chars, normChar{text: s[i : i+1]})
			continue
		}
		parts := decompose.String(s[i : i+n])
		for j, p := range parts {
			text := parts[j : j+utf8.RuneLen(p)]
			chars = append(chars, normChar{text, norm.NFD.PropertiesString(text).CCC()})
		}
	}
	for from := 0; from < len(chars); from++ {
		if chars[from].class == 0 {
			continue
		}
		to := from
		for to < len(chars) && chars[to].class != 0 {
			to++
		}
		slices.SortStableFunc(chars[from:to], func(a, b normChar) int { return int(a.class) - int(b.class) })
		from = to
	}
	if compose {
		chars = composeAll(chars)
	}
	out := make([]byte, 0, len(s)+len(s)/2)
	for _, c := range chars {
		out = append(out, c.text...)
	}
	return string(out)
}

// normChar is a character, or a byte of invalid UTF-8, and its combining class.
type normChar struct {
	text  string
	class uint8
}

// composeAll applies Unicode's canonical composition.
func composeAll(chars []normChar) []normChar {
	out := chars[:0]
	starter := -1
	for _, c := range chars {
		if starter >= 0 {
			last := out[len(out)-1].class
			blocked := len(out)-1 > starter && (last >= c.class || last == 0)
			if !blocked {
				joined := norm.NFC.String(out[starter].text + c.text)
				if utf8.RuneCountInString(joined) == 1 {
					out[starter].text = joined
					continue
				}
			}
		}
		out = append(out, c)
		if c.class == 0 {
			starter = len(out) - 1
		}
	}
	return out
}

// hasLongRun reports whether s contains a run of non-starters that package norm might cut.
// A character decomposes to at most four.
func hasLongRun(s string) bool {
	const limit = 30 / 4
	run := 0
	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf {
			run = 0
			i++
			continue
		}
		p := norm.NFKD.PropertiesString(s[i:])
		if p.CCC() != 0 || p.TrailCCC() != 0 {
			if run++; run > limit {
				return true
			}
		} else {
			run = 0
		}
		i += max(p.Size(), 1)
	}
	return false
}
