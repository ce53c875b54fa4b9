package local

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pianola-engine/pianola"
)

// A marker keeps the names of special tokens in the texts of a conversation apart from those that the
// chat template writes. It puts a mark into each name before the template sees the text. After
// rendering, the marks are removed again, and their places are plain text for the tokenizer.
//
// A text also gets a mark where it ends with the beginning of a name, which another text behind it
// could complete.
type marker struct {
	names   map[string]bool
	begins  map[string]bool // all beginnings of names, shorter than the name
	first   [256]bool       // first bytes of names
	lengths []int           // of names, in bytes, without duplicates
	longest int
}

// The marks. Both begin with a word separator of the Aegean scripts; one that a text has is replaced by
// literal. It is printable, so that templates that quote texts leave it alone, and no letter.
const (
	separator = '\U00010100'
	mark      = string(separator) + "\U00010101"
	literal   = string(separator) + "\U00010102"
)

func newMarker(tok *pianola.Tokenizer) *marker {
	k := &marker{names: map[string]bool{}, begins: map[string]bool{}}
	for id := range int32(tok.Size()) {
		if name, _ := tok.Token(id); tok.Special(id) {
			k.add(name)
		}
	}
	return k
}

// add adds the name of a special token.
func (k *marker) add(name string) {
	if name == "" || k.names[name] {
		return
	}
	k.names[name], k.first[name[0]] = true, true
	k.longest = max(k.longest, len(name))
	if !slices.Contains(k.lengths, len(name)) {
		k.lengths = append(k.lengths, len(name))
	}
	for i := 1; i < len(name); i++ {
		k.begins[name[:i]] = true
	}
}

// mark returns a text with marks.
func (k *marker) mark(text string) string {
	var b strings.Builder
	done := 0
	end := len(strings.TrimRightFunc(text, unicode.IsSpace)) // templates trim texts
	for i := 0; i < len(text); i++ {
		if strings.HasPrefix(text[i:], string(separator)) {
			b.WriteString(text[done:i] + literal)
			done = i + len(string(separator))
			i = done - 1
			continue
		}
		if k.first[text[i]] && (k.name(text[i:]) || i < end && end-i < k.longest && k.begins[text[i:end]]) {
			_, n := utf8.DecodeRuneInString(text[i:])
			b.WriteString(text[done:i+n] + mark)
			done = i + n
		}
	}
	if done == 0 {
		return text
	}
	b.WriteString(text[done:])
	return b.String()
}

// name reports whether a text begins with a name.
func (k *marker) name(text string) bool {
	for _, n := range k.lengths {
		if n <= len(text) && k.names[text[:n]] {
			return true
		}
	}
	return false
}

// unmark removes the marks from a text. plain are the ranges of the characters before them.
func unmark(text string) (clean string, plain [][2]int) {
	if !strings.ContainsRune(text, separator) {
		return text, nil
	}
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, string(separator))
		b.WriteString(before)
		if !found {
			return b.String(), plain
		}
		if text = after; strings.HasPrefix(text, mark[len(string(separator)):]) {
			text = text[len(mark)-len(string(separator)):]
			_, n := utf8.DecodeLastRuneInString(b.String())
			plain = append(plain, [2]int{b.Len() - n, b.Len()})
			continue
		}
		b.WriteRune(separator)
		text = strings.TrimPrefix(text, literal[len(string(separator)):])
	}
}
