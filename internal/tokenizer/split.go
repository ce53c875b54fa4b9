package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// A pattern finds a pre-tokenizer's matches in text.
type pattern interface {
	// next returns the length of the first piece of s, which must not be empty: between 1
	// and len(s). The piece is a match or the text before the next match. The cost is
	// linear in that length, at least amortised over the following pieces.
	next(s string) (n int, match bool)
}

// contractions selects how a pattern matches the contractions 's 't 're 've 'm 'll 'd.
type contractions uint8

const (
	noContractions contractions = iota
	lowerCase                   // the letters in lower case only
	anyCase                     // ASCII letters of either case: [sS]
	foldCase                    // (?i:s), which in Unicode matches U+017F (long s) too
)

// match returns the length of the contraction at the start of s, or 0.
func (k contractions) match(s string) int {
	if k == noContractions || len(s) < 2 || s[0] != '\'' {
		return 0
	}
	fold := func(b byte) byte {
		if k != lowerCase && 'A' <= b && b <= 'Z' {
			b += 'a' - 'A'
		}
		return b
	}
	a := fold(s[1])
	switch a {
	case 's', 't', 'm', 'd':
		return 2
	}
	if len(s) < 3 {
		return 0
	}
	b := fold(s[2])
	switch {
	case a == 'r' && b == 'e', a == 'v' && b == 'e', a == 'l' && b == 'l':
		return 3
	case k == foldCase && strings.HasPrefix(s[1:], "ſ"):
		return 1 + len("ſ")
	}
	return 0
}

// whitespace returns the length of the first piece of s. s must start with white space that
// does not belong to a word. The pieces are the matches of
//
//	\s*[\r\n]+|\s+(?!\S)|\s+    newlines set
//	\s+(?!\S)|\s+               newlines not set
func (t *classTable) whitespace(s string, newlines bool) int {
	end, last, afterNewline := 0, 0, 0
	for end < len(s) {
		c, n := t.at(s, end)
		if c&space == 0 {
			break
		}
		if newlines && isNewline(s[end]) {
			afterNewline = end + 1
		}
		last, end = end, end+n
	}
	switch {
	case afterNewline > 0:
		return afterNewline
	case end < len(s) && last > 0:
		return last // the last space belongs to the following word
	}
	return end
}

func isNewline(b byte) bool { return b == '\n' || b == '\r' }

// gpt2Pattern is GPT-2's pattern:
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
type gpt2Pattern struct{ classes *classTable }

func (p gpt2Pattern) next(s string) (int, bool) { return p.piece(s), true }

func (p gpt2Pattern) piece(s string) int {
	if n := lowerCase.match(s); n > 0 {
		return n
	}
	i := 0
	if s[0] == ' ' && len(s) > 1 {
		i = 1
	}
	switch c, _ := p.classes.at(s, i); {
	case c&letter != 0:
		return p.classes.run(s, i, letter)
	case c&number != 0:
		return p.classes.run(s, i, number)
	case c&space == 0:
		return p.classes.runOutside(s, i, space|letter|number)
	}
	return p.classes.whitespace(s, false)
}

// cl100kPattern is the pattern of OpenAI's cl100k_base, Llama 3 and Qwen:
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?WORD+|\p{N}{1,digits}|
//	 ?[^\sWORD\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//
// where WORD is \p{L}, or \p{L}\p{M}.
type cl100kPattern struct {
	classes      *classTable
	contractions contractions
	word         class
	digits       int
}

func (p cl100kPattern) next(s string) (int, bool) { return p.piece(s), true }

func (p cl100kPattern) piece(s string) int {
	if n := p.contractions.match(s); n > 0 {
		return n
	}
	c, n := p.classes.at(s, 0)
	if c&p.word != 0 {
		return p.classes.run(s, n, p.word)
	}
	if c&number != 0 {
		return p.classes.digits(s, p.digits)
	}
	if !isNewline(s[0]) && n < len(s) {
		if c, _ := p.classes.at(s, n); c&p.word != 0 {
			return p.classes.run(s, n, p.word)
		}
	}
	if end := p.classes.symbols(s, space|p.word|number); end > 0 {
		return skipNewlines(s, end, false)
	}
	return p.classes.whitespace(s, true)
}

// digits returns the length of the run of numbers at the start of s, at most limit characters.
func (t *classTable) digits(s string, limit int) int {
	end := 0
	for range limit {
		if end == len(s) {
			break
		}
		c, n := t.at(s, end)
		if c&number == 0 {
			break
		}
		end += n
	}
	return end
}

// symbols returns the length of the match of ` ?[^not]+` at the start of s, or 0.
func (t *classTable) symbols(s string, not class) int {
	start := 0
	if s[0] == ' ' {
		start = 1
	}
	if end := t.runOutside(s, start, not); end > start {
		return end
	}
	return 0
}

// skipNewlines returns the end of the match of `[\r\n]*` that begins at s[i], or of `[\r\n/]*` if
// slash is true.
func skipNewlines(s string, i int, slash bool) int {
	for i < len(s) && (isNewline(s[i]) || slash && s[i] == '/') {
		i++
	}
	return i
}

// o200kPattern is the pattern of OpenAI's o200k_base and, without
// contractions and with one digit at a time, of Mistral's Tekken. With
// UPPER = \p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M} and LOWER = \p{Ll}\p{Lm}\p{Lo}\p{M}:
//
//	[^\r\n\p{L}\p{N}]?[UPPER]*[LOWER]+CONTRACTION?|
//	[^\r\n\p{L}\p{N}]?[UPPER]+[LOWER]*CONTRACTION?|
//	\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
type o200kPattern struct {
	classes      *classTable
	contractions contractions
	digits       int
}

func (p o200kPattern) next(s string) (int, bool) { return p.piece(s), true }

func (p o200kPattern) piece(s string) int {
	if end := p.word(s); end > 0 {
		return end + p.contractions.match(s[end:])
	}
	if c, _ := p.classes.at(s, 0); c&number != 0 {
		return p.classes.digits(s, p.digits)
	}
	if end := p.classes.symbols(s, space|letter|number); end > 0 {
		return skipNewlines(s, end, true)
	}
	return p.classes.whitespace(s, true)
}

// word returns the length of the match, without the contraction, of the first two alternatives
// at the start of s, or 0. Like a backtracking matcher, it tries the first alternative with
// and without a leading character, then the second.
func (p o200kPattern) word(s string) int {
	c, lead := p.classes.at(s, 0)
	leading := c&(letter|number) == 0 && !isNewline(s[0])
	upperEnd := 0
	if leading {
		lowerEnd, end := p.cases(s, lead)
		if lowerEnd > 0 {
			return lowerEnd
		}
		if end > lead {
			upperEnd = end
		}
	}
	lowerEnd, end := p.cases(s, 0)
	switch {
	case lowerEnd > 0:
		return lowerEnd
	case upperEnd > 0:
		return upperEnd
	}
	return end
}

// cases returns the end of the match of [UPPER]*[LOWER]+ at s[i:], or 0, and the end of the
// run [UPPER]* there. If no lower-case letter follows the run, [LOWER]+ matches the last
// character of the run that is in both sets.
func (p o200kPattern) cases(s string, i int) (lowerEnd, upperEnd int) {
	const both = caseless | mark
	for i < len(s) {
		c, n := p.classes.at(s, i)
		if c&lower != 0 {
			return p.classes.run(s, i, lower|both), i
		}
		if c&(cased|both) == 0 {
			break
		}
		i += n
		if c&both != 0 {
			lowerEnd = i
		}
	}
	return lowerEnd, i
}

// kimiPattern is the pattern of Kimi K2: \p{Han}+, or what o200kPattern matches, without characters of
// the script Han in words and without slashes after symbols.
type kimiPattern struct{ o200kPattern }

func (p kimiPattern) next(s string) (int, bool) { return p.piece(s), true }

func (p kimiPattern) piece(s string) int {
	if end := strings.IndexFunc(s, func(r rune) bool { return !unicode.Is(unicode.Han, r) }); end != 0 {
		if end < 0 {
			return len(s)
		}
		return end
	}
	if end := p.word(s[:p.wordLimit(s)]); end > 0 {
		return end + p.contractions.match(s[end:])
	}
	if c, _ := p.classes.at(s, 0); c&number != 0 {
		return p.classes.digits(s, p.digits)
	}
	if end := p.classes.symbols(s, space|letter|number); end > 0 {
		return skipNewlines(s, end, false)
	}
	return p.classes.whitespace(s, true)
}

// wordLimit returns the end of the letters and marks after the first character that are not of the
// script Han.
func (p kimiPattern) wordLimit(s string) int {
	_, end := p.classes.at(s, 0)
	for end < len(s) {
		c, n := p.classes.at(s, end)
		if r, _ := utf8.DecodeRuneInString(s[end:]); c&(letter|mark) == 0 || unicode.Is(unicode.Han, r) {
			break
		}
		end += n
	}
	return end
}

// runPattern matches runs of at most limit characters of a set, such as \p{N}, \p{N}{1,3} or
// \p{N}+.
type runPattern struct {
	classes *classTable
	set     class
	ascii   string // additional members of the set
	limit   int
}

func (p runPattern) next(s string) (int, bool) {
	c, n := p.classes.at(s, 0)
	in, end := p.has(c, s[0]), n
	for count := 1; end < len(s); count++ {
		if in && count == p.limit {
			break
		}
		c, n := p.classes.at(s, end)
		if p.has(c, s[end]) != in {
			break
		}
		end += n
	}
	return end, in
}

func (p runPattern) has(c class, b byte) bool {
	return c&p.set != 0 || strings.IndexByte(p.ascii, b) >= 0
}

// triplePattern matches [0-9][0-9][0-9].
type triplePattern struct{}

func (triplePattern) next(s string) (int, bool) {
	run := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			run = 0
			continue
		}
		run++
		if run == 3 {
			if i == 2 {
				return 3, true
			}
			return i - 2, false
		}
	}
	return len(s), false
}

// lineEndPattern is \s+$, where $ is the end of a line: white space at the end of a text or before a
// line break.
type lineEndPattern struct{}

func (lineEndPattern) next(s string) (int, bool) {
	for from := 0; from < len(s); {
		start := strings.IndexFunc(s[from:], unicode.IsSpace)
		if start < 0 {
			break
		}
		start += from
		end := len(s)
		if n := strings.IndexFunc(s[start:], func(c rune) bool { return !unicode.IsSpace(c) }); n >= 0 {
			from = start + n
			end = start + max(0, strings.LastIndexByte(s[start:from], '\n'))
		}
		switch {
		case end <= start:
		case start > 0:
			return start, false
		default:
			return end, true
		}
	}
	return len(s), false
}
