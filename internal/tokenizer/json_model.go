package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// modelFile is the model of a tokenizer.json, of any type.
type modelFile struct {
	Type  *string         `json:"type"` // absent in old files
	Vocab json.RawMessage `json:"vocab"`

	// BPE and WordPiece.
	UnkToken *string `json:"unk_token"`
	Prefix   *string `json:"continuing_subword_prefix"`

	// BPE.
	Dropout      float64         `json:"dropout"`
	Suffix       *string         `json:"end_of_word_suffix"`
	FuseUnk      bool            `json:"fuse_unk"`
	ByteFallback bool            `json:"byte_fallback"` // also used by Unigram
	IgnoreMerges bool            `json:"ignore_merges"`
	Merges       json.RawMessage `json:"merges"`

	// Unigram.
	UnkID *int64 `json:"unk_id"`

	// WordPiece.
	MaxChars *int64 `json:"max_input_chars_per_word"`
}

// kind returns the type, or infers it for old files without one.
func (m *modelFile) kind() (string, error) {
	kind := "BPE"
	switch {
	case m.Type != nil:
		kind = *m.Type
	case m.MaxChars != nil:
		kind = "WordPiece"
	case m.UnkID != nil:
		kind = "Unigram"
	}
	switch {
	case kind != "BPE" && kind != "Unigram" && kind != "WordPiece":
		return "", &UnsupportedError{"model", kind}
	case m.Vocab == nil:
		return "", errors.New("tokenizer.json: model.vocab is missing")
	case kind == "BPE" && m.Merges == nil:
		return "", errors.New("tokenizer.json: model.merges is missing")
	case m.Dropout != 0:
		return "", &UnsupportedError{"model.dropout", strconv.FormatFloat(m.Dropout, 'g', -1, 64)}
	}
	return kind, nil
}

// modelBuilder builds the model of a tokenizer.json. It keeps the model from producing special
// tokens from ordinary text.
type modelBuilder struct {
	*modelFile
	v       *vocabulary
	entries []vocabEntry // without the added tokens that the model lacks
	bytes   [256]int32   // tokens of the byte alphabet
	pre     *preStages
}

// build returns the model and finishes the stages before it.
func (b *modelBuilder) build(kind string) (model, error) {
	switch kind {
	case "Unigram":
		return b.unigram()
	case "WordPiece":
		return b.wordPiece()
	}
	return b.bpe()
}

// words returns the ids of the tokens that the model may produce from text.
func (b *modelBuilder) words() map[string]int32 {
	words := make(map[string]int32, len(b.entries))
	for _, e := range b.entries {
		if b.v.kinds[e.id] != special {
			words[e.token] = int32(e.id)
		}
	}
	return words
}

func (b *modelBuilder) bpe() (model, error) {
	prefix, suffix := deref(b.Prefix), deref(b.Suffix)
	merges, err := parseMerges(b.v, b.Merges, len(prefix))
	if err != nil {
		return nil, fmt.Errorf("model.merges: %w", err)
	}
	affix := prefix != "" || suffix != ""
	if b.pre.byteLevel && !affix {
		b.pre.unmap()
		m := &byteBPE{merges: merges, bytes: b.bytes}
		if b.IgnoreMerges {
			m.words = b.v.words(newAlphabet())
		}
		return m, nil
	}
	m := newCharBPE()
	m.merges, m.prefix, m.suffix, m.fuse = merges, prefix, suffix, b.FuseUnk
	if affix {
		m.ids = b.words()
	}
	if b.IgnoreMerges {
		m.words = b.words()
	}
	for _, e := range b.entries {
		if r, ok := oneRune(e.token); ok && b.v.kinds[e.id] != special {
			m.setChar(r, int32(e.id))
		}
	}
	if b.ByteFallback {
		m.bytes = b.v.fallbackBytes()
	}
	m.unk, err = b.unkToken()
	return m, err
}

// cuttable reports whether text may be cut wherever no merge crosses the cut.
func (m *charBPE) cuttable() bool { return m.words == nil && m.ids == nil && m.pieces == nil }

// unkToken returns the unknown token, or noID if the file names none.
func (b *modelBuilder) unkToken() (int32, error) {
	if b.UnkToken == nil {
		return noID, nil
	}
	id, ok := b.v.ids[*b.UnkToken]
	if !ok {
		return noID, fmt.Errorf("model.unk_token: %s is not a token", quote(*b.UnkToken))
	}
	return id, nil
}

func (b *modelBuilder) wordPiece() (model, error) {
	m := &wordPiece{trie: newTrie(2 * len(b.entries)), maxChars: 100}
	for _, e := range b.entries {
		if e.token != "" && b.v.kinds[e.id] != special {
			m.trie.add(e.token, int32(e.id))
		}
	}
	prefix := "##"
	if b.Prefix != nil {
		prefix = *b.Prefix
	}
	m.within, m.inWord = m.trie.node(prefix)
	if b.MaxChars != nil {
		if *b.MaxChars < 0 {
			return nil, fmt.Errorf("model.max_input_chars_per_word: is %d", *b.MaxChars)
		}
		m.maxChars = int(min(*b.MaxChars, math.MaxInt32))
	}
	if b.UnkToken == nil {
		return nil, errors.New("model.unk_token: is missing")
	}
	var err error
	m.unk, err = b.unkToken()
	return m, err
}

func (b *modelBuilder) unigram() (model, error) {
	lowest := math.Inf(1)
	scores := make([]float64, len(b.entries))
	for i, e := range b.entries {
		scores[i] = e.score
		lowest = min(lowest, e.score)
	}
	tokens := b.v.tokens[:len(b.entries)]
	m, err := newUnigram(tokens, scores, func(id int) bool { return b.v.kinds[id] != special })
	if err != nil {
		return nil, fmt.Errorf("model.vocab: %w", err)
	}
	m.unkScore = lowest - unkPenalty
	if b.UnkID != nil {
		if *b.UnkID < 0 || *b.UnkID >= int64(len(b.entries)) {
			return nil, fmt.Errorf("model.unk_id: %d is outside the vocabulary of %d", *b.UnkID, len(b.entries))
		}
		m.unk = int32(*b.UnkID)
	}
	if b.ByteFallback {
		m.bytes = b.v.fallbackBytes()
	}
	return m, nil
}

// deref returns the string that s points to, or "" for nil.
func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
