package tokenizer

import (
	"fmt"

	"golang.org/x/text/unicode/norm"
)

// Tokenizer is a byte-level BPE vocabulary with the rules that lead to it. It
// does not change after it is made.
type Tokenizer struct {
	tokens  []string         // by id, as the vocabulary writes them
	kinds   []tokenKind      // by id
	pieces  []string         // by id, the bytes that decode to
	ids     map[string]int32 // by token
	byteIDs [256]int32       // the token of a single byte, or -1

	merges  *merges
	words   map[string]int32 // by bytes: words that are taken whole, or nil
	stages  []splitter
	spaced  bool // a space goes before text that does not start with one
	nfc     bool
	raw     *matcher // added tokens found in the text as it is
	normals *matcher // added tokens found in the normalised text

	bos, eos       int32 // or noID
	prefix, suffix []int32
	stop           []int32

	cache *wordCache
}

const noID = -1

// maxText keeps the positions of a word within int32: NFC makes a text up to
// three times as long.
const maxText = 1 << 29

type tokenKind uint8

const (
	absent tokenKind = iota // an id between others that stands for nothing
	normal                  // written in the byte alphabet
	special
	userDefined // written as it is, part of the text
	unused
)

// EncodeOptions say what [Tokenizer.Encode] does about special tokens.
type EncodeOptions struct {
	// AddSpecial puts the tokens around the text that the model asks for: BOS,
	// if AddBOS says so, and rarely others.
	AddSpecial bool
	// ParseSpecial reads "<|eot_id|>" in the text as that token. Without it
	// special tokens are not looked for, as text from users requires; added
	// tokens that are not special are found either way.
	ParseSpecial bool
}

// Encode returns the token ids of text, which need not be valid UTF-8.
//
// It fails if the vocabulary has no token for a byte of the text, or if text is
// longer than 512 MiB.
func (t *Tokenizer) Encode(text string, o EncodeOptions) ([]int32, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("tokenizer: a text of %d bytes is longer than %d", len(text), maxText)
	}
	e := encoder{
		Tokenizer: t,
		ids:       make([]int32, 0, len(text)/3+len(t.prefix)+len(t.suffix)+1),
		merger:    merger{merges: t.merges},
	}
	if o.AddSpecial {
		e.ids = append(e.ids, t.prefix...)
	}
	if err := e.text(text, o.ParseSpecial); err != nil {
		return nil, err
	}
	if o.AddSpecial {
		e.ids = append(e.ids, t.suffix...)
	}
	return e.ids, nil
}

// encoder is the state of one Encode.
type encoder struct {
	*Tokenizer
	ids    []int32
	merger merger
}

// text encodes what the file's author would call the input: it cuts out the
// added tokens that are found in the text as it is.
func (e *encoder) text(s string, parseSpecial bool) error {
	for from := 0; from < len(s); {
		t, start, end := e.raw.find(s, from, parseSpecial)
		if t == nil {
			return e.normalize(s[from:], parseSpecial)
		}
		if err := e.normalize(s[from:start], parseSpecial); err != nil {
			return err
		}
		e.ids = append(e.ids, t.id)
		from = end
	}
	return nil
}

// normalize normalises s and cuts out the added tokens that are found then.
func (e *encoder) normalize(s string, parseSpecial bool) error {
	if e.nfc {
		s = norm.NFC.String(s)
	}
	for from := 0; from < len(s); {
		t, start, end := e.normals.find(s, from, parseSpecial)
		if t == nil {
			return e.fragment(s[from:])
		}
		if err := e.fragment(s[from:start]); err != nil {
			return err
		}
		e.ids = append(e.ids, t.id)
		from = end
	}
	return nil
}

// fragment encodes text that holds no added tokens.
func (e *encoder) fragment(s string) error {
	if e.spaced && s != "" && s[0] != ' ' {
		s = " " + s
	}
	return e.split(e.stages, s)
}

func (e *encoder) split(stages []splitter, s string) error {
	if len(stages) == 0 {
		if s == "" {
			return nil
		}
		return e.word(s)
	}
	for s != "" {
		n := stages[0].next(s)
		if err := e.split(stages[1:], s[:n]); err != nil {
			return err
		}
		s = s[n:]
	}
	return nil
}

// word appends the tokens of one word, which is not empty.
func (e *encoder) word(s string) error {
	if id, ok := e.words[s]; ok {
		e.ids = append(e.ids, id)
		return nil
	}
	if len(s) > cachedLength {
		_, err := e.mergeWord(s)
		return err
	}
	slot := e.cache.slot(s)
	if w := slot.Load(); w != nil && w.word == s {
		e.ids = append(e.ids, w.ids...)
		return nil
	}
	ids, err := e.mergeWord(s)
	if err == nil {
		e.cache.store(slot, s, ids)
	}
	return err
}

// mergeWord appends the tokens of s, found by merging, and returns them.
func (e *encoder) mergeWord(s string) ([]int32, error) {
	start := len(e.ids)
	for i := range len(s) {
		id := e.byteIDs[s[i]]
		if id < 0 {
			return nil, fmt.Errorf("tokenizer: the vocabulary has no token for byte 0x%02x", s[i])
		}
		e.ids = append(e.ids, id)
	}
	ids := e.merger.merge(e.ids[start:])
	e.ids = e.ids[:start+len(ids)]
	return ids, nil
}

// Size returns the number of ids: one more than the largest. It may differ from
// the rows of a model's embedding, which are often padded.
func (t *Tokenizer) Size() int { return len(t.tokens) }

// ID returns the id of a token as the vocabulary writes it: "Ġthe" for " the",
// "<|eot_id|>" for itself.
func (t *Tokenizer) ID(token string) (int32, bool) {
	id, ok := t.ids[token]
	return id, ok
}

// Token returns a token as the vocabulary writes it. It is false for ids that
// stand for nothing.
func (t *Tokenizer) Token(id int32) (string, bool) {
	if !t.valid(id) {
		return "", false
	}
	return t.tokens[id], true
}

// Special reports whether id is a special (control) token, which is not text.
func (t *Tokenizer) Special(id int32) bool {
	return t.valid(id) && t.kinds[id] == special
}

func (t *Tokenizer) valid(id int32) bool {
	return id >= 0 && int(id) < len(t.kinds) && t.kinds[id] != absent
}

// BOS returns the token that begins a sequence, if the tokenizer names one.
func (t *Tokenizer) BOS() (int32, bool) { return t.bos, t.bos != noID }

// AddBOS reports whether Encode puts BOS first with AddSpecial.
func (t *Tokenizer) AddBOS() bool {
	return t.bos != noID && len(t.prefix) > 0 && t.prefix[0] == t.bos
}

// EOS returns the token that ends a sequence, if the tokenizer names one.
func (t *Tokenizer) EOS() (int32, bool) { return t.eos, t.eos != noID }

// StopIDs returns the tokens that end generation, without duplicates: GGUF's
// end of sequence, of turn and of message, or tokenizer_config.json's eos_token.
// A Hugging Face model's generation_config.json may name more.
func (t *Tokenizer) StopIDs() []int32 { return append([]int32(nil), t.stop...) }
