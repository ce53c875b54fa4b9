package tokenizer

import "fmt"

// Tokenizer is a vocabulary with the rules that convert text to tokens and back. It is
// immutable.
type Tokenizer struct {
	tokens []string         // by id, in the vocabulary's spelling
	kinds  []tokenKind      // by id
	ids    map[string]int32 // by token

	raw         *matcher // added tokens that are matched in the original text
	normalizers []normalizer
	normals     *matcher // added tokens that are matched in the normalised text
	stages      []stage
	model       model
	decoding    decoding

	bos, eos       int32 // or noID
	prefix, suffix []int32
	stop           []int32

	cache *wordCache
}

// A model splits a word into tokens. A word is a piece of text after the last stage of the
// pre-tokenizer.
type model interface {
	// encode appends the tokens of s, which must not be empty, to the tokens of e.
	encode(e *encoder, s string) error
}

const noID = -1

// maxText is the largest length of a text in bytes. It keeps positions in a word within int32.
const maxText = 1 << 29

type tokenKind uint8

const (
	absent tokenKind = iota // an unused id
	normal                  // an ordinary token
	special
	userDefined // literal text
	unused
	byteToken // <0x41>: one byte
)

// EncodeOptions select how [Tokenizer.Encode] handles special tokens.
type EncodeOptions struct {
	// AddSpecial adds the tokens that the model expects around the text: BOS if AddBOS reports
	// true, and in rare models others.
	AddSpecial bool
	// ParseSpecial converts special tokens such as "<|eot_id|>" in the text to their ids. It must
	// be false for text from users. Added tokens that are not special are always matched.
	ParseSpecial bool
	// Plain lists ranges of bytes of the text, from a first one to before a second one, in ascending
	// order. No byte in them is part of a special token: with ParseSpecial, these are the parts of a
	// text that come from users.
	Plain [][2]int
}

// Encode returns the token ids of text, which need not be valid UTF-8.
//
// It fails if a part of the text has no token and the vocabulary has no unknown token, if
// the text is longer than 512 MiB, or if a normalizer makes it many times longer.
func (t *Tokenizer) Encode(text string, o EncodeOptions) ([]int32, error) {
	if err := checkText(len(text)); err != nil {
		return nil, err
	}
	e := encoder{
		Tokenizer: t,
		ids:       make([]int32, 0, len(text)/3+len(t.prefix)+len(t.suffix)+1),
	}
	if o.AddSpecial {
		e.ids = append(e.ids, t.prefix...)
	}
	if err := e.text(text, &specials{o.ParseSpecial, o.Plain}); err != nil {
		return nil, err
	}
	if o.AddSpecial {
		e.ids = append(e.ids, t.suffix...)
	}
	return e.ids, nil
}

func checkText(n int) error {
	if n > maxText {
		return fmt.Errorf("tokenizer: a text of %d bytes is longer than %d", n, maxText)
	}
	return nil
}

// encoder is the state of one call of Encode.
type encoder struct {
	*Tokenizer
	ids    []int32
	merger merger
	paths  paths
}

// text encodes a whole input: it cuts out the added tokens that are matched in the original
// text.
func (e *encoder) text(s string, sp *specials) error {
	for from := 0; from < len(s); {
		t, start, end := e.raw.find(s, from, sp)
		if t == nil {
			start = len(s)
		}
		if err := e.parts(s, from, start, sp); err != nil || t == nil {
			return err
		}
		e.ids = append(e.ids, t.id)
		from = end
	}
	return nil
}

// parts encodes s[from:to]. Offsets in normalised text are not those of the text, so a range of
// sp.plain is normalised apart from the rest if there may be special tokens in normalised text.
func (e *encoder) parts(s string, from, to int, sp *specials) error {
	if e.normals.special && sp.parse {
		for _, r := range sp.plain {
			if begin, end := max(r[0], from), min(r[1], to); begin < end {
				if err := e.normalize(s[from:begin], from == 0, true); err != nil {
					return err
				}
				if err := e.normalize(s[begin:end], begin == 0, false); err != nil {
					return err
				}
				from = end
			}
		}
	}
	return e.normalize(s[from:to], from == 0, sp.parse)
}

// normalize normalises s and cuts out the added tokens that are matched in the result.
// first reports whether s begins the text.
func (e *encoder) normalize(s string, first, parseSpecial bool) error {
	if s == "" {
		return nil
	}
	s, err := normalizeAll(e.normalizers, s)
	if err != nil {
		return err
	}
	sp := &specials{parse: parseSpecial}
	for from := 0; from < len(s); {
		t, start, end := e.normals.find(s, from, sp)
		if t == nil {
			return e.split(e.stages, s[from:], first && from == 0)
		}
		if err := e.split(e.stages, s[from:start], first && from == 0); err != nil {
			return err
		}
		e.ids = append(e.ids, t.id)
		from = end
	}
	return nil
}

// split passes s through the stages of the pre-tokenizer and encodes the words. first
// reports whether s begins the text.
func (e *encoder) split(stages []stage, s string, first bool) error {
	if s == "" {
		return nil
	}
	if len(stages) == 0 {
		return e.word(s)
	}
	st := &stages[0]
	if st.rewrite != nil {
		s = st.rewrite(s, first)
	}
	if st.cut == nil {
		return e.split(stages[1:], s, first)
	}
	for s != "" {
		n, keep := st.cut.next(s)
		if keep {
			if err := e.split(stages[1:], s[:n], first); err != nil {
				return err
			}
		}
		s, first = s[n:], false
	}
	return nil
}

// word appends the tokens of one word, which must not be empty.
func (e *encoder) word(s string) error {
	if len(s) > cachedLength || e.cache == nil {
		return e.model.encode(e, s)
	}
	slot := e.cache.slot(s)
	if w := slot.Load(); w != nil && w.word == s {
		e.ids = append(e.ids, w.ids...)
		return nil
	}
	start := len(e.ids)
	err := e.model.encode(e, s)
	if err == nil {
		e.cache.store(slot, s, e.ids[start:])
	}
	return err
}

// Size returns the number of ids, which is one more than the largest id. It may differ from
// the number of rows of a model's embedding, which is often padded.
func (t *Tokenizer) Size() int { return len(t.tokens) }

// ID returns the id of a token in the vocabulary's spelling, such as "Ġthe" for " the" or
// "<|eot_id|>".
func (t *Tokenizer) ID(token string) (int32, bool) {
	id, ok := t.ids[token]
	return id, ok
}

// Token returns a token in the vocabulary's spelling. It returns false for unused ids.
func (t *Tokenizer) Token(id int32) (string, bool) {
	if !t.valid(id) {
		return "", false
	}
	return t.tokens[id], true
}

// Special reports whether id is a special (control) token, which is not part of the text.
func (t *Tokenizer) Special(id int32) bool {
	return t.valid(id) && t.kinds[id] == special
}

func (t *Tokenizer) valid(id int32) bool {
	return id >= 0 && int(id) < len(t.kinds) && t.kinds[id] != absent
}

// BOS returns the token that begins a sequence, if the tokenizer names one.
func (t *Tokenizer) BOS() (int32, bool) { return t.bos, t.bos != noID }

// AddBOS reports whether Encode with AddSpecial begins every text with BOS.
func (t *Tokenizer) AddBOS() bool {
	return t.bos != noID && len(t.prefix) > 0 && t.prefix[0] == t.bos
}

// EOS returns the token that ends a sequence, if the tokenizer names one.
func (t *Tokenizer) EOS() (int32, bool) { return t.eos, t.eos != noID }

// StopIDs returns the tokens that end generation, without duplicates. From a GGUF file these
// are the end-of-sequence, end-of-turn and end-of-message tokens. From a Hugging Face
// directory it is the eos_token of tokenizer_config.json; the directory's
// generation_config.json may list more stop tokens.
func (t *Tokenizer) StopIDs() []int32 { return append([]int32(nil), t.stop...) }
