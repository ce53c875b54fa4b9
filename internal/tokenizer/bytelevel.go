package tokenizer

import "fmt"

// byteBPE merges the bytes of a word.
type byteBPE struct {
	merges *merges
	bytes  [256]int32       // the token of a single byte, or noID
	words  map[string]int32 // by bytes: words that become one token without merging, or nil
}

func (m *byteBPE) encode(e *encoder, s string) error {
	if id, ok := m.words[s]; ok {
		e.ids = append(e.ids, id)
		return nil
	}
	start := len(e.ids)
	for i := range len(s) {
		id := m.bytes[s[i]]
		if id < 0 {
			return fmt.Errorf("tokenizer: the vocabulary has no token for byte 0x%02x", s[i])
		}
		e.ids = append(e.ids, id)
	}
	e.merge(m.merges, start)
	return nil
}

// merge merges the tokens of e from index start on.
func (e *encoder) merge(m *merges, start int) {
	e.merger.merges = m
	ids := e.merger.merge(e.ids[start:])
	e.ids = e.ids[:start+len(ids)]
}
