package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// FromSentencePiece reads a tokenizer from SentencePiece's tokenizer.model
// (sentencepiece_model.proto) and from the tokenizer_config.json in the same directory, which
// may be nil.
//
// It supports the model types unigram and bpe. Other types, and a file that denormalises text,
// are an [*UnsupportedError]. The tokens equal SentencePiece's, except that bytes of invalid
// UTF-8 are kept instead of becoming U+FFFD. With ParseSpecial, control symbols are matched in
// the text, and each part between them is encoded as a separate text.
//
// tokenizer_config.json lists additional tokens in added_tokens_decoder and selects the tokens
// that are added around the text. If it lacks add_bos_token or add_eos_token, tokenizer_class
// decides.
func FromSentencePiece(tokenizerModel, tokenizerConfig []byte) (*Tokenizer, error) {
	t, err := fromSentencePiece(tokenizerModel, tokenizerConfig)
	var unsupported *UnsupportedError
	if err == nil || errors.As(err, &unsupported) {
		return t, err
	}
	return nil, fmt.Errorf("tokenizer: %w", err)
}

// pieceModel is the content of a ModelProto.
type pieceModel struct {
	pieces []protoPiece
	norm   pieceNormalizer
	typ    uint64 // TrainerSpec.ModelType
	// charsMap is the normalizer's map as stored in the file.
	charsMap []byte
	ids      struct{ unk, bos, eos, pad int32 }
}

type protoPiece struct {
	text  string
	score float32
	kind  uint64
}

// Types of pieces in ModelProto.SentencePiece.Type. GGUF's token types have the same numbers.
const (
	typeNormal      = 1
	typeUnknown     = 2
	typeControl     = 3
	typeUserDefined = 4
	typeUnused      = 5
	typeByte        = 6
)

func fromSentencePiece(data, config []byte) (*Tokenizer, error) {
	m, err := parsePieceModel(data)
	if err != nil {
		var unsupported *UnsupportedError
		if errors.As(err, &unsupported) {
			return nil, unsupported
		}
		return nil, fmt.Errorf("tokenizer.model: %w", err)
	}
	var c configFile
	if config != nil {
		if err := json.Unmarshal(config, &c); err != nil {
			return nil, fmt.Errorf("tokenizer_config.json: %w", err)
		}
	}
	size := len(m.pieces)
	for id := range c.Added {
		size = max(size, min(int(id), 2*len(m.pieces)+4096)+1)
	}
	v := &scored{vocabulary: newVocabulary(size), scores: make([]float32, size), unk: noID, frozen: true}
	var added []addedToken
	for i, p := range m.pieces {
		id := int32(i)
		kind, err := pieceKind(p.kind)
		if err != nil {
			return nil, fmt.Errorf("tokenizer.model: piece %d: %w", i, err)
		}
		if p.text == "" || !utf8.ValidString(p.text) {
			return nil, fmt.Errorf("tokenizer.model: piece %d is empty or not UTF-8", i)
		}
		if err := v.add(id, p.text, kind); err != nil {
			return nil, fmt.Errorf("tokenizer.model: %w", err)
		}
		v.scores[i] = p.score
		if p.kind == typeUnknown {
			v.unk = id
		}
		if kind == special {
			added = append(added, addedToken{content: p.text, id: id, special: true})
		}
		if kind == byteToken {
			if _, ok := byteOf(p.text); !ok {
				return nil, fmt.Errorf("tokenizer.model: piece %d of type BYTE is %s, want the form <0x41>", i, quote(p.text))
			}
		}
	}
	if v.unk == noID {
		return nil, errors.New("tokenizer.model: no piece has the type UNKNOWN")
	}
	if err := checkScores(v.scores); err != nil {
		return nil, fmt.Errorf("tokenizer.model: %w", err)
	}
	t := &Tokenizer{
		tokens: v.tokens, kinds: v.kinds, ids: v.ids,
		normals: newMatcher(nil),
		bos:     noID, eos: noID, cache: newWordCache(),
	}
	if err := t.setPieces(v, m.typ == 2, m.norm); err != nil {
		return nil, fmt.Errorf("tokenizer.model: %w", err)
	}
	more, err := c.addTokens(v.vocabulary)
	if err != nil {
		return nil, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	t.raw = newMatcher(append(added, more...))
	t.decoding = pieceDecoding(v.vocabulary, v.unk, m.norm)
	for _, s := range []struct {
		to *int32
		id int32
	}{{&t.bos, m.ids.bos}, {&t.eos, m.ids.eos}} {
		if s.id >= 0 && int(s.id) < len(m.pieces) && v.kinds[s.id] == special {
			*s.to = s.id
		}
	}
	if config == nil {
		t.addStop(t.eos)
		return t, nil
	}
	c.defaults()
	if err := t.apply(&c); err != nil {
		return nil, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	return t, nil
}

func pieceKind(typ uint64) (tokenKind, error) {
	switch typ {
	case typeNormal:
		return normal, nil
	case typeUnknown, typeControl:
		return special, nil
	case typeUserDefined:
		return userDefined, nil
	case typeUnused:
		return unused, nil
	case typeByte:
		return byteToken, nil
	}
	return absent, fmt.Errorf("has the unknown type %d", typ)
}

// setPieces sets t's model and normalizer to those of a SentencePiece vocabulary.
func (t *Tokenizer) setPieces(v *scored, bpe bool, n pieceNormalizer) error {
	if v.frozen {
		for id, kind := range v.kinds {
			if kind == userDefined {
				if n.frozen == nil {
					n.frozen = newTrie(64)
				}
				n.frozen.add(v.tokens[id], int32(id))
			}
		}
	}
	if n != (pieceNormalizer{}) {
		t.normalizers = []normalizer{n.normalize}
	}
	if !bpe {
		m, err := v.unigram()
		t.model = m
		return err
	}
	m, err := v.model()
	if err != nil {
		return err
	}
	t.model = m
	frozen := func(id int) bool { return v.kinds[id] == userDefined && v.frozen }
	if c := newWordCutter(m, v.tokens, frozen); c != nil {
		t.stages = []stage{{cut: c}}
	}
	return nil
}

// pieceDecoding returns the decoding of a SentencePiece vocabulary.
func pieceDecoding(v *vocabulary, unk int32, n pieceNormalizer) decoding {
	d := decoding{pieces: make([]string, len(v.tokens)), unk: unk}
	for id, token := range v.tokens {
		switch v.kinds[id] {
		case byteToken:
			b, _ := byteOf(token)
			d.pieces[id] = string([]byte{b})
		case normal, unused, userDefined:
			d.pieces[id] = token
			if n.escape {
				d.pieces[id] = strings.ReplaceAll(token, spaceMark, " ")
			}
		}
	}
	switch {
	case n.squeeze:
		d.untilText = true
		d.starts = make([]string, len(d.pieces))
		for id, piece := range d.pieces {
			d.starts[id] = strings.TrimPrefix(piece, " ")
		}
	case n.dummy:
		d.strip, d.times = " ", 1
	}
	return d
}

// parsePieceModel reads a ModelProto.
func parsePieceModel(data []byte) (*pieceModel, error) {
	m := &pieceModel{typ: 1, norm: pieceNormalizer{dummy: true, squeeze: true, escape: true}}
	m.ids.bos, m.ids.eos = 1, 2
	err := eachField(data, func(num protowire.Number, f protoField) error {
		switch num {
		case 1:
			if len(m.pieces) == maxTokens {
				return fmt.Errorf("more than %d pieces", maxTokens)
			}
			p := protoPiece{kind: typeNormal}
			err := eachField(f.bytes, func(num protowire.Number, f protoField) error {
				switch num {
				case 1:
					p.text = string(f.bytes)
				case 2:
					p.score = math.Float32frombits(uint32(f.number))
				case 3:
					p.kind = f.number
				}
				return nil
			})
			m.pieces = append(m.pieces, p)
			if err != nil {
				return fmt.Errorf("piece %d: %w", len(m.pieces)-1, err)
			}
		case 2:
			return m.trainerSpec(f.bytes)
		case 3:
			return m.normalizerSpec(f.bytes)
		case 5:
			return m.denormalizerSpec(f.bytes)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(m.pieces) == 0 {
		return nil, errors.New("the file has no pieces")
	}
	switch m.typ {
	case 1, 2:
	case 3:
		return nil, &UnsupportedError{"tokenizer.model trainer_spec.model_type", "WORD"}
	case 4:
		return nil, &UnsupportedError{"tokenizer.model trainer_spec.model_type", "CHAR"}
	default:
		return nil, &UnsupportedError{"tokenizer.model trainer_spec.model_type", fmt.Sprint(m.typ)}
	}
	return m, nil
}

func (m *pieceModel) trainerSpec(data []byte) error {
	return eachField(data, func(num protowire.Number, f protoField) error {
		switch num {
		case 3:
			m.typ = f.number
		case 24:
			m.norm.suffix = f.number != 0
		case 41:
			m.ids.bos = int32(f.number)
		case 42:
			m.ids.eos = int32(f.number)
		}
		return nil
	})
}

func (m *pieceModel) normalizerSpec(data []byte) error {
	return eachField(data, func(num protowire.Number, f protoField) (err error) {
		switch num {
		case 2:
			if len(f.bytes) > 0 {
				m.charsMap = f.bytes
				m.norm.charsMap, err = newCharsMap(f.bytes)
			}
		case 3:
			m.norm.dummy = f.number != 0
		case 4:
			m.norm.squeeze = f.number != 0
		case 5:
			m.norm.escape = f.number != 0
		}
		return err
	})
}

func (m *pieceModel) denormalizerSpec(data []byte) error {
	return eachField(data, func(num protowire.Number, f protoField) error {
		if num == 2 && len(f.bytes) > 0 {
			return &UnsupportedError{"tokenizer.model denormalizer_spec", "precompiled_charsmap"}
		}
		return nil
	})
}

// protoField is the value of a protobuf field: a number or bytes.
type protoField struct {
	number uint64
	bytes  []byte
}

// eachField calls f for each field of a message, in order.
func eachField(data []byte, f func(num protowire.Number, field protoField) error) error {
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		var field protoField
		switch typ {
		case protowire.VarintType:
			field.number, n = protowire.ConsumeVarint(data)
		case protowire.Fixed32Type:
			var v uint32
			v, n = protowire.ConsumeFixed32(data)
			field.number = uint64(v)
		case protowire.BytesType:
			field.bytes, n = protowire.ConsumeBytes(data)
		default:
			n = protowire.ConsumeFieldValue(num, typ, data)
		}
		if n < 0 {
			return fmt.Errorf("field %d: %w", num, protowire.ParseError(n))
		}
		if err := f(num, field); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}
