package tokenizer

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// A normalizer rewrites a text, which must not be empty. It keeps bytes of invalid UTF-8
// unless its definition removes or replaces them.
type normalizer func(s string) (string, error)

// maxGrowth bounds the factor by which normalizers may lengthen a text. Unicode's own normal
// forms make a text at most 11 times longer.
const maxGrowth = 32

// normalizeAll applies normalizers in order.
func normalizeAll(list []normalizer, s string) (string, error) {
	limit := growthLimit(len(s))
	for _, n := range list {
		if s == "" {
			return s, nil
		}
		var err error
		if s, err = n(s); err != nil {
			return "", err
		}
		if len(s) > limit {
			return "", errGrowth(len(s), limit)
		}
	}
	return s, nil
}

func growthLimit(n int) int { return min(maxGrowth*n+1<<12, maxText) }

func errGrowth(n, limit int) error {
	return fmt.Errorf("tokenizer: the normalizer makes a text of %d bytes, more than the limit of %d", n, limit)
}

// mapRunes replaces each character for which f returns a replacement and true. f receives
// bytes of invalid UTF-8 as U+FFFD; mapRunes keeps such a byte if f returns false.
func mapRunes(s string, f func(r rune) (string, bool)) string {
	var b strings.Builder
	done := 0
	for i, r := range s {
		with, ok := f(r)
		if !ok {
			continue
		}
		if b.Cap() == 0 {
			b.Grow(len(s) + len(s)/8)
		}
		b.WriteString(s[done:i])
		b.WriteString(with)
		_, n := utf8.DecodeRuneInString(s[i:])
		done = i + n
	}
	if done == 0 {
		return s
	}
	b.WriteString(s[done:])
	return b.String()
}

// removing returns a normalizer that removes the characters for which drop is true.
func removing(drop func(r rune) bool) normalizer {
	return func(s string) (string, error) {
		return mapRunes(s, func(r rune) (string, bool) { return "", drop(r) }), nil
	}
}

// lowercase maps each character on its own, as Rust's char::to_lowercase does. It applies no
// context-dependent rules.
func lowercase(s string) (string, error) {
	return mapRunes(s, func(r rune) (string, bool) {
		switch {
		case r < utf8.RuneSelf:
			if 'A' <= r && r <= 'Z' {
				return asciiLetters[r-'A' : r-'A'+1], true
			}
			return "", false
		case r == 'İ':
			return "i\u0307", true
		}
		l := unicode.ToLower(r)
		if l == r {
			return "", false
		}
		return string(l), true
	}), nil
}

const asciiLetters = "abcdefghijklmnopqrstuvwxyz"

// stripAccents removes all marks, including spacing marks.
var stripAccents = removing(func(r rune) bool { return r >= utf8.RuneSelf && unicode.Is(unicode.M, r) })

// stripNonspacing removes nonspacing marks.
var stripNonspacing = removing(func(r rune) bool { return r >= utf8.RuneSelf && unicode.Is(unicode.Mn, r) })

// nmt is the normalizer of SentencePiece's nmt rules: it removes control characters and
// replaces separators by spaces.
func nmt(s string) (string, error) {
	return mapRunes(s, func(r rune) (string, bool) {
		switch {
		case 0x01 <= r && r <= 0x08, r == 0x0b, 0x0e <= r && r <= 0x1f, r == 0x7f, r == 0x8f, r == 0x9f:
			return "", true
		case r == '\t', r == '\n', r == '\f', r == '\r', r == 0x1680, 0x200b <= r && r <= 0x200f, r == 0x2028, r == 0x2029, r == 0x2581, r == 0xfeff, r == 0xfffd:
			return " ", true
		}
		return "", false
	}), nil
}

func prepending(prefix string) normalizer {
	return func(s string) (string, error) { return prefix + s, nil }
}

func stripping(left, right bool) normalizer {
	return func(s string) (string, error) {
		if left {
			s = strings.TrimLeftFunc(s, unicode.IsSpace)
		}
		if right {
			s = strings.TrimRightFunc(s, unicode.IsSpace)
		}
		return s, nil
	}
}

// replacing returns a normalizer that replaces a non-empty string by another.
func replacing(old, with string) normalizer {
	return func(s string) (string, error) {
		if len(with) > len(old) {
			if n := len(s) + strings.Count(s, old)*(len(with)-len(old)); n > growthLimit(len(s)) {
				return "", errGrowth(n, growthLimit(len(s)))
			}
		}
		return strings.ReplaceAll(s, old, with), nil
	}
}

// replacingMatches returns a normalizer that replaces the matches of an expression.
func replacingMatches(re *regexp.Regexp, with string) normalizer {
	return func(s string) (string, error) {
		limit := growthLimit(len(s))
		var b strings.Builder
		done := 0
		for _, m := range re.FindAllStringIndex(s, -1) {
			if b.Len()+m[0]-done+len(with) > limit {
				return "", errGrowth(b.Len()+m[0]-done+len(with), limit)
			}
			b.WriteString(s[done:m[0]])
			b.WriteString(with)
			done = m[1]
		}
		b.WriteString(s[done:])
		return b.String(), nil
	}
}

// bertNormalizer is BERT's normalizer.
type bertNormalizer struct {
	clean   bool // drops control characters and makes white space a space
	chinese bool // puts spaces around ideographs
	accents bool // strips accents
	lower   bool
}

func (n bertNormalizer) normalize(s string) (string, error) {
	if n.clean || n.chinese {
		s = mapRunes(s, n.first)
	}
	if n.accents {
		s, _ = stripNonspacing(normalForm(norm.NFD, s))
	}
	if n.lower {
		s, _ = lowercase(s)
	}
	return s, nil
}

// first implements the steps that precede the removal of accents.
func (n bertNormalizer) first(r rune) (string, bool) {
	if ' ' <= r && r < 0x7f {
		return "", false
	}
	if n.clean {
		switch {
		case r == '\t', r == '\n', r == '\r':
			return " ", true
		case r == 0, r == utf8.RuneError, unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co):
			return "", true
		case unicode.IsSpace(r):
			return " ", true
		}
	}
	if n.chinese && isIdeograph(r) {
		return " " + string(r) + " ", true
	}
	return "", false
}

// isIdeograph reports whether r is in BERT's list of ideograph blocks.
func isIdeograph(r rune) bool {
	return r >= 0x3400 && (0x4e00 <= r && r <= 0x9fff || r <= 0x4dbf ||
		0x20000 <= r && r <= 0x2a6df || 0x2a700 <= r && r <= 0x2b73f || 0x2b740 <= r && r <= 0x2b81f ||
		0x2b920 <= r && r <= 0x2ceaf || 0xf900 <= r && r <= 0xfaff || 0x2f800 <= r && r <= 0x2fa1f)
}
