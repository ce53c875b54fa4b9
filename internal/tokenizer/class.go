package tokenizer

import (
	"unicode"
	"unicode/utf8"
)

// class is a set of the Unicode properties that the patterns of pre-tokenizers use, one bit
// each.
type class uint8

const (
	cased    class = 1 << iota // \p{Lu}, \p{Lt}
	lower                      // \p{Ll}
	caseless                   // \p{Lm}, \p{Lo}
	mark                       // \p{M}
	number                     // \p{N}
	space                      // \s: White_Space
	punct                      // \p{P}
	wordOnly                   // other members of \w: \p{Nd}, \p{Pc} and a few

	letter   = cased | lower | caseless // \p{L}
	wordChar = letter | mark | wordOnly // \w as defined by Unicode UTS 18
)

// classTable holds the classes of the characters in Unicode's first two planes, which contain
// nearly all text. The classes of other characters come from package unicode.
type classTable [0x20000]class

// classRange is a range table of package unicode with the class of its members.
type classRange struct {
	table *unicode.RangeTable
	class class
}

func classRanges() []classRange {
	return []classRange{
		{unicode.Lu, cased}, {unicode.Lt, cased}, {unicode.Ll, lower},
		{unicode.Lm, caseless}, {unicode.Lo, caseless}, {unicode.M, mark},
		{unicode.N, number}, {unicode.White_Space, space}, {unicode.P, punct},
		{unicode.Nd, wordOnly}, {unicode.Nl, wordOnly}, {unicode.Pc, wordOnly}, {unicode.Other_Alphabetic, wordOnly}, {unicode.Join_Control, wordOnly},
	}
}

func newClassTable() *classTable {
	t := new(classTable)
	for _, c := range classRanges() {
		for _, r := range c.table.R16 {
			t.add(uint32(r.Lo), uint32(r.Hi), uint32(r.Stride), c.class)
		}
		for _, r := range c.table.R32 {
			t.add(r.Lo, r.Hi, r.Stride, c.class)
		}
	}
	return t
}

func (t *classTable) add(lo, hi, stride uint32, c class) {
	for r := lo; r <= hi && r < uint32(len(t)); r += stride {
		t[r] |= c
	}
}

// at returns the class and the length in bytes of the character at s[i:], which must not be
// empty. A byte of invalid UTF-8 counts as a character without a class.
func (t *classTable) at(s string, i int) (class, int) {
	if b := s[i]; b < utf8.RuneSelf {
		return t[b], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	if int(r) < len(t) {
		return t[r], n // invalid UTF-8 decodes to U+FFFD, a symbol without a class
	}
	return rareClass(r), n
}

func rareClass(r rune) class {
	var c class
	for _, cr := range classRanges() {
		if unicode.Is(cr.table, r) {
			c |= cr.class
		}
	}
	return c
}

// run returns the end of the run of characters from s[i] on that are in a class of set.
func (t *classTable) run(s string, i int, set class) int {
	for i < len(s) {
		c, n := t.at(s, i)
		if c&set == 0 {
			break
		}
		i += n
	}
	return i
}

// runOutside returns the end of the run of characters from s[i] on that are in no class of
// set.
func (t *classTable) runOutside(s string, i int, set class) int {
	for i < len(s) {
		c, n := t.at(s, i)
		if c&set != 0 {
			break
		}
		i += n
	}
	return i
}
