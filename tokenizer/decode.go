package tokenizer

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Decode returns the bytes that ids stand for, as they are, even if they are
// not valid UTF-8. Special tokens are not text and are left out, as are ids
// that stand for nothing; [Tokenizer.Token] shows them.
func (t *Tokenizer) Decode(ids []int32) string {
	var b strings.Builder
	for _, id := range ids {
		if id >= 0 && int(id) < len(t.pieces) {
			b.WriteString(t.pieces[id])
		}
	}
	return b.String()
}

// Decoder turns ids into text as they come. What it returns is always valid
// UTF-8: a character whose bytes are spread over several tokens comes with the
// last of them, and broken bytes become U+FFFD, one for each maximal part of a
// character as Unicode recommends. It is for one goroutine at a time.
type Decoder struct {
	t *Tokenizer
	// pending is the beginning of a character.
	pending  [utf8.UTFMax]byte
	npending int
}

// NewDecoder returns a decoder for one sequence.
func (t *Tokenizer) NewDecoder() *Decoder { return &Decoder{t: t} }

// Next returns the text that is complete with id, often "". Special tokens have
// none. It fails, and leaves the state as it was, if id is outside the vocabulary.
func (d *Decoder) Next(id int32) (string, error) {
	if id < 0 || int(id) >= len(d.t.pieces) {
		return "", fmt.Errorf("tokenizer: token id %d is outside the vocabulary of %d", id, len(d.t.pieces))
	}
	piece := d.t.pieces[id]
	if d.npending == 0 && utf8.ValidString(piece) {
		return piece, nil
	}
	return d.write(piece), nil
}

// Flush returns what is left at the end of a sequence: "" or U+FFFD. The
// decoder is then as new.
func (d *Decoder) Flush() string {
	if d.npending == 0 {
		return ""
	}
	d.npending = 0
	return string(utf8.RuneError)
}

func (d *Decoder) write(piece string) string {
	s := string(d.pending[:d.npending]) + piece
	d.npending = 0
	var b strings.Builder
	for s != "" {
		r, n := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && n == 1 {
			n = partLength(s)
			if n == len(s) && !utf8.FullRuneInString(s) {
				d.npending = copy(d.pending[:], s)
				break
			}
		}
		b.WriteRune(r)
		s = s[n:]
	}
	return b.String()
}

// partLength returns the length of the maximal part of a character that s,
// which starts with no whole one, begins with: at least 1.
func partLength(s string) int {
	n := 1
	for n < len(s) && !utf8.FullRuneInString(s[:n+1]) {
		n++
	}
	return n
}
