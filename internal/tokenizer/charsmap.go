package tokenizer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/rivo/uniseg"
)

// charsMap is SentencePiece's precompiled normalizer: a double-array trie in the format of
// darts-clone, one uint32 per unit, that maps strings to offsets in a list of
// zero-terminated replacements.
type charsMap struct {
	units        []uint32
	replacements string
	ascii        [utf8.RuneSelf]bool // ASCII characters with which some rule begins
}

// newCharsMap reads the format that models store: the size of the trie in bytes as a
// little-endian uint32, the trie, the replacements.
func newCharsMap(data []byte) (*charsMap, error) {
	if len(data) < 4 {
		return nil, errors.New("precompiled_charsmap: the data is too short")
	}
	size := binary.LittleEndian.Uint32(data)
	data = data[4:]
	if uint64(size) > uint64(len(data)) || size%4 != 0 || size == 0 {
		return nil, fmt.Errorf("precompiled_charsmap: a trie of %d bytes in %d bytes of data", size, len(data))
	}
	m := &charsMap{units: make([]uint32, size/4), replacements: string(data[size:])}
	for i := range m.units {
		m.units[i] = binary.LittleEndian.Uint32(data[4*i:])
	}
	for c := range m.ascii {
		root := m.offset(0)
		u := m.unit(root ^ uint32(c))
		m.ascii[c] = c != 0 && u&0xff == uint32(c) && u>>31 == 0
	}
	return m, nil
}

// unit returns unit i of the trie. If i is outside the trie, it returns a unit that matches
// nothing.
func (m *charsMap) unit(i uint32) uint32 {
	if uint64(i) < uint64(len(m.units)) {
		return m.units[i]
	}
	return 1 << 31
}

// offset returns the index of a unit's children.
func (m *charsMap) offset(i uint32) uint32 {
	u := m.unit(i)
	return i ^ u>>10<<((u&(1<<9))>>6)
}

// lookup returns the replacement of the longest (or shortest) rule that is a prefix of s,
// and the length of that prefix, 0 if no rule matches.
func (m *charsMap) lookup(s string, shortest bool) (string, int) {
	value, n := uint32(0), 0
	at := m.offset(0)
	for i := range len(s) {
		c := uint32(s[i])
		at ^= c
		u := m.unit(at)
		if c == 0 || u&(1<<31|0xff) != c {
			break
		}
		leaf := u>>8&1 != 0
		at = m.offset(at)
		if leaf {
			value, n = m.unit(at)&(1<<31-1), i+1
			if shortest {
				break
			}
		}
	}
	if n == 0 {
		return "", 0
	}
	if uint64(value) >= uint64(len(m.replacements)) {
		return "", n
	}
	with, _, _ := strings.Cut(m.replacements[value:], "\x00")
	return with, n
}

// normalize implements the normalizer Precompiled of tokenizer.json. It replaces each
// grapheme cluster of less than six bytes, and each character of longer clusters, by the
// replacement of the shortest rule that is a prefix of it. SentencePiece takes the longest
// rule instead; models with a tokenizer.json were published with this behaviour.
func (m *charsMap) normalize(s string) (string, error) {
	limit := growthLimit(len(s))
	var b strings.Builder
	b.Grow(len(s) + len(s)/8)
	done := 0 // b holds the normalized s[:done]
	replace := func(start, end int) bool {
		with, n := m.lookup(s[start:end], true)
		if n == 0 {
			return false
		}
		b.WriteString(s[done:start])
		b.WriteString(with)
		done = end
		return true
	}
	state := -1
	for at := 0; at < len(s); {
		// An ASCII character followed by another one is a cluster, except for CR LF.
		if c := s[at]; c < utf8.RuneSelf && (at+1 == len(s) || s[at+1] < utf8.RuneSelf && c != '\r') {
			if m.ascii[c] {
				replace(at, at+1)
			}
			at++
			state = -1
			continue
		}
		cluster, _, _, next := uniseg.FirstGraphemeClusterInString(s[at:], state)
		state = next
		end := at + len(cluster)
		if len(cluster) >= 6 || !replace(at, end) {
			for i := at; i < end; {
				_, n := utf8.DecodeRuneInString(s[i:])
				replace(i, i+n)
				i += n
			}
		}
		at = end
		if b.Len() > limit {
			return "", errGrowth(b.Len(), limit)
		}
	}
	if done == 0 {
		return s, nil
	}
	b.WriteString(s[done:])
	return b.String(), nil
}

// pieceNormalizer is SentencePiece's normalizer, with one difference: it keeps bytes of
// invalid UTF-8, so that byte fallback can encode them. SentencePiece replaces them by U+FFFD.
type pieceNormalizer struct {
	charsMap *charsMap // or nil
	frozen   *trie     // user-defined tokens, to which no rule applies; or nil
	dummy    bool      // adds a space in front, or at the end if suffix is set
	suffix   bool
	squeeze  bool // removes spaces at both ends and joins adjacent ones
	escape   bool // replaces spaces by a mark
}

func (n *pieceNormalizer) normalize(s string) (string, error) {
	limit := growthLimit(len(s))
	if n.squeeze {
		for s != "" {
			with, length := n.prefix(s)
			if with != " " {
				break
			}
			s = s[length:]
		}
	}
	if s == "" {
		return "", nil
	}
	space := " "
	if n.escape {
		space = spaceMark
	}
	var b strings.Builder
	b.Grow(len(s) + len(s)/4)
	if n.dummy && !n.suffix {
		b.WriteString(space)
	}
	plain := n.charsMap == nil && n.frozen == nil
	afterSpace := n.squeeze
	for s != "" {
		if plain || s[0] != ' ' && s[0] < utf8.RuneSelf && !n.special(s[0]) {
			// Copy text to which no rule applies, up to the next space.
			end := 0
			for end < len(s) && s[end] != ' ' && (plain || s[end] < utf8.RuneSelf && !n.special(s[end])) {
				end++
			}
			if end > 0 {
				b.WriteString(s[:end])
				s, afterSpace = s[end:], false
				continue
			}
		}
		with, length := n.prefix(s)
		if n.squeeze && afterSpace {
			with = strings.TrimLeft(with, " ")
		}
		if with != "" {
			afterSpace = strings.HasSuffix(with, " ")
			if n.escape {
				with = strings.ReplaceAll(with, " ", spaceMark)
			}
			b.WriteString(with)
		}
		s = s[length:]
		if b.Len() > limit {
			return "", errGrowth(b.Len(), limit)
		}
	}
	out := b.String()
	if n.squeeze {
		for strings.HasSuffix(out, space) {
			out = out[:len(out)-len(space)]
		}
	}
	if n.dummy && n.suffix {
		out += space
	}
	return out, nil
}

// special reports whether a rule or a user-defined token begins with c.
func (n *pieceNormalizer) special(c byte) bool {
	return n.charsMap != nil && n.charsMap.ascii[c] || n.frozen != nil && n.frozen.root[c] != 0
}

// prefix returns the replacement of a prefix of s and the length of that prefix.
func (n *pieceNormalizer) prefix(s string) (string, int) {
	if n.frozen != nil {
		if _, length := n.frozen.longest(0, s); length > 0 {
			return s[:length], length
		}
	}
	if n.charsMap != nil {
		if with, length := n.charsMap.lookup(s, false); length > 0 {
			return with, length
		}
	}
	_, length := utf8.DecodeRuneInString(s)
	return s[:length], length
}
