package tokenizer

import "unicode/utf8"

// wordPiece takes the longest token that is a prefix of the word, then the longest prefix
// of the rest, and so on. If there is none, the whole word becomes the unknown token.
type wordPiece struct {
	trie     *trie
	start    int32 // trie node after the mark of tokens that begin a word
	within   int32 // trie node after the mark of tokens within a word
	inWord   bool  // some token begins with the mark for tokens within a word
	unk      int32
	maxChars int
}

func (m *wordPiece) encode(e *encoder, s string) error {
	if utf8.RuneCountInString(s) > m.maxChars {
		e.ids = append(e.ids, m.unk)
		return nil
	}
	begin := len(e.ids)
	node, ok := m.start, true
	for rest := s; rest != ""; {
		id, n := int32(noID), 0
		if ok {
			id, n = m.trie.longest(node, rest)
		}
		if id == noID {
			e.ids = append(e.ids[:begin], m.unk)
			return nil
		}
		e.ids = append(e.ids, id)
		rest = rest[n:]
		node, ok = m.within, m.inWord
	}
	return nil
}
