package tokenizer

import (
	"fmt"
	"strings"
)

// sentencePiece reads a tokenizer of SentencePiece: model llama (BPE) or t5 (unigram).
func (m ggufMeta) sentencePiece(bpe bool) (*Tokenizer, error) {
	v, added, err := m.vocabulary()
	if err != nil {
		return nil, err
	}
	s := &scored{vocabulary: v}
	if s.scores, err = m.scores(len(v.tokens)); err != nil {
		return nil, err
	}
	n := pieceNormalizer{dummy: bpe, escape: true}
	defaults, add := specialIDs{bos: 1, eos: 2, sep: noID}, adds{bos: true}
	s.unk = 0
	if !bpe {
		defaults, add = specialIDs{bos: noID, eos: 1, sep: noID}, adds{eos: true}
		s.unk = 2
		if n.charsMap, err = m.charsMap(); err != nil {
			return nil, err
		}
		if n.squeeze, _, err = m.flag("tokenizer.ggml.remove_extra_whitespaces"); err != nil {
			return nil, err
		}
	}
	if dummy, ok, err := m.flag("tokenizer.ggml.add_space_prefix"); err != nil {
		return nil, err
	} else if ok {
		n.dummy = dummy
	}
	if s.unk, err = m.unknown(s.unk, v); err != nil {
		return nil, err
	}
	if bpe {
		if err := m.phi3(added); err != nil {
			return nil, err
		}
	}
	t := v.tokenizer(nil, added)
	if err := t.setPieces(s, bpe, n); err != nil {
		return nil, fmt.Errorf("tokenizer.ggml.tokens: %w", err)
	}
	t.decoding = pieceDecoding(v, s.unk, n)
	return t, m.specials(t, defaults, add)
}

// characters reads a tokenizer of model gemma4: BPE of the characters of lines, in which U+2581 stands
// for spaces. A run of line ends that is a token is not merged, and characters without a token become
// tokens of their bytes.
func (m ggufMeta) characters() (*Tokenizer, error) {
	v, added, err := m.vocabulary()
	if err != nil {
		return nil, err
	}
	b := newCharBPE()
	if b.merges, err = m.merges(v); err != nil {
		return nil, err
	}
	if b.unk, err = m.unknown(noID, v); err != nil {
		return nil, err
	}
	b.bytes, b.words = v.fallbackBytes(), map[string]int32{}
	for id, token := range v.tokens {
		if k := v.kinds[id]; k != normal && k != userDefined {
			continue
		}
		if r, ok := oneRune(token); ok {
			b.setChar(r, int32(id))
		}
		if token != "" && strings.Trim(token, "\n") == "" {
			b.words[token] = int32(id)
		}
	}
	n := pieceNormalizer{escape: true}
	t := v.tokenizer(b, added)
	t.normalizers = []normalizer{n.normalize}
	t.stages = []stage{{cut: contiguous{stringPattern("\n")}}}
	t.decoding = pieceDecoding(v, b.unk, n)
	return t, m.specials(t, specialIDs{bos: noID, eos: noID, sep: noID}, adds{bos: true})
}

// wordPiece reads a tokenizer of model bert. Its vocabulary marks the tokens that begin a word
// and leaves the others unmarked.
func (m ggufMeta) wordPiece() (*Tokenizer, error) {
	v, added, err := m.vocabulary()
	if err != nil {
		return nil, err
	}
	n := bertNormalizer{clean: true, chinese: true, lower: true}
	if lower, ok, err := m.flag("tokenizer.ggml.normalizer.lowercase"); err != nil {
		return nil, err
	} else if ok {
		n.lower = lower
	}
	n.accents = n.lower
	if accents, ok, err := m.flag("tokenizer.ggml.normalizer.strip_accents"); err != nil {
		return nil, err
	} else if ok {
		n.accents = accents
	}
	w := &wordPiece{trie: newTrie(2 * len(v.tokens)), inWord: true, maxChars: maxText}
	for id, token := range v.tokens {
		if k := v.kinds[id]; token != "" && (k == normal || k == userDefined || k == byteToken) {
			w.trie.add(token, int32(id))
		}
	}
	if w.unk, err = m.unknown(100, v); err != nil {
		return nil, err
	}
	if w.unk == noID {
		return nil, fmt.Errorf("tokenizer.ggml.unknown_token_id: the vocabulary has no such token")
	}
	t := v.tokenizer(w, added)
	t.normalizers = []normalizer{n.normalize}
	classes := newClassTable()
	t.stages = []stage{
		{cut: removed{classPattern{classes: classes, set: space}}},
		{cut: isolated{classPattern{classes: classes, set: punct, ascii: asciiPunctuation}}},
		{rewrite: func(s string, _ bool) string { return spaceMark + s }},
	}
	t.decoding = v.wordDecoding()
	return t, m.specials(t, specialIDs{bos: 101, eos: noID, sep: 102}, adds{bos: true, sep: true})
}

// wordDecoding returns the decoding of a vocabulary in which tokens that begin a word are
// marked.
func (v *vocabulary) wordDecoding() decoding {
	d := decoding{unk: noID, pieces: make([]string, len(v.tokens)), starts: make([]string, len(v.tokens))}
	for id, token := range v.tokens {
		if k := v.kinds[id]; k == normal || k == userDefined {
			spaced := strings.ReplaceAll(token, spaceMark, " ")
			d.pieces[id] = cleanup(spaced)
			d.starts[id] = strings.TrimPrefix(spaced, " ")
		}
	}
	return d
}

// scores returns the scores of tokens, all 0 if the key is absent.
func (m ggufMeta) scores(tokens int) ([]float32, error) {
	const key = "tokenizer.ggml.scores"
	v, ok := m.Meta.Meta(key)
	if !ok {
		return make([]float32, tokens), nil
	}
	s, ok := v.([]float32)
	if !ok {
		return nil, fmt.Errorf("%s: is %T, want an array of float32", key, v)
	}
	if len(s) < tokens {
		return nil, fmt.Errorf("%s: %d scores for %d tokens", key, len(s), tokens)
	}
	if err := checkScores(s[:tokens]); err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return s[:tokens], nil
}

func (m ggufMeta) charsMap() (*charsMap, error) {
	const key = "tokenizer.ggml.precompiled_charsmap"
	v, ok := m.Meta.Meta(key)
	if !ok {
		return nil, nil
	}
	var data []byte
	switch v := v.(type) {
	case []uint8:
		data = v
	case []int8:
		data = make([]byte, len(v))
		for i, b := range v {
			data[i] = byte(b)
		}
	default:
		return nil, fmt.Errorf("%s: is %T, want an array of bytes", key, v)
	}
	if len(data) == 0 {
		return nil, nil
	}
	c, err := newCharsMap(data)
	if err != nil {
		return nil, fmt.Errorf("tokenizer.ggml.%w", err)
	}
	return c, nil
}

// unknown returns the token for unknown characters, or noID if there is none.
func (m ggufMeta) unknown(id int32, v *vocabulary) (int32, error) {
	given, err := m.tokenID("tokenizer.ggml.unknown_token_id", len(v.tokens))
	if err != nil {
		return noID, err
	}
	if given != noID {
		id = given
	}
	if id < 0 || int(id) >= len(v.tokens) || v.kinds[id] == absent {
		return noID, nil
	}
	return id, nil
}

// phi3 makes the special tokens of Phi 3 absorb the white space after them, because GGUF does
// not record this property. Like llama.cpp, phi3 recognises the model by its name.
func (m ggufMeta) phi3(added []addedToken) error {
	name, _, err := m.text("general.name")
	if err != nil {
		return err
	}
	if name = strings.ToLower(name); !strings.Contains(name, "phi-3") && !strings.Contains(name, "phi3") {
		return nil
	}
	for i := range added {
		a := &added[i]
		switch a.content {
		case "<unk>", "<s>", "<|endoftext|>":
		case "</s>":
			a.rstrip = true
		default:
			a.rstrip = a.special
		}
	}
	return nil
}
