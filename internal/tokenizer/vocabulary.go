package tokenizer

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxTokens is the largest number of ids of a vocabulary. Published vocabularies have fewer
// than 2^19.
const maxTokens = 1 << 24

// vocabulary collects the tokens while a tokenizer is built.
type vocabulary struct {
	tokens []string
	kinds  []tokenKind
	ids    map[string]int32
}

// newVocabulary returns a vocabulary of size unused ids.
func newVocabulary(size int) *vocabulary {
	return &vocabulary{
		tokens: make([]string, size),
		kinds:  make([]tokenKind, size),
		ids:    make(map[string]int32, size),
	}
}

// add assigns an unused id to a new token.
func (v *vocabulary) add(id int32, token string, kind tokenKind) error {
	if v.kinds[id] != absent {
		return fmt.Errorf("token %s: id %d belongs to token %s", quote(token), id, quote(v.tokens[id]))
	}
	if other, ok := v.ids[token]; ok {
		return fmt.Errorf("token %s has the ids %d and %d", quote(token), other, id)
	}
	v.tokens[id], v.kinds[id], v.ids[token] = token, kind, id
	return nil
}

// byteIDs returns the tokens of single bytes, or -1 for a byte without a token.
func (v *vocabulary) byteIDs(a *alphabet) (ids [256]int32) {
	for b := range ids {
		ids[b] = noID
		id, ok := v.ids[string(a.char[b])]
		if !ok {
			continue
		}
		same := a.char[b] == rune(b) && b < 0x80
		if k := v.kinds[id]; k == normal || k == userDefined && same {
			ids[b] = id
		}
	}
	return ids
}

// byteOf returns the byte that a token of the form <0x41> represents.
func byteOf(token string) (byte, bool) {
	if len(token) != 6 || token[:3] != "<0x" || token[5] != '>' {
		return 0, false
	}
	b, err := strconv.ParseUint(token[3:5], 16, 8)
	return byte(b), err == nil && strings.ToUpper(token[3:5]) == token[3:5]
}

// fallbackBytes returns the tokens <0x00> to <0xFF>, or noID for a missing one.
func (v *vocabulary) fallbackBytes() (ids [256]int32) {
	for b := range ids {
		ids[b] = noID
		if id, ok := v.ids[fmt.Sprintf("<0x%02X>", b)]; ok {
			ids[b] = id
		}
	}
	return ids
}

// oneRune returns the character of a token that consists of exactly one character.
func oneRune(token string) (rune, bool) {
	r, n := utf8.DecodeRuneInString(token)
	return r, n > 0 && n == len(token) && (r != utf8.RuneError || n > 1)
}

// pieces returns the bytes to which each token decodes. A normal token with a character
// outside the byte alphabet represents itself.
func (v *vocabulary) pieces(a *alphabet) []string {
	pieces := make([]string, len(v.tokens))
	for id, token := range v.tokens {
		switch v.kinds[id] {
		case normal:
			piece, ok := a.decode(token)
			if !ok {
				piece = token
			}
			pieces[id] = piece
		case userDefined:
			pieces[id] = token
		}
	}
	return pieces
}

// words returns the ids of normal tokens by the bytes that they represent.
func (v *vocabulary) words(a *alphabet) map[string]int32 {
	words := make(map[string]int32, len(v.ids))
	for id, token := range v.tokens {
		if v.kinds[id] != normal {
			continue
		}
		if piece, ok := a.decode(token); ok {
			words[piece] = int32(id)
		}
	}
	return words
}

// merges resolves n merge rules. at returns the two sides of rule i. The merged token omits
// the first prefix bytes of the right side.
func (v *vocabulary) merges(n, prefix int, at func(i int) (left, right string, err error)) (*merges, error) {
	if n > maxTokens {
		return nil, fmt.Errorf("%d merges, more than the limit of %d", n, maxTokens)
	}
	m := &merges{newHashTable[rule](n)}
	for i := range n {
		left, right, err := at(i)
		if err != nil {
			return nil, fmt.Errorf("merge %d: %w", i, err)
		}
		l, okLeft := v.ids[left]
		r, okRight := v.ids[right]
		whole := left + right[min(prefix, len(right)):]
		result, okResult := v.ids[whole]
		switch {
		case !okLeft:
			return nil, fmt.Errorf("merge %d: %s is not a token", i, quote(left))
		case !okRight:
			return nil, fmt.Errorf("merge %d: %s is not a token", i, quote(right))
		case !okResult:
			return nil, fmt.Errorf("merge %d: %s and %s make %s, which is not a token", i, quote(left), quote(right), quote(whole))
		}
		if first := m.find(l, r); first.order != 0 {
			return nil, fmt.Errorf("merge %d: %s and %s repeat merge %d", i, quote(left), quote(right), first.rank())
		}
		m.rules.set(pair{l, r}.key(), rule{int32(i) + 1, result})
	}
	return m, nil
}
