package tokenizer

import (
	"fmt"
	"unicode/utf8"
)

// charBPE merges the characters of a word. It implements the BPE of tokenizer.json without
// ByteLevel, and SentencePiece's BPE.
type charBPE struct {
	merges *merges
	ascii  [128]int32        // the token of a character, or noID
	others *hashTable[int32] // non-ASCII characters: the token plus one
	bytes  [256]int32        // byte fallback: the tokens of the bytes of a character without a token, or noID
	unk    int32             // token of a character without one; noID makes it an error
	fuse   bool              // adjacent unknown characters share one unk
	words  map[string]int32  // words that become one token without merging, or nil

	// prefix marks a character that is not the first of a word; suffix marks the last character.
	// If one of them is set, ascii and others are not used.
	prefix, suffix string
	ids            map[string]int32

	// pieces holds the additional rules of SentencePiece; nil for tokenizer.json.
	pieces *pieceRules
}

// char returns the token of a character, or noID.
func (m *charBPE) char(r rune) int32 {
	if r < utf8.RuneSelf {
		return m.ascii[r]
	}
	return m.others.get(uint64(r)) - 1
}

// setChar sets the token of a character.
func (m *charBPE) setChar(r rune, id int32) {
	if r < utf8.RuneSelf {
		m.ascii[r] = id
	} else {
		m.others.set(uint64(r), id+1)
	}
}

// newCharBPE returns a model without characters or merge rules.
func newCharBPE() *charBPE {
	m := &charBPE{others: newHashTable[int32](1024), unk: noID}
	for i := range m.ascii {
		m.ascii[i] = noID
	}
	for i := range m.bytes {
		m.bytes[i] = noID
	}
	return m
}

func (m *charBPE) encode(e *encoder, s string) error {
	if id, ok := m.words[s]; ok {
		e.ids = append(e.ids, id)
		return nil
	}
	start := len(e.ids)
	unknown := false // an unk is pending
	for i := 0; i < len(s); {
		if m.pieces != nil {
			if id, n := m.pieces.frozen.longest(0, s[i:]); n > 0 {
				if unknown {
					e.ids = append(e.ids, m.unk)
					unknown = false
				}
				e.ids = append(e.ids, id)
				i += n
				continue
			}
		}
		id, n := m.first(s, i)
		c := s[i : i+n]
		i += n
		switch {
		case id != noID:
			if unknown {
				e.ids = append(e.ids, m.unk)
				unknown = false
			}
			e.ids = append(e.ids, id)
		case m.hasBytes(c):
			for j := range len(c) {
				e.ids = append(e.ids, m.bytes[c[j]])
			}
		case m.unk == noID:
			return noToken(c)
		default:
			if unknown && !m.fuse {
				e.ids = append(e.ids, m.unk)
			}
			unknown = true
		}
	}
	if unknown {
		e.ids = append(e.ids, m.unk)
	}
	if m.pieces != nil && m.pieces.unused != nil {
		e.merger.tracked, e.merger.origin = m.pieces.unused, make(map[int32]pair)
	}
	e.merge(m.merges, start)
	if m.pieces != nil {
		return m.pieces.finish(e, m, start)
	}
	return nil
}

func noToken(c string) error {
	return fmt.Errorf("tokenizer: the vocabulary has no token for %s", quote(c))
}

// first returns the token and the length of the character at s[i:]. A byte of invalid UTF-8
// counts as a character without a token.
func (m *charBPE) first(s string, i int) (id int32, n int) {
	r, n := utf8.DecodeRuneInString(s[i:])
	if m.ids != nil {
		c := s[i : i+n]
		if i > 0 {
			c = m.prefix + c
		}
		if i+n == len(s) {
			c += m.suffix
		}
		if id, ok := m.ids[c]; ok {
			return id, n
		}
		return noID, n
	}
	if r == utf8.RuneError && n == 1 {
		return noID, 1
	}
	return m.char(r), n
}

func (m *charBPE) hasBytes(c string) bool {
	for i := range len(c) {
		if m.bytes[c[i]] == noID {
			return false
		}
	}
	return true
}
