package tokenizer

import (
	"sort"
	"unicode"
	"unicode/utf8"
)

// addedToken is a token that is matched in the original text, before the pre-tokenizer.
type addedToken struct {
	content    string
	id         int32
	special    bool // matches only if special tokens are parsed
	singleWord bool // matches only between characters that are not word characters
	lstrip     bool // absorbs the white space before it
	rstrip     bool // absorbs the white space after it
}

// matcher finds the leftmost-longest match of a set of added tokens.
type matcher struct {
	tokens  []addedToken
	trie    *trie // of indices into tokens
	special bool  // one of the tokens is special
}

func newMatcher(tokens []addedToken) *matcher {
	m := &matcher{tokens: tokens, trie: newTrie(4 * len(tokens))}
	for i, t := range tokens {
		m.trie.add(t.content, int32(i))
		m.special = m.special || t.special
	}
	return m
}

// specials selects where a text may have special tokens.
type specials struct {
	parse bool
	plain [][2]int // ranges of bytes that are not part of any; see EncodeOptions.Plain
}

// in reports whether the bytes from start to end may be a special token.
func (sp *specials) in(start, end int) bool {
	if !sp.parse || len(sp.plain) == 0 {
		return sp.parse
	}
	i := sort.Search(len(sp.plain), func(i int) bool { return sp.plain[i][1] > start })
	return i == len(sp.plain) || sp.plain[i][0] >= end
}

// find returns the first match in s[from:] with its start and end in s, or nil. The text
// before from serves only as context.
func (m *matcher) find(s string, from int, sp *specials) (t *addedToken, start, end int) {
	if len(m.tokens) == 0 {
		return nil, 0, 0
	}
	for i := from; i < len(s); i++ {
		if m.trie.root[s[i]] == 0 {
			continue
		}
		t := m.longest(s, i, sp)
		if t == nil {
			continue
		}
		start, end := i, i+len(t.content)
		if t.singleWord && (endsWithWord(s[:start]) || startsWithWord(s[end:])) {
			i = end - 1
			continue
		}
		for t.lstrip {
			r, n := utf8.DecodeLastRuneInString(s[from:start])
			if !unicode.IsSpace(r) {
				break
			}
			start -= n
		}
		for t.rstrip {
			r, n := utf8.DecodeRuneInString(s[end:])
			if !unicode.IsSpace(r) {
				break
			}
			end += n
		}
		return t, start, end
	}
	return nil, 0, 0
}

// longest returns the longest token at s[at:], or nil.
func (m *matcher) longest(s string, at int, sp *specials) (found *addedToken) {
	node := int32(0)
	for i := at; i < len(s); i++ {
		if node = m.trie.child(node, s[i]); node == 0 {
			break
		}
		if t := m.trie.values[node]; t >= 0 && (!m.tokens[t].special || sp.in(at, i+1)) {
			found = &m.tokens[t]
		}
	}
	return found
}

func endsWithWord(s string) bool {
	r, _ := utf8.DecodeLastRuneInString(s)
	return s != "" && isWord(r)
}

func startsWithWord(s string) bool {
	r, _ := utf8.DecodeRuneInString(s)
	return s != "" && isWord(r)
}

// isWord reports whether r matches \w as defined by Unicode UTS 18.
func isWord(r rune) bool {
	return unicode.In(r, unicode.L, unicode.Nl, unicode.Other_Alphabetic, unicode.M, unicode.Nd, unicode.Pc, unicode.Join_Control)
}
