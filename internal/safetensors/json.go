package safetensors

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

const (
	// maxToken bounds a name, a number or a string of the metadata.
	maxToken = 4 << 20
	// maxMemory bounds what a header decodes to. 200,000 tensors take about
	// 40 MiB.
	maxMemory = 96 << 20
)

var (
	errMemory = fmt.Errorf("takes more than %d MiB", maxMemory>>20)
	errToken  = fmt.Errorf("has a string of more than %d MiB", maxToken>>20)
)

// parser reads JSON from front to back, never holding more of it than a token.
type parser struct {
	dec    *json.Decoder
	memory uint64 // what may still be allocated
}

func newParser(r io.Reader) *parser {
	lr := &tokenReader{r: bufio.NewReaderSize(r, 64<<10)}
	p := &parser{dec: json.NewDecoder(lr), memory: maxMemory}
	lr.dec = p.dec
	p.dec.UseNumber()
	return p
}

// tokenReader fails where a decoder reads further ahead than a token may be
// long, so that its buffer stays bounded.
type tokenReader struct {
	r    io.Reader
	dec  *json.Decoder
	read int64
}

func (t *tokenReader) Read(b []byte) (int, error) {
	if t.read-t.dec.InputOffset() > maxToken {
		return 0, errToken
	}
	n, err := t.r.Read(b)
	t.read += int64(n)
	return n, err
}

// charge takes n bytes off what may still be allocated.
func (p *parser) charge(n int) error {
	if uint64(n) > p.memory {
		return errMemory
	}
	p.memory -= uint64(n)
	return nil
}

func (p *parser) token() (json.Token, error) {
	t, err := p.dec.Token()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("at byte %d: %w", p.dec.InputOffset(), err)
	}
	return t, nil
}

// want returns the error for a token that is something else.
func (p *parser) want(what string, got json.Token) error {
	name := "null"
	switch t := got.(type) {
	case json.Delim:
		name = t.String()
	case string:
		name = "a string"
	case json.Number:
		name = quote(t.String())
	case bool:
		name = strconv.FormatBool(t)
	}
	return fmt.Errorf("at byte %d: %s, want %s", p.dec.InputOffset(), name, what)
}

// object reads an object and calls member, which reads the value, for each
// key. A key that is there twice is an error; keys are kept to find it.
func (p *parser) object(member func(key string) error) error {
	t, err := p.token()
	if err != nil {
		return err
	}
	if t != json.Delim('{') {
		return p.want("an object", t)
	}
	keys := map[string]struct{}{}
	for {
		t, err := p.token()
		if err != nil {
			return err
		}
		key, ok := t.(string)
		if !ok {
			return nil // the decoder lets only the end of the object through here
		}
		if _, dup := keys[key]; dup {
			return fmt.Errorf("key %s is there twice", quote(key))
		}
		if err := p.charge(len(key) + 48); err != nil {
			return err
		}
		keys[key] = struct{}{}
		if err := member(key); err != nil {
			return err
		}
	}
}

func (p *parser) string() (string, error) {
	t, err := p.token()
	if err != nil {
		return "", err
	}
	s, ok := t.(string)
	if !ok {
		return "", p.want("a string", t)
	}
	return s, nil
}

// uints reads an array of at most limit integers from 0 to 2^64 - 1.
func (p *parser) uints(limit int) ([]uint64, error) {
	t, err := p.token()
	if err != nil {
		return nil, err
	}
	if t != json.Delim('[') {
		return nil, p.want("an array", t)
	}
	list := []uint64{}
	for {
		t, err := p.token()
		if err != nil {
			return nil, err
		}
		if t == json.Delim(']') {
			return list, nil
		}
		number, ok := t.(json.Number)
		if !ok {
			return nil, p.want("a number", t)
		}
		v, err := strconv.ParseUint(string(number), 10, 64)
		if err != nil {
			return nil, p.want("an integer from 0 to 2^64 - 1", t)
		}
		if len(list) == limit {
			return nil, fmt.Errorf("at byte %d: more than %d numbers", p.dec.InputOffset(), limit)
		}
		list = append(list, v)
	}
}

// skip reads a value of any kind.
func (p *parser) skip() error {
	for depth := 0; ; {
		t, err := p.token()
		if err != nil {
			return err
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return nil
		}
	}
}

// end checks that nothing but white space follows.
func (p *parser) end() error {
	t, err := p.dec.Token()
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("at byte %d: %w", p.dec.InputOffset(), err)
	}
	return p.want("the end", t)
}

// quote returns a name for an error message, in quotes where it is not plain,
// so that the message stays one line of moderate length.
func quote(s string) string {
	const limit = 128
	plain := len(s) <= limit && s != ""
	for i := 0; plain && i < len(s); i++ {
		plain = s[i] > ' ' && s[i] < 0x7f
	}
	if plain {
		return s
	}
	if len(s) > limit {
		return strconv.QuoteToASCII(s[:limit]) + "..."
	}
	return strconv.QuoteToASCII(s)
}
