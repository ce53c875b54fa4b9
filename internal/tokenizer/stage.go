package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// stage is one step of a pre-tokenizer. It may rewrite a piece of text and cut it.
type stage struct {
	rewrite func(s string, first bool) string // nil: no change; first: s begins the text
	cut     cutter                            // nil: no cut
	// alphabet reports whether rewrite converts s to the byte alphabet.
	alphabet bool
}

// A cutter cuts text into pieces.
type cutter interface {
	// next returns the length of the first piece of s, which must not be empty, and reports
	// whether the piece is kept.
	next(s string) (n int, keep bool)
}

// isolated keeps both the matches and the text between them.
type isolated struct{ pattern }

func (c isolated) next(s string) (int, bool) {
	n, _ := c.pattern.next(s)
	return n, true
}

// inverted exchanges matches and the text between them.
type inverted struct{ pattern }

func (p inverted) next(s string) (int, bool) {
	n, match := p.pattern.next(s)
	return n, !match
}

// removed keeps only the text between matches.
type removed struct{ pattern }

func (c removed) next(s string) (int, bool) {
	n, match := c.pattern.next(s)
	return n, !match
}

// contiguous joins adjacent matches.
type contiguous struct{ pattern }

func (c contiguous) next(s string) (int, bool) {
	end, match := c.pattern.next(s)
	for end < len(s) {
		n, m := c.pattern.next(s[end:])
		if m != match {
			break
		}
		end += n
	}
	return end, true
}

// mergedWithPrevious joins a match to the text before it, unless that is a match.
type mergedWithPrevious struct{ pattern }

func (c mergedWithPrevious) next(s string) (int, bool) {
	end, match := c.pattern.next(s)
	if !match && end < len(s) {
		if n, m := c.pattern.next(s[end:]); m {
			end += n
		}
	}
	return end, true
}

// mergedWithNext joins a match to the text after it, unless that is a match.
type mergedWithNext struct{ pattern }

func (c mergedWithNext) next(s string) (int, bool) {
	end, match := c.pattern.next(s)
	if match && end < len(s) {
		if n, m := c.pattern.next(s[end:]); !m {
			end += n
		}
	}
	return end, true
}

// withBehavior returns the cutter for a behavior of tokenizer.json's Split, such as
// "Isolated".
func withBehavior(p pattern, behavior string) (cutter, bool) {
	switch behavior {
	case "Isolated":
		return isolated{p}, true
	case "Removed":
		return removed{p}, true
	case "Contiguous":
		return contiguous{p}, true
	case "MergedWithPrevious":
		return mergedWithPrevious{p}, true
	case "MergedWithNext":
		return mergedWithNext{p}, true
	}
	return nil, false
}

// stringPattern matches a non-empty string literally.
type stringPattern string

func (p stringPattern) next(s string) (int, bool) {
	switch i := strings.Index(s, string(p)); i {
	case -1:
		return len(s), false
	case 0:
		return len(p), true
	default:
		return i, false
	}
}

// classPattern matches one character of a set.
type classPattern struct {
	classes *classTable
	set     class
	ascii   string // additional members of the set
}

func (p classPattern) next(s string) (int, bool) {
	for i := 0; i < len(s); {
		c, n := p.classes.at(s, i)
		if c&p.set != 0 || s[i] < utf8.RuneSelf && strings.IndexByte(p.ascii, s[i]) >= 0 {
			if i == 0 {
				return n, true
			}
			return i, false
		}
		i += n
	}
	return len(s), false
}

// asciiPunctuation is the ASCII punctuation that Unicode does not classify as punctuation but
// as symbols.
const asciiPunctuation = "$+<=>^`|~"

// wordPattern matches \w+|[^\w\s]+.
type wordPattern struct{ classes *classTable }

func (p wordPattern) next(s string) (int, bool) {
	kind := func(i int) (k, n int) {
		c, n := p.classes.at(s, i)
		switch {
		case c&wordChar != 0:
			return 1, n
		case c&space != 0:
			return 2, n
		}
		return 3, n
	}
	first, end := kind(0)
	for end < len(s) {
		k, n := kind(end)
		if k != first {
			break
		}
		end += n
	}
	return end, first != 2
}

// spaceMark represents a space in SentencePiece vocabularies.
const spaceMark = "▁"

// metaspace replaces spaces by a mark and may add a mark at the beginning.
type metaspace struct {
	mark    string
	prepend prependScheme
}

type prependScheme uint8

const (
	prependNever prependScheme = iota
	prependFirst
	prependAlways
)

func (m metaspace) rewrite(s string, first bool) string {
	s = strings.ReplaceAll(s, " ", m.mark)
	if (m.prepend == prependAlways || m.prepend == prependFirst && first) && !strings.HasPrefix(s, m.mark) {
		s = m.mark + s
	}
	return s
}

// markCutter cuts before each mark.
type markCutter string

func (c markCutter) next(s string) (int, bool) {
	_, n := utf8.DecodeRuneInString(s)
	if i := strings.Index(s[n:], string(c)); i >= 0 {
		return n + i, true
	}
	return len(s), true
}

// prefixSpace adds a space before text that does not start with one.
func prefixSpace(s string, _ bool) string {
	if s[0] != ' ' {
		return " " + s
	}
	return s
}

// wordCutter cuts text that no pre-tokenizer has cut into short words, so that words can be
// cached. It cuts before space marks and around line feeds, wherever no token contains the two
// adjacent characters. Merges cannot cross such a place, so cutting does not change the
// tokens.
type wordCutter struct {
	marks, lines, after joined
	cutMarks, cutLines  bool
}

// joined is a set of characters that occur next to a space mark or a line feed in some token.
type joined struct {
	ascii  [utf8.RuneSelf]bool
	others map[rune]bool
}

func (j *joined) add(r rune) {
	switch {
	case r < utf8.RuneSelf:
		j.ascii[r] = true
	case j.others == nil:
		j.others = map[rune]bool{r: true}
	default:
		j.others[r] = true
	}
}

func (j *joined) has(r rune) bool {
	if r < utf8.RuneSelf {
		return j.ascii[r]
	}
	return j.others[r]
}

// newWordCutter returns the cutter for a model. It returns nil if text must not be cut because
// adjacent unknown characters may share a token. whole reports whether a token is matched
// without merging.
func newWordCutter(m *charBPE, tokens []string, whole func(id int) bool) cutter {
	known := true // every character has a token
	for _, id := range m.bytes {
		known = known && id != noID
	}
	c := new(wordCutter)
	mark, _ := utf8.DecodeRuneInString(spaceMark)
	c.cutMarks, c.cutLines = known || m.char(mark) != noID, known || m.char('\n') != noID
	if !c.cutMarks && !c.cutLines {
		return nil
	}
	merged := make([]bool, len(tokens))
	for _, slot := range m.merges.rules.slots {
		if slot.key != 0 {
			merged[slot.value.result] = true
		}
	}
	for id, token := range tokens {
		if !merged[id] && !whole(id) {
			continue
		}
		last := rune(-1)
		for _, r := range token {
			if last >= 0 {
				switch r {
				case mark:
					c.marks.add(last)
				case '\n':
					c.lines.add(last)
				}
				if last == '\n' {
					c.after.add(r)
				}
			}
			last = r
		}
	}
	return c
}

func (c *wordCutter) next(s string) (int, bool) {
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == spaceMark[0] && c.cutMarks && strings.HasPrefix(s[i:], spaceMark):
			if r, _ := utf8.DecodeLastRuneInString(s[:i]); !c.marks.has(r) {
				return i, true
			}
		case s[i] == '\n' && c.cutLines:
			if r, _ := utf8.DecodeLastRuneInString(s[:i]); !c.lines.has(r) {
				return i, true
			}
		case s[i-1] == '\n' && c.cutLines:
			if r, _ := utf8.DecodeRuneInString(s[i:]); !c.after.has(r) {
				return i, true
			}
		}
	}
	return len(s), true
}
