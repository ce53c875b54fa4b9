package tokenizer

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// decoding is what tokens stand for in text.
type decoding struct {
	pieces []string // by id, as bytes: within a text
	starts []string // the same for the first token of a text; nil: as pieces
	// untilText makes every token a first one until one has given text.
	untilText bool
	// strip is cut off the beginning of a text up to times times.
	strip string
	times int
	// unk, or noID, is left out as special tokens are, but a text has begun with it.
	unk int32
}

// decodeState is what has come before in a text.
type decodeState struct {
	begun    bool // no first token is still to come
	stripped int
}

// continued is the state of a text that goes on.
var continued = decodeState{begun: true, stripped: math.MaxInt}

// piece returns what the next token stands for.
func (d *decoding) piece(st *decodeState, id int32, kind tokenKind) string {
	if kind == special || kind == absent {
		if id == d.unk {
			*st = continued
		}
		return ""
	}
	piece := d.pieces[id]
	if !st.begun {
		if d.starts != nil {
			piece = d.starts[id]
		}
		st.begun = !d.untilText || piece != ""
	}
	for st.stripped < d.times && piece != "" {
		rest, ok := strings.CutPrefix(piece, d.strip)
		if !ok {
			st.stripped = math.MaxInt
			break
		}
		piece = rest
		st.stripped++
	}
	return piece
}

// Decode returns the bytes that ids stand for as a text of their own, as they
// are, even if they are not valid UTF-8. Special tokens are not text and are left
// out, as are ids that stand for nothing; [Tokenizer.Token] shows them. The space
// that a tokenizer puts in front of every text is taken off again.
func (t *Tokenizer) Decode(ids []int32) string {
	var b strings.Builder
	var st decodeState
	for _, id := range ids {
		if id >= 0 && int(id) < len(t.kinds) {
			b.WriteString(t.decoding.piece(&st, id, t.kinds[id]))
		}
	}
	return b.String()
}

// Decoder turns ids into text as they come. What it returns is always valid
// UTF-8: a character whose bytes are spread over several tokens comes with the
// last of them, and broken bytes become U+FFFD, one for each maximal part of a
// character as Unicode recommends. It is for one goroutine at a time.
type Decoder struct {
	t     *Tokenizer
	start decodeState
	state decodeState
	// pending is the beginning of a character.
	pending  [utf8.UTFMax]byte
	npending int
}

// NewDecoder returns a decoder for one sequence, from its first token on.
func (t *Tokenizer) NewDecoder() *Decoder { return &Decoder{t: t} }

// NewContinuation returns a decoder for the tokens behind those of a text, such
// as what a model generates: the space before the first of them is kept.
func (t *Tokenizer) NewContinuation() *Decoder {
	return &Decoder{t: t, start: continued, state: continued}
}

// Next returns the text that is complete with id, often "". Special tokens have
// none. It fails, and leaves the state as it was, if id is outside the vocabulary.
func (d *Decoder) Next(id int32) (string, error) {
	if id < 0 || int(id) >= len(d.t.kinds) {
		return "", fmt.Errorf("tokenizer: token id %d is outside the vocabulary of %d", id, len(d.t.kinds))
	}
	piece := d.t.decoding.piece(&d.state, id, d.t.kinds[id])
	if d.npending == 0 && utf8.ValidString(piece) {
		return piece, nil
	}
	return d.write(piece), nil
}

// Flush returns what is left at the end of a sequence: "" or U+FFFD. The
// decoder is then as new.
func (d *Decoder) Flush() string {
	d.state = d.start
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
