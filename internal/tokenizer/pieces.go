package tokenizer

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
)

// scored is a vocabulary with SentencePiece scores.
type scored struct {
	*vocabulary
	scores []float32 // by id
	unk    int32     // or noID
	// frozen keeps user-defined tokens whole, as SentencePiece does. Without it they take
	// part in merging like other tokens, as in llama.cpp.
	frozen bool
}

// merges reports whether merging may produce a token.
func (v *scored) merges(id int) bool {
	switch v.kinds[id] {
	case normal, unused:
		return true
	case userDefined:
		return !v.frozen
	}
	return false
}

// pieceRules holds the additional rules of SentencePiece's BPE that tokenizer.json's BPE
// lacks.
type pieceRules struct {
	frozen *trie    // user-defined tokens, which stay whole
	size   int32    // of the vocabulary
	chars  []string // index id-size: characters of longer tokens without a token of their own
	unused []bool   // by id: tokens that are split into their pair again; nil: none
}

// maxPieceWork bounds the sum of the squares of the tokens' lengths. This limits the time that
// finding the merge rules of a hostile vocabulary can take.
const maxPieceWork = 1 << 32

// model returns the BPE of a vocabulary. Two neighbours merge if their concatenation is a
// token; the pair whose token has the highest score merges first.
func (v *scored) model() (*charBPE, error) {
	m := newCharBPE()
	m.unk, m.fuse = v.unk, true
	m.bytes = v.fallbackBytes()
	p := &pieceRules{frozen: newTrie(16), size: int32(len(v.tokens))}
	m.pieces = p
	var long []int32
	work := uint64(0)
	for i, token := range v.tokens {
		id := int32(i)
		if v.kinds[i] == userDefined && v.frozen {
			p.frozen.add(token, id)
		}
		if !v.merges(i) || !utf8.ValidString(token) {
			continue
		}
		if v.kinds[i] == unused && v.frozen {
			if p.unused == nil {
				p.unused = make([]bool, len(v.tokens))
			}
			p.unused[i] = true
		}
		if r, n := utf8.DecodeRuneInString(token); n == len(token) {
			m.setChar(r, id)
			continue
		}
		long = append(long, id)
		work += uint64(len(token)) * uint64(len(token))
	}
	if work > maxPieceWork {
		return nil, fmt.Errorf("its tokens are too long: the sum of their squared lengths is %d, more than %d", work, uint64(maxPieceWork))
	}
	m.merges = &merges{newHashTable[rule](2 * len(long))}
	slices.SortStableFunc(long, func(a, b int32) int { return cmp.Compare(v.scores[b], v.scores[a]) })
	order := int32(0)
	for i, id := range long {
		if i == 0 || v.scores[id] != v.scores[long[i-1]] {
			order++
		}
		token := v.tokens[id]
		for j := range token {
			left, right := v.symbol(m, token[:j]), v.symbol(m, token[j:])
			if left == noSymbol || right == noSymbol {
				continue
			}
			l, r := v.enter(m, left, token[:j]), v.enter(m, right, token[j:])
			m.merges.rules.set(pair{l, r}.key(), rule{order, id})
		}
	}
	return m, nil
}

const (
	noSymbol  = -1 // a text that merging cannot produce
	newSymbol = -2 // a character without a token
)

// symbol returns the token that represents text during merging.
func (v *scored) symbol(m *charBPE, text string) int32 {
	r, n := utf8.DecodeRuneInString(text)
	if n == 0 {
		return noSymbol
	}
	if n == len(text) {
		if id := m.char(r); id != noID {
			return id
		}
		return newSymbol
	}
	if id, ok := v.ids[text]; ok && v.merges(int(id)) {
		return id
	}
	return noSymbol
}

// enter returns symbol. For newSymbol it creates and returns an id that represents the
// character text, which has no token.
func (v *scored) enter(m *charBPE, symbol int32, text string) int32 {
	if symbol != newSymbol {
		return symbol
	}
	r, _ := utf8.DecodeRuneInString(text)
	if id := m.char(r); id != noID { // an earlier call has already created it
		return id
	}
	id := m.pieces.size + int32(len(m.pieces.chars))
	m.pieces.chars = append(m.pieces.chars, text)
	m.setChar(r, id)
	return id
}

// checkScores returns an error for scores that cannot be compared (NaN).
func checkScores(scores []float32) error {
	for i, s := range scores {
		if math.IsNaN(float64(s)) || math.IsInf(float64(s), 0) {
			return fmt.Errorf("token %d has the score %v", i, s)
		}
	}
	return nil
}

// finish replaces the symbols from start on that are not final tokens: characters without a
// token, and unused tokens.
func (p *pieceRules) finish(e *encoder, m *charBPE, start int) error {
	whole := true
	for _, id := range e.ids[start:] {
		if id >= p.size && m.unk == noID && !m.hasBytes(p.chars[id-p.size]) {
			return noToken(p.chars[id-p.size])
		}
		if id >= p.size || p.unused != nil && p.unused[id] {
			whole = false
		}
	}
	if whole {
		return nil
	}
	old := append([]int32(nil), e.ids[start:]...)
	e.ids = e.ids[:start]
	for _, id := range old {
		p.write(e, m, id)
	}
	return nil
}

func (p *pieceRules) write(e *encoder, m *charBPE, id int32) {
	if id >= p.size {
		c := p.chars[id-p.size]
		switch {
		case m.hasBytes(c):
			for j := range len(c) {
				e.ids = append(e.ids, m.bytes[c[j]])
			}
		case len(e.ids) == 0 || e.ids[len(e.ids)-1] != m.unk:
			e.ids = append(e.ids, m.unk)
		}
		return
	}
	if p.unused != nil && p.unused[id] {
		if from, ok := e.merger.origin[id]; ok {
			p.write(e, m, from.left)
			p.write(e, m, from.right)
			return
		}
	}
	if id == m.unk && id != noID && len(e.ids) > 0 && e.ids[len(e.ids)-1] == m.unk {
		return
	}
	e.ids = append(e.ids, id)
}
