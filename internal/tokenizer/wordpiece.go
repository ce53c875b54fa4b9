package tokenizer

import "unicode/utf8"

// wordPiece takes the longest token that a word starts with, then the longest
// that the rest starts with, and the unknown token for the whole word if there
// is none.
type wordPiece struct {
	trie     *trie
	start    int32 // the node of what words begin with
	within   int32 // the node of what marks tokens that begin no word
	inWord   bool  // some token begins with that
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
