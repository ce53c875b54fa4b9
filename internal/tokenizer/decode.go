package tokenizer

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// decoding maps tokens to text.
type decoding struct {
	pieces []string // by id: the bytes of a token that is not the first of a text
	starts []string // by id: the bytes of the first token of a text; nil: equal to pieces
	// untilText treats every token as a first one until one has produced text.
	untilText bool
	// strip is removed from the beginning of a text, at most times times.
	strip string
	times int
	// unk, unless it is noID, produces no text, like a special token, but it counts as the
	// beginning of a text.
	unk int32
}

// decodeState is the state of decoding a text.
type decodeState struct {
	begun    bool // the first token has been decoded
	stripped int
}

// continued is the state of a decoder in the middle of a text.
var continued = decodeState{begun: true, stripped: math.MaxInt}

// piece returns the text of the next token.
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

// Decode returns the bytes that ids represent as a complete text. The bytes need not be valid
// UTF-8. Decode leaves out special tokens and ids without text; [Tokenizer.Token] shows them.
// It removes the space that some tokenizers add in front of every text.
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

// Decoder converts ids to text incrementally. Its output is always valid UTF-8: a character whose
// bytes are spread over several tokens is returned with the last of them, and invalid bytes
// become U+FFFD, one for each maximal subpart of a character as Unicode recommends. A Decoder
// must not be used by several goroutines at once.
type Decoder struct {
	t     *Tokenizer
	start decodeState
	state decodeState
	// pending is the beginning of an incomplete character.
	pending  [utf8.UTFMax]byte
	npending int
}

// NewDecoder returns a decoder for a complete sequence of tokens.
func (t *Tokenizer) NewDecoder() *Decoder { return &Decoder{t: t} }

// NewContinuation returns a decoder for tokens that continue a text, such as generated tokens.
// It keeps the space before the first of them.
func (t *Tokenizer) NewContinuation() *Decoder {
	return &Decoder{t: t, start: continued, state: continued}
}

// Next returns the text that id completes, which is often "". Special tokens have no text.
// Next fails if id is outside the vocabulary, and then leaves the state unchanged.
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

// Flush ends a sequence and resets the decoder. It returns U+FFFD if the sequence ended within
// a character, and "" otherwise.
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

// partLength returns the length, at least 1, of the maximal part of a character at the start
// of s. s must not start with a complete character.
func partLength(s string) int {
	n := 1
	for n < len(s) && !utf8.FullRuneInString(s[:n+1]) {
		n++
	}
	return n
}
